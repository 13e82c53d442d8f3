//! Slice health: whether every node that runs the plugin has a complete pool of devices, and if not, since when. Pure.
//!
//! A node is judged while it exists and has, or should have, a plugin pod, so a node that goes away leaves no problem
//! behind. Other nodes may publish anything.

use std::{collections::BTreeMap, time::Duration};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::unready;
use crate::{
    api::{Problem, Problems, conditions::seconds},
    controller::observe::{NodeFacts, PluginPod, TroubleKind},
    drivers::kind::Kind,
    slices::pool::{Pool, PoolState},
};

/// Maximum number of problems in the status.
const SHOWN: usize = 10;

/// When each unhealthy node became unhealthy. The next judgement continues from it.
pub type Unwell = BTreeMap<String, Timestamp>;

/// What the last judgement found.
#[derive(Clone, Copy, Debug)]
pub struct Before<'a> {
    /// Nodes that were unhealthy; `None` before this process's first judgement.
    pub unwell: Option<&'a Unwell>,
    /// Problems in the object's status, which survives a restart of the process.
    pub problems: &'a [Problem],
}

/// Nodes that should have a plugin pod but do not.
#[derive(Clone, Copy, Debug, Default)]
pub struct Podless<'a> {
    /// Their names.
    pub nodes: &'a [&'a str],
    /// Why no pod can be created, if the API server says so.
    pub why: Option<&'a str>,
}

/// The judgement.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SliceHealth {
    /// Nodes with a complete pool.
    pub publishing: usize,
    /// Nodes past the deadline.
    pub unhealthy: usize,
    /// Unhealthy nodes that are still within the deadline.
    pub pending: usize,
    /// When the next of them passes the deadline.
    pub next_deadline: Option<Timestamp>,
    /// The first problems by node name, and how many more there are.
    pub problems: Problems,
    /// When each unhealthy node became unhealthy.
    pub unwell: Unwell,
}

/// The input of a judgement.
#[derive(Clone, Copy, Debug)]
pub struct Seen<'a> {
    /// The plugin's pods.
    pub pods: &'a [&'a PluginPod],
    /// Nodes that should have a pod but do not.
    pub podless: Podless<'a>,
    /// Every node, by name.
    pub nodes: &'a BTreeMap<&'a str, &'a NodeFacts>,
    /// The driver's pools, on every node.
    pub pools: &'a [&'a Pool<'a>],
    /// The kind of device.
    pub kind: &'a dyn Kind,
}

/// Judges every node that has a plugin pod or should.
pub fn judge(seen: &Seen<'_>, before: Before<'_>, deadline: Duration, now: Timestamp) -> SliceHealth {
    let Seen { pods, podless, nodes, pools, .. } = *seen;

    // The pods and pools of each relevant node, including nodes that should have a pod but do not.
    let mut by_node: BTreeMap<&str, Vec<&PluginPod>> = BTreeMap::new();
    for pod in pods.iter().filter(|pod| nodes.contains_key(pod.node.as_str())) {
        by_node.entry(&pod.node).or_default().push(pod);
    }
    for node in podless.nodes {
        by_node.entry(node).or_default();
    }
    let mut pools_of: BTreeMap<&str, Vec<&Pool<'_>>> = BTreeMap::new();
    for pool in pools {
        if let Some(node) = pool.node() {
            pools_of.entry(node).or_default().push(pool);
        }
    }

    let deadline = SignedDuration::try_from(deadline).unwrap_or(SignedDuration::MAX);
    let mut health = SliceHealth::default();
    let mut problems = Vec::new();
    for (node, pods) in by_node {
        let pools = pools_of.remove(node).unwrap_or_default();
        health.publishing += usize::from(pools.iter().any(|pool| pool.is_complete()));
        let Some((reason, message)) = complaint(seen, node, &pods, &pools) else { continue };

        // When each problem began: a restart of the controller must not give a node more time.
        let known = before.problems.iter().find(|problem| problem.node == node);
        let since = match (before.unwell, known) {
            (Some(unwell), _) if unwell.contains_key(node) => unwell.get(node).copied().unwrap_or(now),
            (_, Some(problem)) => problem.since.0,
            (Some(_), None) => now,
            // A new process has no history, so the pod's age is the best estimate.
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

/// Why a node is unhealthy.
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
    NoDevices,
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
            Self::NoDevices => "NoDevices",
        }
    }
}

/// What is wrong with a node that has these pods and pools.
fn complaint(seen: &Seen<'_>, node: &str, pods: &[&PluginPod], pools: &[&Pool<'_>]) -> Option<(Reason, String)> {
    if seen.nodes.get(node).is_some_and(|facts| !facts.ready) {
        return Some((Reason::NodeNotReady, "the node is not ready: see `kubectl describe node`".into()));
    }
    if pods.is_empty() {
        let why = seen.podless.why.unwrap_or("see the Events of the DaemonSet with `kubectl describe daemonset`");
        return Some((Reason::PodNotCreated, format!("Kubernetes has not created a plugin pod for the node: {why}")));
    }

    // A broken pool is a problem even if the plugin is ready.
    for pool in pools {
        match &pool.state {
            PoolState::Complete => {}
            PoolState::Invalid { reason } => {
                let message =
                    format!("pool {} is inconsistent, so nothing is allocated from it: {reason}", pool.id.pool);
                return Some((Reason::PoolInvalid, message));
            }
            PoolState::Incomplete { have, want } => {
                let message = format!(
                    "pool {} has {have} of {want} slices of generation {}, so nothing is allocated from it",
                    pool.id.pool, pool.generation
                );
                return Some((Reason::PoolIncomplete, message));
            }
        }
    }

    // A ready plugin of any version must have published devices.
    let ready = pods.iter().any(|pod| pod.ready);
    if ready && pools.iter().any(|pool| pool.devices().next().is_some()) {
        return None;
    }
    if ready && !pools.is_empty() {
        let message = format!("the plugin offers no devices: {}; see its log", seen.kind.why_no_device());
        return Some((Reason::NoDevices, message));
    }
    if ready {
        let message = "the plugin is ready but has not published a ResourceSlice for its node: see its log".into();
        return Some((Reason::NotPublished, message));
    }

    // No plugin is ready. Prefer a pod that says why.
    let troubled = pods.iter().filter(|pod| !pod.terminating).find_map(|pod| Some((pod, pod.trouble.as_ref()?)));
    let Some((pod, trouble)) = troubled else {
        let newest = pods.iter().max_by_key(|pod| (!pod.terminating, pod.created))?;
        return Some((Reason::PluginNotReady, unready::message(newest)));
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
mod tests;
