//! Finds out why a DaemonSet's pods cannot be created, from the DaemonSet controller's Events. IO: reads Events.
//!
//! A pod that admission rejects (pod security, a quota, a missing PriorityClass) never exists: Kubernetes only writes
//! an Event about the DaemonSet.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Event;
use kube::{Api, Client, api::ListParams};

/// The DaemonSet controller waits at most 1000 s between attempts (client-go's default rate limiter), so an older Event
/// is outdated.
const RECENT: SignedDuration = SignedDuration::from_mins(20);

/// Why the API server rejected the last attempt to create a pod of the DaemonSet with this UID; `None` if there was no
/// recent rejection.
pub async fn refusal(
    client: &Client,
    namespace: &str,
    uid: &str,
    now: Timestamp,
) -> Result<Option<String>, kube::Error> {
    let events: Api<Event> = Api::namespaced(client.clone(), namespace);
    let about = ListParams::default().fields(&format!("involvedObject.uid={uid},reason=FailedCreate"));
    Ok(latest(&events.list(&about).await?.items, now))
}

fn latest(events: &[Event], now: Timestamp) -> Option<String> {
    let (at, event) = events.iter().map(|event| (seen(event), event)).max_by_key(|(at, _)| *at)?;
    let is_recent = now.duration_since(at) < RECENT;
    is_recent.then(|| without_pod(event.message.as_deref().unwrap_or_default()).to_owned())
}

fn seen(event: &Event) -> Timestamp {
    let series = event.series.as_ref().and_then(|series| series.last_observed_time.as_ref()).map(|time| time.0);
    let single = event.last_timestamp.as_ref().map(|time| time.0).or(event.event_time.as_ref().map(|time| time.0));
    series.max(single).unwrap_or(Timestamp::UNIX_EPOCH)
}

/// Removes the pod's name, which differs in every attempt.
fn without_pod(message: &str) -> &str {
    let said = message.strip_prefix("Error creating: ").unwrap_or(message);
    match said.split_once("\" is forbidden: ") {
        Some((pod, why)) if pod.starts_with("pods \"") => why,
        _ => said,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::controller::testing::at;

    fn event(message: &str, second: i64) -> Event {
        serde_json::from_value(json!({
            "metadata": {"name": "e"}, "involvedObject": {}, "message": message, "lastTimestamp": at(second).to_string(),
        }))
        .unwrap()
    }

    #[test]
    fn the_latest_refusal_is_reported_without_the_name_of_the_pod() {
        let events = [
            event("Error creating: pods \"cpu-node-plugin-x7k2p\" is forbidden: exceeded quota: none", 50),
            event("Error creating: pods \"cpu-node-plugin-b4c5d\" is forbidden: violates PodSecurity \"baseline\"", 60),
        ];
        assert_eq!(latest(&events, at(100)).as_deref(), Some("violates PodSecurity \"baseline\""));
        let other = event("Error creating: admission webhook \"a\" denied the request", 60);
        assert_eq!(latest(&[other], at(100)).as_deref(), Some("admission webhook \"a\" denied the request"));
    }

    #[test]
    fn an_old_refusal_is_not_reported() {
        assert_eq!(latest(&[], at(0)), None);
        assert_eq!(latest(&[event("m", 0)], at(1199)).as_deref(), Some("m"));
        assert_eq!(latest(&[event("m", 0)], at(1200)), None);
    }
}
