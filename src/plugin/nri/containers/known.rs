//! What is known about one container. Pure.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::{cpuset::CpuSet, plugin::nri::cpuset::Cpuset};

/// How this driver treats a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::plugin::nri) enum Use {
    /// It uses claims and gets this placement. This plugin does not set fields that are empty in it.
    Claim(Cpuset),
    /// It uses no claim, or runs with the mark of a claim that it must not use. Only its CPUs are ever restricted.
    Free,
}

impl Use {
    /// The part of a placement that this plugin sets. The rest belongs to the kubelet or another plugin. It is neither
    /// remembered nor written, because an update that repeated it would undo later changes by its owner.
    pub fn own(&self, placement: Cpuset) -> Cpuset {
        let own = |set: CpuSet, is_own: bool| if is_own { set } else { CpuSet::new() };
        let (cpus, memory_nodes) = match self {
            Self::Claim(granted) => (!granted.cpus.is_empty(), !granted.memory_nodes.is_empty()),
            Self::Free => (true, false),
        };
        Cpuset { cpus: own(placement.cpus, cpus), memory_nodes: own(placement.memory_nodes, memory_nodes) }
    }
}

/// A container as the runtime reports it at synchronisation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::plugin::nri) struct Observed {
    pub id: String,
    pub usage: Use,
    pub placement: Cpuset,
    /// Whether its process was created. Until then, it may be starting.
    pub is_running: bool,
}

/// What is remembered across restarts about a container that is restricted to less than it had.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::plugin::nri) struct Remembered {
    /// What it had before.
    pub before: Cpuset,
    /// What this plugin may have given it since. If it has anything else, another component set it.
    pub given: Vec<Cpuset>,
    /// Whether a change to it was still in progress.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub changing: bool,
}

/// A change to one container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::plugin::nri) struct Change {
    pub id: String,
    pub placement: Arc<Cpuset>,
}

/// How many doubtful placements are kept for a container: the newest.
const MAX_DOUBTFUL: usize = 8;

/// What is known about a container.
#[derive(Debug)]
pub(super) struct Known {
    pub usage: Use,
    /// What it would have without this plugin.
    pub before: Arc<Cpuset>,
    /// What it has now, as confirmed by the runtime.
    pub has: Arc<Cpuset>,
    /// What the answer to its creation or update gives it, until the runtime reports what it has.
    pub answered: Option<Arc<Cpuset>>,
    /// What the unanswered call gives it.
    pub in_flight: Option<Arc<Cpuset>>,
    /// Whether something else changed it during that call.
    pub is_overtaken: bool,
    /// What it may have instead of `has`: what was asked for without a clear answer.
    pub doubtful: Vec<Arc<Cpuset>>,
    /// What the answer to another container's creation gives it, until something else is known about it.
    pub sent_along: Option<Arc<Cpuset>>,
    /// Whether the runtime can find it. Until then, an update of it would be lost without an error.
    pub updatable: bool,
    /// Whether it runs.
    pub start: Start,
    /// Whether to set its placement even if it seems to have it.
    pub reassert: bool,
    /// How to try the next change.
    pub attempts: Attempts,
}

impl Known {
    /// A container with the placement `has` that the runtime cannot find yet.
    pub fn new(usage: Use, has: Arc<Cpuset>) -> Self {
        Self {
            usage,
            before: Arc::clone(&has),
            has,
            answered: None,
            in_flight: None,
            is_overtaken: false,
            doubtful: Vec::new(),
            sent_along: None,
            updatable: false,
            start: Start::Unreported,
            reassert: false,
            attempts: Attempts::WithOthers,
        }
    }

    /// What the runtime was asked to give it without a clear answer so far.
    pub fn unconfirmed(&self) -> impl Iterator<Item = &Arc<Cpuset>> {
        self.answered.iter().chain(&self.in_flight).chain(&self.doubtful)
    }

    /// It may have this placement, now or later, so its own must be set again.
    pub fn doubt(&mut self, placement: &Arc<Cpuset>) {
        self.reassert = true;
        self.sent_along = None;
        if self.doubtful.iter().all(|doubtful| doubtful != placement) {
            // A container that always fails gets ever new ones.
            if self.doubtful.len() == MAX_DOUBTFUL {
                self.doubtful.remove(0);
            }
            self.doubtful.push(Arc::clone(placement));
        }
    }

    /// It gets this placement with the creation of another container.
    pub fn send_along(&mut self, placement: &Arc<Cpuset>) {
        // A call in flight with the same placement has the same result, whichever comes last.
        self.is_overtaken |= self.in_flight.as_ref() != Some(placement);
        self.doubt(placement);
        self.sent_along = Some(Arc::clone(placement));
    }

    /// Records the answer to a call. Returns whether the container has this placement if the call succeeded.
    pub fn take_answer(&mut self, placement: &Arc<Cpuset>) -> bool {
        let is_latest = self.in_flight.take_if(|in_flight| Arc::ptr_eq(in_flight, placement)).is_some();
        is_latest && !self.is_overtaken
    }

    /// It has this placement.
    pub fn settle(&mut self, placement: &Arc<Cpuset>) {
        self.has = Arc::clone(placement);
        self.doubtful = Vec::new();
        self.sent_along = None;
        self.reassert = false;
        self.attempts = Attempts::WithOthers;
    }
}

/// Whether the runtime has reported that a container runs. Until then it may be starting, and an update changes the
/// container's spec but perhaps not the process, which may have been created from the old spec.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Start {
    /// Not reported.
    Unreported,
    /// Not reported, and the container was changed. The change is repeated once it runs.
    Changed,
    /// It runs.
    Reported,
}

/// How a container is to be changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Attempts {
    /// Together with others in one call.
    WithOthers,
    /// In a separate call, because a call with others failed.
    Alone,
    /// Not until the next retry, because the separate call failed too.
    Failed,
}
