//! What NRI asks of the prepared claims: the seam between the kubelet's side and the runtime's. Pure.

use tokio::sync::watch;

use crate::drivers::{Grant, GrantError, pinning::Pinning};

/// A container as the runtime describes it. Nothing in it is trusted: it is only used to look up own state.
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
    /// The names of the CDI devices asked for it, where the runtime tells (NRI 0.10).
    pub cdi_devices: &'a [String],
}

/// Why a container must not be started: it carries the mark of a claim that it may not use.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The mark is of this driver, and no prepared claim has it.
    #[error(
        "container {container:?} of pod {namespace}/{pod} carries the mark of a {driver} claim that is not prepared on this node: delete the pod so that it is prepared anew"
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
    /// It was to get a claim's CDI device, and did not: that would have brought the mark.
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
    /// The claim is another namespace's.
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

/// What containers may use, by the claims that are prepared now. Cheap: answers from memory, never blocks.
pub trait Grants: Send + Sync + 'static {
    /// What the container gets: everything of all its requests together. `None` when it uses no claim of this driver:
    /// then [`Grants::remainder`] is its share.
    fn of_container(&self, container: &ContainerIdentity<'_>) -> Result<Option<Grant>, Refusal>;

    /// What the prepared claims that are reserved for a pod hold: for devices that are attached to the whole pod. Empty
    /// when it uses no claim of this driver.
    fn of_pod(&self, pod_uid: &str) -> Vec<Grant>;

    /// What of a container's cpuset this driver sets.
    fn pinning(&self) -> Pinning;

    /// Whether a grant can be used right now; see [`Driver::check`](crate::drivers::Driver::check).
    fn check(&self, grant: &Grant) -> Result<(), GrantError>;

    /// What every container without a claim is kept to. `None` lifts all restrictions: nothing is given away. Empty: all
    /// is, and as there is no empty cpuset, they run anywhere.
    fn remainder(&self) -> Option<Grant>;

    /// The number of the current state, which grows with each claim that is prepared or unprepared. After reading N
    /// from it, the other methods answer for state N or a later one.
    fn changes(&self) -> watch::Receiver<u64>;
}

/// How the connection to NRI is, as its side reports it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NriStatus {
    /// Registered, configured and synchronised: containers are being watched.
    pub connected: bool,
    /// The last state (a number from [`Grants::changes`]) to which the running containers were brought. A plugin that
    /// ends waits for it, so that what the last claim gave back is not left unused. Prepare does not wait for it.
    pub applied: u64,
    /// How often the connection was lost and made again.
    pub reconnects: u64,
    /// Why it is not connected or what could not be applied, for people.
    pub problem: Option<String>,
}
