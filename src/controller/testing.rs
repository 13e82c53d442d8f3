//! Small builders for tests. Pure.

use jiff::Timestamp;
use k8s_openapi::api::{
    core::v1::Probe,
    rbac::v1::PolicyRule,
    resource::v1::{Device, ResourcePool, ResourceSlice, ResourceSliceSpec},
};
use kube::{ResourceExt, api::ObjectMeta};
use serde_json::{Value, json};

use crate::{
    api::{DraDriverConfig, NodePluginSettings},
    controller::{
        child::Child,
        config::Config,
        observe::{Live, NodeFacts, Owner, PluginPod, Unready},
    },
    drivers::kind::{Capability, HostPath, Kind, Probes},
};

/// A time, in seconds since the epoch.
pub fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(seconds).unwrap()
}

/// A plugin pod of config `cpu` on a node, created at time 0.
pub fn mk_pod(node: &str, ready: bool) -> PluginPod {
    PluginPod {
        name: format!("cpu-node-plugin-{node}"),
        uid: format!("pod-{node}"),
        config: "cpu".into(),
        node: node.into(),
        revision: "1".into(),
        created: at(0),
        ready,
        unready: (!ready).then_some(Unready { since: at(0), runs: true }),
        terminating: false,
        trouble: None,
    }
}

/// A node that is up.
pub fn mk_node(name: &str) -> NodeFacts {
    let labels = [("kubernetes.io/os".to_owned(), "linux".to_owned())].into();
    NodeFacts { name: name.into(), labels, ready: true, tainted: false }
}

/// One of `count` slices of the driver `dra.cpu` for a node.
pub fn mk_slice(node: &str, generation: i64, count: i64, devices: &[&str]) -> ResourceSlice {
    ResourceSlice {
        metadata: ObjectMeta { name: Some(format!("{node}-{generation}")), ..ObjectMeta::default() },
        spec: ResourceSliceSpec {
            driver: "dra.cpu".into(),
            node_name: Some(node.into()),
            pool: ResourcePool { generation, name: node.into(), resource_slice_count: count },
            devices: Some(devices.iter().map(|&name| Device { name: name.into(), ..Device::default() }).collect()),
            ..ResourceSliceSpec::default()
        },
    }
}

/// A config of the CPU driver as in a cluster, with `spec` merged in.
pub fn mk_config(name: &str, spec: &Value) -> Config {
    let mut whole = json!({
        "apiVersion": "dra-operator.dev/v1alpha1", "kind": "DraDriverConfig",
        "metadata": {"name": name, "uid": format!("uid-{name}"), "generation": 1, "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"driver": {"cpu": {}}},
    });
    for (key, value) in spec.as_object().unwrap() {
        whole["spec"][key] = value.clone();
    }
    let object: DraDriverConfig = serde_json::from_value(whole).unwrap();
    Config::try_from(object).unwrap()
}

/// A child after it has been applied for `config`.
pub fn mk_live(config: &Config, child: &Child) -> Live {
    Live {
        key: child.key.clone(),
        uid: format!("uid-of-{}", child.key.name),
        owner: Owner::Config { uid: config.uid().unwrap(), name: config.name_any() },
        version: 1,
        terminating: false,
        finalizers: Vec::new(),
        object: child.object.clone(),
    }
}

/// A kind of device that exists only in tests: network devices on a fabric that all nodes share.
#[derive(Debug)]
pub struct Fabric;

impl Kind for Fabric {
    fn devices(&self) -> Option<&str> {
        Some("nic")
    }

    fn default_driver_name(&self) -> &'static str {
        "dra.nic"
    }

    fn arguments(&self) -> Vec<String> {
        vec!["nic".into(), "--uplink=eth1".into()]
    }

    fn host_paths(&self, _: &NodePluginSettings) -> Vec<HostPath> {
        vec![HostPath { name: "netns", path: "/var/run/netns".into(), read_only: true }]
    }

    fn capabilities(&self) -> Vec<Capability> {
        vec![Capability { name: "NET_ADMIN", reason: "moves network devices into pods" }]
    }

    fn rules(&self) -> Vec<PolicyRule> {
        vec![PolicyRule {
            api_groups: Some(vec![String::new()]),
            resources: Some(vec!["pods".into()]),
            verbs: vec!["get".into()],
            ..PolicyRule::default()
        }]
    }

    fn shared_pools(&self) -> Vec<String> {
        vec!["fabric".into()]
    }

    fn probes(&self) -> Probes {
        let probes = Probes::default();
        Probes { startup: Probe { failure_threshold: Some(300), ..probes.startup }, ..probes }
    }

    fn why_no_device(&self) -> String {
        "no uplink is connected".into()
    }
}
