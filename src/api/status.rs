//! `status`: bounded; counts and the first few failures, never a map that grows with the cluster. Pure.

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
    /// The driver's name in effect.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub driver_name: Option<String>,
    /// Counts of the nodes that should run the plugin.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nodes: Option<NodeCounts>,
    /// Counts of the devices that those nodes publish.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub devices: Option<DeviceCounts>,
    /// How many classes the spec has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_class_count: Option<i32>,
    /// Each class of the spec, and what it matches now.
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
    /// Devices with a taint that keeps claims off.
    pub tainted: i32,
}

/// What one class matches now.
#[derive(JsonSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClassStatus {
    /// The DeviceClass.
    pub name: String,
    /// Devices that it matches.
    pub devices: i32,
    /// Nodes with such devices.
    pub nodes: i32,
    /// Of those devices, how many are held by claims.
    pub allocated: i32,
    /// Why the class matches nothing, could not be created, or makes claims fail: one CamelCase word. Absent if all is well.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Details, and the part of the policy that causes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// Why the controller's own count of a class is not simply a number of devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClassReason {
    /// The DeviceClass is not in the cluster.
    NotMade,
    /// Only Kubernetes can evaluate its selectors.
    NotCounted,
    /// A selector fails on some device; a claim of the class that reaches the device is not allocated.
    AbortsClaims,
    /// No device is in it.
    MatchesNothing,
}

impl ClassReason {
    /// The word in `deviceClasses[].reason`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NotMade => "NotMade",
            Self::NotCounted => "NotCounted",
            Self::AbortsClaims => "AbortsClaims",
            Self::MatchesNothing => "MatchesNothing",
        }
    }

    /// Whether it is the reason of `class`.
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
    /// The reason: one CamelCase word.
    pub reason: String,
    /// What is wrong, and where to look.
    pub message: String,
    /// When it began.
    pub since: Time,
}
