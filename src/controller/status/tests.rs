//! The kstatus rules, and the conditions in each situation.

use serde_json::json;

use super::*;
use crate::{
    api::{DeviceCounts, Problem, Problems},
    controller::{
        child::{ChildKey, ChildKind},
        testing::{at, mk_config},
    },
};

fn rollout(desired: i32, ready: i32, progress: Progress) -> Rollout {
    Rollout { desired, ready, missing: 0, progress, next_deadline: None }
}

/// The status of a config that serves on one node, with the inputs changed by `change`.
fn status_with(change: impl for<'a> FnOnce(&mut Inputs<'a>, &'a Held)) -> DraDriverConfigStatus {
    let held = Held::default();
    let mut inputs = inputs_of(&held);
    change(&mut inputs, &held);
    status(&inputs)
}

/// The inputs of a config that serves on one node.
fn inputs_of(held: &Held) -> Inputs<'_> {
    Inputs {
        config: &held.config,
        missing_api: None,
        overlap: None,
        blocks: &[],
        held: &[],
        failures: &[],
        deletion: None,
        rollout: &held.serving,
        health: &held.healthy,
        usage: &held.usage,
        now: at(100),
    }
}

/// Values that inputs borrow.
struct Held {
    config: Config,
    going: Config,
    serving: Rollout,
    underway: Rollout,
    halted: Rollout,
    nameless: Rollout,
    nowhere: Rollout,
    unobserved: Rollout,
    healthy: SliceHealth,
    pending: SliceHealth,
    unhealthy: SliceHealth,
    usage: Usage,
    taken: [Block; 2],
    failures: [Failed; 1],
    kept: [String; 1],
    waiting: Waiting,
    overlap: Overlap,
}

impl Default for Held {
    fn default() -> Self {
        let config = mk_config("cpu", &json!({"deviceClasses": [{"name": "a", "preset": "Intel"}]}));
        let mut going = config.clone();
        going.metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
        let key = |kind, name: &str| ChildKey { kind, name: name.into() };
        let halted = |needs_person| Progress::Halted { needs_person, message: "pod p: image x".into() };
        let since = serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
        let problem = Problem { node: "n".into(), reason: "NotPublished".into(), message: "m".into(), since };
        Self {
            going,
            config,
            serving: rollout(1, 1, Progress::Done),
            underway: rollout(2, 1, Progress::Underway("1 of 2".into())),
            halted: rollout(1, 1, halted(false)),
            nameless: rollout(1, 1, halted(true)),
            nowhere: rollout(0, 0, Progress::Done),
            unobserved: rollout(0, 0, Progress::Unobserved),
            healthy: SliceHealth { publishing: 1, ..SliceHealth::default() },
            pending: SliceHealth { pending: 1, ..SliceHealth::default() },
            unhealthy: SliceHealth {
                unhealthy: 1,
                problems: Problems { first: vec![problem], more: 0 },
                ..SliceHealth::default()
            },
            usage: Usage {
                devices: DeviceCounts { total: 4, ..DeviceCounts::default() },
                classes: vec![ClassStatus { name: "a".into(), devices: 4, nodes: 1, ..ClassStatus::default() }],
                full: Vec::new(),
            },
            taken: [
                Block::NameTaken { key: key(ChildKind::DeviceClass, "a"), owner: "Helm release x".into() },
                Block::Refused { key: key(ChildKind::DaemonSet, "d"), message: "no".into() },
            ],
            failures: [Failed { key: key(ChildKind::DaemonSet, "d"), message: "etcd is away".into() }],
            kept: ["DaemonSet d is being deleted and waits for its finalizers: f".into()],
            waiting: Waiting::Claims("waiting for ns/c".into()),
            overlap: Overlap { older: "b".into(), driver: "b.cpu".into(), shared: SharedNodes::Node("n".into()) },
        }
    }
}

/// `type=status/reason` of each condition.
fn said(status: &DraDriverConfigStatus) -> Vec<String> {
    status.conditions.iter().map(|c| format!("{}={}/{}", c.type_, c.status, c.reason)).collect()
}

#[test]
fn a_serving_object_is_ready_and_has_neither_reconciling_nor_stalled() {
    let status = status_with(|_, _| {});
    assert_eq!(said(&status), ["Ready=True/Serving", "ResourcesHealthy=True/Healthy", "PreflightPassed=True/Passed"]);
    assert_eq!(status.observed_generation, Some(1));
    assert_eq!((status.nodes.unwrap().summary.as_str(), status.device_class_count), ("1/1", Some(1)));
}

