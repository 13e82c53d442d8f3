//! How far the DaemonSet's roll-out is, and what halts it. Pure.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
};

use jiff::{SignedDuration, Timestamp};

use super::unready;
use crate::{
    controller::observe::{Live, NodeFacts, PluginPod, TroubleKind},
    shorten::more_like_it,
};

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
    /// When the next pod that is not ready has been so for too long.
    pub next_deadline: Option<Timestamp>,
}

/// How far the wanted version is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Kubernetes has not looked at the DaemonSet yet.
    Unobserved,
    /// Pods are being replaced or started.
    Underway(String),
    /// No pod is of another version than the wanted one, and some nodes have yet to run theirs: they joined, or it starts
    /// anew.
    Joining(String),
    /// A pod does not start, or does not become ready in time; the roll-out waits, old pods serve on.
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

/// How long a pod may take.
#[derive(Clone, Debug)]
pub struct Patience<'a> {
    /// From its start to its being ready; and to its being made, where it has yet to be.
    pub deadline: SignedDuration,
    /// Nodes that should have a pod and have none, and since when.
    pub podless: Vec<(&'a str, Timestamp)>,
    /// Now.
    pub now: Timestamp,
}

impl Patience<'_> {
    fn due(&self, since: Timestamp) -> Timestamp {
        since.checked_add(self.deadline).unwrap_or(Timestamp::MAX)
    }
}

/// Judges the live DaemonSet and its pods. Nodes that are down hold no roll-out up: they cannot be waited for. `refusal` is
/// what the API server said to an attempt to make a pod.
pub fn judge(
    daemon_set: Option<&Live>,
    pods: &[&PluginPod],
    nodes: &BTreeMap<&str, &NodeFacts>,
    refusal: Option<&str>,
    patience: &Patience<'_>,
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
    let is_behind = is_behind(pods, &down, updated);
    let mut next_deadline = None;
    let progress = if !observed {
        Progress::Unobserved
    } else if updated >= wanted && available >= wanted && !is_behind {
        Progress::Done
    } else if let Some(why) = refusal.filter(|_| missing > 0) {
        Progress::Halted {
            needs_person: false,
            message: format!("no pod can be made for {missing} of {desired} nodes: {why}"),
        }
    } else if let Some(halted) = stuck(pods, &down).or_else(|| late(pods, &down, patience)) {
        halted
    } else {
        next_deadline = unready(pods, &down).map(|(_, since)| patience.due(since)).min();
        let serving = ready.iter().filter(|node| !down.contains(node.as_str())).count();
        if is_behind || updated < i64::try_from(serving).unwrap_or(i64::MAX) {
            Progress::Underway(format!("{updated} of {desired} nodes have the new plugin, {available} serve"))
        } else {
            Progress::Joining(format!("{available} of {desired} nodes run the plugin, the others have yet to start it"))
        }
    };
    Rollout { desired: count(desired), ready: count(ready.len()), missing, progress, next_deadline }
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

/// The pods that are waited for, and since when they are not ready.
fn unready<'a>(pods: &'a [&PluginPod], down: &'a BTreeSet<&str>) -> impl Iterator<Item = (&'a PluginPod, Timestamp)> {
    let waited_for = |pod: &&&PluginPod| !pod.terminating && !down.contains(pod.node.as_str());
    pods.iter().filter(waited_for).filter_map(|pod| Some((*pod, pod.unready?.since)))
}

/// The first pod, by node, that is not ready in time, or else the first node for which none was made in time.
fn late(pods: &[&PluginPod], down: &BTreeSet<&str>, patience: &Patience<'_>) -> Option<Progress> {
    let is_late = |since: Timestamp| patience.due(since) <= patience.now;
    let mut late: Vec<_> = unready(pods, down).filter(|(_, since)| is_late(*since)).map(|(pod, _)| pod).collect();
    late.sort_by_key(|pod| (&pod.node, &pod.name));
    let mut podless: Vec<_> =
        patience.podless.iter().filter(|(_, since)| is_late(*since)).map(|(node, _)| node).collect();
    podless.sort();
    let message = match (late.first(), podless.first()) {
        (Some(pod), _) => format!("node {}: {}{}", pod.node, unready::in_words(pod), more_like_it(late.len())),
        (None, Some(node)) => format!(
            "node {node}: Kubernetes has made no pod of the plugin: see `kubectl describe daemonset`{}",
            more_like_it(podless.len())
        ),
        (None, None) => return None,
    };
    Some(Progress::Halted { needs_person: false, message })
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
    let others = more_like_it(troubled.len());
    Some(Progress::Halted {
        needs_person: trouble.kind == TroubleKind::ImageName,
        message: format!("pod {} on node {}: {}{others}", pod.name, pod.node, trouble.message),
    })
}

fn count<N: TryInto<i32>>(number: N) -> i32 {
    number.try_into().unwrap_or(i32::MAX)
}

#[cfg(test)]
mod tests;
