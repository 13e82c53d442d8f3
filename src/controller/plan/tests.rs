//! Plans for a child in each state.

use serde_json::json;

use super::*;
use crate::controller::{
    build::{self, Settings, Unbuildable},
    child::ChildKind,
    observe::Owner,
    testing::{at, mk_config, mk_live},
};

fn desired(config: &Config) -> Desired {
    build::children(config, &Settings { namespace: "ns".into(), image: "img".into(), ..Settings::default() })
}

fn planned(config: &Config, live: &[Live]) -> Plan {
    plan(config, &desired(config), live, &Memory::default(), at(0))
}

fn all_live(config: &Config) -> Vec<Live> {
    desired(config).children.iter().map(|child| mk_live(config, child)).collect()
}

#[test]
fn children_that_do_not_exist_are_created_in_order() {
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
fn children_that_match_are_left_alone() {
    let config = mk_config("cpu", &json!({}));
    assert_eq!(planned(&config, &all_live(&config)), Plan::default());
}

#[test]
fn a_daemon_set_edited_by_hand_is_corrected_and_the_field_named() {
    let config = mk_config("cpu", &json!({}));
    let mut live = all_live(&config);
    live[5].object["spec"]["template"]["spec"]["containers"][0]["image"] = json!("other");
    let plan = planned(&config, &live);
    let [Action::Correct { child, uid, difference }] = &plan.actions[..] else { panic!("{plan:?}") };
    assert_eq!((child.key.kind, uid), (ChildKind::DaemonSet, &live[5].uid));
    let image = ".spec.template.spec.containers[name=\"node-plugin\"].image";
    assert_eq!(*difference, Difference::Changed(image.into()));
}

#[test]
fn a_field_no_longer_wanted_is_removed() {
    let before = mk_config("cpu", &json!({"nodePlugin": {"annotations": {"a": "b"}}}));
    let plan = planned(&mk_config("cpu", &json!({})), &all_live(&before));
    assert!(
        matches!(&plan.actions[..], [Action::Correct { child, .. }] if child.key.kind == ChildKind::DaemonSet),
        "{plan:?}"
    );
}

#[test]
fn changes_that_the_api_server_makes_are_not_fought() {
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
fn a_field_that_the_api_server_did_not_keep_is_applied_again_once_an_hour() {
    let config = mk_config("cpu", &json!({}));
    let wanted = desired(&config);
    let mut live = all_live(&config);
    live[5].object["spec"]["template"]["spec"]["priorityClassName"] = json!(null);
    let mut memory = Memory::default();
    assert_eq!(memory.next_try(at(0)), None);
    let path = memory.settle(&wanted.children[5], &live[5], at(0));
    assert_eq!(path.as_deref(), Some(".spec.template.spec.priorityClassName"));
    assert_eq!(memory.settle(&wanted.children[0], &live[0], at(0)), None);
    assert_eq!(memory.next_try(at(0)), Some(at(3600)));
    for (now, writes) in [(3599, 0), (3600, 1)] {
        let caught_up = memory.catch_up(live.clone(), at(now));
        assert_eq!(plan(&config, &wanted, &caught_up, &memory, at(now)).actions.len(), writes);
    }
    assert_eq!(memory.next_try(at(0)), None, "a child that is no longer wanted is not retried forever");
}

#[test]
fn an_object_with_an_addition_that_no_apply_removes_is_recreated_unless_the_api_server_adds_it_every_time() {
    let config = mk_config("cpu", &json!({}));
    let wanted = desired(&config);
    let mut live = all_live(&config);
    live[1].object["aggregationRule"] = json!({"clusterRoleSelectors": [{"matchLabels": {"a": "b"}}]});
    let difference = Difference::Added(".aggregationRule".into());
    let (child, uid) = (wanted.children[1].clone(), live[1].uid.clone());
    // An earlier version of the config may have asked for it.
    let apply = Action::Correct { child, uid: uid.clone(), difference: difference.clone() };
    assert_eq!(planned(&config, &live).actions, [apply]);
    let mut memory = Memory::default();
    assert_eq!(memory.settle(&wanted.children[1], &live[1], at(0)), None);
    let recreate = Action::Recreate { key: live[1].key.clone(), uid, difference };
    assert_eq!(plan(&config, &wanted, &live, &memory, at(0)).actions, [recreate]);
    assert_eq!(memory.settle(&wanted.children[1], &live[1], at(0)).as_deref(), Some(".aggregationRule"));
    assert_eq!(plan(&config, &wanted, &live, &memory, at(0)), Plan::default());
}

#[test]
fn a_class_whose_policy_becomes_shorter_is_never_deleted() {
    let class =
        |selectors: &[&str]| mk_config("cpu", &json!({"deviceClasses": [{"name": "c", "selectors": selectors}]}));
    let (one, two) = ("device.driver == \"dra.cpu\"", "true");
    let (before, after) = (class(&[one, two]), class(&[one]));
    let live = all_live(&before);
    let actions = planned(&after, &live).actions;
    assert!(matches!(&actions[..], [Action::Correct { child, .. }] if child.key.name == "c"), "{actions:?}");
}

#[test]
fn a_deleted_child_that_a_finalizer_keeps_is_reported() {
    let config = mk_config("cpu", &json!({}));
    let mut live = all_live(&config);
    live[0].terminating = true;
    live[0].finalizers = vec!["example.com/audit".into()];
    let plan = planned(&config, &live);
    assert_eq!(plan.actions, []);
    assert!(plan.held[0].contains("ServiceAccount cpu-node-plugin") && plan.held[0].contains("example.com/audit"));
}

#[test]
fn an_object_just_written_is_not_written_again_while_the_watches_lag() {
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
fn a_foreign_object_is_never_written_and_its_owner_is_named() {
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
fn a_class_no_longer_in_the_policy_is_deleted_and_one_that_cannot_be_built_is_kept() {
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
fn a_rejected_object_is_not_resent_until_it_changes_or_ten_minutes_have_passed() {
    let config = mk_config("cpu", &json!({}));
    let desired = desired(&config);
    let live: Vec<_> = all_live(&config).into_iter().take(5).collect();
    let mut memory = Memory::default();
    memory.refuse(Attempt::to_apply(&desired.children[5]), "no".into(), at(0));
    let of = |memory: &Memory, now| plan(&config, &desired, &live, memory, at(now));
    assert_eq!(of(&memory, 599).actions, []);
    assert!(matches!(&of(&memory, 599).blocks[..], [Block::Refused { message, .. }] if message == "no"));
    assert_eq!(of(&memory, 600).actions.len(), 1);
    let changed = mk_config("cpu", &json!({"nodePlugin": {"image": "new"}}));
    let wanted =
        build::children(&changed, &Settings { namespace: "ns".into(), image: "img".into(), ..Settings::default() });
    assert_eq!(plan(&changed, &wanted, &live, &memory, at(1)).actions.len(), 1);
}
