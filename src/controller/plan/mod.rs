//! What to do about the children: create, put right, delete, or nothing. Pure.

pub mod deletion;
pub mod drift;

use std::{
    collections::{BTreeMap, BTreeSet},
    hash::{DefaultHasher, Hash, Hasher},
    time::Duration,
};

use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use crate::{
    api::DraDriverConfig,
    backoff::Backoff,
    controller::{
        build::Desired,
        child::{Child, ChildKey},
        observe::Live,
    },
};

/// How long a refusal by the API server stands before the same object is tried again: webhooks and servers change.
const REFUSAL_STANDS: SignedDuration = SignedDuration::from_mins(10);

/// How long what the API server made of an object is taken for all it makes of it: gates and webhooks change.
const SETTLED_STANDS: SignedDuration = SignedDuration::from_hours(1);

/// How long a write that failed waits before it is retried.
const BACKOFF: Backoff = Backoff { first: Duration::from_secs(1), longest: Duration::from_mins(2) };

/// How long what was written is taken to be there without the watches' word: by then it has been deleted again.
pub const WATCH_LAG: SignedDuration = SignedDuration::from_secs(5);

/// One step, carried out as it is.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Make what is not there; never over what somebody else makes meanwhile.
    Create(Child),
    /// Apply over our own object.
    PutRight {
        /// What is wanted.
        child: Child,
        /// The object it is applied to, and to no other of its name.
        uid: String,
        /// The first field that differs.
        because: String,
    },
    /// Delete our own object, to make it anew once it is gone: it has what others added, and to apply takes that not back.
    Remake {
        /// Which.
        key: ChildKey,
        /// The object, and no other of its name.
        uid: String,
        /// The first field that was added.
        because: String,
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
        let (key, aim) = match self {
            Self::Create(child) | Self::PutRight { child, .. } => (&child.key, Some(fingerprint(&child.object))),
            Self::Remake { key, .. } | Self::Delete { key, .. } => (key, None),
        };
        Attempt { key: key.clone(), aim }
    }
}

/// What an action tries: to have the child like this, or not at all.
#[derive(Clone, Debug, PartialEq)]
pub struct Attempt {
    /// The child.
    pub key: ChildKey,
    aim: Option<u64>,
}

/// Why a child cannot be as wanted until a person mends something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Block {
    /// Somebody else has an object of that name.
    NameTaken {
        /// The child.
        key: ChildKey,
        /// Whose it is, in words.
        owner: String,
    },
    /// The API server takes it not.
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

/// What is remembered of one config's children between reconciles; lost with the process, and then learnt anew.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Memory {
    settled: BTreeMap<ChildKey, (u64, u64, Timestamp)>,
    written: BTreeMap<ChildKey, (Timestamp, Live)>,
    refused: BTreeMap<ChildKey, (u64, Timestamp, String)>,
    failed: BTreeMap<ChildKey, Failed>,
    /// What was applied and is still there with something added.
    added_to: BTreeMap<ChildKey, u64>,
}

/// A write that did not go well and may go well another time.
#[derive(Clone, Debug, PartialEq)]
struct Failed {
    aim: Option<u64>,
    message: String,
    /// Failures in a row after the first.
    repeats: u32,
    again: Timestamp,
}

impl Memory {
    /// The API server took `wanted` and made `live` of it: if the two differ, they will for some time. The first field that
    /// it did not keep. What is there in addition the first time is somebody's, and not the API server's.
    pub fn settle(&mut self, wanted: &Child, live: &Live, now: Timestamp) -> Option<String> {
        self.refused.remove(&wanted.key);
        self.succeed(&wanted.key);
        self.settled.remove(&wanted.key);
        self.written.insert(wanted.key.clone(), (now, live.clone()));
        let differs = difference(wanted, live)?;
        let asked = fingerprint(&wanted.object);
        if matches!(differs, Difference::Added(_)) && self.added_to.insert(wanted.key.clone(), asked) != Some(asked) {
            return None;
        }
        self.settled.insert(wanted.key.clone(), (asked, fingerprint(&live.object), now));
        Some(differs.into_path())
    }

    /// The API server refused `wanted`.
    pub fn refuse(&mut self, wanted: &Child, message: String, now: Timestamp) {
        self.succeed(&wanted.key);
        self.refused.insert(wanted.key.clone(), (fingerprint(&wanted.object), now, message));
    }

    /// It did not go well, and may another time.
    pub fn fail(&mut self, Attempt { key, aim }: Attempt, message: String, now: Timestamp) {
        let before = self.failed.get(&key).filter(|failed| failed.aim == aim);
        let repeats = before.map_or(0, |failed| failed.repeats.saturating_add(1));
        let again = now.checked_add(BACKOFF.pause(repeats)).unwrap_or(Timestamp::MAX);
        self.failed.insert(key, Failed { aim, message, repeats, again });
    }

    /// What was to be done to a child is done.
    pub fn succeed(&mut self, key: &ChildKey) {
        self.failed.remove(key);
    }

    /// Why it is not done now: it failed a short time ago. Whatever else changes in the cluster, it waits.
    pub fn failing(&self, attempt: &Attempt, now: Timestamp) -> Option<&str> {
        let failed = self.failed.get(&attempt.key).filter(|failed| now < failed.again)?;
        (failed.aim == attempt.aim).then_some(&failed.message)
    }

