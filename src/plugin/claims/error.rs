//! Why a claim was not prepared or unprepared. Pure.

use std::sync::Arc;

use crate::{
    drivers::GrantError,
    plugin::claims::{allocation::AllocationError, cdi::CdiError, checkpoint::CheckpointError, prepared::HeldError},
};

/// Why a claim was not prepared or unprepared; the kubelet shows it in an Event of the pod and retries.
#[derive(Debug, thiserror::Error)]
pub enum ClaimError {
    /// Another instance of the plugin has taken over.
    #[error("this instance of the node plugin is not the active one: another is taking over; the kubelet retries")]
    Passive,
    /// The checkpoint cannot be trusted.
    #[error("{0}")]
    Broken(Arc<str>),
    /// The claim is gone.
    #[error("claim {namespace}/{name} does not exist: its pod is being deleted")]
    Gone {
        /// Namespace.
        namespace: String,
        /// Name.
        name: String,
    },
    /// The claim could not be read from the API server.
    #[error("reading claim {namespace}/{name} from the API server failed: {problem}; the kubelet retries")]
    Read {
        /// Namespace.
        namespace: String,
        /// Name.
        name: String,
        /// Why.
        problem: String,
    },
    /// What is allocated to it is not for this driver on this node.
    #[error(transparent)]
    Allocation(#[from] AllocationError),
    /// The driver cannot honour it.
    #[error(transparent)]
    Grant(#[from] GrantError),
    /// What it was allocated cannot be used now.
    #[error("request {request:?}: {source}")]
    Unusable {
        /// The request.
        request: String,
        /// Why.
        source: GrantError,
    },
    /// Another claim, or an earlier allocation, stands in the way.
    #[error(transparent)]
    Held(#[from] HeldError),
    /// The checkpoint could not be written.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The CDI file could not be written.
    #[error(transparent)]
    Cdi(#[from] CdiError),
    /// The kernel gave no random bytes.
    #[error("cannot get random bytes for a token: {0}")]
    Random(getrandom::Error),
    /// Not connected to NRI: the claim's containers would not be confined to what they were given.
    #[error(
        "not connected to the container runtime's NRI ({problem}): the claim's containers would run anywhere; check the node plugin's /readyz; the kubelet retries"
    )]
    Nri {
        /// Why there is no connection.
        problem: String,
    },
    /// A defect.
    #[error("a task of the node plugin died: {0}")]
    Task(String),
}
