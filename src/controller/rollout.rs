//! How far the DaemonSet's roll-out is, and what halts it. Pure.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
};

use jiff::Timestamp;

use super::observe::{Live, NodeFacts, PluginPod, TroubleKind};

/// How the plugin's roll-out stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rollout {
    /// Nodes that should run the plugin.
    pub desired: i32,
    /// Nodes with a ready plugin, of any version.
    pub ready: i32,
    /// Nodes that should run it and have no pod of it.
    pub missing: usize,
    /// How far the wanted version is.
    pub progress: Progress,
}

/// How far the wanted version is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Kubernetes has not looked at the DaemonSet yet.
    Unobserved,
    /// Pods are being replaced or started.
    Underway(String),
    /// A new pod does not start; the roll-out waits, old pods serve on.
    Halted {
        /// Whether only a person can mend it, because the image's name is none.
        needs_person: bool,
        /// Which pod, where, and why.
        message: String,
    },
    /// Every node that is up runs the wanted version.
    Done,
}

fn status(daemon_set: Option<&Live>, field: &str) -> i64 {
    let number = daemon_set.and_then(|live| live.object.get("status")?.get(field)?.as_i64());
    number.unwrap_or(0)
}

/// How many nodes should run the plugin and have no pod of it.
pub fn missing(daemon_set: Option<&Live>, pods: &[&PluginPod]) -> usize {
    let served: BTreeSet<_> = pods.iter().map(|pod| &pod.node).collect();
    usize::try_from(status(daemon_set, "desiredNumberScheduled")).unwrap_or(0).saturating_sub(served.len())
}

/// Judges the live DaemonSet and its pods. Nodes that are down hold no roll-out up: they cannot be waited for. `refusal` is
/// what the API server said to an attempt to make a pod.
pub fn judge(
    daemon_set: Option<&Live>,
    pods: &[&PluginPod],
    nodes: &BTreeMap<&str, &NodeFacts>,
    refusal: Option<&str>,
) -> Rollout {
    let status = |field: &str| status(daemon_set, field);
    let missing = missing(daemon_set, pods);
    let desired = status("desiredNumberScheduled");
    let ready: BTreeSet<_> = pods.iter().filter(|pod| pod.ready && !pod.terminating).map(|pod| &pod.node).collect();
    let observed = status("observedGeneration") > 0
        && daemon_set.and_then(|live| live.object.pointer("/metadata/generation")?.as_i64())
            == Some(status("observedGeneration"));
    let down = pods
        .iter()
        .map(|pod| pod.node.as_str())
        .filter(|node| nodes.get(node).is_some_and(|node| !node.ready))
        .collect::<BTreeSet<_>>();
    let wanted = desired - i64::try_from(down.len()).unwrap_or(0);
    let (updated, available) = (status("updatedNumberScheduled"), status("numberAvailable"));
    let progress = if !observed {
        Progress::Unobserved
    } else if updated >= wanted && available >= wanted && !is_behind(pods, &down, updated) {
        Progress::Done
    } else if let Some(why) = refusal.filter(|_| missing > 0) {
        Progress::Halted {
            needs_person: false,
            message: format!("no pod can be made for {missing} of {desired} nodes: {why}"),
        }
    } else {
        stuck(pods, &down).unwrap_or_else(|| {
            Progress::Underway(format!("{updated} of {desired} nodes have the new plugin, {available} serve"))
        })
    };
    Rollout { desired: count(desired), ready: count(ready.len()), missing, progress }
}

/// Whether a node that is up runs another version than the wanted one: among `updated`, a number, are nodes that are down.
/// Kubernetes does not tell which version is wanted; it is the one that about so many nodes have, of two such the newer.
fn is_behind(pods: &[&PluginPod], down: &BTreeSet<&str>, updated: i64) -> bool {
    let mut versions: BTreeMap<&str, (BTreeSet<&str>, Timestamp)> = BTreeMap::new();
    for pod in pods.iter().filter(|pod| !pod.terminating) {
        let (nodes, newest) = versions.entry(&pod.revision).or_insert((BTreeSet::new(), pod.created));
        nodes.insert(&pod.node);
        *newest = pod.created.max(*newest);
    }
    let distance = |nodes: &BTreeSet<_>| i64::try_from(nodes.len()).unwrap_or(i64::MAX).abs_diff(updated);
    let wanted = versions.values().min_by_key(|(nodes, newest)| (distance(nodes), Reverse(*newest)));
    let Some((updated, _)) = wanted else { return false };
    let mut serving = versions.values().flat_map(|(nodes, _)| nodes);
    serving.any(|node| !down.contains(node) && !updated.contains(node))
}

