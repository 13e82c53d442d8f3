//! What NRI asks of the prepared claims: the seam between the kubelet's side and the runtime's. Pure.

use tokio::sync::watch;

use crate::drivers::{Grant, GrantError, pinning::Pinning};

/// A container as the runtime describes it. It is not trusted, only used to look up what was prepared.
#[derive(Clone, Copy, Debug)]
pub struct ContainerIdentity<'a> {
    /// The pod's UID.
    pub pod_uid: &'a str,
    /// The pod's namespace; a claim is only honoured in its own.
    pub pod_namespace: &'a str,
    /// The pod's name, for messages.
    pub pod_name: &'a str,
    /// The container's name, for messages.
    pub container_name: &'a str,
    /// The container's environment, `NAME=value` each.
    pub env: &'a [String],
    /// The names of the CDI devices asked for it, if the runtime sends them (NRI 0.10).
    pub cdi_devices: &'a [String],
}

/// Why a container must not be started: it carries the mark of a claim that it may not use.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The mark is of this driver, and no prepared claim has it.
    #[error(
        "container {container:?} of pod {namespace}/{pod} carries the mark of a {driver} claim that is not prepared on this node: delete the pod so that it is prepared again"
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
    /// It should have got a claim's CDI device, which brings the mark, and did not.
    #[error(
        "container {container:?} of pod {namespace}/{pod} has a {driver} claim that the container runtime did not give it: CDI must be enabled in the runtime (containerd before 2.0: enable_cdi = true)"
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
        "container {container:?} of pod {namespace}/{pod} carries the mark of a {driver} claim in another namespace: a claim can only be used in its own"
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

/// What containers may use according to the claims that are prepared now. Answers from memory and does not block, but
/// for [`Grants::check`], which may read a file of sysfs.
pub trait Grants: Send + Sync + 'static {
    /// What the container gets from all its requests together. `None` if it uses no claim of this driver: then
    /// [`Grants::remainder`] is its share.
    fn of_container(&self, container: &ContainerIdentity<'_>) -> Result<Option<Grant>, Refusal>;

    /// What the prepared claims that are reserved for a pod hold: for devices that are attached to the whole pod. Empty
    /// when it uses no claim of this driver.
    fn of_pod(&self, pod_uid: &str) -> Vec<Grant>;

    /// What of a container's cpuset this driver sets.
    fn pinning(&self) -> Pinning;

    /// Whether a grant can be used right now; see [`Driver::check`](crate::drivers::Driver::check).
    fn check(&self, grant: &Grant) -> Result<(), GrantError>;

    /// What every container without a claim is kept to. `None` lifts all restrictions: no claim holds anything. Empty if
    /// claims hold everything: those containers then run anywhere, as there is no empty cpuset.
    fn remainder(&self) -> Option<Grant>;

    /// The number of the current state, which grows with each claim that is prepared or unprepared. After reading N
    /// from it, the other methods answer for state N or a later one.
    fn changes(&self) -> watch::Receiver<u64>;
}

/// The state of the connection to NRI.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NriStatus {
    /// Registered, configured and synchronised: containers are being watched.
    pub connected: bool,
    /// The last state (a number from [`Grants::changes`]) to which the running containers were brought. A plugin that
    /// ends waits for it, so that what the last claim gave back is not left unused. Prepare does not wait for it.
    pub applied: u64,
    /// How often the connection was lost.
    pub reconnects: u64,
    /// Why it is not connected, or what could not be applied: a message for people.
    pub problem: Option<String>,
}
