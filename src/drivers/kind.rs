//! What a kind of device needs from the cluster, and its part of the messages. Pure.
//!
//! The controller builds the node plugin's objects and judges its nodes without knowing any kind: this trait covers
//! everything that differs between kinds. It is implemented for a kind's part of `spec.driver` after parsing. Its
//! counterpart on the node is [`Driver`](super::Driver).

use std::fmt::Debug;

use k8s_openapi::api::{core::v1::Probe, rbac::v1::PolicyRule};

use crate::api::{DriverKind, NodePluginSettings, Preset};

/// A kind of device, as configured.
pub trait Kind: Debug + Send + Sync {
    /// The devices that it serves, as a label value. Only one driver for the same devices may run on a node, regardless
    /// of the drivers' names. None for a driver that may serve anything.
    fn devices(&self) -> Option<&str>;

    /// The driver's default name.
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

    /// RBAC rules for its plugin, in addition to those for publishing slices and reading claims. The controller must
    /// hold these permissions itself, because the API server does not let it grant others.
    fn rules(&self) -> Vec<PolicyRule> {
        Vec::new()
    }

    /// Pools that do not belong to a single node, so every node's plugin may write them. Their slices must not name a
    /// node.
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

    /// Why a ready plugin may offer no device, as a complete clause.
    fn why_no_device(&self) -> String;

    /// The effect of claims holding every device of a node and the remedy, as a complete clause. None if containers
    /// without a claim are not affected.
    fn when_all_held(&self) -> Option<String> {
        None
    }
}

/// A directory of the host, mounted at the same path.
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
    /// Why it is needed. Written into an annotation of the pod for reviewers.
    pub reason: &'static str,
}

/// Periods and thresholds of the probes of the plugin's container. The endpoints are the same for every kind.
#[derive(Clone, Debug, PartialEq)]
pub struct Probes {
    /// The startup probe.
    pub startup: Probe,
    /// The liveness probe.
    pub liveness: Probe,
    /// The readiness probe.
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
    /// The implementation for this kind.
    pub fn into_kind(self) -> Box<dyn Kind> {
        match self {
            Self::Cpu(cpu) => Box::new(cpu),
        }
    }
}