#[test]
fn work_in_progress_is_reconciling_and_never_stalled() {
    for (status, reason) in [
        (status_with(|inputs, held| inputs.rollout = &held.underway), "RollingOut"),
        (status_with(|inputs, held| inputs.rollout = &held.unobserved), "RollingOut"),
        (status_with(|inputs, held| inputs.rollout = &held.halted), "RolloutBlocked"),
        (status_with(|inputs, held| inputs.failures = &held.failures), "Retrying"),
        (status_with(|inputs, held| inputs.held = &held.kept), "Retrying"),
        (status_with(|inputs, held| inputs.config = &held.going), "Deleting"),
        (status_with(|inputs, held| inputs.deletion = Some(&held.waiting)), "WaitingForClaims"),
    ] {
        let said = said(&status);
        assert_eq!(said[..2], [format!("Ready=False/{reason}"), format!("Reconciling=True/{reason}")]);
        assert!(!said.iter().any(|one| one.starts_with("Stalled")), "{said:?}");
    }
}

#[test]
fn a_problem_that_someone_has_to_fix_is_stalled_and_named() {
    for (status, reason, words) in [
        (status_with(|inputs, _| inputs.missing_api = Some("no API")), "DraApiMissing", "no API"),
        (
            status_with(|inputs, held| inputs.overlap = Some(&held.overlap)),
            "NodeSelectorOverlap",
            "the older DraDriverConfig b already serves the same devices as driver b.cpu, and both select node n",
        ),
        (
            status_with(|inputs, held| inputs.blocks = &held.taken),
            "NameTaken",
            "DeviceClass a already exists and belongs to Helm release x: rename or delete one of them",
        ),
        (
            status_with(|inputs, held| inputs.blocks = &held.taken[1..]),
            "Refused",
            "the API server rejected DaemonSet d: no",
        ),
        (status_with(|inputs, held| inputs.rollout = &held.nameless), "InvalidImage", "image x"),
    ] {
        let said = said(&status);
        assert!(
            said.contains(&format!("Ready=False/{reason}")) && said.contains(&format!("Stalled=True/{reason}")),
            "{said:?}"
        );
        assert!(status.conditions[0].message.contains(words), "{:?}", status.conditions[0]);
    }
}

#[test]
fn the_health_of_devices_makes_nothing_else_false() {
    let unhealthy = status_with(|inputs, held| inputs.health = &held.unhealthy);
    assert_eq!(said(&unhealthy)[..2], ["Ready=True/Serving", "ResourcesHealthy=False/NodesUnhealthy"]);
    assert_eq!(unhealthy.problems.unwrap().first[0].node, "n");
    let pending = status_with(|inputs, held| inputs.health = &held.pending);
    assert_eq!(said(&pending)[..2], ["Ready=True/Serving", "ResourcesHealthy=Unknown/Publishing"]);
    assert_eq!(pending.problems, None);
}

#[test]
fn devices_are_healthy_only_if_every_selected_node_publishes() {
    let (three, none) = (rollout(3, 2, Progress::Done), SliceHealth::default());
    for health in [&none, &Held::default().healthy] {
        let held = Held::default();
        let inputs = Inputs { rollout: &three, health, ..inputs_of(&held) };
        assert_eq!(said(&status(&inputs))[1], "ResourcesHealthy=Unknown/Publishing");
    }
}

#[test]
fn a_joining_node_does_not_make_a_ready_object_unready() {
    let joining = rollout(2, 1, Progress::Joining("1 of 2 nodes run the plugin".into()));
    let after = |change: &dyn Fn(&mut Config)| {
        let mut held = Held::default();
        held.config.status = Some(status(&inputs_of(&Held::default())));
        change(&mut held.config);
        let after = status(&Inputs { rollout: &joining, ..inputs_of(&held) });
        (said(&after)[0].clone(), after.conditions[0].message.clone())
    };
    assert_eq!(after(&|_| {}), ("Ready=True/Serving".into(), "1 of 2 nodes run the plugin".into()));
    let rolling_out = "Ready=False/RollingOut";
    assert_eq!(after(&|config| config.status = None).0, rolling_out, "the first rollout");
    assert_eq!(after(&|config| config.metadata.generation = Some(2)).0, rolling_out, "it was edited");
    let lost = |config: &mut Config| config.status.as_mut().unwrap().nodes.as_mut().unwrap().ready = 2;
    assert_eq!(after(&lost).0, rolling_out, "a node that served serves no longer");
}

