//! What is remembered about one config's children between reconciles. Lost when the process ends, and then learnt
//! again. Pure.
//!
//! It keeps the controller from fighting: differences that the API server itself makes are left alone, rejected and
//! failed writes wait for their next attempt, and an object that was just written is known before the watches show it.

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

/// How long to wait before resending an object that the API server rejected, because webhooks and servers change.
const REFUSAL_STANDS: SignedDuration = SignedDuration::from_mins(10);

/// How long a difference that the API server made itself is left alone, because feature gates and webhooks change.
const SETTLED_STANDS: SignedDuration = SignedDuration::from_hours(1);

/// How long to wait before retrying a failed write.
const BACKOFF: Backoff = Backoff { first: Duration::from_secs(1), longest: Duration::from_mins(2) };

/// How long a written object is assumed to exist while the watches do not show it. After that, it has been deleted
/// again.
pub const WATCH_LAG: SignedDuration = SignedDuration::from_secs(5);

/// What is remembered about one config's children.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Memory {
    /// What was applied, how the API server stored it, and when.
    settled: BTreeMap<ChildKey, (u64, u64, Timestamp)>,
    /// Written objects that the watches do not show yet.
    written: BTreeMap<ChildKey, (Timestamp, Live)>,
    refused: BTreeMap<ChildKey, (Attempt, Timestamp, String)>,
    failed: BTreeMap<ChildKey, Failed>,
    /// Objects that were applied but still have a foreign addition.
    added_to: BTreeMap<ChildKey, u64>,
}

/// A write that failed and will be retried.
#[derive(Clone, Debug, PartialEq)]
struct Failed {
    aim: Option<u64>,
    message: String,
    /// Consecutive failures after the first.
    repeats: u32,
    again: Timestamp,
}

impl Memory {
    /// Records that the API server accepted `wanted` and stored it as `live`. If they differ, the difference is left
    /// alone for some time, and the first field that the server did not keep is returned. An addition is treated as
    /// foreign when first seen, and as the API server's own if it is there again after the same apply.
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

    /// Records that the API server rejected an attempt.
    pub fn refuse(&mut self, attempt: Attempt, message: String, now: Timestamp) {
        self.clear_failure(&attempt.key);
        self.refused.insert(attempt.key.clone(), (attempt, now, message));
    }

    /// Records a failure that may be temporary. Each consecutive one doubles the pause before the next attempt.
    pub fn fail(&mut self, Attempt { key, aim }: Attempt, message: String, now: Timestamp) {
        let before = self.failed.get(&key).filter(|failed| failed.aim == aim);
        let repeats = before.map_or(0, |failed| failed.repeats.saturating_add(1));
        let again = now.checked_add(BACKOFF.pause(repeats)).unwrap_or(Timestamp::MAX);
        self.failed.insert(key, Failed { aim, message, repeats, again });
    }

    /// Forgets a child's failure, because the write has succeeded.
    pub fn clear_failure(&mut self, key: &ChildKey) {
        self.failed.remove(key);
    }

    /// The error of a recent failure, if the attempt must wait. Other changes in the cluster do not shorten the pause.
    pub fn failing(&self, attempt: &Attempt, now: Timestamp) -> Option<&str> {
        let failed = self.failed.get(&attempt.key).filter(|failed| now < failed.again)?;
        (failed.aim == attempt.aim).then_some(&failed.message)
    }

    /// `live`, updated with written objects that the watches do not show yet.
    pub fn catch_up(&mut self, live: Vec<Live>, now: Timestamp) -> Vec<Live> {
        self.written.retain(|key, (at, written)| {
            let arrived = live.iter().any(|live| live.key == *key && live.version >= written.version);
            !arrived && now.duration_since(*at) < WATCH_LAG
        });
        self.settled.retain(|_, (.., at)| now.duration_since(*at) < SETTLED_STANDS);

        let newer = self.written.values().map(|(_, live)| live.clone());
        live.into_iter().filter(|live| !self.written.contains_key(&live.key)).chain(newer).collect()
    }

    /// Whether the watches lag behind our writes.
    pub fn lags(&self) -> bool {
        !self.written.is_empty()
    }

    /// When to retry a write that failed or that the API server did not keep.
    pub fn next_try(&self, now: Timestamp) -> Option<Timestamp> {
        let settled = self.settled.values().filter_map(|(.., at)| at.checked_add(SETTLED_STANDS).ok());
        // An attempt that is overdue is no longer wanted.
        let failed = self.failed.values().map(|failed| failed.again).filter(|again| *again > now);
        settled.chain(failed).min()
    }

    /// Whether the API server recently stored `wanted` exactly like this.
    pub(super) fn is_settled(&self, wanted: &Child, live: &Live) -> bool {
        self.settled
            .get(&wanted.key)
            .is_some_and(|&(asked, made, _)| (asked, made) == (fingerprint(&wanted.object), fingerprint(&live.object)))
    }

    /// Whether `wanted` was applied and an addition remained.
    pub(super) fn is_added_to(&self, wanted: &Child) -> bool {
        self.added_to.get(&wanted.key) == Some(&fingerprint(&wanted.object))
    }

    /// The API server's message, if it recently rejected exactly this.
    pub(super) fn refusal(&self, wanted: &Child, now: Timestamp) -> Option<&str> {
        let (refused, at, message) = self.refused.get(&wanted.key)?;
        let stands = now.duration_since(*at) < REFUSAL_STANDS && *refused == Attempt::to_apply(wanted);
        stands.then_some(message)
    }
}

/// A hash of everything except the status.
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
