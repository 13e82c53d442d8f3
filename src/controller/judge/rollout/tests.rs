//! Rollouts that are halted, done, or in progress.

use jiff::SignedDuration;
use serde_json::json;

use super::*;
use crate::controller::{
    child::{ChildKey, ChildKind},
    observe::{Owner, Trouble, Unready},
    testing::{at, mk_node, mk_pod},
};

fn patience(now: i64) -> Patience<'static> {
    Patience { deadline: SignedDuration::from_secs(60), podless: Vec::new(), now: at(now) }
}

/// A time before any deadline.
fn judged(
    daemon_set: Option<&Live>,
    pods: &[&PluginPod],
    nodes: &BTreeMap<&str, &NodeFacts>,
    refusal: Option<&str>,
) -> Rollout {
    judged_with(daemon_set, pods, nodes, refusal, &patience(1))
}

fn judged_with(
    daemon_set: Option<&Live>,
    pods: &[&PluginPod],
    nodes: &BTreeMap<&str, &NodeFacts>,
    refusal: Option<&str>,
    patience: &Patience<'_>,
) -> Rollout {
    let daemon_set = &DaemonSet::of(daemon_set);
    judge(&Seen { daemon_set, missing: daemon_set.missing(pods), pods, nodes, refusal }, patience)
}

fn daemon_set(observed: i64, desired: i64, updated: i64, available: i64) -> Live {
    Live {
        key: ChildKey { kind: ChildKind::DaemonSet, name: "cpu-node-plugin".into() },
        uid: "u".into(),
        version: 1,
        owner: Owner::Foreign(String::new()),
        terminating: false,
        finalizers: Vec::new(),
        object: json!({"metadata": {"generation": 2}, "status": {
            "observedGeneration": observed, "desiredNumberScheduled": desired,
            "updatedNumberScheduled": updated, "numberAvailable": available,
        }}),
    }
}

#[test]
fn a_daemon_set_that_kubernetes_has_not_acted_on_is_unobserved() {
    assert_eq!(judged(None, &[], &BTreeMap::new(), None).progress, Progress::Unobserved);
    assert_eq!(judged(Some(&daemon_set(1, 1, 1, 1)), &[], &BTreeMap::new(), None).progress, Progress::Unobserved);
}

#[test]
fn a_rollout_without_nodes_is_done() {
    assert_eq!(judged(Some(&daemon_set(2, 0, 0, 0)), &[], &BTreeMap::new(), None).progress, Progress::Done);
}

#[test]
fn a_node_that_is_down_does_not_hold_up_the_rollout() {
    let (up, mut down) = (mk_node("a"), mk_node("b"));
    down.ready = false;
    let (on_up, on_down) = (mk_pod("a", true), mk_pod("b", false));
    let nodes = [("a", &up), ("b", &down)].into();
    let rollout = judged(Some(&daemon_set(2, 2, 2, 1)), &[&on_up, &on_down], &nodes, None);
    assert_eq!(rollout, Rollout { desired: 2, ready: 1, missing: 0, progress: Progress::Done, next_deadline: None });
}

#[test]
fn a_new_plugin_on_a_down_node_does_not_offset_an_old_one_on_a_node_that_is_up() {
    let (up, mut down) = (mk_node("a"), mk_node("b"));
    down.ready = false;
    let nodes = [("a", &up), ("b", &down)].into();
    let mut on_up = mk_pod("a", true);
    let on_down = PluginPod { revision: "2".into(), created: at(9), ..mk_pod("b", false) };
    let progress = |on_up: &PluginPod, updated| {
        judged(Some(&daemon_set(2, 2, updated, 1)), &[on_up, &on_down], &nodes, None).progress
    };
    assert!(matches!(progress(&on_up, 1), Progress::Underway(_)));
    on_up.revision = "2".into();
    assert_eq!(progress(&on_up, 2), Progress::Done);
    // Rolled back before the node that is up got the new version.
    on_up.revision = "1".into();
    let more = mk_pod("c", true);
    let rollout = judged(Some(&daemon_set(2, 3, 2, 2)), &[&on_up, &more, &on_down], &nodes, None);
    assert_eq!(rollout.progress, Progress::Done);
}

#[test]
fn pods_that_cannot_be_created_halt_the_rollout_and_report_why() {
    let pod = mk_pod("a", true);
    let with = |refusal| judged(Some(&daemon_set(2, 3, 1, 1)), &[&pod], &BTreeMap::new(), refusal);
    assert_eq!(with(None).missing, 2);
    assert!(matches!(with(None).progress, Progress::Joining(_)));
    let message = "cannot create pods for 2 of 3 nodes: exceeded quota".to_owned();
    assert_eq!(with(Some("exceeded quota")).progress, Progress::Halted { needs_person: false, message });
}

