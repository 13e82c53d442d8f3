//! The presets and the matches that they stand for. Pure.
//!
//! | preset | a device is in the class when its machine … |
//! |---|---|
//! | `HighPerformance` | has 32 cores or more **and** 256 GB of memory or more |
//! | `GeneralPurpose` | is not a high-performance one: fewer than 32 cores, or less than 256 GB, or one of the two is unknown |
//! | `Arm` | has the architecture `arm64` |
//! | `Intel` | has the vendor `Intel` |
//! | `Amd` | has the vendor `AMD` |
//!
//! The first two depend on size alone, so they mean the same on any vendor's hardware, and every device of the driver
//! is in exactly one of them: large machines are kept for workloads that ask for them. Current two-socket servers start
//! at 32 cores with 256 GB; 8 GB per core is the usual ratio.
//!
//! A match on the same key replaces the preset's: `{preset: HighPerformance, matchAttributes: [{key: cores, operator:
//! Gte, value: 64}]}` asks for 64 cores and still for 256 GB. In `GeneralPurpose` the two keys belong together ("not both
//! of these"), so a match on either key replaces both.

use crate::api::{Match, MatchOperator, Preset, Scalar};

/// A machine with at least this many cores can be a high-performance one.
pub const HIGH_PERFORMANCE_CORES: i64 = 32;
/// A machine with at least this much memory can be a high-performance one. In GB, like the attribute `memoryGB`.
pub const HIGH_PERFORMANCE_MEMORY_GB: i64 = 256;

/// What a preset demands: matches on attributes that the driver publishes under its own name.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Terms {
    /// All of these must hold.
    pub all: Vec<Match>,
    /// These must not all hold at once; empty if the preset has no such demand.
    pub not_all: Vec<Match>,
}

impl Preset {
    /// What the preset demands.
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
