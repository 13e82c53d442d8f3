//! What a kind of device needs from the cluster, and its words for messages. Pure.
//!
//! The controller builds the node plugin's objects and judges its nodes without knowing any kind: whatever differs between
//! kinds is asked here. A kind is implemented for its part of `spec.driver` after parsing; its counterpart on the node is
//! [`Driver`](super::Driver).

use std::fmt::Debug;

use k8s_openapi::api::{core::v1::Probe, rbac::v1::PolicyRule};

use crate::api::{DriverKind, NodePluginSettings, Preset};

/// A kind of device, as a config asks for it.
pub trait Kind: Debug + Send + Sync {
    /// The devices that it serves, as a label value: only one driver for the same devices may run on a node, whatever the
    /// drivers are called. None for a driver that may serve anything.
    fn devices(&self) -> Option<&str>;

    /// The driver's name, if the admin gives none.
    fn default_driver_name(&self) -> &str;

    /// The arguments of `node-plugin` from the kind's subcommand on.
    fn arguments(&self) -> Vec<String>;

    /// Directories of the host that its plugin needs, in addition to those of the kubelet and CDI.
    fn host_paths(&self, _plugin: &NodePluginSettings) -> Vec<HostPath> {
        Vec::new()
    }

    /// Capabilities that its plugin's container keeps; all others are dropped.
    fn capabilities(&self) -> Vec<Capability> {
        Vec::new()
    }

    /// What its plugin may do in the API, in addition to publishing slices and reading claims. The controller must hold these
    /// rights itself, otherwise the API server does not let it grant them.
    fn rules(&self) -> Vec<PolicyRule> {
        Vec::new()
    }

    /// Pools that belong to no single node and that the plugin of every node may write. Their slices must name no node.
    fn shared_pools(&self) -> Vec<String> {
        Vec::new()
    }

    /// Periods and thresholds of its plugin's probes, if it needs more time than a plugin that only reads the machine.
    fn probes(&self) -> Probes {
        Probes::default()
    }

    /// Whether a preset is defined for its devices: presets are matches on attributes, which differ between kinds.
    fn has_preset(&self, _preset: Preset) -> bool {
        false
    }

    /// Why a plugin that is ready may offer no device, as a whole clause.
    fn why_no_device(&self) -> String;

    /// What it means that claims hold every device of a node, and what to do about it, as a whole clause. None if containers
    /// without a claim lose nothing by it.
    fn when_all_held(&self) -> Option<String> {
        None
    }
}

/// A directory of the host, mounted where it is on the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostPath {
    /// The volume's name.
    pub name: &'static str,
    /// The directory.
    pub path: String,
    /// Whether the plugin only reads it.
    pub read_only: bool,
}

/// A capability that the plugin's container keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capability {
    /// Its name without `CAP_`, such as `NET_ADMIN`.
    pub name: &'static str,
    /// What it is needed for; written into an annotation of the pod, for those who review it.
    pub reason: &'static str,
}

/// Probes of the plugin's container: periods and thresholds; what they ask is the same for every kind.
#[derive(Clone, Debug, PartialEq)]
pub struct Probes {
    /// Until it answers for the first time.
    pub startup: Probe,
    /// Whether it must be restarted.
    pub liveness: Probe,
    /// Whether it serves.
    pub readiness: Probe,
}

impl Default for Probes {
    fn default() -> Self {
        let probe = |period, failures| Probe {
            period_seconds: Some(period),
            failure_threshold: Some(failures),
            ..Probe::default()
        };
        Self { startup: probe(1, 60), liveness: probe(10, 3), readiness: probe(2, 2) }
    }
}

impl DriverKind {
    /// What this kind needs and says.
    pub fn into_kind(self) -> Box<dyn Kind> {
        match self {
            Self::Cpu(cpu) => Box::new(cpu),
        }
    }
}
