//! `DraDriverConfig`, the object that a cluster admin writes, and its status. Pure.
//!
//! The schema and the CEL rules on these types let the API server reject every mistake that is visible in the object
//! alone; the messages say what to write instead. No optional field has a default in the schema, except
//! `spec.driver.cpu.granularity` (see [`CpuSpec`]): the object stays as the admin wrote it, so that GitOps tools see no
//! drift. Defaults are resolved by parsing: see [`DriverKind`], [`NodePluginSettings`].

mod check;
pub mod conditions;
mod cpu;
mod crd;
mod device_class;
mod driver_kind;
mod driver_name;
mod health;
mod node_plugin;
mod status;
mod strict;

pub use check::{Fault, check, parse};
pub use cpu::{CpuSettings, CpuSpec, Granularity, Pinning};
pub use crd::{crd, schema};
pub use device_class::{DeviceClassPolicy, Match, MatchOperator, Preset, Scalar};
pub use driver_kind::DriverKind;
pub use driver_name::{DriverName, DriverNameError};
pub use health::{HealthSpec, OnUnhealthy};
pub use node_plugin::{ImagePullPolicy, LogLevel, NodePluginSettings, NodePluginSpec, UpdateStrategy};
pub use status::{ClassReason, ClassStatus, DeviceCounts, DraDriverConfigStatus, NodeCounts, Problem, Problems};

use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// API group of every kind and label of this project.
pub const GROUP: &str = "dra-operator.dev";

/// Rolls out one DRA driver, creates DeviceClasses for its devices, and checks that every node publishes its devices.
#[derive(CustomResource, KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "dra-operator.dev",
    version = "v1alpha1",
    kind = "DraDriverConfig",
    plural = "dradriverconfigs",
    shortname = "ddc",
    category = "dra",
    status = "DraDriverConfigStatus",
    derive = "PartialEq",
    derive = "Default",
    doc = "Rolls out one DRA driver, creates DeviceClasses for its devices, and checks that every node publishes its devices.",
    printcolumn(name = "Driver", type_ = "string", json_path = ".status.driverName"),
    printcolumn(name = "Nodes", type_ = "string", json_path = ".status.nodes.summary", description = "nodes with a ready plugin / nodes that should run it"),
    printcolumn(name = "Devices", type_ = "integer", json_path = ".status.devices.total"),
    printcolumn(name = "Allocated", type_ = "integer", json_path = ".status.devices.allocated", priority = 1),
    printcolumn(name = "Classes", type_ = "integer", json_path = ".status.deviceClassCount"),
    printcolumn(name = "Ready", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].status"),
    printcolumn(name = "Reason", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].reason"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    validation = Rule::new("self.metadata.name.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$') && size(self.metadata.name) <= 40")
        .message("metadata.name must be a DNS label (a-z, 0-9, '-') of at most 40 characters: the DaemonSet and its ServiceAccount are named after it"),
)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("has(self.driverName) == has(oldSelf.driverName) && (!has(self.driverName) || self.driverName == oldSelf.driverName)")
    .message("spec.driverName cannot be changed, because claims refer to it: delete this DraDriverConfig, and create one with the new name once it is gone"))]
#[x_kube(validation = Rule::new("has(self.driver.cpu) == has(oldSelf.driver.cpu) && has(self.driver.memory) == has(oldSelf.driver.memory) && has(self.driver.network) == has(oldSelf.driver.network) && has(self.driver.external) == has(oldSelf.driver.external)")
    .message("the kind of spec.driver cannot be changed: create a second DraDriverConfig and delete this one"))]
pub struct DraDriverConfigSpec {
    /// The devices to serve, and how. Exactly one kind.
    pub driver: DriverSpec,

    /// Name under which the driver registers with the kubelet and publishes devices; claims and selectors refer to it.
    /// A DNS subdomain of at most 63 characters. The default depends on the kind: `dra.cpu`. It cannot be changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    #[x_kube(validation = Rule::new("self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$')")
        .message("spec.driverName must be a DNS subdomain of at most 63 characters (a-z, 0-9, '-', '.'), such as dra.cpu"))]
    pub driver_name: Option<String>,

    /// How the node plugin runs: image, nodes, resources, rollout.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_plugin: Option<NodePluginSpec>,

    /// The DeviceClasses to create, from presets, matches and CEL.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    #[x_kube(validation = Rule::new("self.all(c, !has(c.extendedResourceName) || self.exists_one(d, has(d.extendedResourceName) && d.extendedResourceName == c.extendedResourceName))")
        .message("two of spec.deviceClasses have the same extendedResourceName: give each a different one, or remove one of them"))]
    pub device_classes: Vec<DeviceClassPolicy>,

    /// When a node counts as unhealthy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health: Option<HealthSpec>,

    /// What happens to claims in use when this object is deleted. Default `WaitForClaims`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deletion_policy: Option<DeletionPolicy>,
}

/// The kind of driver. Set exactly one.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("(has(self.cpu) ? 1 : 0) + (has(self.memory) ? 1 : 0) + (has(self.network) ? 1 : 0) + (has(self.external) ? 1 : 0) == 1")
    .message(driver_kind::EXACTLY_ONE))]
#[x_kube(validation = Rule::new("!has(self.memory) && !has(self.network) && !has(self.external)")
    .message(driver_kind::SERVED))]
pub struct DriverSpec {
    /// The node's CPUs. Containers are pinned to the CPUs of their claims.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<CpuSpec>,
    /// Reserved for RAM and huge pages by NUMA node. Rejected in this release.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<Reserved>,
    /// Reserved for NICs, SR-IOV functions and RDMA devices. Rejected in this release.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<Reserved>,
    /// Reserved for a third-party driver. Rejected in this release.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub external: Option<Reserved>,
}

/// A union member whose name is reserved for a later release.
#[derive(JsonSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reserved {}

/// What happens to claims in use when the object is deleted. `WaitForClaims`, the default: the plugin stays until no
/// claim holds its devices; the status names the claims. `Force`: everything is removed immediately; pods that hold
/// devices then stay Terminating until a driver with this name runs again.
#[derive(JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum DeletionPolicy {
    /// The plugin stays until no claim holds its devices; the status names the claims.
    #[default]
    WaitForClaims,
    /// Everything is removed immediately. The kubelet then cannot tear down pods that hold devices until a driver with
    /// this name runs again.
    Force,
}
