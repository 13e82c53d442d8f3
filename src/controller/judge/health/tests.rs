//! Which nodes are healthy, and when a node became unhealthy.

use k8s_openapi::api::resource::v1::ResourceSlice;

use super::*;
use crate::{
    api::CpuSettings,
    controller::{
        observe::Trouble,
        testing::{at, mk_node, mk_pod, mk_slice},
    },
    slices::pool::pools,
};

const DEADLINE: Duration = Duration::from_mins(1);
const FIRST: Before<'static> = Before { unwell: None, problems: &[] };

fn judged(
    pods: &[PluginPod],
    nodes: &[NodeFacts],
    slices: &[ResourceSlice],
    before: Before<'_>,
    now: i64,
) -> SliceHealth {
    judged_with(pods, Podless::default(), nodes, slices, before, now)
}

fn judged_with(
    pods: &[PluginPod],
    podless: Podless<'_>,
    nodes: &[NodeFacts],
    slices: &[ResourceSlice],
    before: Before<'_>,
    now: i64,
) -> SliceHealth {
    let pods: Vec<_> = pods.iter().collect();
    let nodes = nodes.iter().map(|node| (node.name.as_str(), node)).collect();
    let pools = pools(slices);
    let pools: Vec<_> = pools.iter().collect();
    let seen = Seen { pods: &pods, podless, nodes: &nodes, pools: &pools, kind: &CpuSettings::default() };
    judge(&seen, before, DEADLINE, at(now))
}

#[test]
fn a_node_that_publishes_is_healthy() {
    let health = judged(&[mk_pod("a", true)], &[mk_node("a")], &[mk_slice("a", 1, 1, &["core-0-0"])], FIRST, 1000);
    assert_eq!(health, SliceHealth { publishing: 1, ..SliceHealth::default() });
}

#[test]
fn a_node_has_until_the_deadline() {
    let (pod, node) = (mk_pod("a", true), mk_node("a"));
    let before = judged(std::slice::from_ref(&pod), std::slice::from_ref(&node), &[], FIRST, 59);
    assert_eq!((before.pending, before.unhealthy, before.next_deadline), (1, 0, Some(at(60))));
    let after = judged(&[pod], &[node], &[], Before { unwell: Some(&before.unwell), problems: &[] }, 60);
    assert_eq!((after.pending, after.unhealthy, after.next_deadline), (0, 1, None));
    assert_eq!(after.problems.first[0].reason, "NotPublished");
    assert_eq!(after.problems.first[0].since, Time(at(0)));
}

#[test]
fn the_deadline_starts_again_when_a_healthy_node_becomes_unhealthy() {
    let none = Unwell::new();
    let before = Before { unwell: Some(&none), problems: &[] };
    let health = judged(&[mk_pod("a", true)], &[mk_node("a")], &[], before, 5000);
    assert_eq!((health.pending, health.next_deadline), (1, Some(at(5060))));
}

#[test]
fn a_new_process_continues_from_the_status() {
    let first = judged(&[mk_pod("a", true)], &[mk_node("a")], &[], FIRST, 100);
    let before = Before { unwell: None, problems: &first.problems.first };
    assert_eq!(judged(&[mk_pod("a", true)], &[mk_node("a")], &[], before, 500).problems, first.problems);
}

#[test]
fn a_node_that_goes_away_leaves_no_problem_behind() {
    let first = judged(&[mk_pod("a", true)], &[mk_node("a")], &[], FIRST, 100);
    assert_eq!(first.unhealthy, 1);
    let before = Before { unwell: Some(&first.unwell), problems: &first.problems.first };
    assert_eq!(judged(&[mk_pod("a", true)], &[], &[], before, 101), SliceHealth::default());
}

#[test]
fn a_node_without_a_plugin_pod_may_publish_anything() {
    let health = judged(&[], &[mk_node("sim")], &[mk_slice("sim", 1, 2, &["core-0-0"])], FIRST, 1000);
    assert_eq!(health, SliceHealth::default());
}

#[test]
fn only_a_complete_pool_of_the_highest_generation_counts() {
    let old = mk_slice("a", 1, 1, &["core-0-0"]);
    let new = mk_slice("a", 2, 2, &["core-0-0"]);
    let health = judged(&[mk_pod("a", true)], &[mk_node("a")], &[old, new], FIRST, 1000);
    assert_eq!((health.publishing, health.problems.first[0].reason.as_str()), (0, "PoolIncomplete"));
    assert!(health.problems.first[0].message.contains("1 of 2 slices of generation 2"));
    let twice = mk_slice("a", 1, 1, &["core-0-0", "core-0-0"]);
    let health = judged(&[mk_pod("a", true)], &[mk_node("a")], &[twice], FIRST, 1000);
    assert_eq!(health.problems.first[0].reason, "PoolInvalid");
}

