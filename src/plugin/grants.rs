//! What NRI asks about the prepared claims: the seam between the kubelet's side and the runtime's. Pure.

use tokio::sync::watch;

use crate::drivers::{Grant, GrantError, cpuset_fields::CpusetFields};

/// A container as the runtime describes it. Its content is untrusted and only used to look up what was prepared.
#[derive(Clone, Copy, Debug)]
pub struct ContainerIdentity<'a> {
    /// The pod's UID.
    pub pod_uid: &'a str,
    /// The pod's namespace. A claim is valid only in its own namespace.
    pub pod_namespace: &'a str,
    /// The pod's name, for messages.
    pub pod_name: &'a str,
    /// The container's name, for messages.
    pub container_name: &'a str,
    /// The container's environment, as `NAME=value` entries.
    pub env: &'a [String],
    /// The names of the CDI devices requested for it, if the runtime sends them (NRI 0.10).
    pub cdi_devices: &'a [String],
}

/// Why a container must not be started.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The container has a mark of this driver, but no prepared claim has its token.
    #[error(
        "container {container:?} of pod {namespace}/{pod} carries the token of a {driver} claim that is not prepared on this node: delete the pod so that the claim is prepared again"
    )]
    NotPrepared {
        /// The driver's name.
        driver: String,
        /// The pod's namespace.
        namespace: String,
        /// The pod's name.
        pod: String,
        /// The container's name.
        container: String,
    },
    /// The container should have received a claim's CDI device, and with it the mark, but did not.
    #[error(
        "container {container:?} of pod {namespace}/{pod} uses a {driver} claim that the container runtime did not inject: enable CDI in the runtime (containerd before 2.0: enable_cdi = true)"
    )]
    NotInjected {
        /// The driver's name.
        driver: String,
        /// The pod's namespace.
        namespace: String,
        /// The pod's name.
        pod: String,
        /// The container's name.
        container: String,
    },
    /// The claim is in another namespace.
    #[error(
        "container {container:?} of pod {namespace}/{pod} carries the token of a {driver} claim in another namespace: a claim can be used only in its own namespace"
    )]
    OtherNamespace {
        /// The driver's name.
        driver: String,
        /// The pod's namespace.
        namespace: String,
        /// The pod's name.
        pod: String,
        /// The container's name.
        container: String,
    },
}

/// What containers may use according to the currently prepared claims. Answers come from memory and do not block,
/// except for [`Grants::check`], which may read a sysfs file.
pub trait Grants: Send + Sync + 'static {
    /// What the container gets from all its requests together. `None` if it uses no claim of this driver:
    /// [`Grants::remainder`] then applies to it.
    fn of_container(&self, container: &ContainerIdentity<'_>) -> Result<Option<Grant>, Refusal>;

    /// Whether a variable of a container's environment is a mark that [`Grants::of_container`] looks at.
    fn is_mark(&self, variable: &str) -> bool;

    /// What the prepared claims of a pod hold, for devices that are attached to the whole pod. Empty if the pod uses no
    /// claim of this driver.
    fn of_pod(&self, pod_uid: &str) -> Vec<Grant>;

    /// Which parts of a container's cpuset this driver sets.
    fn cpuset_fields(&self) -> CpusetFields;

    /// Whether a grant can be used right now; see [`Driver::check`](crate::drivers::Driver::check).
    fn check(&self, grant: &Grant) -> Result<(), GrantError>;

    /// What containers without a claim are restricted to. `None` lifts all restrictions, because no claim holds
    /// anything. Empty if claims hold everything: those containers then run anywhere, because a cpuset cannot be empty.
    fn remainder(&self) -> Option<Grant>;

    /// The number of the current state, which grows whenever a claim is prepared or unprepared. After a caller has read
    /// N from it, the other methods answer for state N or later.
    fn changes(&self) -> watch::Receiver<u64>;
}

/// The state of the connection to NRI.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NriStatus {
    /// Registered, configured and synchronised: containers are being watched.
    pub connected: bool,
    /// The last state (a number from [`Grants::changes`]) that was applied to the running containers. A plugin waits
    /// for it before it ends, so that what the last claim released can be used. Prepare does not wait for it.
    pub applied: u64,
    /// How often the connection was lost.
    pub reconnects: u64,
    /// Why there is no connection, or what could not be applied, as a message for users.
    pub problem: Option<String>,
}
