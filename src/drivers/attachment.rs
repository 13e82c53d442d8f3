//! What a kind of device does to a whole pod sandbox, in addition to what its containers get. The implementing kind
//! does the IO.
//!
//! CDI and the cpuset reach containers. A network device has to be moved into the pod's network namespace, which exists
//! before the first container does. A kind that needs this returns an [`Attachment`] from
//! [`Driver::attachment`](super::Driver::attachment); the runtime's interface calls it.

use std::path::PathBuf;

use futures::future::BoxFuture;

use super::Grant;

/// A pod sandbox as the container runtime describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sandbox {
    /// The runtime's ID of the sandbox. If a pod's sandbox is recreated, the new one has another ID.
    pub id: String,
    /// The pod's UID.
    pub pod_uid: String,
    /// The pod's namespace.
    pub pod_namespace: String,
    /// The pod's name.
    pub pod_name: String,
    /// The sandbox's network namespace, such as `/var/run/netns/cni-…`; `None` for a pod on the host's network.
    pub network_namespace: Option<PathBuf>,
}

/// A device could not be attached to a pod sandbox or detached from it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} {device}: {problem}")]
pub struct AttachError {
    /// What failed, such as `cannot move`.
    pub what: &'static str,
    /// The device.
    pub device: String,
    /// Why, and what to do.
    pub problem: String,
}

/// Attaches devices to pod sandboxes.
///
/// Every method must be idempotent: the runtime may repeat a call, and the plugin may end in the middle of one. The
/// runtime waits 2 s for an answer and then drops the plugin, so the caller drops the future earlier.
pub trait Attachment: Send + Sync {
    /// Attaches what the pod's claims hold, before its first container is created. An error fails the sandbox;
    /// [`Attachment::detach`] then removes what was already attached.
    fn attach<'a>(&'a self, sandbox: &'a Sandbox, grants: &'a [Grant]) -> BoxFuture<'a, Result<(), AttachError>>;

    /// Detaches what [`Attachment::attach`] attached. `grants` is empty if the pod's claims are unprepared by then.
    fn detach<'a>(&'a self, sandbox: &'a Sandbox, grants: &'a [Grant]) -> BoxFuture<'a, Result<(), AttachError>>;

    /// Reconciles with the existing sandboxes after a time without a connection to the runtime: attaches what is
    /// missing, and takes back what was attached to sandboxes that are gone.
    fn recover<'a>(&'a self, sandboxes: &'a [(Sandbox, Vec<Grant>)]) -> BoxFuture<'a, Result<(), AttachError>>;
}