#[test]
fn a_node_that_offers_nothing_is_a_problem() {
    let empty = [mk_slice("a", 1, 1, &[])];
    let health = judged(&[mk_pod("a", true)], &[mk_node("a")], &empty, FIRST, 1000);
    assert_eq!((health.publishing, health.unhealthy), (1, 1));
    let problem = &health.problems.first[0];
    assert_eq!(problem.reason, "NoDevices");
    assert!(problem.message.contains("reservedCPUs"), "{}", problem.message);
}

#[test]
fn a_running_pod_that_is_not_ready_is_named_with_a_pointer_to_the_cause() {
    let health = judged(&[mk_pod("a", false)], &[mk_node("a")], &[], FIRST, 1000);
    let problem = &health.problems.first[0];
    assert_eq!(problem.reason, "PluginNotReady");
    for words in ["cpu-node-plugin-a", "/readyz", "node plugin reference"] {
        assert!(problem.message.contains(words), "{}", problem.message);
    }
}

#[test]
fn a_pod_that_does_not_start_is_named_with_the_cause() {
    let mut pod = mk_pod("a", false);
    pod.trouble = Some(Trouble { kind: TroubleKind::ImagePull, message: "image x cannot be pulled".into() });
    let health = judged(&[pod], &[mk_node("a")], &[], FIRST, 1000);
    assert_eq!(health.problems.first[0].reason, "ImagePullFailed");
    assert!(health.problems.first[0].message.contains("image x"));
}

#[test]
fn an_old_plugin_that_serves_keeps_its_node_healthy_while_the_new_one_does_not_start() {
    let mut new = mk_pod("a", false);
    new.trouble = Some(Trouble { kind: TroubleKind::Crash, message: "exit code 1".into() });
    let slices = [mk_slice("a", 1, 1, &["core-0-0"])];
    assert_eq!(judged(&[mk_pod("a", true), new], &[mk_node("a")], &slices, FIRST, 1000).unhealthy, 0);
}

#[test]
fn the_first_ten_problems_are_shown_by_node_name_and_the_rest_are_counted() {
    let names: Vec<_> = (0..13).map(|n| format!("n{n:02}")).rev().collect();
    let pods: Vec<_> = names.iter().map(|name| mk_pod(name, false)).collect();
    let nodes: Vec<_> = names.iter().map(|name| mk_node(name)).collect();
    let health = judged(&pods, &nodes, &[], FIRST, 1000);
    let shown: Vec<_> = health.problems.first.iter().map(|problem| problem.node.as_str()).collect();
    assert_eq!(shown, ["n00", "n01", "n02", "n03", "n04", "n05", "n06", "n07", "n08", "n09"]);
    assert_eq!((health.problems.more, health.unhealthy), (3, 13));
}

#[test]
fn a_node_for_which_no_pod_can_be_created_has_until_the_deadline_and_then_reports_why() {
    let podless = Podless { nodes: &["a"], why: Some("violates PodSecurity") };
    let none = Unwell::new();
    let before = Before { unwell: Some(&none), problems: &[] };
    let health = judged_with(&[], podless, &[mk_node("a"), mk_node("b")], &[], before, 0);
    assert_eq!((health.pending, health.unhealthy), (1, 0));
    let before = Before { unwell: Some(&health.unwell), problems: &[] };
    let health = judged_with(&[], podless, &[mk_node("a"), mk_node("b")], &[], before, 60);
    let problem = &health.problems.first[0];
    assert_eq!((health.unhealthy, problem.node.as_str(), problem.reason.as_str()), (1, "a", "PodNotCreated"));
    assert!(problem.message.contains("violates PodSecurity"), "{}", problem.message);
}

#[test]
fn a_node_whose_kubelet_does_not_report_is_not_ready() {
    let mut node = mk_node("a");
    node.ready = false;
    let health = judged(&[mk_pod("a", false)], &[node], &[mk_slice("a", 1, 1, &["c"])], FIRST, 1000);
    assert_eq!(health.problems.first[0].reason, "NodeNotReady");
}
