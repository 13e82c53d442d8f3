//! What to do about the children: create, put right, delete, or nothing. Pure.

use std::{
    collections::{BTreeMap, BTreeSet},
    hash::{DefaultHasher, Hash, Hasher},
};

use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use super::{
    build::Desired,
    child::{Child, ChildKey},
    drift,
    observe::Live,
};
use crate::api::DraDriverConfig;

/// How long a refusal by the API server stands before the same object is tried again: webhooks and servers change.
const REFUSAL_STANDS: SignedDuration = SignedDuration::from_mins(10);

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
    /// Delete our own object.
    Delete {
        /// Which.
        key: ChildKey,
        /// The object, and no other of its name.
        uid: String,
    },
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
    settled: BTreeMap<ChildKey, (u64, u64)>,
    written: BTreeMap<ChildKey, (Timestamp, Live)>,
    refused: BTreeMap<ChildKey, (u64, Timestamp, String)>,
}

impl Memory {
    /// The API server took `wanted` and made `live` of it: if the two differ, they always will.
    pub fn settle(&mut self, wanted: &Child, live: &Live, now: Timestamp) {
        self.refused.remove(&wanted.key);
        self.written.insert(wanted.key.clone(), (now, live.clone()));
        self.settled.insert(wanted.key.clone(), (fingerprint(&wanted.object), fingerprint(&live.object)));
    }

    /// The API server refused `wanted`.
    pub fn refuse(&mut self, wanted: &Child, message: String, now: Timestamp) {
        self.refused.insert(wanted.key.clone(), (fingerprint(&wanted.object), now, message));
    }

    /// `live` as it is by now, where the watches have yet to bring back what was written.
    pub fn catch_up(&mut self, live: Vec<Live>, now: Timestamp) -> Vec<Live> {
        self.written.retain(|key, (at, written)| {
            let arrived = live.iter().any(|live| live.key == *key && live.version >= written.version);
            !arrived && now.duration_since(*at) < WATCH_LAG
        });
        let newer = self.written.values().map(|(_, live)| live.clone());
        live.into_iter().filter(|live| !self.written.contains_key(&live.key)).chain(newer).collect()
    }

    /// Whether the watches have yet to bring something back.
    pub fn lags(&self) -> bool {
        !self.written.is_empty()
    }