    /// `live` as it is by now, where the watches have yet to bring back what was written.
    pub fn catch_up(&mut self, live: Vec<Live>, now: Timestamp) -> Vec<Live> {
        self.written.retain(|key, (at, written)| {
            let arrived = live.iter().any(|live| live.key == *key && live.version >= written.version);
            !arrived && now.duration_since(*at) < WATCH_LAG
        });
        self.settled.retain(|_, (.., at)| now.duration_since(*at) < SETTLED_STANDS);
        let newer = self.written.values().map(|(_, live)| live.clone());
        live.into_iter().filter(|live| !self.written.contains_key(&live.key)).chain(newer).collect()
    }

    /// Whether the watches have yet to bring something back.
    pub fn lags(&self) -> bool {
        !self.written.is_empty()
    }

    /// When something that the API server did not keep, or that failed, is worth another try.
    pub fn next_try(&self, now: Timestamp) -> Option<Timestamp> {
        let settled = self.settled.values().filter_map(|(.., at)| at.checked_add(SETTLED_STANDS).ok());
        // One whose time has come and that was not tried is no longer wanted.
        let failed = self.failed.values().map(|failed| failed.again).filter(|again| *again > now);
        settled.chain(failed).min()
    }

    fn is_settled(&self, wanted: &Child, live: &Live) -> bool {
        self.settled
            .get(&wanted.key)
            .is_some_and(|&(asked, made, _)| (asked, made) == (fingerprint(&wanted.object), fingerprint(&live.object)))
    }

    /// Whether `wanted` was applied, and something that is in addition stayed.
    fn is_added_to(&self, wanted: &Child) -> bool {
        self.added_to.get(&wanted.key) == Some(&fingerprint(&wanted.object))
    }

    fn refusal(&self, wanted: &Child, now: Timestamp) -> Option<&str> {
        let (hash, at, message) = self.refused.get(&wanted.key)?;
        let stands = now.duration_since(*at) < REFUSAL_STANDS && *hash == fingerprint(&wanted.object);
        stands.then_some(message)
    }
}

/// What to do, and what cannot be done.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// In order.
    pub actions: Vec<Action>,
    /// Known before anything is done.
    pub blocks: Vec<Block>,
    /// Children that somebody deleted and that are kept by somebody's finalizers, in words.
    pub held: Vec<String>,
}

/// How a live object is not as wanted.
enum Difference {
    /// To apply puts it right.
    Changed(String),
    /// Only a new object does.
    Added(String),
}

impl Difference {
    fn into_path(self) -> String {
        match self {
            Self::Changed(path) | Self::Added(path) => path,
        }
    }
}

fn difference(wanted: &Child, live: &Live) -> Option<Difference> {
    drift::first_intrusion(wanted.key.kind, &wanted.object, &live.object)
        .map(Difference::Added)
        .or_else(|| drift::first_difference(&wanted.object, &live.object).map(Difference::Changed))
}

/// Compares what is wanted with what is live.
pub fn plan(config: &DraDriverConfig, desired: &Desired, live: &[Live], memory: &Memory, now: Timestamp) -> Plan {
    let mut plan = Plan::default();
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
    // A class that cannot be built now is not one that is no longer wanted: what it was before stays.
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

fn step(
    config: &DraDriverConfig,
    child: &Child,
    live: Option<&Live>,
    memory: &Memory,
    now: Timestamp,
) -> Result<Option<Action>, Block> {
    let key = || child.key.clone();
    if let Some(live) = live.filter(|live| !live.is_of(config)) {
        return Err(Block::NameTaken { key: key(), owner: live.owner_in_words() });
    }
    let because = match live {
        // Applied anew once it is gone: its deletion is an event.
        Some(live) if live.terminating => return Ok(None),
        Some(live) => match difference(child, live) {
            None => return Ok(None),
            Some(_) if memory.is_settled(child, live) => return Ok(None),
            Some(Difference::Added(because)) if memory.is_added_to(child) => {
                return Ok(Some(Action::Remake { key: key(), uid: live.uid.clone(), because }));
            }
            // What is there in addition may be what this one applied before, and then an apply takes it back.
            Some(Difference::Changed(because) | Difference::Added(because)) => Some((live.uid.clone(), because)),
        },
        None => None,
    };
    if let Some(message) = memory.refusal(child, now) {
        return Err(Block::Refused { key: key(), message: message.into() });
    }
    Ok(Some(match because {
        None => Action::Create(child.clone()),
        Some((uid, because)) => Action::PutRight { child: child.clone(), uid, because },
    }))
}

/// Of everything but the status.
fn fingerprint(object: &Value) -> u64 {
    let mut hasher = DefaultHasher::new();
    match object.as_object() {
        None => object.to_string().hash(&mut hasher),
        Some(map) => map
            .iter()
            .filter(|(key, _)| *key != "status")
            .for_each(|(key, value)| (key, value.to_string()).hash(&mut hasher)),
    }
    hasher.finish()
}

#[cfg(test)]
mod tests;
