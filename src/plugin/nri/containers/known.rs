//! What is known of one container, and what is told of it. Pure.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::plugin::nri::cpuset::Cpuset;

/// What a container is to this driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::plugin::nri) enum Use {
    /// It uses claims, and gets this.
    Claim(Cpuset),
    /// It uses none, or runs with the mark of one that it may not use.
    Free,
}

/// A container that the runtime has, as it told at synchronisation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::plugin::nri) struct Observed {
    pub id: String,
    pub usage: Use,
    pub placement: Cpuset,
}

/// What is remembered of a container that is kept to less than it had, over restarts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::plugin::nri) struct Remembered {
    /// What it had before.
    pub before: Cpuset,
    /// What it may have been given since: found with anything else, it has that from somebody else.
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
    /// What it has without us.
    pub before: Arc<Cpuset>,
    /// What it has now, as far as the runtime confirmed.
    pub has: Arc<Cpuset>,
    /// What the runtime was asked to give it and has not confirmed.
    pub asked: Option<Arc<Cpuset>>,
    /// The runtime can find it: before that, an update of it would be lost without a word.
    pub updatable: bool,
    /// Whether the runtime said that it runs.
    pub start: Start,
    /// To be given its placement even if it seems to have it.
    pub reassert: bool,
    /// Updates of several failed, so it is tried alone; then it failed alone, and is not tried until later.
    pub attempts: Attempts,
}

/// Whether the runtime said that a container runs. Until then it may be starting, and an update changes what is written
/// down of it, and not the process that was already made from that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Start {
    /// Not yet; of one that ran before we were there it never will.
    Unsaid,
    /// Not yet, and it was changed: once it runs, the change is made again.
    Doubtful,
    Said,
}

/// How a container is to be changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Attempts {
    WithOthers,
    Alone,
    Failed,
}
