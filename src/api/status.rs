//! `status`. Its size is bounded: counts and the first few failures, never a map that grows with the cluster. Pure.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The state of a `DraDriverConfig`, as the controller sees it.
#[derive(JsonSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DraDriverConfigStatus {
    /// The generation that this status describes; −1 until the controller has seen the object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Ready, ResourcesHealthy and PreflightPassed; Reconciling and Stalled only while they are true.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// The driver name in use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub driver_name: Option<String>,
    /// Counts of the nodes that should run the plugin.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nodes: Option<NodeCounts>,
    /// Counts of the devices that those nodes publish.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub devices: Option<DeviceCounts>,
    /// Number of classes in the spec.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_class_count: Option<i32>,
    /// Each class in the spec, and what it currently matches.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub device_classes: Vec<ClassStatus>,
    /// The first ten problems, and how many more there are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problems: Option<Problems>,
}

/// Counts of nodes.
#[derive(JsonSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeCounts {
    /// Nodes that should run the plugin.
    pub desired: i32,
    /// Nodes whose plugin pod is ready.
    pub ready: i32,
    /// Nodes with a complete pool of the current generation.
    pub publishing: i32,
    /// Nodes without a valid pool after the deadline.
    pub unhealthy: i32,
    /// `ready/desired`, for the printer column.
    pub summary: String,
}

/// Counts of devices.
#[derive(JsonSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DeviceCounts {
    /// Devices in complete pools.
    pub total: i32,
    /// Devices held by claims.
    pub allocated: i32,
    /// Devices with a taint that keeps claims away.
    pub tainted: i32,
}

/// What one class currently matches.
#[derive(JsonSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClassStatus {
    /// The DeviceClass.
    pub name: String,
    /// Devices that it matches.
    pub devices: i32,
    /// Nodes with such devices.
    pub nodes: i32,
    /// How many of those devices claims hold.
    pub allocated: i32,
    /// CamelCase reason why the class matches nothing, could not be created, or makes claims fail. Absent if there is
    /// no problem.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Details, including the part of the policy that causes the problem.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// Why a class has no plain device count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClassReason {
    /// The DeviceClass is not in the cluster.
    NotMade,
    /// Only Kubernetes can evaluate its selectors.
    NotCounted,
    /// A selector fails on some device. A claim for the class is not allocated if the scheduler tries it on that
    /// device.
    AbortsClaims,
    /// No device is in it.
    MatchesNothing,
}

impl ClassReason {
    /// The value of `deviceClasses[].reason`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NotMade => "NotMade",
            Self::NotCounted => "NotCounted",
            Self::AbortsClaims => "AbortsClaims",
            Self::MatchesNothing => "MatchesNothing",
        }
    }

    /// Whether `class` has this reason.
    pub fn is_of(self, class: &ClassStatus) -> bool {
        class.reason.as_deref() == Some(self.as_str())
    }
}

/// The first ten problems, and how many more there are.
#[derive(JsonSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Problems {
    /// The first ten, by node name.
    pub first: Vec<Problem>,
    /// How many more there are.
    pub more: i32,
}

/// A problem on a node.
#[derive(JsonSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Problem {
    /// The node.
    pub node: String,
    /// CamelCase reason.
    pub reason: String,
    /// What is wrong, and where to look.
    pub message: String,
    /// When the problem began.
    pub since: Time,
}
