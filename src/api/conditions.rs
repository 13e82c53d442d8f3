//! Condition types, their reasons, and how conditions change from one status to the next. Pure.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

/// The condition types on a `DraDriverConfig`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ConditionType {
    /// Everything in the spec exists and is serving.
    Ready,
    /// Work towards Ready is in progress; only present while true.
    Reconciling,
    /// Someone has to fix something; only present while true.
    Stalled,
    /// Every selected node publishes a complete pool of healthy devices.
    ResourcesHealthy,
    /// The cluster has what the driver needs.
    PreflightPassed,
}

impl ConditionType {
    /// The value of `conditions[].type`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ready => "Ready",
            Self::Reconciling => "Reconciling",
            Self::Stalled => "Stalled",
            Self::ResourcesHealthy => "ResourcesHealthy",
            Self::PreflightPassed => "PreflightPassed",
        }
    }
}

/// Reasons for conditions, also used for the Events that report their changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reason {
    /// Ready: every selected node runs the current version of the plugin.
    Serving,
    /// Ready, ResourcesHealthy: no node is selected.
    NoNodes,
    /// Reconciling: a write to the API server failed and will be retried.
    Retrying,
    /// Reconciling: the plugin's pods are being started or replaced.
    RollingOut,
    /// Reconciling: a pod does not start or does not become ready in time, which holds up the rollout.
    RolloutBlocked,
    /// Reconciling: the object is being deleted and is waiting for claims to be released.
    WaitingForClaims,
    /// Reconciling: the object and its children are being deleted.
    Deleting,
    /// Stalled: the API server accepted the object, but it cannot be parsed.
    InvalidObject,
    /// Stalled, PreflightPassed: the cluster has no Dynamic Resource Allocation.
    DraApiMissing,
    /// Stalled: the driver of an older object serves the same devices on the same nodes.
    NodeSelectorOverlap,
    /// Stalled: a name that we need is taken by an object with another owner.
    NameTaken,
    /// Stalled: the policy of a class cannot be translated into CEL.
    InvalidPolicy,
    /// Stalled: the API server rejected a child.
    Refused,
    /// Stalled: the image name is not a valid reference.
    InvalidImage,
    /// ResourcesHealthy: every node publishes a complete pool with devices.
    Healthy,
    /// ResourcesHealthy: some nodes have not published yet but are still within the deadline.
    Publishing,
    /// ResourcesHealthy: nodes are past the deadline.
    NodesUnhealthy,
    /// PreflightPassed: the cluster has everything that the driver needs.
    Passed,
}

impl Reason {
    /// The value of `conditions[].reason`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Serving => "Serving",
            Self::NoNodes => "NoNodes",
            Self::Retrying => "Retrying",
            Self::RollingOut => "RollingOut",
            Self::RolloutBlocked => "RolloutBlocked",
            Self::WaitingForClaims => "WaitingForClaims",
            Self::Deleting => "Deleting",
            Self::InvalidObject => "InvalidObject",
            Self::DraApiMissing => "DraApiMissing",
            Self::NodeSelectorOverlap => "NodeSelectorOverlap",
            Self::NameTaken => "NameTaken",
            Self::InvalidPolicy => "InvalidPolicy",
            Self::Refused => "Refused",
            Self::InvalidImage => "InvalidImage",
            Self::Healthy => "Healthy",
            Self::Publishing => "Publishing",
            Self::NodesUnhealthy => "NodesUnhealthy",
            Self::Passed => "Passed",
        }
    }
}

/// The status of a condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "Kubernetes' own words")]
pub enum ConditionStatus {
    True,
    False,
    Unknown,
}

impl ConditionStatus {
    /// The value of `conditions[].status`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::True => "True",
            Self::False => "False",
            Self::Unknown => "Unknown",
        }
    }
}

/// Why a condition has its status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cause {
    /// The reason.
    pub reason: Reason,
    /// The message.
    pub message: String,
}

impl Cause {
    /// A cause with this message.
    pub fn new(reason: Reason, message: impl Into<String>) -> Self {
        Self { reason, message: message.into() }
    }
}

/// The desired state of one condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stated {
    /// Its type.
    pub type_: ConditionType,
    /// Its status.
    pub status: ConditionStatus,
    /// Why.
    pub cause: Cause,
}

/// Maximum message length that the Condition type allows (`maxLength` in k8s.io/apimachinery's type).
const LONGEST_MESSAGE: usize = 32_768;

/// Merges `stated` into `before`: the transition time changes only when the status does.
pub fn next(before: &[Condition], stated: Vec<Stated>, generation: Option<i64>, now: Timestamp) -> Vec<Condition> {
    stated
        .into_iter()
        .map(|Stated { type_, status, cause: Cause { reason, message } }| {
            let status = status.as_str();
            let since = before.iter().find(|c| c.type_ == type_.as_str() && c.status == status);
            Condition {
                type_: type_.as_str().into(),
                status: status.into(),
                reason: reason.as_str().into(),
                message: message.chars().take(LONGEST_MESSAGE / 4).collect(),
                observed_generation: generation,
                // Whole seconds, as the API stores them; otherwise every comparison would find a difference.
                last_transition_time: since.map_or_else(|| Time(seconds(now)), |c| c.last_transition_time.clone()),
            }
        })
        .collect()
}

/// Drops the fraction of a second.
pub fn seconds(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second()).unwrap_or(time)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ready(status: ConditionStatus, reason: Reason) -> Vec<Stated> {
        vec![Stated { type_: ConditionType::Ready, status, cause: Cause::new(reason, "") }]
    }

    #[test]
    fn the_time_of_transition_changes_with_the_status_alone() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let first = next(&[], ready(ConditionStatus::False, Reason::RolloutBlocked), Some(1), at(1));
        let second = next(&first, ready(ConditionStatus::False, Reason::RollingOut), Some(2), at(2));
        assert_eq!((second[0].reason.as_str(), &second[0].last_transition_time), ("RollingOut", &Time(at(1))));
        let third = next(&second, ready(ConditionStatus::True, Reason::Serving), Some(2), at(3));
        assert_eq!(third[0].last_transition_time, Time(at(3)));
        assert_eq!(next(&third, ready(ConditionStatus::True, Reason::Serving), Some(2), at(9)), third);
    }
}
