//! The parts of pods, nodes and claims that decisions need. Nothing else is kept, so that other changes do not wake the
//! controller and a large cluster fits in little memory. Pure.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::{
    api::{
        core::v1::{ContainerStatus, Node, NodeSelector, Pod},
        resource::v1::ResourceClaim,
    },
    apimachinery::pkg::apis::meta::v1::OwnerReference,
};
use kube::ResourceExt;

use crate::{
    controller::build::{CONFIG_LABEL, plugin_name_of},
    slices::device::Hold,
};

/// A node plugin's pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PluginPod {
    /// Its name.
    pub name: String,
    /// Its unique id.
    pub uid: String,
    /// The `DraDriverConfig` it belongs to; empty for a pod that only has its labels.
    pub config: String,
    /// The node that it is bound to or, before scheduling, was created for.
    pub node: String,
    /// The version of the pod template that it was created from.
    pub revision: String,
    /// When it was created.
    pub created: Timestamp,
    /// Whether its readiness probe passes.
    pub ready: bool,
    /// Since when it has been unready; `None` if it is ready.
    pub unready: Option<Unready>,
    /// Whether it is being deleted.
    pub terminating: bool,
    /// What keeps its container from running; `None` if it runs or the cause is unknown.
    pub trouble: Option<Trouble>,
}

/// A pod that is not ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unready {
    /// Since when. If its container runs, since the container started.
    pub since: Timestamp,
    /// Whether its container runs.
    pub runs: bool,
}

/// What keeps a plugin's container from running.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// The kind of trouble.
    pub kind: TroubleKind,
    /// The message from the kubelet or the scheduler, with the image or the exit code.
    pub message: String,
}

/// The kinds of trouble that a pod's status reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TroubleKind {
    /// The image cannot be pulled.
    ImagePull,
    /// The image name is not a valid reference, which someone has to fix.
    ImageName,
    /// The container keeps crashing.
    Crash,
    /// The container cannot be created.
    Container,
    /// The scheduler finds no node for it.
    Scheduling,
}

/// A node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeFacts {
    /// Its name.
    pub name: String,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Whether the kubelet reports it as ready.
    pub ready: bool,
    /// Whether it has a taint that keeps away pods without a toleration.
    pub tainted: bool,
}

/// A claim and the devices that it holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimFacts {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// The node of its devices, if they are all on one node.
    pub node: Option<String>,
    /// The devices allocated to it, from any driver.
    pub devices: Vec<Held>,
}

/// One device that a claim holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// The driver.
    pub driver: String,
    /// The pool.
    pub pool: String,
    /// The device.
    pub device: String,
    /// How the device is held: with admin access or a share, other claims may still get it.
    pub hold: Hold,
}

impl PluginPod {
    /// Extracts the relevant parts of a pod.
    pub fn of(pod: &Pod) -> Self {
        let label = |key: &str| pod.labels().get(key).cloned().unwrap_or_default();
        let status = pod.status.as_ref();
        let conditions = status.and_then(|status| status.conditions.as_ref());
        let ready_condition = conditions.and_then(|conditions| conditions.iter().find(|c| c.type_ == "Ready"));
        let ready = ready_condition.is_some_and(|condition| condition.status == "True");
        let created = pod.creation_timestamp().map_or(Timestamp::UNIX_EPOCH, |time| time.0);
        let changed = ready_condition.and_then(|condition| condition.last_transition_time.as_ref());
        let running = status.and_then(|status| running_since(status.container_statuses.as_ref()?.first()?));
        let since = changed.map(|time| time.0).into_iter().chain(running).fold(created, Timestamp::max);
        Self {
            name: pod.name_any(),
            uid: pod.uid().unwrap_or_default(),
            config: Some(label(CONFIG_LABEL)).filter(|config| is_made_for(pod, config)).unwrap_or_default(),
            node: node_of(pod).unwrap_or_default(),
            revision: label("controller-revision-hash"),
            created,
            ready,
            unready: (!ready).then_some(Unready { since, runs: running.is_some() }),
            terminating: pod.metadata.deletion_timestamp.is_some(),
            trouble: if ready { None } else { trouble(pod) },
        }
    }
}

/// Whether the config's own DaemonSet created it. Another object may have copied its labels.
fn is_made_for(pod: &Pod, config: &str) -> bool {
    let name = plugin_name_of(config);
    let is_it =
        |owner: &OwnerReference| owner.controller == Some(true) && owner.kind == "DaemonSet" && owner.name == name;
    pod.owner_references().iter().any(is_it)
}

fn running_since(container: &ContainerStatus) -> Option<Timestamp> {
    Some(container.state.as_ref()?.running.as_ref()?.started_at.as_ref()?.0)
}

