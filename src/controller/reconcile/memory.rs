//! What is remembered of one config between looks; lost with the process, and then learnt anew. Pure.

use jiff::Timestamp;
use kube::ResourceExt;

use crate::{
    api::{DraDriverConfig, DraDriverConfigStatus},
    controller::{
        judge::{self, Judged},
        plan::Memory,
    },
};

/// What is remembered of one config between looks.
#[derive(Debug, Default)]
pub struct Remembered {
    pub(in crate::controller) children: Memory,
    pub(in crate::controller) attempts: u32,
    pub(in crate::controller) judge: judge::Memory,
    /// The status last written: its object's version, when, and what it says.
    pub(in crate::controller) written: Option<(u64, Timestamp, DraDriverConfigStatus)>,
    /// When a status that waits may be written.
    pub(in crate::controller) owed: Option<Timestamp>,
    /// Why a pod cannot be made, and when that was asked.
    pub(in crate::controller) refusal: Option<(Timestamp, Option<String>)>,
    pub(in crate::controller) counted: Counted,
}

impl Remembered {
    /// The config with the status it has by now, where the watch has yet to bring back what was written.
    pub(in crate::controller) fn latest(&self, config: &DraDriverConfig) -> DraDriverConfig {
        let version = version(config);
        let newer = self.written.as_ref().filter(|(written, ..)| *written > version);
        let status = newer.map(|(.., status)| status.clone());
        DraDriverConfig { status: status.or_else(|| config.status.clone()), ..config.clone() }
    }
}

/// Versions only grow (KEP-5504); 0 when it is not told.
pub(in crate::controller) fn version(config: &DraDriverConfig) -> u64 {
    config.resource_version().and_then(|version| version.parse().ok()).unwrap_or(0)
}

/// One config's part of the sums in the metrics.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::controller) struct Counted {
    pub(in crate::controller) ready: i64,
    pub(in crate::controller) unhealthy: i64,
    pub(in crate::controller) devices: i64,
}

impl Counted {
    pub(in crate::controller) fn of(judged: &Judged) -> Self {
        Self {
            ready: judged.rollout.ready.into(),
            unhealthy: i64::try_from(judged.health.unhealthy).unwrap_or(i64::MAX),
            devices: judged.usage.devices.total.into(),
        }
    }
}
