//! Why a DaemonSet's pods cannot be made, as the DaemonSet controller tells it. IO: reads Events.
//!
//! A pod that admission refuses (pod security, a quota, a missing PriorityClass) is nowhere to be seen: Kubernetes only
//! writes an Event about the DaemonSet.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Event;
use kube::{Api, Client, api::ListParams};

/// The DaemonSet controller pauses at most 1000 s between attempts (client-go's default rate limiter): what is older was
/// not said again.
const LATELY: SignedDuration = SignedDuration::from_mins(20);

/// What the API server last said to an attempt to make a pod of the DaemonSet with this id; none when nothing lately.
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
    let lately = now.duration_since(at) < LATELY;
    lately.then(|| without_pod(event.message.as_deref().unwrap_or_default()).to_owned())
}

fn seen(event: &Event) -> Timestamp {
    let series = event.series.as_ref().and_then(|series| series.last_observed_time.as_ref()).map(|time| time.0);
    let single = event.last_timestamp.as_ref().map(|time| time.0).or(event.event_time.as_ref().map(|time| time.0));
    series.max(single).unwrap_or(Timestamp::UNIX_EPOCH)
}

/// Each attempt is for a pod of another name, and that is no news.
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
    fn the_latest_refusal_is_told_without_the_name_of_the_pod_that_was_not_made() {
        let events = [
            event("Error creating: pods \"cpu-node-plugin-x7k2p\" is forbidden: exceeded quota: none", 50),
            event("Error creating: pods \"cpu-node-plugin-b4c5d\" is forbidden: violates PodSecurity \"baseline\"", 60),
        ];
        assert_eq!(latest(&events, at(100)).as_deref(), Some("violates PodSecurity \"baseline\""));
        let other = event("Error creating: admission webhook \"a\" denied the request", 60);
        assert_eq!(latest(&[other], at(100)).as_deref(), Some("admission webhook \"a\" denied the request"));
    }

    #[test]
    fn what_was_not_said_lately_is_not_told() {
        assert_eq!(latest(&[], at(0)), None);
        assert_eq!(latest(&[event("m", 0)], at(1199)).as_deref(), Some("m"));
        assert_eq!(latest(&[event("m", 0)], at(1200)), None);
    }
}