/// Before it is bound, a DaemonSet pod names its node in its affinity.
fn node_of(pod: &Pod) -> Option<String> {
    let spec = pod.spec.as_ref()?;
    if spec.node_name.is_some() {
        return spec.node_name.clone();
    }
    let affinity = spec.affinity.as_ref()?.node_affinity.as_ref()?;
    named_node(affinity.required_during_scheduling_ignored_during_execution.as_ref()?)
}

/// The node that a selector requests by name.
fn named_node(selector: &NodeSelector) -> Option<String> {
    selector
        .node_selector_terms
        .iter()
        .flat_map(|term| term.match_fields.iter().flatten())
        .find(|field| field.key == "metadata.name")
        .and_then(|field| field.values.as_ref()?.first().cloned())
}

fn trouble(pod: &Pod) -> Option<Trouble> {
    let status = pod.status.as_ref()?;
    if let Some(container) = status.container_statuses.iter().flatten().next()
        && let Some(trouble) = container_trouble(container)
    {
        return Some(trouble);
    }
    let unscheduled =
        status.conditions.iter().flatten().find(|c| {
            c.type_ == "PodScheduled" && c.status == "False" && c.reason.as_deref() == Some("Unschedulable")
        })?;
    Some(Trouble { kind: TroubleKind::Scheduling, message: unscheduled.message.clone().unwrap_or_default() })
}

fn container_trouble(container: &ContainerStatus) -> Option<Trouble> {
    let waiting = container.state.as_ref().and_then(|state| state.waiting.as_ref());
    let reason = waiting.and_then(|waiting| waiting.reason.as_deref()).unwrap_or_default();
    // The kubelet alternates between ErrImagePull and ImagePullBackOff, so both get the same message.
    let said = waiting.and_then(|waiting| waiting.message.as_deref()).unwrap_or_default();
    let image = &container.image;
    let (kind, message) = match reason {
        "ImagePullBackOff" | "ErrImagePull" | "ErrImageNeverPull" | "RegistryUnavailable" => {
            (TroubleKind::ImagePull, format!("image {image} cannot be pulled"))
        }
        "InvalidImageName" | "ImageInspectError" => {
            (TroubleKind::ImageName, format!("image {image} cannot be used ({reason}): {said}"))
        }
        "CreateContainerError" | "CreateContainerConfigError" | "RunContainerError" => {
            (TroubleKind::Container, format!("its container cannot be started ({reason}): {said}"))
        }
        _ => {
            let crashed = container
                .last_state
                .as_ref()
                .and_then(|state| state.terminated.as_ref())
                .or_else(|| container.state.as_ref().and_then(|state| state.terminated.as_ref()))?;
            if reason != "CrashLoopBackOff" && container.restart_count < 3 && crashed.exit_code == 0 {
                return None;
            }
            let why = crashed.message.as_deref().or(crashed.reason.as_deref()).unwrap_or("no reason given");
            let text = format!(
                "its container terminated with exit code {} ({why}): see `kubectl logs --previous`",
                crashed.exit_code
            );
            (TroubleKind::Crash, text)
        }
    };
    Some(Trouble { kind, message })
}

/// Whether the kubelet reports the node as ready. Kubernetes marks the node not ready after 40 s without a report.
pub fn is_ready(node: &Node) -> bool {
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions.is_some_and(|all| all.iter().any(|c| c.type_ == "Ready" && c.status == "True"))
}

impl NodeFacts {
    /// Extracts the relevant parts of a node.
    pub fn of(node: &Node) -> Self {
        let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_ref());
        Self {
            name: node.name_any(),
            labels: node.labels().clone(),
            ready: is_ready(node),
            tainted: taints.into_iter().flatten().any(|taint| taint.effect != "PreferNoSchedule"),
        }
    }
}

