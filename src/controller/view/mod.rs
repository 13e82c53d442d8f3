//! One config's view of the cluster: its pods, pools and claims, and whether an older config has the same nodes. Pure.
//!
//! Configs with the same kind of driver divide the nodes among themselves, regardless of driver names: their devices
//! are the same hardware. (A config that is being deleted is not an obstacle here: its remaining pods keep a
//! successor's pods off their nodes.) If configs also share the driver name, a slice or claim belongs to the config
//! whose placement selects its node. On an unknown node or one that no config selects (simulated servers publish like
//! that), it counts for every config.

pub mod placement;

use std::{
    borrow::Borrow,
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use k8s_openapi::api::resource::v1::ResourceSlice;
use kube::ResourceExt;

use self::placement::{Placement, SharedNodes};
use crate::{
    controller::{
        config::Config,
        observe::{ClaimFacts, Live, NodeFacts, PluginPod},
    },
    slices::pool::{Pool, pools},
};

/// The watched part of the cluster.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// Every config, or the readable part of it.
    pub configs: Vec<Arc<Config>>,
    /// Every object of a child's kind.
    pub children: Vec<Live>,
    /// Every slice.
    pub slices: Vec<Arc<ResourceSlice>>,
    /// Every node plugin's pod.
    pub pods: Vec<PluginPod>,
    /// Every node.
    pub nodes: Vec<NodeFacts>,
    /// Every claim that holds devices.
    pub claims: Vec<ClaimFacts>,
}

/// One config's view of the cluster.
#[derive(Debug)]
pub struct View<'a> {
    /// The nodes, by name.
    pub nodes: BTreeMap<&'a str, &'a NodeFacts>,
    /// The pods of its plugin.
    pub pods: Vec<&'a PluginPod>,
    /// The nodes that its plugin may run on but that have no pod of it, those without taints first.
    pub bare: Vec<&'a str>,
    /// Its driver's slices, except on nodes that another config of the driver selects.
    pub slices: Vec<&'a ResourceSlice>,
    /// Those slices that no driver withdraws once its plugin is gone: on nodes that it selects and no other config of
    /// the driver does.
    pub own_slices: Vec<&'a ResourceSlice>,
    /// The claims that hold its driver's devices, even if those are not currently published, except on nodes that
    /// another config of the driver selects.
    pub claims: Vec<&'a ClaimFacts>,
    /// The older config that it gives way to.
    pub overlap: Option<Overlap>,
}

/// An older config that serves the same devices on nodes that this one selects too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Overlap {
    /// Name of the older config.
    pub older: String,
    /// Name of its driver.
    pub driver: String,
    /// The nodes that both select.
    pub shared: SharedNodes,
}

impl<'a> View<'a> {
    /// The view of `snapshot` for `config`.
    pub fn new(config: &Config, snapshot: &'a Snapshot) -> Self {
        let nodes: BTreeMap<_, _> = snapshot.nodes.iter().map(|node| (node.name.as_str(), node)).collect();
        let driver: &str = &config.driver_name;
        let own = Placement::of(config);
        let rivals: Vec<_> = snapshot
            .configs
            .iter()
            .filter(|other| other.metadata.uid != config.metadata.uid && contend(other, config))
            .map(|other| (other, Placement::of(other)))
            .collect();
        let others: Vec<_> = rivals.iter().filter(|(rival, _)| rival.driver_name == config.driver_name).collect();
        let known = |node: Option<&String>| node.and_then(|node| nodes.get(node.as_str()).copied());
        let is_others = |node: &NodeFacts| others.iter().any(|(_, other)| other.selects(node));
        let is_ours = |node: Option<&String>| known(node).is_none_or(|node| own.selects(node) || !is_others(node));
        let slices: Vec<&ResourceSlice> = snapshot
            .slices
            .iter()
            .map(Borrow::borrow)
            .filter(|slice: &&ResourceSlice| slice.spec.driver == driver && is_ours(slice.spec.node_name.as_ref()))
            .collect();
        let is_left_behind = |node: &NodeFacts| own.selects(node) && !is_others(node);
        let own_slices = slices
            .iter()
            .copied()
            .filter(|slice| known(slice.spec.node_name.as_ref()).is_some_and(is_left_behind))
            .collect();
        let holds = |claim: &&ClaimFacts| claim.devices.iter().any(|held| held.driver == driver);
        let claims = snapshot.claims.iter().filter(holds).filter(|claim| is_ours(claim.node.as_ref())).collect();
        let overlap = rivals
            .iter()
            .filter(|(rival, _)| rival.metadata.deletion_timestamp.is_none() && is_older(rival, config))
            .find_map(|(rival, other)| {
                let shared = own.shared(other, &snapshot.nodes)?;
                Some(Overlap { older: rival.name_any(), driver: rival.driver_name.to_string(), shared })
            });
        let name = config.name_any();
        let pods: Vec<_> = snapshot.pods.iter().filter(|pod| pod.config == name).collect();
        let served: BTreeSet<_> = pods.iter().map(|pod| pod.node.as_str()).collect();
        let mut bare: Vec<_> =
            snapshot.nodes.iter().filter(|node| own.selects(node) && !served.contains(node.name.as_str())).collect();
        bare.sort_by_key(|node| (node.tainted, &node.name));
        let bare = bare.into_iter().map(|node| node.name.as_str()).collect();
        Self { nodes, pods, bare, slices, own_slices, claims, overlap }
    }

