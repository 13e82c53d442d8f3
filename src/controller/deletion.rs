//! How a config goes: classes first so that no new claim comes, then wait for the claims there are, then the plugin, its
//! slices, and the rest. Pure.

use k8s_openapi::api::resource::v1::ResourceSlice;
use kube::ResourceExt;

use super::{
    child::ChildKind,
    observe::{ClaimFacts, Live, PluginPod},
    plan::Action,
};
use crate::api::{DeletionPolicy, DraDriverConfig};

/// How many claims a message names.
const NAMED: usize = 5;

/// The next step of a deletion.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// Children to delete now.
    pub actions: Vec<Action>,
    /// Slices to delete now, by name and unique id.
    pub slices: Vec<(String, String)>,
    /// What is waited for; none when the finalizer can go.
    pub waiting: Option<Waiting>,
}

/// What a deletion waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Waiting {
    /// Claims that hold devices of the driver, in words.
    Claims(String),
    /// Children or pods to be gone.
    Children(String),
}

/// Decides the next step. `claims` and `slices` are those of this config's nodes and driver alone.
pub fn step(
    config: &DraDriverConfig,
    live: &[Live],
    pods: &[&PluginPod],
    claims: &[&ClaimFacts],
    slices: &[&ResourceSlice],
) -> Step {
    let ours: Vec<_> = live.iter().filter(|live| live.is_of(config)).collect();
    let delete = |wanted: &dyn Fn(ChildKind) -> bool| -> Vec<Action> {
        ours.iter()
            .filter(|live| wanted(live.key.kind) && !live.terminating)
            .map(|live| Action::Delete { key: live.key.clone(), uid: live.uid.clone() })
            .collect()
    };
    let mut step = Step { actions: delete(&|kind| kind == ChildKind::DeviceClass), slices: Vec::new(), waiting: None };
    let daemon_set = ours.iter().find(|live| live.key.kind == ChildKind::DaemonSet);
    // Without a plugin of ours nothing would be lost by going.
    if daemon_set.is_some() && config.spec.deletion_policy() == DeletionPolicy::WaitForClaims && !claims.is_empty() {
        step.waiting = Some(Waiting::Claims(in_words(claims)));
        return step;
    }
    step.actions.extend(delete(&|kind| kind == ChildKind::DaemonSet));
    if daemon_set.is_some() || !pods.is_empty() {
        let pods = pods.len();
        step.waiting = Some(Waiting::Children(format!("the node plugin is being removed, {pods} pods are left")));
        return step;
    }
    step.slices =
        slices.iter().map(|slice| (slice.name_any(), slice.metadata.uid.clone().unwrap_or_default())).collect();
    step.actions.extend(delete(&|kind| kind != ChildKind::DaemonSet && kind != ChildKind::DeviceClass));
    step
}

fn in_words(claims: &[&ClaimFacts]) -> String {
    let mut names: Vec<_> = claims.iter().map(|claim| format!("{}/{}", claim.namespace, claim.name)).collect();
    names.sort();
    let more = match names.len().saturating_sub(NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    names.truncate(NAMED);
    format!(
        "waiting for the claims that hold its devices: {}{more}; delete the pods that use them, or set spec.deletionPolicy: Force",
        names.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::controller::{
        child::{Child, ChildKey},
        testing::{mk_config, mk_live, mk_pod, mk_slice},
    };

    fn live(config: &DraDriverConfig, kinds: &[ChildKind]) -> Vec<Live> {
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
        let claim = |n| ClaimFacts { namespace: "ns".into(), name: format!("c{n}"), devices: Vec::new() };
        (0..count).map(claim).collect()
    }

    #[test]
    fn while_claims_hold_devices_only_the_classes_go_and_the_claims_are_named() {
        let config = mk_config("cpu", &json!({}));
        let claims = claims(7);
        let step = step(&config, &live(&config, &ChildKind::ALL), &[], &claims.iter().collect::<Vec<_>>(), &[]);
        assert_eq!(deleted(&step), [ChildKind::DeviceClass]);
        let Some(Waiting::Claims(words)) = step.waiting else { panic!("{step:?}") };
        assert!(words.contains("ns/c0, ns/c1, ns/c2, ns/c3, ns/c4 and 2 more"), "{words}");
        assert!(words.contains("deletionPolicy: Force"), "{words}");
    }

    #[test]
    fn force_waits_for_no_claim() {
        let config = mk_config("cpu", &json!({"deletionPolicy": "Force"}));
        let claims = claims(1);
        let step = step(&config, &live(&config, &ChildKind::ALL), &[], &claims.iter().collect::<Vec<_>>(), &[]);
        assert_eq!(deleted(&step), [ChildKind::DeviceClass, ChildKind::DaemonSet]);
    }

    #[test]
    fn rights_and_slices_go_only_when_the_last_pod_is_gone() {
        let config = mk_config("cpu", &json!({}));
        let (pod, slice) = (mk_pod("a", true), mk_slice("a", 1, 1, &[]));
        let rest = &ChildKind::ALL[..5];
        let before = step(&config, &live(&config, rest), &[&pod], &[], &[&slice]);
        assert!(
            matches!(before.waiting, Some(Waiting::Children(_)))
                && before.actions.is_empty()
                && before.slices.is_empty()
        );
        let after = step(&config, &live(&config, rest), &[], &[], &[&slice]);
        assert_eq!((deleted(&after).len(), after.slices.len(), after.waiting), (5, 1, None));
    }

    #[test]
    fn a_config_that_never_got_a_plugin_waits_for_nobodys_claims() {
        let config = mk_config("cpu", &json!({}));
        let claims = claims(1);
        assert_eq!(step(&config, &[], &[], &claims.iter().collect::<Vec<_>>(), &[]).waiting, None);
    }
}