impl ClaimFacts {
    /// Extracts the relevant parts of a claim.
    pub fn of(claim: &ResourceClaim) -> Self {
        let allocation = claim.status.as_ref().and_then(|status| status.allocation.as_ref());
        let results = allocation.and_then(|allocation| allocation.devices.as_ref()?.results.as_ref());
        Self {
            namespace: claim.namespace().unwrap_or_default(),
            name: claim.name_any(),
            node: allocation.and_then(|allocation| named_node(allocation.node_selector.as_ref()?)),
            devices: results
                .into_iter()
                .flatten()
                .map(|result| Held {
                    driver: result.driver.clone(),
                    pool: result.pool.clone(),
                    device: result.device.clone(),
                    hold: Hold::of(result),
                })
                .collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(status: &Value) -> PluginPod {
        PluginPod::of(
            &serde_json::from_value(json!({
                "metadata": {"name": "p", "uid": "u", "labels": {CONFIG_LABEL: "cpu"}, "ownerReferences": [
                    {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "cpu-node-plugin", "uid": "d", "controller": true}]},
                "spec": {"containers": [], "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}]}}}},
                "status": status,
            }))
            .unwrap(),
        )
    }

    fn container(state: &Value, last: &Value) -> Value {
        json!({"containerStatuses": [{"name": "node-plugin", "image": "reg/x:1", "imageID": "", "ready": false, "restartCount": 1,
            "state": state, "lastState": last}]})
    }

    #[test]
    fn a_pod_belongs_to_the_config_whose_daemon_set_created_it_regardless_of_its_labels() {
        assert_eq!(pod(&json!({})).config, "cpu");
        for owners in [
            json!([]),
            json!([{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "a-copy", "uid": "d", "controller": true}]),
        ] {
            let metadata = json!({"name": "p", "labels": {CONFIG_LABEL: "cpu"}, "ownerReferences": owners});
            let pod: Pod = serde_json::from_value(json!({"metadata": metadata})).unwrap();
            assert_eq!(PluginPod::of(&pod).config, "");
        }
    }

    #[test]
    fn a_pod_that_is_not_scheduled_belongs_to_the_node_it_was_created_for() {
        assert_eq!(pod(&json!({})).node, "n1");
    }

    #[test]
    fn what_keeps_a_pod_from_running_is_reported_with_the_image_or_the_exit_code() {
        let waiting = |reason: &str| json!({"waiting": {"reason": reason, "message": "because"}});
        let crashed = json!({"terminated": {"exitCode": 3, "reason": "Error"}});
        for (state, last, kind, words) in [
            (waiting("ImagePullBackOff"), json!({}), TroubleKind::ImagePull, "reg/x:1"),
            (waiting("ErrImagePull"), json!({}), TroubleKind::ImagePull, "reg/x:1"),
            (waiting("InvalidImageName"), json!({}), TroubleKind::ImageName, "because"),
            (waiting("CreateContainerError"), json!({}), TroubleKind::Container, "because"),
            (waiting("CrashLoopBackOff"), crashed.clone(), TroubleKind::Crash, "exit code 3"),
            (crashed.clone(), json!({}), TroubleKind::Crash, "exit code 3"),
        ] {
            let trouble = pod(&container(&state, &last)).trouble.unwrap();
            assert_eq!(trouble.kind, kind);
            assert!(trouble.message.contains(words), "{trouble:?}");
        }
        assert_eq!(pod(&container(&waiting("ContainerCreating"), &json!({}))).trouble, None);
        assert_eq!(pod(&container(&json!({"running": {}}), &json!({}))).trouble, None);
    }

    #[test]
    fn a_pod_is_unready_since_its_container_started_or_since_it_was_last_ready() {
        let at = |second: i64| Timestamp::from_second(second).unwrap();
        let running = container(&json!({"running": {"startedAt": "1970-01-01T00:01:00Z"}}), &json!({}));
        assert_eq!(pod(&running).unready, Some(Unready { since: at(60), runs: true }));
        let mut lost = running.clone();
        lost["conditions"] =
            json!([{"type": "Ready", "status": "False", "lastTransitionTime": "1970-01-01T00:02:00Z"}]);
        assert_eq!(pod(&lost).unready, Some(Unready { since: at(120), runs: true }));
        lost["conditions"][0]["status"] = json!("True");
        assert_eq!(pod(&lost).unready, None);
        let waiting = container(&json!({"waiting": {"reason": "ContainerCreating"}}), &json!({}));
        assert_eq!(pod(&waiting).unready, Some(Unready { since: at(0), runs: false }));
    }

    #[test]
    fn a_pod_without_a_node_reports_the_schedulers_message() {
        let status = json!({"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no room"}]});
        assert_eq!(pod(&status).trouble, Some(Trouble { kind: TroubleKind::Scheduling, message: "no room".into() }));
    }

    #[test]
    fn a_claim_without_allocation_holds_nothing() {
        let claim: ResourceClaim = serde_json::from_value(json!({"metadata": {"name": "c"}, "spec": {}})).unwrap();
        assert_eq!(ClaimFacts::of(&claim).devices, []);
    }

    #[test]
    fn a_claim_belongs_to_the_node_whose_devices_it_holds() {
        let allocation = json!({
            "devices": {"results": [{"request": "r", "driver": "dra.cpu", "pool": "p", "device": "core-0-0"}]},
            "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}]},
        });
        let claim: ResourceClaim = serde_json::from_value(
            json!({"metadata": {"name": "c"}, "spec": {}, "status": {"allocation": allocation}}),
        )
        .unwrap();
        let facts = ClaimFacts::of(&claim);
        assert_eq!((facts.node.as_deref(), facts.devices[0].pool.as_str()), (Some("n1"), "p"));
    }
}
