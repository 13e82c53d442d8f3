//! What is remembered of one config's children between reconciles; lost with the process, and then learnt again. Pure.
//!
//! It keeps the controller from fighting: what the API server makes of an object in its own way is left alone, what it
//! refused or what failed waits for the next attempt, and what was just written is known before the watches bring it back.

use std::{
    collections::BTreeMap,
    hash::{DefaultHasher, Hash, Hasher},
    time::Duration,
};

use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use super::{Attempt, Difference, difference};
use crate::{
    backoff::Backoff,
    controller::{
        child::{Child, ChildKey},
        observe::Live,
    },
};

/// How long a refusal by the API server stands before the same object is sent again: webhooks and servers change.
const REFUSAL_STANDS: SignedDuration = SignedDuration::from_mins(10);

/// How long a difference that the API server made itself is left alone: feature gates and webhooks change.
const SETTLED_STANDS: SignedDuration = SignedDuration::from_hours(1);

/// How long a write that failed waits before it is retried.
const BACKOFF: Backoff = Backoff { first: Duration::from_secs(1), longest: Duration::from_mins(2) };

/// How long a written object is taken to exist while the watches do not show it: after that it was deleted again.
pub const WATCH_LAG: SignedDuration = SignedDuration::from_secs(5);

/// What is remembered of one config's children.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Memory {
    /// What was asked for, what the API server made of it, and when.
    settled: BTreeMap<ChildKey, (u64, u64, Timestamp)>,
    /// What the watches have yet to show.
    written: BTreeMap<ChildKey, (Timestamp, Live)>,
    refused: BTreeMap<ChildKey, (Attempt, Timestamp, String)>,
    failed: BTreeMap<ChildKey, Failed>,
    /// What was applied and still has something added.
    added_to: BTreeMap<ChildKey, u64>,
}

/// A write that failed and is attempted again.
#[derive(Clone, Debug, PartialEq)]
struct Failed {
    aim: Option<u64>,
    message: String,
    /// Failures in a row after the first.
    repeats: u32,
    again: Timestamp,
}

impl Memory {
    /// Notes that the API server accepted `wanted` and made `live` of it. Where the two differ they will for some time:
    /// returns the first field that it did not keep. An addition is somebody else's the first time it is seen, and the API
    /// server's own if it is there again after the same apply.
    pub fn settle(&mut self, wanted: &Child, live: &Live, now: Timestamp) -> Option<String> {
        self.refused.remove(&wanted.key);
        self.clear_failure(&wanted.key);
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

    /// Notes that the API server refused an attempt.
    pub fn refuse(&mut self, attempt: Attempt, message: String, now: Timestamp) {
        self.clear_failure(&attempt.key);
        self.refused.insert(attempt.key.clone(), (attempt, now, message));
    }

    /// Notes a failure that may pass: each one in a row doubles the pause before the next attempt.
    pub fn fail(&mut self, Attempt { key, aim }: Attempt, message: String, now: Timestamp) {
        let before = self.failed.get(&key).filter(|failed| failed.aim == aim);
        let repeats = before.map_or(0, |failed| failed.repeats.saturating_add(1));
        let again = now.checked_add(BACKOFF.pause(repeats)).unwrap_or(Timestamp::MAX);
        self.failed.insert(key, Failed { aim, message, repeats, again });
    }

    /// Forgets a child's failure: what was to be done to it is done.
    pub fn clear_failure(&mut self, key: &ChildKey) {
        self.failed.remove(key);
    }

    /// Why an attempt has to wait: it failed a short time ago. Other changes in the cluster do not shorten the pause.
    pub fn failing(&self, attempt: &Attempt, now: Timestamp) -> Option<&str> {
        let failed = self.failed.get(&attempt.key).filter(|failed| now < failed.again)?;
        (failed.aim == attempt.aim).then_some(&failed.message)
    }

    /// `live` with what was written and the watches have yet to show.
    pub fn catch_up(&mut self, live: Vec<Live>, now: Timestamp) -> Vec<Live> {
        self.written.retain(|key, (at, written)| {
            let arrived = live.iter().any(|live| live.key == *key && live.version >= written.version);
            !arrived && now.duration_since(*at) < WATCH_LAG
        });
        self.settled.retain(|_, (.., at)| now.duration_since(*at) < SETTLED_STANDS);

        let newer = self.written.values().map(|(_, live)| live.clone());
        live.into_iter().filter(|live| !self.written.contains_key(&live.key)).chain(newer).collect()
    }

    /// Whether the watches have yet to show something.
    pub fn lags(&self) -> bool {
        !self.written.is_empty()
    }

    /// When to attempt again what the API server did not keep, or what failed.
    pub fn next_try(&self, now: Timestamp) -> Option<Timestamp> {
        let settled = self.settled.values().filter_map(|(.., at)| at.checked_add(SETTLED_STANDS).ok());
        // An attempt that is due and was not made is no longer wanted.
        let failed = self.failed.values().map(|failed| failed.again).filter(|again| *again > now);
        settled.chain(failed).min()
    }

    /// Whether the API server made exactly this of what is wanted a short time ago.
    pub(super) fn is_settled(&self, wanted: &Child, live: &Live) -> bool {
        self.settled
            .get(&wanted.key)
            .is_some_and(|&(asked, made, _)| (asked, made) == (fingerprint(&wanted.object), fingerprint(&live.object)))
    }

    /// Whether `wanted` was applied, and something added stayed.
    pub(super) fn is_added_to(&self, wanted: &Child) -> bool {
        self.added_to.get(&wanted.key) == Some(&fingerprint(&wanted.object))
    }

    /// What the API server said when it refused exactly this a short time ago.
    pub(super) fn refusal(&self, wanted: &Child, now: Timestamp) -> Option<&str> {
        let (refused, at, message) = self.refused.get(&wanted.key)?;
        let stands = now.duration_since(*at) < REFUSAL_STANDS && *refused == Attempt::to_apply(wanted);
        stands.then_some(message)
    }
}

/// A hash of everything but the status.
pub(super) fn fingerprint(object: &Value) -> u64 {
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
