//! How far the DaemonSet's roll-out is, and what halts it. Pure.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::observe::{Live, NodeFacts, PluginPod, TroubleKind};

/// How the plugin's roll-out stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rollout {
    /// Nodes that should run the plugin.
    pub desired: i32,
    /// Nodes with a ready plugin, of any version.
    pub ready: i32,
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

/// Judges the live DaemonSet and its pods. Nodes that are down hold no roll-out up: they cannot be waited for.
pub fn judge(daemon_set: Option<&Live>, pods: &[&PluginPod], nodes: &BTreeMap<&str, &NodeFacts>) -> Rollout {
    let empty = Value::Null;
    let object = daemon_set.map_or(&empty, |live| &live.object);
    let status = |field: &str| object.pointer(&format!("/status/{field}")).and_then(Value::as_i64).unwrap_or(0);
    let desired = status("desiredNumberScheduled");
    let ready: BTreeSet<_> = pods.iter().filter(|pod| pod.ready && !pod.terminating).map(|pod| &pod.node).collect();
    let observed = status("observedGeneration") > 0
        && object.pointer("/metadata/generation").and_then(Value::as_i64) == Some(status("observedGeneration"));
    let down = pods
        .iter()
        .map(|pod| pod.node.as_str())
        .filter(|node| nodes.get(node).is_some_and(|node| !node.ready))
        .collect::<BTreeSet<_>>();
    let wanted = desired - i64::try_from(down.len()).unwrap_or(0);
    let (updated, available) = (status("updatedNumberScheduled"), status("numberAvailable"));
    let progress = if !observed {
        Progress::Unobserved
    } else if updated >= wanted && available >= wanted {
        Progress::Done
    } else {
        stuck(pods, &down).unwrap_or_else(|| {
            Progress::Underway(format!("{updated} of {desired} nodes have the new plugin, {available} serve"))
        })
    };
    Rollout { desired: count(desired), ready: count(ready.len()), progress }
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
        testing::{mk_node, mk_pod},
    };

    fn daemon_set(observed: i64, desired: i64, updated: i64, available: i64) -> Live {
        Live {
            key: ChildKey { kind: ChildKind::DaemonSet, name: "cpu-node-plugin".into() },
            uid: "u".into(),
            version: 1,
            owner: Owner::Foreign(String::new()),
            terminating: false,
            object: json!({"metadata": {"generation": 2}, "status": {
                "observedGeneration": observed, "desiredNumberScheduled": desired,
                "updatedNumberScheduled": updated, "numberAvailable": available,
            }}),
        }
    }

    #[test]
    fn a_daemon_set_nobody_looked_at_is_unobserved() {
        assert_eq!(judge(None, &[], &BTreeMap::new()).progress, Progress::Unobserved);
        assert_eq!(judge(Some(&daemon_set(1, 1, 1, 1)), &[], &BTreeMap::new()).progress, Progress::Unobserved);
    }

    #[test]
    fn no_node_to_run_on_is_done() {
        assert_eq!(judge(Some(&daemon_set(2, 0, 0, 0)), &[], &BTreeMap::new()).progress, Progress::Done);
    }

    #[test]
    fn a_node_that_is_down_holds_nothing_up() {
        let (up, mut down) = (mk_node("a"), mk_node("b"));
        down.ready = false;
        let (on_up, on_down) = (mk_pod("a", true), mk_pod("b", false));
        let nodes = [("a", &up), ("b", &down)].into();
        let rollout = judge(Some(&daemon_set(2, 2, 2, 1)), &[&on_up, &on_down], &nodes);
        assert_eq!(rollout, Rollout { desired: 2, ready: 1, progress: Progress::Done });
    }

    #[test]
    fn a_broken_image_halts_and_is_named_while_the_old_pod_still_counts_as_ready() {
        let node = mk_node("a");
        let old = mk_pod("a", true);
        let mut new = mk_pod("a", false);
        new.name = "new".into();
        new.trouble = Some(Trouble { kind: TroubleKind::ImagePull, message: "image x cannot be pulled".into() });
        let nodes = [("a", &node)].into();
        let rollout = judge(Some(&daemon_set(2, 1, 0, 1)), &[&old, &new], &nodes);
        let message = "pod new on node a: image x cannot be pulled".to_owned();
        assert_eq!(
            rollout,
            Rollout { desired: 1, ready: 1, progress: Progress::Halted { needs_person: false, message } }
        );
    }

    #[test]
    fn an_image_name_that_is_none_needs_a_person() {
        let mut pod = mk_pod("a", false);
        pod.trouble = Some(Trouble { kind: TroubleKind::ImageName, message: "bad".into() });
        let rollout = judge(Some(&daemon_set(2, 1, 1, 0)), &[&pod], &BTreeMap::new());
        assert!(matches!(rollout.progress, Progress::Halted { needs_person: true, .. }));
    }
}
