//! What of the whole cluster is one config's: its pods, its pools, its claims, and whether an older config wants the same
//! nodes. Pure.
//!
//! Two configs of one driver share its name and part the nodes. A pool is of the config whose placement selects its node;
//! a node that none selects may still publish (simulated servers do), and counts for each.

use std::{
    borrow::Borrow,
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use k8s_openapi::api::resource::v1::ResourceSlice;
use kube::ResourceExt;

use super::{
    observe::{ClaimFacts, Live, NodeFacts, PluginPod},
    placement::Placement,
    status::overlap_message,
};
use crate::{
    api::DraDriverConfig,
    slices::pool::{Pool, pools},
};

/// The cluster, as far as it is watched.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// Every config that can be read.
    pub configs: Vec<Arc<DraDriverConfig>>,
    /// Every object of children's kinds.
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

/// One config's part of it.
#[derive(Debug)]
pub struct View<'a> {
    /// The nodes, by name.
    pub nodes: BTreeMap<&'a str, &'a NodeFacts>,
    /// The pods of its plugin.
    pub pods: Vec<&'a PluginPod>,
    /// The slices of its driver on nodes that no other config of the driver selects.
    pub slices: Vec<&'a ResourceSlice>,
    /// The slices among them that are of nodes its plugin runs on: no driver will take them back once it is gone.
    pub own_slices: Vec<&'a ResourceSlice>,
    /// Why it must not run its plugin, in words.
    pub overlap: Option<String>,
}

impl<'a> View<'a> {
    /// Looks at `snapshot` as `config`.
    pub fn new(config: &DraDriverConfig, snapshot: &'a Snapshot) -> Self {
        let nodes: BTreeMap<_, _> = snapshot.nodes.iter().map(|node| (node.name.as_str(), node)).collect();
        let driver = config.spec.driver_name();
        let own = Placement::of(config);
        let rivals: Vec<_> = snapshot
            .configs
            .iter()
            .filter(|other| other.metadata.uid != config.metadata.uid && other.spec.driver_name() == driver)
            .collect();
        let others: Vec<_> = rivals.iter().map(|rival| Placement::of(rival)).collect();
        let node_of = |slice: &ResourceSlice| slice.spec.node_name.as_ref().and_then(|node| nodes.get(node.as_str()));
        let is_ours = |slice: &ResourceSlice| {
            slice.spec.driver == driver
                && node_of(slice)
                    .is_none_or(|node| own.selects(node) || !others.iter().any(|other| other.selects(node)))
        };
        let slices: Vec<&ResourceSlice> =
            snapshot.slices.iter().map(Borrow::borrow).filter(|slice| is_ours(slice)).collect();
        let own_slices =
            slices.iter().copied().filter(|slice| node_of(slice).is_some_and(|node| own.selects(node))).collect();
        let overlap = rivals
            .iter()
            .zip(&others)
            .filter(|(rival, _)| rival.metadata.deletion_timestamp.is_none() && is_older(rival, config))
            .find_map(|(rival, other)| Some(overlap_message(rival, &own.overlap(other, &snapshot.nodes)?)));
        let name = config.name_any();
        let pods = snapshot.pods.iter().filter(|pod| pod.config == name).collect();
        Self { nodes, pods, slices, own_slices, overlap }
    }

    /// The pools of its slices.
    pub fn pools(&self) -> Vec<Pool<'_>> {
        pools(&self.slices)
    }

    /// The claims that hold devices of these pools.
    pub fn claims(&self, driver: &str, claims: &'a [ClaimFacts]) -> Vec<&'a ClaimFacts> {
        let pools: BTreeSet<_> = self.slices.iter().map(|slice| slice.spec.pool.name.as_str()).collect();
        claims
            .iter()
            .filter(|claim| {
                claim.devices.iter().any(|held| held.driver == driver && pools.contains(held.pool.as_str()))
            })
            .collect()
    }
}

/// The younger of two configs gives way; names decide between twins.
fn is_older(other: &DraDriverConfig, config: &DraDriverConfig) -> bool {
    let age = |config: &DraDriverConfig| (config.creation_timestamp().map(|time| time.0), config.name_any());
    age(other) < age(config)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::controller::{
        observe::Held,
        testing::{mk_config, mk_node, mk_pod, mk_slice},
    };

    fn labelled(name: &str, pool: &str) -> NodeFacts {
        NodeFacts { labels: [("pool".to_owned(), pool.to_owned())].into(), ..mk_node(name) }
    }

    fn selecting(name: &str, pool: &str) -> DraDriverConfig {
        mk_config(name, &json!({"nodePlugin": {"nodeSelector": {"pool": pool}}}))
    }

    #[test]
    fn two_configs_of_one_driver_part_its_pools_by_node_and_share_what_neither_selects() {
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
        let held = |pool: &str, driver: &str| ClaimFacts {
            namespace: "ns".into(),
            name: pool.into(),
            devices: vec![Held { driver: driver.into(), pool: pool.into(), device: "c".into(), admin: false }],
        };
        let claims = [held("n1", "dra.cpu"), held("n2", "dra.cpu"), held("n1", "gpu")];
        assert_eq!(view.claims("dra.cpu", &claims), [&claims[0]]);
    }

    #[test]
    fn the_younger_of_two_that_want_one_node_gives_way_and_names_the_older() {
        let mut young = mk_config("a", &json!({}));
        young.metadata.creation_timestamp = serde_json::from_value(json!("2026-02-01T00:00:00Z")).unwrap();
        let old = mk_config("b", &json!({}));
        let snapshot = Snapshot {
            configs: vec![Arc::new(young.clone()), Arc::new(old.clone())],
            nodes: vec![mk_node("n")],
            ..Snapshot::default()
        };
        let words = View::new(&young, &snapshot).overlap.unwrap();
        assert!(words.contains("DraDriverConfig b is older") && words.contains("both select node n"), "{words}");
        assert_eq!(View::new(&old, &snapshot).overlap, None);
        let mut going = old;
        going.metadata.deletion_timestamp = serde_json::from_value(json!("2026-03-01T00:00:00Z")).unwrap();
        let snapshot = Snapshot { configs: vec![Arc::new(going)], ..snapshot };
        assert_eq!(View::new(&young, &snapshot).overlap, None);
    }

    #[test]
    fn pods_are_those_of_the_config() {
        let snapshot = Snapshot { pods: vec![mk_pod("n", true)], ..Snapshot::default() };
        assert_eq!(View::new(&mk_config("cpu", &json!({})), &snapshot).pods.len(), 1);
        assert_eq!(View::new(&mk_config("other", &json!({})), &snapshot).pods.len(), 0);
    }
}