/// The first pod, by node, that says why it does not start.
fn stuck(pods: &[&PluginPod], down: &BTreeSet<&str>) -> Option<Progress> {
    let mut troubled: Vec<_> = pods
        .iter()
        .filter(|pod| !pod.terminating && !down.contains(pod.node.as_str()))
        .filter_map(|pod| Some((pod, pod.trouble.as_ref()?)))
        .collect();
    troubled.sort_by_key(|(pod, trouble)| (trouble.kind != TroubleKind::ImageName, &pod.node, &pod.name));
    let (pod, trouble) = troubled.first()?;
    let others = match troubled.len() - 1 {
        0 => String::new(),
        more => format!("; {more} more like it"),
    };
    Some(Progress::Halted {
        needs_person: trouble.kind == TroubleKind::ImageName,
        message: format!("pod {} on node {}: {}{others}", pod.name, pod.node, trouble.message),
    })
}

fn count<N: TryInto<i32>>(number: N) -> i32 {
    number.try_into().unwrap_or(i32::MAX)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::controller::{
        child::{ChildKey, ChildKind},
        observe::{Owner, Trouble},
        testing::{at, mk_node, mk_pod},
    };

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
    fn a_daemon_set_nobody_looked_at_is_unobserved() {
        assert_eq!(judge(None, &[], &BTreeMap::new(), None).progress, Progress::Unobserved);
        assert_eq!(judge(Some(&daemon_set(1, 1, 1, 1)), &[], &BTreeMap::new(), None).progress, Progress::Unobserved);
    }

    #[test]
    fn no_node_to_run_on_is_done() {
        assert_eq!(judge(Some(&daemon_set(2, 0, 0, 0)), &[], &BTreeMap::new(), None).progress, Progress::Done);
    }

    #[test]
    fn a_node_that_is_down_holds_nothing_up() {
        let (up, mut down) = (mk_node("a"), mk_node("b"));
        down.ready = false;
        let (on_up, on_down) = (mk_pod("a", true), mk_pod("b", false));
        let nodes = [("a", &up), ("b", &down)].into();
        let rollout = judge(Some(&daemon_set(2, 2, 2, 1)), &[&on_up, &on_down], &nodes, None);
        assert_eq!(rollout, Rollout { desired: 2, ready: 1, missing: 0, progress: Progress::Done });
    }

    #[test]
    fn the_new_plugin_on_a_node_that_is_down_makes_up_for_no_old_one_on_a_node_that_is_up() {
        let (up, mut down) = (mk_node("a"), mk_node("b"));
        down.ready = false;
        let nodes = [("a", &up), ("b", &down)].into();
        let mut on_up = mk_pod("a", true);
        let on_down = PluginPod { revision: "2".into(), created: at(9), ..mk_pod("b", false) };
        let progress = |on_up: &PluginPod, updated| {
            judge(Some(&daemon_set(2, 2, updated, 1)), &[on_up, &on_down], &nodes, None).progress
        };
        assert!(matches!(progress(&on_up, 1), Progress::Underway(_)));
        on_up.revision = "2".into();
        assert_eq!(progress(&on_up, 2), Progress::Done);
        // Taken back before the node that is up had it.
        on_up.revision = "1".into();
        let more = mk_pod("c", true);
        let rollout = judge(Some(&daemon_set(2, 3, 2, 2)), &[&on_up, &more, &on_down], &nodes, None);
        assert_eq!(rollout.progress, Progress::Done);
    }

    #[test]
    fn pods_that_cannot_be_made_halt_and_say_why() {
        let pod = mk_pod("a", true);
        let judged = |refusal| judge(Some(&daemon_set(2, 3, 1, 1)), &[&pod], &BTreeMap::new(), refusal);
        assert_eq!(judged(None).missing, 2);
        assert!(matches!(judged(None).progress, Progress::Underway(_)));
        let message = "no pod can be made for 2 of 3 nodes: exceeded quota".to_owned();
        assert_eq!(judged(Some("exceeded quota")).progress, Progress::Halted { needs_person: false, message });
    }

    #[test]
    fn a_broken_image_halts_and_is_named_while_the_old_pod_still_counts_as_ready() {
        let node = mk_node("a");
        let old = mk_pod("a", true);
        let mut new = mk_pod("a", false);
        new.name = "new".into();
        new.trouble = Some(Trouble { kind: TroubleKind::ImagePull, message: "image x cannot be pulled".into() });
        let nodes = [("a", &node)].into();
        let rollout = judge(Some(&daemon_set(2, 1, 0, 1)), &[&old, &new], &nodes, None);
        let message = "pod new on node a: image x cannot be pulled".to_owned();
        assert_eq!(
            rollout,
            Rollout { desired: 1, ready: 1, missing: 0, progress: Progress::Halted { needs_person: false, message } }
        );
    }

    #[test]
    fn an_image_name_that_is_none_needs_a_person() {
        let mut pod = mk_pod("a", false);
        pod.trouble = Some(Trouble { kind: TroubleKind::ImageName, message: "bad".into() });
        let rollout = judge(Some(&daemon_set(2, 1, 1, 0)), &[&pod], &BTreeMap::new(), None);
        assert!(matches!(rollout.progress, Progress::Halted { needs_person: true, .. }));
    }
}