    /// The pools of its slices.
    pub fn pools(&self) -> Vec<Pool<'_>> {
        pools(&self.slices)
    }
}

/// Whether two configs must not run their plugins on the same node: they would serve the same devices, or be the same
/// driver to the kubelet.
fn contend(other: &Config, config: &Config) -> bool {
    let devices = config.kind.devices();
    other.driver_name == config.driver_name || devices.is_some() && other.kind.devices() == devices
}

/// The younger of two configs gives way; if they are equally old, the one whose name sorts last.
fn is_older(other: &Config, config: &Config) -> bool {
    let age = |config: &Config| (config.creation_timestamp().map(|time| time.0), config.name_any());
    age(other) < age(config)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{
        controller::{
            observe::Held,
            testing::{Fabric, mk_config, mk_node, mk_pod, mk_slice},
        },
        slices::device::Hold,
    };

    fn labelled(name: &str, pool: &str) -> NodeFacts {
        let mut node = mk_node(name);
        node.labels.insert("pool".into(), pool.into());
        node
    }

    fn selecting(name: &str, pool: &str) -> Config {
        mk_config(name, &json!({"nodePlugin": {"nodeSelector": {"pool": pool}}}))
    }

    #[test]
    fn two_configs_of_one_driver_divide_its_pools_by_node_and_share_what_neither_selects() {
        let (a, b) = (selecting("a", "x"), selecting("b", "y"));
        let snapshot = Snapshot {
            configs: vec![Arc::new(a.clone()), Arc::new(b)],
            nodes: vec![labelled("n1", "x"), labelled("n2", "y"), mk_node("sim")],
            slices: ["n1", "n2", "sim"].map(|node| Arc::new(mk_slice(node, 1, 1, &["c"]))).into(),
            ..Snapshot::default()
        };
        let view = View::new(&a, &snapshot);
        let nodes =
            |slices: &[&ResourceSlice]| -> Vec<_> { slices.iter().filter_map(|s| s.spec.node_name.clone()).collect() };
        assert_eq!(nodes(&view.slices), ["n1", "sim"]);
        assert_eq!(nodes(&view.own_slices), ["n1"]);
        assert_eq!(view.overlap, None);
    }

    fn held(node: Option<&str>, driver: &str) -> ClaimFacts {
        ClaimFacts {
            namespace: "ns".into(),
            name: format!("{driver}-{}", node.unwrap_or("anywhere")),
            node: node.map(Into::into),
            devices: vec![Held { driver: driver.into(), pool: "p".into(), device: "c".into(), hold: Hold::Whole }],
        }
    }

    #[test]
    fn a_claim_counts_even_if_its_devices_are_not_published_unless_its_node_belongs_to_another_config() {
        let (a, b) = (selecting("a", "x"), selecting("b", "y"));
        let snapshot = Snapshot {
            configs: vec![Arc::new(a.clone()), Arc::new(b)],
            nodes: vec![labelled("n1", "x"), labelled("n2", "y"), mk_node("sim")],
            claims: vec![
                held(Some("n1"), "dra.cpu"),
                held(Some("n2"), "dra.cpu"),
                held(Some("sim"), "dra.cpu"),
                held(Some("gone"), "dra.cpu"),
                held(None, "dra.cpu"),
                held(Some("n1"), "gpu"),
            ],
            ..Snapshot::default()
        };
        let claims: Vec<_> = View::new(&a, &snapshot).claims.iter().map(|claim| claim.name.as_str()).collect();
        assert_eq!(claims, ["dra.cpu-n1", "dra.cpu-sim", "dra.cpu-gone", "dra.cpu-anywhere"]);
    }

    #[test]
    fn slices_that_another_config_takes_over_are_not_deleted() {
        let (a, b) = (mk_config("a", &json!({})), selecting("b", "y"));
        let snapshot = Snapshot {
            configs: vec![Arc::new(a.clone()), Arc::new(b)],
            nodes: vec![labelled("n1", "x"), labelled("n2", "y")],
            slices: ["n1", "n2"].map(|node| Arc::new(mk_slice(node, 1, 1, &["c"]))).into(),
            ..Snapshot::default()
        };
        let view = View::new(&a, &snapshot);
        assert_eq!((view.slices.len(), view.own_slices.len()), (2, 1));
        assert_eq!(view.own_slices[0].spec.node_name.as_deref(), Some("n1"));
    }

    #[test]
    fn two_drivers_of_one_kind_compete_for_a_node_regardless_of_their_names() {
        let old = mk_config("a", &json!({"driverName": "a.cpu"}));
        let young = mk_config("b", &json!({"driverName": "b.cpu"}));
        let overlap = |old: &Config| {
            let snapshot = Snapshot {
                configs: vec![Arc::new(old.clone()), Arc::new(young.clone())],
                nodes: vec![mk_node("n")],
                ..Snapshot::default()
            };
            View::new(&young, &snapshot).overlap
        };
        let shared = SharedNodes::Node("n".into());
        assert_eq!(overlap(&old), Some(Overlap { older: "a".into(), driver: "a.cpu".into(), shared }));
        let mut other_kind = old;
        other_kind.kind = Arc::new(Fabric);
        assert_eq!(overlap(&other_kind), None);
    }

    #[test]
    fn nodes_without_a_pod_are_listed_with_tainted_ones_last() {
        let tainted = NodeFacts { tainted: true, ..labelled("a", "x") };
        let snapshot = Snapshot {
            nodes: vec![tainted, labelled("b", "x"), labelled("c", "x"), labelled("d", "y")],
            pods: vec![PluginPod { config: "cfg".into(), ..mk_pod("c", false) }],
            ..Snapshot::default()
        };
        assert_eq!(View::new(&selecting("cfg", "x"), &snapshot).bare, ["b", "a"]);
    }

    #[test]
    fn the_younger_of_two_configs_that_select_one_node_gives_way_to_the_older() {
        let mut young = mk_config("a", &json!({}));
        young.metadata.creation_timestamp = serde_json::from_value(json!("2026-02-01T00:00:00Z")).unwrap();
        let old = mk_config("b", &json!({}));
        let snapshot = Snapshot {
            configs: vec![Arc::new(young.clone()), Arc::new(old.clone())],
            nodes: vec![mk_node("n")],
            ..Snapshot::default()
        };
        let shared = SharedNodes::Node("n".into());
        let overlap = Overlap { older: "b".into(), driver: "dra.cpu".into(), shared };
        assert_eq!(View::new(&young, &snapshot).overlap, Some(overlap));
        assert_eq!(View::new(&old, &snapshot).overlap, None);
        let mut going = old;
        going.metadata.deletion_timestamp = serde_json::from_value(json!("2026-03-01T00:00:00Z")).unwrap();
        let snapshot = Snapshot { configs: vec![Arc::new(going)], ..snapshot };
        assert_eq!(View::new(&young, &snapshot).overlap, None);
    }

    #[test]
    fn only_the_configs_own_pods_are_in_its_view() {
        let snapshot = Snapshot { pods: vec![mk_pod("n", true)], ..Snapshot::default() };
        assert_eq!(View::new(&mk_config("cpu", &json!({})), &snapshot).pods.len(), 1);
        assert_eq!(View::new(&mk_config("other", &json!({})), &snapshot).pods.len(), 0);
    }
}