#[test]
fn a_broken_image_halts_and_is_named_while_the_old_pod_still_counts_as_ready() {
    let node = mk_node("a");
    let old = mk_pod("a", true);
    let mut new = mk_pod("a", false);
    new.name = "new".into();
    new.trouble = Some(Trouble { kind: TroubleKind::ImagePull, message: "image x cannot be pulled".into() });
    let nodes = [("a", &node)].into();
    let rollout = judged(Some(&daemon_set(2, 1, 0, 1)), &[&old, &new], &nodes, None);
    let message = "pod new on node a: image x cannot be pulled".to_owned();
    assert_eq!(
        rollout,
        Rollout {
            desired: 1,
            ready: 1,
            missing: 0,
            progress: Progress::Halted { needs_person: false, message },
            next_deadline: None
        }
    );
}

#[test]
fn an_image_name_that_is_not_valid_needs_a_person() {
    let mut pod = mk_pod("a", false);
    pod.trouble = Some(Trouble { kind: TroubleKind::ImageName, message: "bad".into() });
    let rollout = judged(Some(&daemon_set(2, 1, 1, 0)), &[&pod], &BTreeMap::new(), None);
    assert!(matches!(rollout.progress, Progress::Halted { needs_person: true, .. }));
}

#[test]
fn a_new_plugin_that_runs_and_is_not_ready_in_time_halts_and_names_its_node_and_pod() {
    let old = mk_pod("a", true);
    let new = PluginPod { name: "new".into(), revision: "2".into(), ..mk_pod("a", false) };
    let of = |now| judged_with(Some(&daemon_set(2, 9, 0, 9)), &[&old, &new], &BTreeMap::new(), None, &patience(now));
    let before = of(59);
    assert!(matches!(before.progress, Progress::Underway(_)), "{before:?}");
    assert_eq!(before.next_deadline, Some(at(60)), "it is judged again by itself");
    let Progress::Halted { needs_person: false, message } = of(60).progress else { panic!("{:?}", of(60)) };
    for words in ["node a: pod new is running but not ready", "/readyz", "node plugin reference"] {
        assert!(message.contains(words), "{message}");
    }
    let unstarted = PluginPod { unready: Some(Unready { since: at(0), runs: false }), ..new.clone() };
    let rollout =
        judged_with(Some(&daemon_set(2, 1, 0, 1)), &[&old, &unstarted], &BTreeMap::new(), None, &patience(60));
    assert!(format!("{rollout:?}").contains("kubectl describe pod new"), "{rollout:?}");
}

#[test]
fn a_first_rollout_in_which_nothing_becomes_ready_halts_and_counts_the_nodes() {
    let pods = [mk_pod("a", false), mk_pod("b", false), mk_pod("c", false)];
    let pods: Vec<_> = pods.iter().collect();
    let rollout = judged_with(Some(&daemon_set(2, 3, 3, 0)), &pods, &BTreeMap::new(), None, &patience(60));
    let Progress::Halted { message, .. } = rollout.progress else { panic!("{rollout:?}") };
    assert!(
        message.starts_with("node a: pod cpu-node-plugin-a") && message.ends_with(" (and 2 more like it)"),
        "{message}"
    );
}

#[test]
fn a_node_for_which_no_pod_is_created_in_time_halts_and_is_named() {
    let pod = mk_pod("a", true);
    let podless = |now| Patience { podless: vec![("b", at(0))], ..patience(now) };
    let progress =
        |now| judged_with(Some(&daemon_set(2, 2, 1, 1)), &[&pod], &BTreeMap::new(), None, &podless(now)).progress;
    assert!(matches!(progress(59), Progress::Joining(_)));
    let Progress::Halted { message, .. } = progress(60) else { panic!("{:?}", progress(60)) };
    assert!(message.starts_with("node b: Kubernetes has not created a plugin pod"), "{message}");
}

#[test]
fn a_joining_node_is_distinguished_from_a_new_version() {
    let (old, joined) = (mk_pod("a", true), mk_pod("b", false));
    let progress = |updated, pods: &[&PluginPod]| {
        judged(Some(&daemon_set(2, 2, updated, 1)), pods, &BTreeMap::new(), None).progress
    };
    assert!(matches!(progress(1, &[&old]), Progress::Joining(_)), "no pod of it yet");
    assert!(matches!(progress(1, &[&old, &joined]), Progress::Joining(_)), "its pod is not counted yet");
    assert!(matches!(progress(2, &[&old, &joined]), Progress::Joining(_)));
    assert!(matches!(progress(0, &[&old]), Progress::Underway(_)), "none has the new version");
    let new = PluginPod { revision: "2".into(), created: at(9), ..joined };
    assert!(matches!(progress(1, &[&old, &new]), Progress::Underway(_)));
}
