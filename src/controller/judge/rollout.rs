//! The progress of the DaemonSet's rollout, and what halts it. Pure.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::apps::v1::DaemonSetStatus;
use serde::Deserialize as _;
use serde_json::Value;

use super::unready;
use crate::{
    controller::observe::{Live, NodeFacts, PluginPod, TroubleKind},
    shorten::more_like_it,
};

/// The state of the plugin's rollout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rollout {
    /// Nodes that should run the plugin.
    pub desired: i32,
    /// Nodes with a ready plugin, of any version.
    pub ready: i32,
    /// Nodes that should run the plugin but have no pod of it.
    pub missing: usize,
    /// The progress of the wanted version.
    pub progress: Progress,
    /// When the next pod passes its deadline for becoming ready.
    pub next_deadline: Option<Timestamp>,
}

/// The progress of the wanted version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Kubernetes has not acted on the last applied DaemonSet yet.
    Unobserved,
    /// Pods are being replaced or started.
    Underway(String),
    /// All pods have the wanted version, but some nodes do not run theirs yet: they have just joined, or their pod is
    /// restarting.
    Joining(String),
    /// A pod does not start, or does not become ready in time. The rollout waits, and old pods keep serving.
    Halted {
        /// Whether someone has to fix it, because the image name is not a valid reference.
        needs_person: bool,
        /// Which pod, where, and why.
        message: String,
    },
    /// Every node that is up runs the wanted version.
    Done,
}

/// The status of the plugin's DaemonSet, as Kubernetes reports it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DaemonSet {
    generation: Option<i64>,
    status: DaemonSetStatus,
}

impl DaemonSet {
    /// Reads a live object. If it does not exist, it counts as unobserved and without nodes.
    pub fn of(live: Option<&Live>) -> Self {
        let Some(live) = live else { return Self::default() };
        let status = live.object.get("status").and_then(|status| DaemonSetStatus::deserialize(status).ok());
        Self {
            generation: live.object.pointer("/metadata/generation").and_then(Value::as_i64),
            status: status.unwrap_or_default(),
        }
    }

    /// How many nodes should run the plugin but have no pod of it.
    pub fn missing(&self, pods: &[&PluginPod]) -> usize {
        let served: BTreeSet<_> = pods.iter().map(|pod| &pod.node).collect();
        usize::try_from(self.status.desired_number_scheduled).unwrap_or(0).saturating_sub(served.len())
    }

    /// Whether the counts refer to what was last applied.
    fn is_observed(&self) -> bool {
        self.status.observed_generation.is_some_and(|observed| observed > 0 && self.generation == Some(observed))
    }

    fn updated(&self) -> i32 {
        self.status.updated_number_scheduled.unwrap_or(0)
    }

    fn available(&self) -> i32 {
        self.status.number_available.unwrap_or(0)
    }
}

/// The input of a judgement.
#[derive(Clone, Copy, Debug)]
pub struct Seen<'a> {
    /// The DaemonSet.
    pub daemon_set: &'a DaemonSet,
    /// How many nodes should run the plugin but have no pod of it.
    pub missing: usize,
    /// The plugin's pods.
    pub pods: &'a [&'a PluginPod],
    /// Every node, by name.
    pub nodes: &'a BTreeMap<&'a str, &'a NodeFacts>,
    /// Why the API server rejected an attempt to create a pod.
    pub refusal: Option<&'a str>,
}

/// How long a pod may take.
#[derive(Clone, Debug)]
pub struct Patience<'a> {
    /// Maximum time to become ready after starting, and to be created once missing.
    pub deadline: SignedDuration,
    /// Nodes that should have a pod but do not, and since when.
    pub podless: Vec<(&'a str, Timestamp)>,
    /// Now.
    pub now: Timestamp,
}

impl Patience<'_> {
    fn due(&self, since: Timestamp) -> Timestamp {
        since.checked_add(self.deadline).unwrap_or(Timestamp::MAX)
    }
}

