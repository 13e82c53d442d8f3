//! What is known of one container, and what is said about it. Pure.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::{cpuset::CpuSet, plugin::nri::cpuset::Cpuset};

/// What a container is to this driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::plugin::nri) enum Use {
    /// It uses claims, and gets this. What is empty in it is not for this plugin to set.
    Claim(Cpuset),
    /// It uses no claim, or runs with the mark of one that it may not use. Only its CPUs are ever restricted.
    Free,
}

impl Use {
    /// The part of a placement that is for this plugin to set. The rest belongs to the kubelet or to another plugin, and
    /// is neither remembered nor written: an update that repeats it would undo what its owner changed since.
    pub fn own(&self, placement: Cpuset) -> Cpuset {
        let own = |set: CpuSet, is_own: bool| if is_own { set } else { CpuSet::new() };
        let (cpus, memory_nodes) = match self {
            Self::Claim(granted) => (!granted.cpus.is_empty(), !granted.memory_nodes.is_empty()),
            Self::Free => (true, false),
        };
        Cpuset { cpus: own(placement.cpus, cpus), memory_nodes: own(placement.memory_nodes, memory_nodes) }
    }
}

/// A container that the runtime has, as it reports it at synchronisation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::plugin::nri) struct Observed {
    pub id: String,
    pub usage: Use,
    pub placement: Cpuset,
}

/// What is remembered, over restarts, of a container that is kept to less than it had.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::plugin::nri) struct Remembered {
    /// What it had before.
    pub before: Cpuset,
    /// What it may have been given since. If it has anything else, it got that from something else.
    pub given: Vec<Cpuset>,
}

/// A change to one container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::plugin::nri) struct Change {
    pub id: String,
    pub placement: Arc<Cpuset>,
}

/// What is known of a container.
#[derive(Debug)]
pub(super) struct Known {
    pub usage: Use,
    /// What it would have without this plugin.
    pub before: Arc<Cpuset>,
    /// What it has now, as far as the runtime has confirmed.
    pub has: Arc<Cpuset>,
    /// What the runtime was asked to give it and has not confirmed.
    pub asked: Option<Arc<Cpuset>>,
    /// The runtime can find it. Before that, an update of it would be lost without an error.
    pub updatable: bool,
    /// Whether it runs.
    pub start: Start,
    /// Give it its placement even if it seems to have it.
    pub reassert: bool,
    /// How to try the next change.
    pub attempts: Attempts,
}

impl Known {
    /// A container that has `has`, and that the runtime cannot find yet.
    pub fn new(usage: Use, has: Arc<Cpuset>) -> Self {
        Self {
            usage,
            before: Arc::clone(&has),
            has,
            asked: None,
            updatable: false,
            start: Start::Unreported,
            reassert: false,
            attempts: Attempts::WithOthers,
        }
    }
}

/// Whether the runtime has reported that a container runs. Until then it may be starting: an update then changes the
/// container's spec, but perhaps not the process, which may have been made from the old one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Start {
    /// Not yet, or it ran before this plugin connected: then the runtime never will.
    Unreported,
    /// Not yet, and the container was changed: the change is made again once it runs.
    Changed,
    /// It runs.
    Reported,
}

/// How a container is to be changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Attempts {
    /// Together with others in one call.
    WithOthers,
    /// In a call of its own: one with others failed.
    Alone,
    /// Not until the next retry: the call of its own failed too.
    Failed,
}
