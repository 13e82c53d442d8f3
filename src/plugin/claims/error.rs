//! Why a claim was not prepared or unprepared. Pure.

use std::sync::Arc;

use crate::{
    drivers::GrantError,
    plugin::claims::{allocation::AllocationError, cdi::CdiError, checkpoint::CheckpointError, prepared::HeldError},
};

/// Why a claim was not prepared or unprepared; the kubelet shows it as the pod's event and tries again.
#[derive(Debug, thiserror::Error)]
pub enum ClaimError {
    /// Another instance of the plugin has taken over.
    #[error("this instance of the node plugin is not the active one: another is taking over; the kubelet tries again")]
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
    /// The API server did not give the claim.
    #[error("claim {namespace}/{name} could not be read from the API server: {problem}; the kubelet tries again")]
    Read {
        /// Namespace.
        namespace: String,
        /// Name.
        name: String,
        /// Why.
        problem: String,
    },
    /// It is not for this node as it is.
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
    /// It may not be had now.
    #[error(transparent)]
    Held(#[from] HeldError),
    /// The checkpoint could not be written.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The CDI file could not be written.
    #[error(transparent)]
    Cdi(#[from] CdiError),
    /// No random bytes.
    #[error("no random bytes for a token: {0}")]
    Random(getrandom::Error),
    /// Not connected to NRI: the container would not be kept to its devices.
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
