//! Leader election: the instance that created the Lease leads for as long as its pod lives. IO: the Kubernetes API.
//!
//! The Lease is owned by the leader's pod and is never renewed, so an idle controller writes nothing. A graceful stop
//! deletes it, and so does garbage collection when the pod is deleted. A candidate also deletes it once the pod has
//! terminated, or is being deleted on a node that no longer reports. Creation is atomic: no two instances can hold the
//! Lease, and no clocks are compared. (This is known as "leader for life".)

use std::time::Duration;

use futures::TryStreamExt;
use k8s_openapi::{
    api::{
        coordination::v1::{Lease, LeaseSpec},
        core::v1::{Node, Pod},
    },
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta, OwnerReference},
};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, PostParams, Preconditions},
    runtime::{WatchStreamExt, watcher},
};
use tokio::time::{sleep, timeout};

use crate::{causes::causes, controller::observe::is_ready};

/// Name of the Lease.
pub const LEASE: &str = "dra-operator";
/// Interval between checks whether the leader has ended.
const CHECK_EVERY: Duration = Duration::from_secs(10);

/// Leader election failed.
#[derive(Debug, thiserror::Error)]
#[error("leader election: {what}: {}", causes(error))]
pub struct Error {
    what: String,
    error: kube::Error,
}

/// A pod that may own the Lease.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Owner {
    Us,
    Other,
}

/// A candidate.
pub struct Candidate {
    leases: Api<Lease>,
    pods: Api<Pod>,
    nodes: Api<Node>,
    pod: String,
    uid: String,
}

impl Candidate {
    /// The instance in pod `pod`.
    pub async fn new(client: &Client, namespace: &str, pod: &str) -> Result<Self, Error> {
        let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
        let own = pods.get(pod).await.map_err(error(&format!("read this pod, {namespace}/{pod}")))?;
        Ok(Self {
            leases: Api::namespaced(client.clone(), namespace),
            pods,
            nodes: Api::all(client.clone()),
            pod: pod.to_owned(),
            uid: own.uid().unwrap_or_default(),
        })
    }

    /// Waits until this instance leads. Calls `stand_by` whenever another instance leads.
    pub async fn lead(&self, stand_by: impl Fn()) -> Result<(), Error> {
        loop {
            match self.leases.create(&PostParams::default(), &self.lease()).await {
                Ok(_) => return Ok(()),
                Err(kube::Error::Api(status)) if status.code == 409 => {}
                Err(failed) => {
                    tracing::warn!(error = %failed, "creating the Lease failed, retrying");
                    sleep(CHECK_EVERY).await;
                    continue;
                }
            }
            let read = self.leases.get_opt(LEASE).await.map_err(error("read the Lease"))?;
            let Some(lease) = read else { continue };
            if self.is_ours(&lease) {
                // The container restarted in the same pod.
                return Ok(());
            }
            stand_by();
            if self.has_ended(&lease).await {
                tracing::info!(leader = holder(&lease), "the leader's pod has ended, deleting its Lease");
                self.delete(&lease).await;
            } else {
                // Deleting the Lease causes an event, but the end of its leader may not.
                timeout(CHECK_EVERY, self.changed_to(Owner::Us)).await.ok();
            }
        }
    }

    /// Returns when this instance no longer holds the Lease.
    pub async fn lost(&self) {
        self.changed_to(Owner::Other).await;
    }

    /// Deletes the Lease if this instance holds it.
    pub async fn resign(&self) {
        match self.leases.get_opt(LEASE).await {
            Ok(Some(lease)) if self.is_ours(&lease) => self.delete(&lease).await,
            _ => {}
        }
    }

    /// Returns when the Lease is gone or has this owner.
    async fn changed_to(&self, owner: Owner) {
        let config = watcher::Config::default().fields(&format!("metadata.name={LEASE}"));
        let mut events = std::pin::pin!(watcher(self.leases.clone(), config).default_backoff());
        let mut listed = false;
        loop {
            match events.try_next().await {
                Ok(Some(watcher::Event::Init)) => listed = false,
                Ok(Some(watcher::Event::InitApply(lease) | watcher::Event::Apply(lease))) => {
                    listed = true;
                    if self.is_ours(&lease) == (owner == Owner::Us) {
                        return;
                    }
                }
                Ok(Some(watcher::Event::InitDone)) if listed => {}
                Ok(Some(watcher::Event::InitDone | watcher::Event::Delete(_)) | None) => return,
                Err(failed) => tracing::warn!(error = %failed, "watching the Lease failed, retrying"),
            }
        }
    }

    fn lease(&self) -> Lease {
        Lease {
            metadata: ObjectMeta {
                name: Some(LEASE.into()),
                owner_references: Some(vec![OwnerReference {
                    api_version: "v1".into(),
                    kind: "Pod".into(),
                    name: self.pod.clone(),
                    uid: self.uid.clone(),
                    ..OwnerReference::default()
                }]),
                ..ObjectMeta::default()
            },
            spec: Some(LeaseSpec {
                holder_identity: Some(self.pod.clone()),
                acquire_time: Some(MicroTime(jiff::Timestamp::now())),
                ..LeaseSpec::default()
            }),
        }
    }

    fn is_ours(&self, lease: &Lease) -> bool {
        owner(lease) == Some(self.uid.as_str())
    }

    /// Whether the leader's pod has stopped running, and thus writing.
    async fn has_ended(&self, lease: &Lease) -> bool {
        if holder(lease).is_empty() {
            // No holder: this is how other election code releases a Lease.
            return true;
        }
        let pod = match self.pods.get_opt(&holder(lease)).await {
            Ok(pod) => pod,
            Err(failed) => {
                tracing::warn!(error = %failed, "reading the leader's pod failed, retrying");
                return false;
            }
        };
        let Some(pod) = pod.filter(|pod| pod.uid().as_deref() == owner(lease)) else { return true };
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
        if matches!(phase, Some("Failed" | "Succeeded")) {
            return true;
        }
        let Some(node) = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()) else { return false };
        pod.metadata.deletion_timestamp.is_some() && !self.is_up(node).await
    }

    async fn is_up(&self, node: &str) -> bool {
        let Ok(node) = self.nodes.get_opt(node).await else { return true };
        node.as_ref().is_some_and(is_ready)
    }

    /// Deletes only this version of the Lease.
    async fn delete(&self, lease: &Lease) {
        let preconditions = Preconditions { uid: lease.uid(), resource_version: lease.resource_version() };
        let parameters = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
        if let Err(failed) = self.leases.delete(LEASE, &parameters).await {
            tracing::warn!(error = %failed, "deleting the Lease failed");
        }
    }
}

fn owner(lease: &Lease) -> Option<&str> {
    lease.metadata.owner_references.iter().flatten().next().map(|owner| owner.uid.as_str())
}

fn holder(lease: &Lease) -> String {
    lease.spec.as_ref().and_then(|spec| spec.holder_identity.clone()).unwrap_or_default()
}

fn error(what: &str) -> impl FnOnce(kube::Error) -> Error {
    let what = what.to_owned();
    move |error| Error { what, error }
}

#[cfg(test)]
mod tests;