#[test]
fn an_object_that_selects_no_node_is_ready_and_says_so() {
    let status = status_with(|inputs, held| inputs.rollout = &held.nowhere);
    assert_eq!(said(&status)[..2], ["Ready=True/NoNodes", "ResourcesHealthy=True/NoNodes"]);
}

#[test]
fn a_class_says_why_it_does_not_exist() {
    let taken = status_with(|inputs, held| inputs.blocks = &held.taken);
    let class = &taken.device_classes[0];
    assert_eq!(class.reason.as_deref(), Some("NameTaken"));
    assert!(class.message.as_deref().unwrap().contains("Helm release x"), "{class:?}");
}

#[test]
fn a_rejected_class_names_the_field_of_the_config() {
    let mut held = Held::default();
    held.config.device_classes[0].selectors = vec!["device.driver ==".into()];
    let key = ChildKey { kind: ChildKind::DeviceClass, name: "a".into() };
    let message = "DeviceClass \"a\" is invalid: spec.selectors[1].cel.expression: Invalid value".to_owned();
    let blocks = [Block::Refused { key, message }];
    let status = status(&Inputs { blocks: &blocks, ..inputs_of(&held) });
    for said in [&status.conditions[0].message, status.device_classes[0].message.as_ref().unwrap()] {
        assert!(said.contains(": spec.deviceClasses[0].selectors[0]: Invalid value"), "{said}");
    }
}

#[test]
fn a_rejected_class_is_reported_even_if_something_else_is_blocked_first() {
    let held = Held::default();
    let key = ChildKey { kind: ChildKind::DeviceClass, name: "a".into() };
    let blocks = [held.taken[1].clone(), Block::Refused { key, message: "no CEL".into() }];
    let status = status(&Inputs { blocks: &blocks, ..inputs_of(&held) });
    let class = &status.device_classes[0];
    assert_eq!(class.reason.as_deref(), Some("Refused"));
    assert_eq!(class.message.as_deref(), Some("the API server rejected DeviceClass a: no CEL"));
    assert!(status.conditions[0].message.ends_with(" (and 1 more like it)"), "{:?}", status.conditions[0]);
}

#[test]
fn a_class_that_aborts_claims_leaves_the_object_ready_and_is_named() {
    let mut held = Held::default();
    held.usage.classes[0].reason = Some(ClassReason::AbortsClaims.as_str().into());
    held.usage.classes[0].message = Some("é".repeat(5000));
    let status = status(&inputs_of(&held));
    assert_eq!(said(&status)[0], "Ready=True/Serving");
    assert!(status.conditions[0].message.ends_with("cannot be allocated (see status.deviceClasses): a"));
    assert_eq!(status.device_classes[0].message.as_ref().unwrap().chars().count(), 1000);
}

#[test]
fn a_node_whose_devices_are_all_claimed_is_named_and_is_healthy() {
    let mut held = Held::default();
    held.usage.full = vec!["n".into()];
    let full = status(&inputs_of(&held));
    assert_eq!(said(&full)[1], "ResourcesHealthy=True/Healthy");
    let message = &full.conditions[1].message;
    assert!(message.contains("on 1 node (such as n)") && message.contains("reservedCPUs"), "{message}");
    assert!(only_counts_differ(&full, &status_with(|_, _| {})), "it is written no more often than counts");
}

#[test]
fn a_change_of_counts_only_is_distinguished_from_other_changes() {
    let before = status_with(|_, _| {});
    let mut after = before.clone();
    after.devices = Some(DeviceCounts { total: 4, allocated: 2, tainted: 0 });
    after.device_classes[0].allocated = 2;
    assert!(only_counts_differ(&before, &after));
    after.device_classes[0].reason = Some("AbortsClaims".into());
    assert!(!only_counts_differ(&before, &after));
    assert!(!only_counts_differ(&before, &status_with(|inputs, held| inputs.rollout = &held.underway)));
}

#[test]
fn an_object_that_cannot_be_parsed_keeps_its_counts_and_says_so() {
    let before = status_with(|_, _| {});
    let after = invalid(&before, Some(2), "invalid type: string", at(200));
    assert_eq!(said(&after), ["Ready=False/InvalidObject", "Stalled=True/InvalidObject"]);
    assert_eq!((after.devices, after.observed_generation), (before.devices, Some(2)));
    assert_eq!(
        after.conditions[0].message,
        "cannot parse the spec: invalid type: string; existing objects are left unchanged until it is fixed"
    );
}
