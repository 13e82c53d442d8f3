//! The presets, as the matches they stand for. Pure.
//!
//! | preset | a device is in the class when its machine … |
//! |---|---|
//! | `HighPerformance` | has 32 cores or more **and** 256 GB of memory or more |
//! | `GeneralPurpose` | is known to be no high-performance one: fewer than 32 cores, or less than 256 GB, or it does not say |
//! | `Arm` | has the architecture `arm64` |
//! | `Intel` | has the vendor `Intel` |
//! | `Amd` | has the vendor `AMD` |
//!
//! The first two are about size alone, so they mean the same on any vendor's hardware, and by default every device of the
//! driver is in exactly one of them: big machines are kept for who asks for them. 32 cores with 256 GB is where a current
//! two-socket server starts; 8 GB a core is the usual mix.
//!
//! A match on the same key replaces a preset's own: `{preset: HighPerformance, matchAttributes: [{key: cores, operator:
//! Gte, value: 64}]}` asks for 64 cores and still for 256 GB. In `GeneralPurpose` the two keys belong together ("not both
//! of these"), so a match on either replaces both.

use crate::api::{Match, MatchOperator, Preset, Scalar};

/// Cores of a machine from which it is a high-performance one.
pub const HIGH_PERFORMANCE_CORES: i64 = 32;
/// Memory of a machine, in GB as the attribute `memoryGB` has it, from which it is a high-performance one.
pub const HIGH_PERFORMANCE_MEMORY_GB: i64 = 256;

/// What a preset asks for: matches on attributes that the driver publishes under its own name.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Terms {
    /// All of these hold.
    pub all: Vec<Match>,
    /// Not all of these hold; empty for no such demand.
    pub not_all: Vec<Match>,
}

impl Preset {
    /// What the preset asks for.
    pub fn terms(self) -> Terms {
        let large =
            || vec![at_least("cores", HIGH_PERFORMANCE_CORES), at_least("memoryGB", HIGH_PERFORMANCE_MEMORY_GB)];
        let all = |all| Terms { all, not_all: Vec::new() };
        match self {
            Self::HighPerformance => all(large()),
            Self::GeneralPurpose => Terms { all: Vec::new(), not_all: large() },
            Self::Arm => all(vec![is("architecture", "arm64")]),
            Self::Intel => all(vec![is("vendor", "Intel")]),
            Self::Amd => all(vec![is("vendor", "AMD")]),
        }
    }
}

fn at_least(key: &str, value: i64) -> Match {
    Match { key: key.into(), operator: MatchOperator::Gte, values: None, value: Some(Scalar::Int(value)) }
}

fn is(key: &str, value: &str) -> Match {
    let values = Some(vec![Scalar::String(value.into())]);
    Match { key: key.into(), operator: MatchOperator::In, values, value: None }
}
