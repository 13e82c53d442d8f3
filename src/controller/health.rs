//! Slice health: whether every node that runs the plugin has a complete pool of its devices, and since when not. Pure.
//!
//! A node is judged while it exists and has a plugin pod or should have one, so that one that goes away leaves no problem
//! behind. Any other node may publish as it likes: that is no problem of the roll-out.

use std::{collections::BTreeMap, time::Duration};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::observe::{NodeFacts, PluginPod, TroubleKind};
use crate::{
    api::{Problem, Problems, conditions::seconds},
    slices::pool::{Pool, PoolState},
};

/// How many problems the status has at most.
const SHOWN: usize = 10;

/// Since when each node that is not well is so: what the next judgement goes on from.
pub type Unwell = BTreeMap<String, Timestamp>;

/// What is known from before.
#[derive(Clone, Copy, Debug)]
pub struct Before<'a> {
    /// Nodes not well at the last judgement; none when this is the first of this process.
    pub unwell: Option<&'a Unwell>,
    /// Problems in the object's status, which outlive the process.
    pub problems: &'a [Problem],
}

/// Nodes that should have a plugin pod and have none.
#[derive(Clone, Copy, Debug, Default)]
pub struct Podless<'a> {
    /// Their names.
    pub nodes: &'a [&'a str],
    /// Why no pod can be made, where the API server says it.
    pub why: Option<&'a str>,
}

/// The judgement.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Health {
    /// Nodes with a complete pool.
    pub publishing: usize,
    /// Nodes past the deadline.
    pub unhealthy: usize,
    /// Nodes not well, and still within the deadline.
    pub pending: usize,
    /// When the next of them will be past it.
    pub next_deadline: Option<Timestamp>,
    /// The first problems by node name, and how many more.
    pub problems: Problems,
    /// Since when each node that is not well is so.
    pub unwell: Unwell,
}

/// Judges every node that has a plugin pod or should. `pools` are the driver's, of every node.
pub fn judge(
    pods: &[&PluginPod],
    podless: Podless<'_>,
    nodes: &BTreeMap<&str, &NodeFacts>,
    pools: &[&Pool<'_>],
    deadline: Duration,
    before: Before<'_>,
    now: Timestamp,
) -> Health {
    let mut by_node: BTreeMap<&str, Vec<&PluginPod>> = BTreeMap::new();
    for pod in pods.iter().filter(|pod| nodes.contains_key(pod.node.as_str())) {
        by_node.entry(&pod.node).or_default().push(pod);
    }
    for node in podless.nodes {
        by_node.entry(node).or_default();
    }
    let deadline = SignedDuration::try_from(deadline).unwrap_or(SignedDuration::MAX);
    let mut health = Health::default();
    let mut problems = Vec::new();
    let mut pools_of: BTreeMap<&str, Vec<&Pool<'_>>> = BTreeMap::new();
    for pool in pools {
        if let Some(node) = pool.node() {
            pools_of.entry(node).or_default().push(pool);
        }
    }
    for (node, pods) in by_node {
        let pools = pools_of.remove(node).unwrap_or_default();
        health.publishing += usize::from(pools.iter().any(|pool| pool.is_complete()));
        let Some((reason, message)) = complaint(nodes.get(node).copied(), &pods, podless.why, &pools) else { continue };
        let known = before.problems.iter().find(|problem| problem.node == node);
        let since = match (before.unwell, known) {
            (Some(unwell), _) if unwell.contains_key(node) => unwell.get(node).copied().unwrap_or(now),
            (_, Some(problem)) => problem.since.0,
            (Some(_), None) => now,
            // A new process has seen nothing yet: the pod's age is the best it has.
            (None, None) => pods.iter().map(|pod| pod.created).min().unwrap_or(now),
        };
        health.unwell.insert(node.to_owned(), since);
        let due = since.checked_add(deadline).unwrap_or(Timestamp::MAX);
        if due > now {
            health.pending += 1;
            health.next_deadline = Some(health.next_deadline.map_or(due, |next| next.min(due)));
        } else {
            let problem =
                Problem { node: node.to_owned(), reason: reason.as_str().into(), message, since: Time(seconds(since)) };
            problems.push(problem);
        }
    }
    health.unhealthy = problems.len();
    let more = i32::try_from(problems.len().saturating_sub(SHOWN)).unwrap_or(i32::MAX);
    problems.truncate(SHOWN);
    health.problems = Problems { first: problems, more };
    health
}

/// Why a node is not well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reason {
    NodeNotReady,
    PodNotCreated,
    ImagePullFailed,
    CrashLooping,
    ContainerNotStarted,
    NotScheduled,
    PluginNotReady,
    PoolInvalid,
    PoolIncomplete,
    NotPublished,
}

