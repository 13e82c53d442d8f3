//! Plans what to do with each child: create, correct, recreate, delete, or nothing. Pure.

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
    /// Create an object that does not exist, without overwriting one that another client creates in the meantime.
    Create(Child),
    /// Correct our own object with an apply.
    Correct {
        /// The wanted child.
        child: Child,
        /// UID of the object, so that no other object with its name is changed.
        uid: String,
        /// How the object differs.
        difference: Difference,
    },
    /// Delete our own object, to recreate it once it is gone. Others added a field that an apply does not remove.
    Recreate {
        /// The child.
        key: ChildKey,
        /// UID of the object, so that no other object with its name is deleted.
        uid: String,
        /// The addition.
        difference: Difference,
    },
    /// Delete our own object.
    Delete {
        /// The child.
        key: ChildKey,
        /// UID of the object, so that no other object with its name is deleted.
        uid: String,
    },
}

impl Action {
    /// The write that the action attempts.
    pub fn attempt(&self) -> Attempt {
        match self {
            Self::Create(child) | Self::Correct { child, .. } => Attempt::to_apply(child),
            Self::Recreate { key, .. } | Self::Delete { key, .. } => Attempt { key: key.clone(), aim: None },
        }
    }

    /// Why the action is needed.
    pub fn because(&self) -> Because {
        match self {
            Self::Create(_) => Because::Missing,
            Self::Correct { difference, .. } | Self::Recreate { difference, .. } => {
                Because::Differs(difference.clone())
            }
            Self::Delete { .. } => Because::Unwanted,
        }
    }

    /// Whether it creates or changes the node plugin.
    pub fn applies_plugin(&self) -> bool {
        match self {
            Self::Create(child) | Self::Correct { child, .. } => child.key.kind == ChildKind::DaemonSet,
            Self::Recreate { .. } | Self::Delete { .. } => false,
        }
    }
}

/// The goal of an action: that the child looks like this, or does not exist.
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

/// The first difference between a live object and the wanted one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Difference {
    /// The field has another value, which an apply corrects.
    Changed(String),
    /// The field was added, and only recreating the object removes it.
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
    /// It differed from the wanted object.
    Differs(Difference),
    /// It is no longer wanted.
    Unwanted,
}

impl Because {
    /// Whether the object was edited and its config was not. A change of the config would change the hash of the
    /// applied object.
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

/// Why a child cannot be reconciled until someone acts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Block {
    /// Another owner has an object with that name.
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
    /// The policy cannot be translated into an object.
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

/// The planned actions, and what blocks others.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// Actions, in order.
    pub actions: Vec<Action>,
    /// Blocks that are known before anything is written.
    pub blocks: Vec<Block>,
    /// Messages about deleted children that finalizers keep.
    pub held: Vec<String>,
}

/// Compares the wanted children with the live ones.
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

    // Then children that are no longer wanted. A class that cannot be built now is still wanted, so its previous
    // version stays.
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

/// Plans one child.
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

    // An object that matches, or comes as close as the API server allows, is left alone.
    let correction = match live {
        None => None,
        // It is recreated once it is gone, because its deletion triggers a reconcile.
        Some(live) if live.terminating => return Ok(None),
        Some(live) => match difference(child, live) {
            None => return Ok(None),
            Some(_) if memory.is_settled(child, live) => return Ok(None),
            Some(difference @ Difference::Added(_)) if memory.is_added_to(child) => {
                return Ok(Some(Action::Recreate { key: key(), uid: live.uid.clone(), difference }));
            }
            // An earlier version of the config may have asked for the addition, in which case an apply removes it.
            Some(difference) => Some((live.uid.clone(), difference)),
        },
    };

    // Do not resend what the API server has just rejected.
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
