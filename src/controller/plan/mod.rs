//! What to do about the children: create, correct, recreate, delete, or nothing. Pure.

pub mod deletion;
pub mod drift;
mod memory;

use std::{collections::BTreeSet, fmt};

use jiff::Timestamp;

pub use self::memory::{Memory, WATCH_LAG};
use crate::controller::{
    build::{APPLIED_HASH, Desired},
    child::{Child, ChildKey, ChildKind},
    config::Config,
    observe::Live,
};

/// One step.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Create an object that does not exist; never over one that somebody else creates meanwhile.
    Create(Child),
    /// Apply over our own object.
    Correct {
        /// What is wanted.
        child: Child,
        /// The object it is applied to, and to no other of its name.
        uid: String,
        /// What is not as wanted.
        difference: Difference,
    },
    /// Delete our own object, to recreate it once it is gone: others added to it, and an apply does not remove that.
    Recreate {
        /// Which.
        key: ChildKey,
        /// The object, and no other of its name.
        uid: String,
        /// What was added.
        difference: Difference,
    },
    /// Delete our own object.
    Delete {
        /// Which.
        key: ChildKey,
        /// The object, and no other of its name.
        uid: String,
    },
}

impl Action {
    /// What is attempted.
    pub fn attempt(&self) -> Attempt {
        match self {
            Self::Create(child) | Self::Correct { child, .. } => Attempt::to_apply(child),
            Self::Recreate { key, .. } | Self::Delete { key, .. } => Attempt { key: key.clone(), aim: None },
        }
    }

    /// Why.
    pub fn because(&self) -> Because {
        match self {
            Self::Create(_) => Because::Missing,
            Self::Correct { difference, .. } | Self::Recreate { difference, .. } => {
                Because::Differs(difference.clone())
            }
            Self::Delete { .. } => Because::Unwanted,
        }
    }

    /// Whether it brings the node plugin into being, or changes it.
    pub fn applies_plugin(&self) -> bool {
        match self {
            Self::Create(child) | Self::Correct { child, .. } => child.key.kind == ChildKind::DaemonSet,
            Self::Recreate { .. } | Self::Delete { .. } => false,
        }
    }
}

/// What an action aims at: to have the child like this, or not at all.
#[derive(Clone, Debug, PartialEq)]
pub struct Attempt {
    /// The child.
    pub key: ChildKey,
    aim: Option<u64>,
}

impl Attempt {
    fn to_apply(child: &Child) -> Self {
        Self { key: child.key.clone(), aim: Some(memory::fingerprint(&child.object)) }
    }
}

/// How a live object is not as wanted: the first such field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Difference {
    /// The field has another value; an apply corrects it.
    Changed(String),
    /// The field was added; only a new object is without it.
    Added(String),
}

impl Difference {
    /// The field's path.
    pub fn path(&self) -> &str {
        match self {
            Self::Changed(path) | Self::Added(path) => path,
        }
    }

    fn into_path(self) -> String {
        match self {
            Self::Changed(path) | Self::Added(path) => path,
        }
    }
}

/// Why an object is written or deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Because {
    /// It did not exist.
    Missing,
    /// It was not as wanted.
    Differs(Difference),
    /// It is no longer wanted.
    Unwanted,
}

impl Because {
    /// Whether the object was edited, and its config was not: a config that asks for something else changes the hash of what
    /// is applied.
    pub fn is_drift(&self) -> bool {
        matches!(self, Self::Differs(difference) if !difference.path().contains(APPLIED_HASH))
    }
}

impl fmt::Display for Because {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing => f.write_str("it did not exist"),
            Self::Differs(Difference::Changed(path)) => write!(f, "{path} had changed"),
            Self::Differs(Difference::Added(path)) => write!(f, "{path} had been added"),
            Self::Unwanted => f.write_str("it is no longer wanted"),
        }
    }
}

