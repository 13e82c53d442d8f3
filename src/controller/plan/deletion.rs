//! How a config is deleted: first the classes, so that no new claims come; then the plugin, once no claims are left;
//! then its slices and the rest. Pure.

use std::collections::BTreeMap;

use kube::ResourceExt;

use super::Action;
use crate::{
    api::DeletionPolicy,
    controller::{
        child::ChildKind,
        config::Config,
        observe::{Live, NodeFacts, PluginPod},
        view::View,
    },
    shorten,
};

/// Maximum number of claims or pods in a message.
const NAMED: usize = 5;

/// The next step of a deletion.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// Children to delete now.
    pub actions: Vec<Action>,
    /// Slices to delete now, by name and unique id.
    pub slices: Vec<(String, String)>,
    /// What the deletion waits for; `None` once the finalizer can be removed.
    pub waiting: Option<Waiting>,
}

/// What a deletion waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Waiting {
    /// Claims that hold devices of the driver.
    Claims(String),
    /// Children or pods that still exist.
    Children(String),
}

/// Decides the next step.
pub fn step(config: &Config, live: &[Live], view: &View<'_>) -> Step {
    let View { claims, pods, nodes, own_slices, .. } = view;
    let ours: Vec<_> = live.iter().filter(|live| live.is_of(config)).collect();
    let delete = |wanted: &dyn Fn(ChildKind) -> bool| -> Vec<Action> {
        ours.iter()
            .filter(|live| wanted(live.key.kind) && !live.terminating)
            .map(|live| Action::Delete { key: live.key.clone(), uid: live.uid.clone() })
            .collect()
    };

    // The classes. Without them, no new claim gets a device.
    let mut step = Step { actions: delete(&|kind| kind == ChildKind::DeviceClass), slices: Vec::new(), waiting: None };

    // The claims. Without the plugin, the kubelet could not tear down their pods. A config without a plugin need not
    // wait.
    let daemon_set = ours.iter().find(|live| live.key.kind == ChildKind::DaemonSet);
    if daemon_set.is_some() && config.deletion_policy == DeletionPolicy::WaitForClaims && !claims.is_empty() {
        let claims = claims.iter().map(|claim| format!("{}/{}", claim.namespace, claim.name));
        step.waiting = Some(Waiting::Claims(format!(
            "waiting for claims that hold its devices: {}; delete the pods that use them, or set spec.deletionPolicy: Force",
            named(claims)
        )));
        return step;
    }

    // The plugin. While one of its pods runs, it needs its rights and would republish deleted slices.
    step.actions.extend(delete(&|kind| kind == ChildKind::DaemonSet));
    if daemon_set.is_some() || !pods.is_empty() {
        step.waiting = Some(Waiting::Children(going(daemon_set.and_then(|live| live.held()), pods, nodes)));
        return step;
    }

    // The rest.
    step.slices =
        own_slices.iter().map(|slice| (slice.name_any(), slice.metadata.uid.clone().unwrap_or_default())).collect();
    step.actions.extend(delete(&|kind| kind != ChildKind::DaemonSet && kind != ChildKind::DeviceClass));
    step
}

/// Which plugin pods are left, and which of them remain because their kubelet does not report.
fn going(held: Option<String>, pods: &[&PluginPod], nodes: &BTreeMap<&str, &NodeFacts>) -> String {
    let is_up = |pod: &PluginPod| nodes.get(pod.node.as_str()).is_some_and(|node| node.ready);
    let mut words = "deleting the node plugin".to_owned();
    if !pods.is_empty() {
        let pods = pods.iter().map(|pod| format!("{} on node {}", pod.name, pod.node));
        words = format!("{words}; waiting for pods {}", named(pods));
    }
    let down: Vec<_> = pods.iter().filter(|pod| !is_up(pod)).map(|pod| pod.node.clone()).collect();
    if !down.is_empty() {
        words = format!(
            "{words}; the kubelet is not reporting from {}: bring the node back, delete the Node, or use `kubectl delete pod --force`",
            named(down.into_iter())
        );
    }
    held.map_or_else(|| words.clone(), |held| format!("{words}; {held}"))
}