    fn is_settled(&self, wanted: &Child, live: &Live) -> bool {
        self.settled.get(&wanted.key) == Some(&(fingerprint(&wanted.object), fingerprint(&live.object)))
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
        Some(live) => match drift::first_difference(&child.object, &live.object) {
            None => return Ok(None),
            Some(_) if memory.is_settled(child, live) => return Ok(None),
            Some(path) => Some((live.uid.clone(), path)),
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
mod tests {
    use serde_json::json;

    use super::*;
    use crate::controller::{
        build::{self, Settings, Unbuildable},
        child::ChildKind,
        observe::Owner,
        testing::{at, mk_config, mk_live},
    };

    fn desired(config: &DraDriverConfig) -> Desired {
        build::children(config, &Settings { namespace: "ns".into(), image: "img".into(), ..Settings::default() })
    }

    fn planned(config: &DraDriverConfig, live: &[Live]) -> Plan {
        plan(config, &desired(config), live, &Memory::default(), at(0))
    }

    fn all_live(config: &DraDriverConfig) -> Vec<Live> {
        desired(config).children.iter().map(|child| mk_live(config, child)).collect()
    }

    #[test]
    fn what_is_not_there_is_created_in_order() {
        let config = mk_config("cpu", &json!({}));
        let kinds: Vec<_> = planned(&config, &[])
            .actions
            .iter()
            .map(|action| match action {
                Action::Create(child) => child.key.kind,
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(kinds, &ChildKind::ALL[..6]);
    }

    #[test]
    fn what_is_there_as_wanted_is_left_alone() {
        let config = mk_config("cpu", &json!({}));
        assert_eq!(planned(&config, &all_live(&config)), Plan::default());
    }

    #[test]
    fn a_daemon_set_edited_by_hand_is_put_right_and_the_field_named() {
        let config = mk_config("cpu", &json!({}));
        let mut live = all_live(&config);
        live[5].object["spec"]["template"]["spec"]["containers"][0]["image"] = json!("other");
        let plan = planned(&config, &live);
        let [Action::PutRight { child, uid, because }] = &plan.actions[..] else { panic!("{plan:?}") };
        assert_eq!((child.key.kind, uid), (ChildKind::DaemonSet, &live[5].uid));
        assert_eq!(because, ".spec.template.spec.containers[name=\"node-plugin\"].image");
    }

    #[test]
    fn a_field_no_longer_wanted_is_taken_back() {
        let before = mk_config("cpu", &json!({"nodePlugin": {"annotations": {"a": "b"}}}));
        let plan = planned(&mk_config("cpu", &json!({})), &all_live(&before));
        assert!(
            matches!(&plan.actions[..], [Action::PutRight { child, .. }] if child.key.kind == ChildKind::DaemonSet),
            "{plan:?}"
        );
    }

    #[test]
    fn what_the_api_server_makes_of_an_object_is_not_fought() {
        let config = mk_config("cpu", &json!({}));
        let mut live = all_live(&config);
        let wanted = desired(&config).children.remove(5);
        live[5].object["spec"]["template"]["spec"]["priorityClassName"] = json!(null);
        let mut memory = Memory::default();
        memory.settle(&wanted, &live[5], at(0));
        live[5].object["status"] = json!({"numberReady": 1});
        assert_eq!(plan(&config, &desired(&config), &live, &memory, at(0)), Plan::default());
        live[5].object["spec"]["template"]["spec"]["priorityClassName"] = json!("other");
        assert_eq!(plan(&config, &desired(&config), &live, &memory, at(0)).actions.len(), 1);
    }

    #[test]
    fn what_was_just_written_is_not_written_again_while_the_watches_lag() {
        let config = mk_config("cpu", &json!({}));
        let (desired, after) = (desired(&config), all_live(&config));
        let mut memory = Memory::default();
        for (child, live) in desired.children.iter().zip(&after) {
            memory.settle(child, live, at(0));
        }
        let caught_up = memory.catch_up(Vec::new(), at(1));
        assert_eq!(plan(&config, &desired, &caught_up, &memory, at(1)), Plan::default());
        let stale = Live { version: 0, object: json!({}), ..after[5].clone() };
        let caught_up = memory.catch_up(vec![stale], at(1));
        assert_eq!(plan(&config, &desired, &caught_up, &memory, at(1)), Plan::default());
        assert!(memory.lags());
        assert_eq!(memory.catch_up(after.clone(), at(2)), after);
        assert!(!memory.lags(), "once it has arrived, its absence means that it was deleted");
        assert_eq!(memory.catch_up(Vec::new(), at(2)), []);
        memory.settle(&desired.children[0], &after[0], at(0));
        assert_eq!(memory.catch_up(Vec::new(), at(5)), []);
    }

    #[test]
    fn a_foreign_object_is_never_written_and_its_owner_named() {
        let config = mk_config("cpu", &json!({}));
        let mut live = all_live(&config);
        live[5].owner = Owner::Foreign("Helm release other".into());
        live[5].object = json!({});
        let plan = planned(&config, &live);
        assert_eq!(plan.actions, []);
        let key = live[5].key.clone();
        assert_eq!(plan.blocks, [Block::NameTaken { key, owner: "Helm release other".into() }]);
    }

    #[test]
    fn a_class_no_longer_in_the_policy_is_deleted_and_one_that_cannot_be_built_stays() {
        let config = mk_config("cpu", &json!({}));
        let mut live = all_live(&config);
        let key = ChildKey { kind: ChildKind::DeviceClass, name: "old".into() };
        live.push(mk_live(&config, &Child { key: key.clone(), object: json!({}) }));
        let mut foreign = live[6].clone();
        foreign.key.name = "foreign".into();
        foreign.owner = Owner::Foreign("x".into());
        live.push(foreign);
        let uid = live[6].uid.clone();
        assert_eq!(planned(&config, &live).actions, [Action::Delete { key: key.clone(), uid }]);
        let mut desired = desired(&config);
        desired.unbuildable.push(Unbuildable { key, message: "m".into() });
        let plan = plan(&config, &desired, &live, &Memory::default(), at(0));
        assert_eq!((plan.actions.len(), plan.blocks.len()), (0, 1));
    }

    #[test]
    fn what_the_api_server_refused_is_not_sent_again_until_it_changes_or_time_has_passed() {
        let config = mk_config("cpu", &json!({}));
        let desired = desired(&config);
        let live: Vec<_> = all_live(&config).into_iter().take(5).collect();
        let mut memory = Memory::default();
        memory.refuse(&desired.children[5], "no".into(), at(0));
        let of = |memory: &Memory, now| plan(&config, &desired, &live, memory, at(now));
        assert_eq!(of(&memory, 599).actions, []);
        assert!(matches!(&of(&memory, 599).blocks[..], [Block::Refused { message, .. }] if message == "no"));
        assert_eq!(of(&memory, 600).actions.len(), 1);
        let changed = mk_config("cpu", &json!({"nodePlugin": {"image": "new"}}));
        let wanted =
            build::children(&changed, &Settings { namespace: "ns".into(), image: "img".into(), ..Settings::default() });
        assert_eq!(plan(&changed, &wanted, &live, &memory, at(1)).actions.len(), 1);
    }
}