/// Why a child cannot be as wanted until a person acts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Block {
    /// Another owner has an object of that name.
    NameTaken {
        /// The child.
        key: ChildKey,
        /// Who owns it, for messages.
        owner: String,
    },
    /// The API server rejects it.
    Refused {
        /// The child.
        key: ChildKey,
        /// What the API server says.
        message: String,
    },
    /// The policy cannot be turned into an object.
    Unbuildable {
        /// The child.
        key: ChildKey,
        /// What is wrong.
        message: String,
    },
}

impl Block {
    /// The child.
    pub fn key(&self) -> &ChildKey {
        match self {
            Self::NameTaken { key, .. } | Self::Refused { key, .. } | Self::Unbuildable { key, .. } => key,
        }
    }
}

/// What to do, and what cannot be done.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// In order.
    pub actions: Vec<Action>,
    /// Known before anything is done.
    pub blocks: Vec<Block>,
    /// Children that were deleted and that finalizers keep, for messages.
    pub held: Vec<String>,
}

/// Compares what is wanted with what is live.
pub fn plan(config: &Config, desired: &Desired, live: &[Live], memory: &Memory, now: Timestamp) -> Plan {
    let mut plan = Plan::default();

    // Each wanted child, in the order of application.
    for child in &desired.children {
        let found = live.iter().find(|live| live.key == child.key);
        match step(config, child, found, memory, now) {
            Ok(action) => plan.actions.extend(action),
            Err(block) => plan.blocks.push(block),
        }
        plan.held.extend(found.filter(|live| live.is_of(config)).and_then(Live::held));
    }
    plan.blocks.extend(
        desired
            .unbuildable
            .iter()
            .map(|child| Block::Unbuildable { key: child.key.clone(), message: child.message.clone() }),
    );

    // Then what is no longer wanted. A class that cannot be built now is still wanted: what it was before stays.
    let wanted: BTreeSet<_> = desired
        .children
        .iter()
        .map(|child| &child.key)
        .chain(desired.unbuildable.iter().map(|child| &child.key))
        .collect();
    plan.actions.extend(
        live.iter()
            .filter(|live| !live.terminating && live.is_of(config) && !wanted.contains(&live.key))
            .map(|live| Action::Delete { key: live.key.clone(), uid: live.uid.clone() }),
    );
    plan
}

/// What to do about one child.
fn step(
    config: &Config,
    child: &Child,
    live: Option<&Live>,
    memory: &Memory,
    now: Timestamp,
) -> Result<Option<Action>, Block> {
    let key = || child.key.clone();

    // Another owner's object is never written.
    if let Some(live) = live.filter(|live| !live.is_of(config)) {
        return Err(Block::NameTaken { key: key(), owner: live.owner_name() });
    }

    // An object that is as wanted, or as close to it as the API server lets it be, is left alone.
    let correction = match live {
        None => None,
        // Recreated once it is gone: its deletion is an event.
        Some(live) if live.terminating => return Ok(None),
        Some(live) => match difference(child, live) {
            None => return Ok(None),
            Some(_) if memory.is_settled(child, live) => return Ok(None),
            Some(difference @ Difference::Added(_)) if memory.is_added_to(child) => {
                return Ok(Some(Action::Recreate { key: key(), uid: live.uid.clone(), difference }));
            }
            // An addition may be what an earlier version of the config asked for, and an apply then removes it.
            Some(difference) => Some((live.uid.clone(), difference)),
        },
    };

    // What the API server has just refused is not sent again.
    if let Some(message) = memory.refusal(child, now) {
        return Err(Block::Refused { key: key(), message: message.into() });
    }
    Ok(Some(match correction {
        None => Action::Create(child.clone()),
        Some((uid, difference)) => Action::Correct { child: child.clone(), uid, difference },
    }))
}

fn difference(wanted: &Child, live: &Live) -> Option<Difference> {
    drift::first_intrusion(wanted.key.kind, &wanted.object, &live.object)
        .map(Difference::Added)
        .or_else(|| drift::first_difference(&wanted.object, &live.object).map(Difference::Changed))
}

#[cfg(test)]
mod tests;