impl Reason {
    const fn as_str(self) -> &'static str {
        match self {
            Self::NodeNotReady => "NodeNotReady",
            Self::PodNotCreated => "PodNotCreated",
            Self::ImagePullFailed => "ImagePullFailed",
            Self::CrashLooping => "CrashLooping",
            Self::ContainerNotStarted => "ContainerNotStarted",
            Self::NotScheduled => "NotScheduled",
            Self::PluginNotReady => "PluginNotReady",
            Self::PoolInvalid => "PoolInvalid",
            Self::PoolIncomplete => "PoolIncomplete",
            Self::NotPublished => "NotPublished",
        }
    }
}

fn complaint(
    facts: Option<&NodeFacts>,
    pods: &[&PluginPod],
    refused: Option<&str>,
    pools: &[&Pool<'_>],
) -> Option<(Reason, String)> {
    if facts.is_some_and(|facts| !facts.ready) {
        return Some((
            Reason::NodeNotReady,
            "the node's kubelet does not report it ready: see `kubectl describe node`".into(),
        ));
    }
    if pods.is_empty() {
        let why = refused.unwrap_or("see the Events of the DaemonSet with `kubectl describe daemonset`");
        return Some((Reason::PodNotCreated, format!("Kubernetes has made no plugin pod for the node: {why}")));
    }
    for pool in pools {
        match &pool.state {
            PoolState::Complete => {}
            PoolState::Invalid { reason } => {
                let message =
                    format!("pool {} contradicts itself, nothing is allocated from it: {reason}", pool.id.pool);
                return Some((Reason::PoolInvalid, message));
            }
            PoolState::Incomplete { have, want } => {
                let message = format!(
                    "pool {} has {have} of {want} slices of generation {}, nothing is allocated from it",
                    pool.id.pool, pool.generation
                );
                return Some((Reason::PoolIncomplete, message));
            }
        }
    }
    let ready = pods.iter().any(|pod| pod.ready);
    if ready && !pools.is_empty() {
        return None;
    }
    if ready {
        let message = "the plugin is ready and there is no ResourceSlice of its node: see its log".into();
        return Some((Reason::NotPublished, message));
    }
    let troubled = pods.iter().filter(|pod| !pod.terminating).find_map(|pod| Some((pod, pod.trouble.as_ref()?)));
    let Some((pod, trouble)) = troubled else {
        let names: Vec<_> = pods.iter().map(|pod| pod.name.as_str()).collect();
        let message = format!("pod {} is not ready: see `kubectl describe pod` and its log", names.join(", "));
        return Some((Reason::PluginNotReady, message));
    };
    let reason = match trouble.kind {
        TroubleKind::ImagePull | TroubleKind::ImageName => Reason::ImagePullFailed,
        TroubleKind::Crash => Reason::CrashLooping,
        TroubleKind::Container => Reason::ContainerNotStarted,
        TroubleKind::Scheduling => Reason::NotScheduled,
    };
    Some((reason, format!("pod {}: {}", pod.name, trouble.message)))
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::resource::v1::ResourceSlice;

    use super::*;
    use crate::{
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
    ) -> Health {
        judged_with(pods, Podless::default(), nodes, slices, before, now)
    }

    fn judged_with(
        pods: &[PluginPod],
        podless: Podless<'_>,
        nodes: &[NodeFacts],
        slices: &[ResourceSlice],
        before: Before<'_>,
        now: i64,
    ) -> Health {
        let pods: Vec<_> = pods.iter().collect();
        let nodes = nodes.iter().map(|node| (node.name.as_str(), node)).collect();
        let pools = pools(slices);
        judge(&pods, podless, &nodes, &pools.iter().collect::<Vec<_>>(), DEADLINE, before, at(now))
    }

    #[test]
    fn a_node_that_publishes_is_well() {
        let health = judged(&[mk_pod("a", true)], &[mk_node("a")], &[mk_slice("a", 1, 1, &["core-0-0"])], FIRST, 1000);
        assert_eq!(health, Health { publishing: 1, ..Health::default() });
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
    fn the_deadline_starts_anew_when_a_node_that_was_well_is_not() {
        let none = Unwell::new();
        let before = Before { unwell: Some(&none), problems: &[] };
        let health = judged(&[mk_pod("a", true)], &[mk_node("a")], &[], before, 5000);
        assert_eq!((health.pending, health.next_deadline), (1, Some(at(5060))));
    }

    #[test]
    fn a_new_process_goes_on_from_the_status() {
        let first = judged(&[mk_pod("a", true)], &[mk_node("a")], &[], FIRST, 100);
        let before = Before { unwell: None, problems: &first.problems.first };
        assert_eq!(judged(&[mk_pod("a", true)], &[mk_node("a")], &[], before, 500).problems, first.problems);
    }

    #[test]
    fn a_node_that_goes_away_leaves_no_problem_behind() {
        let first = judged(&[mk_pod("a", true)], &[mk_node("a")], &[], FIRST, 100);
        assert_eq!(first.unhealthy, 1);
        let before = Before { unwell: Some(&first.unwell), problems: &first.problems.first };
        assert_eq!(judged(&[mk_pod("a", true)], &[], &[], before, 101), Health::default());
    }

    #[test]
    fn a_node_without_a_plugin_pod_may_publish_as_it_likes() {
        let health = judged(&[], &[mk_node("sim")], &[mk_slice("sim", 1, 2, &["core-0-0"])], FIRST, 1000);
        assert_eq!(health, Health::default());
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
    fn a_pod_that_does_not_start_is_told_with_its_cause() {
        let mut pod = mk_pod("a", false);
        pod.trouble = Some(Trouble { kind: TroubleKind::ImagePull, message: "image x cannot be pulled".into() });
        let health = judged(&[pod], &[mk_node("a")], &[], FIRST, 1000);
        assert_eq!(health.problems.first[0].reason, "ImagePullFailed");
        assert!(health.problems.first[0].message.contains("image x"));
    }

    #[test]
    fn an_old_plugin_that_serves_keeps_its_node_well_while_the_new_one_does_not_start() {
        let mut new = mk_pod("a", false);
        new.trouble = Some(Trouble { kind: TroubleKind::Crash, message: "exit code 1".into() });
        let slices = [mk_slice("a", 1, 1, &["core-0-0"])];
        assert_eq!(judged(&[mk_pod("a", true), new], &[mk_node("a")], &slices, FIRST, 1000).unhealthy, 0);
    }

    #[test]
    fn the_first_ten_problems_are_shown_by_node_name_and_the_rest_counted() {
        let names: Vec<_> = (0..13).map(|n| format!("n{n:02}")).rev().collect();
        let pods: Vec<_> = names.iter().map(|name| mk_pod(name, false)).collect();
        let nodes: Vec<_> = names.iter().map(|name| mk_node(name)).collect();
        let health = judged(&pods, &nodes, &[], FIRST, 1000);
        let shown: Vec<_> = health.problems.first.iter().map(|problem| problem.node.as_str()).collect();
        assert_eq!(shown, ["n00", "n01", "n02", "n03", "n04", "n05", "n06", "n07", "n08", "n09"]);
        assert_eq!((health.problems.more, health.unhealthy), (3, 13));
    }

    #[test]
    fn a_node_for_which_no_pod_can_be_made_has_until_the_deadline_and_then_says_why() {
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
    fn a_node_whose_kubelet_is_gone_says_so() {
        let mut node = mk_node("a");
        node.ready = false;
        let health = judged(&[mk_pod("a", false)], &[node], &[mk_slice("a", 1, 1, &["c"])], FIRST, 1000);
        assert_eq!(health.problems.first[0].reason, "NodeNotReady");
    }
}
