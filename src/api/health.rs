//! `spec.health`. Pure.

use std::time::Duration;

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// When a node counts as unhealthy, and what is done about it.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HealthSpec {
    /// How long a node may take from having a plugin pod to a complete pool, in seconds as `60s` (or `5m`). Default 60s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    #[x_kube(validation = Rule::new("self.matches('^[1-9][0-9]{0,4}[sm]$')")
        .message("spec.health.publishDeadline must be whole seconds or minutes above zero, such as 60s or 5m"))]
    pub publish_deadline: Option<String>,

    /// What is done about an unhealthy node. Default `Report`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_unhealthy: Option<OnUnhealthy>,
}

/// What is done about an unhealthy node. `Report`, the default and the only one yet: status, events and metrics say so.
#[derive(JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum OnUnhealthy {
    /// Say so in status, events and metrics.
    #[default]
    Report,
}

impl HealthSpec {
    /// The deadline; 60 s where the admin gave none (the schema admits no other form than `60s` or `5m`).
    pub fn publish_deadline(&self) -> Duration {
        let default = Duration::from_mins(1);
        let Some(text) = self.publish_deadline.as_deref() else { return default };
        let (digits, per) = match (text.strip_suffix('s'), text.strip_suffix('m')) {
            (Some(digits), _) => (digits, 1),
            (_, Some(digits)) => (digits, 60),
            _ => return default,
        };
        digits.parse::<u32>().map_or(default, |n| Duration::from_secs(u64::from(n) * per))
    }
}
