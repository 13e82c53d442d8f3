//! What is remembered of one config between looks; lost with the process, and then learnt anew. Pure.

use std::{collections::HashMap, sync::Arc};

use jiff::Timestamp;
use kube::ResourceExt;

use crate::{
    api::{DraDriverConfig, DraDriverConfigStatus},
    controller::{health::Unwell, plan::Memory},
    policy::preview::Matcher,
};

/// What is remembered of one config between looks.
#[derive(Debug, Default)]
pub struct Remembered {
    pub(super) children: Memory,
    pub(super) unwell: Option<Unwell>,
    pub(super) attempts: u32,
    pub(super) matchers: HashMap<u64, Arc<Matcher>>,
    /// The status last written: its object's version, when, and what it says.
    pub(super) written: Option<(u64, Timestamp, DraDriverConfigStatus)>,
    /// When a status that waits may be written.
    pub(super) owed: Option<Timestamp>,
    /// Why a pod cannot be made, and when that was asked.
    pub(super) refusal: Option<(Timestamp, Option<String>)>,
    pub(super) counted: Counted,
}

impl Remembered {
    /// The config with the status it has by now, where the watch has yet to bring back what was written.
    pub(super) fn latest(&self, config: &DraDriverConfig) -> DraDriverConfig {
        let version = version(config);
        let newer = self.written.as_ref().filter(|(written, ..)| *written > version);
        let status = newer.map(|(.., status)| status.clone());
        DraDriverConfig { status: status.or_else(|| config.status.clone()), ..config.clone() }
    }
}

/// Versions only grow (KEP-5504); 0 when it is not told.
pub(super) fn version(config: &DraDriverConfig) -> u64 {
    config.resource_version().and_then(|version| version.parse().ok()).unwrap_or(0)
}

/// One config's part of the sums in the metrics.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counted {
    pub(super) ready: i64,
    pub(super) unhealthy: i64,
    pub(super) devices: i64,
}