/// Judges the live DaemonSet and its pods. Nodes that are down do not hold up a rollout: waiting for them could take
/// forever.
pub fn judge(seen: &Seen<'_>, patience: &Patience<'_>) -> Rollout {
    let Seen { daemon_set, missing, pods, nodes, refusal } = *seen;
    let desired = daemon_set.status.desired_number_scheduled;
    let (updated, available) = (daemon_set.updated(), daemon_set.available());
    let ready: BTreeSet<_> = pods.iter().filter(|pod| pod.ready && !pod.terminating).map(|pod| &pod.node).collect();

    // Do not wait for nodes that are down.
    let on_nodes = pods.iter().map(|pod| pod.node.as_str());
    let down: BTreeSet<_> = on_nodes.filter(|node| nodes.get(node).is_some_and(|node| !node.ready)).collect();
    let wanted = desired.saturating_sub(count(down.len()));
    let is_behind = is_behind(pods, &down, updated);

    // From most to least certain: done, halted for a known reason, or in progress.
    let mut next_deadline = None;
    let progress = if !daemon_set.is_observed() {
        Progress::Unobserved
    } else if updated >= wanted && available >= wanted && !is_behind {
        Progress::Done
    } else if let Some(why) = refusal.filter(|_| missing > 0) {
        let message = format!("cannot create pods for {missing} of {desired} nodes: {why}");
        Progress::Halted { needs_person: false, message }
    } else if let Some(halted) = stuck(pods, &down).or_else(|| late(pods, &down, patience)) {
        halted
    } else {
        next_deadline = unready(pods, &down).map(|(_, since)| patience.due(since)).min();
        let serving = ready.iter().filter(|node| !down.contains(node.as_str())).count();
        if is_behind || updated < count(serving) {
            Progress::Underway(format!("{updated} of {desired} nodes have the new version, {available} are available"))
        } else {
            Progress::Joining(format!("{available} of {desired} nodes run the plugin; the others are starting it"))
        }
    };
    Rollout { desired, ready: count(ready.len()), missing, progress, next_deadline }
}

/// Whether a node that is up runs a version other than the wanted one. `updated` includes nodes that are down.
/// Kubernetes does not say which version is wanted, so assume the one whose node count is closest to `updated`, and of
/// two such versions the newer.
fn is_behind(pods: &[&PluginPod], down: &BTreeSet<&str>, updated: i32) -> bool {
    let mut versions: BTreeMap<&str, (BTreeSet<&str>, Timestamp)> = BTreeMap::new();
    for pod in pods.iter().filter(|pod| !pod.terminating) {
        let (nodes, newest) = versions.entry(&pod.revision).or_insert((BTreeSet::new(), pod.created));
        nodes.insert(&pod.node);
        *newest = pod.created.max(*newest);
    }

    let distance = |nodes: &BTreeSet<_>| count(nodes.len()).abs_diff(updated);
    let wanted = versions.values().min_by_key(|(nodes, newest)| (distance(nodes), Reverse(*newest)));
    let Some((updated, _)) = wanted else { return false };

    let mut serving = versions.values().flat_map(|(nodes, _)| nodes);
    serving.any(|node| !down.contains(node) && !updated.contains(node))
}

/// The pods that the rollout waits for, and when they became unready.
fn unready<'a>(pods: &'a [&PluginPod], down: &'a BTreeSet<&str>) -> impl Iterator<Item = (&'a PluginPod, Timestamp)> {
    let waited_for = |pod: &&&PluginPod| !pod.terminating && !down.contains(pod.node.as_str());
    pods.iter().filter(waited_for).filter_map(|pod| Some((*pod, pod.unready?.since)))
}

/// The first pod, by node, that did not become ready in time, or else the first node for which no pod was created in
/// time.
fn late(pods: &[&PluginPod], down: &BTreeSet<&str>, patience: &Patience<'_>) -> Option<Progress> {
    let is_late = |since: Timestamp| patience.due(since) <= patience.now;
    let mut late: Vec<_> = unready(pods, down).filter(|(_, since)| is_late(*since)).map(|(pod, _)| pod).collect();
    late.sort_by_key(|pod| (&pod.node, &pod.name));

    let mut podless: Vec<_> =
        patience.podless.iter().filter(|(_, since)| is_late(*since)).map(|(node, _)| node).collect();
    podless.sort();

    let message = match (late.first(), podless.first()) {
        (Some(pod), _) => format!("node {}: {}{}", pod.node, unready::message(pod), more_like_it(late.len())),
        (None, Some(node)) => format!(
            "node {node}: Kubernetes has not created a plugin pod: see `kubectl describe daemonset`{}",
            more_like_it(podless.len())
        ),
        (None, None) => return None,
    };
    Some(Progress::Halted { needs_person: false, message })
}

/// The first pod, by node, that reports why it does not start.
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

fn count(number: usize) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}

#[cfg(test)]
mod tests;