/// The first few names, sorted, and how many more there are.
fn named(names: impl Iterator<Item = String>) -> String {
    let mut names: Vec<_> = names.collect();
    names.sort();
    shorten::names(names, NAMED)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;
    use crate::{
        controller::{
            child::{Child, ChildKey},
            observe::{ClaimFacts, Held},
            testing::{mk_config, mk_live, mk_node, mk_pod, mk_slice},
            view::Snapshot,
        },
        slices::device::Hold,
    };

    fn live(config: &Config, kinds: &[ChildKind]) -> Vec<Live> {
        let child = |kind| Child { key: ChildKey { kind, name: "x".into() }, object: json!({}) };
        kinds.iter().map(|&kind| mk_live(config, &child(kind))).collect()
    }

    fn deleted(step: &Step) -> Vec<ChildKind> {
        let kind = |action: &Action| match action {
            Action::Delete { key, .. } => key.kind,
            other => panic!("{other:?}"),
        };
        step.actions.iter().map(kind).collect()
    }

    fn claims(count: usize) -> Vec<ClaimFacts> {
        let held = Held { driver: "dra.cpu".into(), pool: "p".into(), device: "d".into(), hold: Hold::Whole };
        let claim = |n| ClaimFacts {
            namespace: "ns".into(),
            name: format!("c{n}"),
            node: Some("a".into()),
            devices: vec![held.clone()],
        };
        (0..count).map(claim).collect()
    }

    fn stepped(config: &Config, kinds: &[ChildKind], snapshot: &Snapshot) -> Step {
        step(config, &live(config, kinds), &View::new(config, snapshot))
    }

    #[test]
    fn while_claims_hold_devices_only_classes_are_deleted_and_the_claims_are_named() {
        let config = mk_config("cpu", &json!({}));
        // There are no slices: a restarting kubelet deletes all of them.
        let snapshot = Snapshot { claims: claims(7), ..Snapshot::default() };
        let step = stepped(&config, &ChildKind::ALL, &snapshot);
        assert_eq!(deleted(&step), [ChildKind::DeviceClass]);
        let Some(Waiting::Claims(words)) = step.waiting else { panic!("{step:?}") };
        assert!(words.contains("ns/c0, ns/c1, ns/c2, ns/c3, ns/c4 and 2 more"), "{words}");
        assert!(words.contains("deletionPolicy: Force"), "{words}");
    }

    #[test]
    fn with_force_the_deletion_does_not_wait_for_claims() {
        let config = mk_config("cpu", &json!({"deletionPolicy": "Force"}));
        let step = stepped(&config, &ChildKind::ALL, &Snapshot { claims: claims(1), ..Snapshot::default() });
        assert_eq!(deleted(&step), [ChildKind::DeviceClass, ChildKind::DaemonSet]);
    }

    #[test]
    fn rights_and_slices_are_deleted_only_when_the_last_pod_is_gone() {
        let config = mk_config("cpu", &json!({}));
        let rest = &ChildKind::ALL[..5];
        let mut snapshot = Snapshot {
            pods: vec![mk_pod("a", true)],
            slices: vec![Arc::new(mk_slice("a", 1, 1, &[]))],
            nodes: vec![mk_node("a")],
            ..Snapshot::default()
        };
        let before = stepped(&config, rest, &snapshot);
        let Some(Waiting::Children(words)) = &before.waiting else { panic!("{before:?}") };
        assert!(before.actions.is_empty() && before.slices.is_empty());
        assert!(words.ends_with("waiting for pods cpu-node-plugin-a on node a"), "{words}");
        snapshot.pods.clear();
        let after = stepped(&config, rest, &snapshot);
        assert_eq!((deleted(&after).len(), after.slices.len(), after.waiting), (5, 1, None));
    }

    #[test]
    fn a_pod_on_a_node_that_is_down_and_a_daemon_set_with_a_finalizer_are_named() {
        let config = mk_config("cpu", &json!({}));
        let down = NodeFacts { ready: false, ..mk_node("b") };
        let snapshot = Snapshot {
            pods: vec![mk_pod("a", true), mk_pod("b", true)],
            nodes: vec![mk_node("a"), down],
            ..Snapshot::default()
        };
        let mut children = live(&config, &[ChildKind::DaemonSet]);
        children[0].terminating = true;
        children[0].finalizers = vec!["example.com/audit".into()];
        let Some(Waiting::Children(words)) = step(&config, &children, &View::new(&config, &snapshot)).waiting else {
            panic!()
        };
        assert!(words.contains("cpu-node-plugin-b on node b"), "{words}");
        assert!(words.contains("is not reporting from b:") && words.contains("--force"), "{words}");
        assert!(
            words.contains("DaemonSet x is being deleted and waits for its finalizers: example.com/audit"),
            "{words}"
        );
    }

    #[test]
    fn a_config_that_never_had_a_plugin_does_not_wait_for_claims() {
        let snapshot = Snapshot { claims: claims(1), ..Snapshot::default() };
        assert_eq!(stepped(&mk_config("cpu", &json!({})), &[], &snapshot).waiting, None);
    }
}
