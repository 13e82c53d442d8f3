//! `spec.health`. Pure.

use std::time::Duration;

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Fault;

/// The CRD's message for a malformed deadline.
const DEADLINE: &str =
    "spec.health.publishDeadline must be a positive whole number of seconds or minutes, such as 60s or 5m";

/// When a node counts as unhealthy, and what to do about it.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HealthSpec {
    /// How long a node with a plugin pod may take to publish a complete pool, in seconds or minutes, such as `60s` or `5m`.
    /// Default `60s`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    #[x_kube(validation = Rule::new("self.matches('^[1-9][0-9]{0,4}[sm]$')")
        .message(DEADLINE))]
    pub publish_deadline: Option<String>,

    /// What to do about an unhealthy node. Default `Report`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_unhealthy: Option<OnUnhealthy>,
}

/// What to do about an unhealthy node. `Report`, the default and currently the only value: report it in status, Events
/// and metrics.
#[derive(JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum OnUnhealthy {
    /// Report it in status, Events and metrics.
    #[default]
    Report,
}

impl HealthSpec {
    /// The deadline if the admin does not set one.
    pub const DEFAULT_DEADLINE: Duration = Duration::from_mins(1);

    /// The effective deadline.
    pub fn publish_deadline(&self) -> Result<Duration, Fault> {
        let Some(text) = self.publish_deadline.as_deref() else { return Ok(Self::DEFAULT_DEADLINE) };
        let seconds = |digits: &str, per: u64| Some(u64::from(digits.parse::<u32>().ok()?) * per);
        let parsed = match (text.strip_suffix('s'), text.strip_suffix('m')) {
            (Some(digits), _) => seconds(digits, 1),
            (_, Some(digits)) => seconds(digits, 60),
            _ => None,
        };
        let fault = || Fault { path: "spec.health.publishDeadline".into(), message: DEADLINE.into() };
        parsed.filter(|seconds| *seconds > 0).map(Duration::from_secs).ok_or_else(fault)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_is_seconds_or_minutes_and_nothing_else() {
        let deadline = |text: Option<&str>| {
            HealthSpec { publish_deadline: text.map(Into::into), on_unhealthy: None }.publish_deadline()
        };
        assert_eq!(deadline(None), Ok(Duration::from_mins(1)));
        assert_eq!(deadline(Some("90s")), Ok(Duration::from_secs(90)));
        assert_eq!(deadline(Some("5m")), Ok(Duration::from_mins(5)));
        for bad in ["", "0s", "5", "1h", "-1s", "1.5m", "s"] {
            assert_eq!(deadline(Some(bad)).unwrap_err().to_string(), DEADLINE, "{bad}");
        }
    }
}
