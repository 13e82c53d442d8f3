//! Why a claim was not prepared or unprepared. Pure.

use std::sync::Arc;

use crate::{
    drivers::GrantError,
    plugin::claims::{allocation::AllocationError, cdi::CdiError, checkpoint::CheckpointError, prepared::HeldError},
};

/// Why a claim was not prepared or unprepared. The kubelet reports it in an Event on the pod and retries.
#[derive(Debug, thiserror::Error)]
pub enum ClaimError {
    /// Another instance of the plugin has taken over.
    #[error("this node plugin instance is no longer active because another one is taking over; the kubelet retries")]
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
    /// The allocation is not for this driver on this node.
    #[error(transparent)]
    Allocation(#[from] AllocationError),
    /// The driver cannot honour the allocation.
    #[error(transparent)]
    Grant(#[from] GrantError),
    /// An allocated device cannot be used at the moment.
    #[error("request {request:?}: {source}")]
    Unusable {
        /// The request.
        request: String,
        /// Why.
        source: GrantError,
    },
    /// Another claim or an earlier allocation conflicts with this one.
    #[error(transparent)]
    Held(#[from] HeldError),
    /// The checkpoint could not be written.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The CDI file could not be written.
    #[error(transparent)]
    Cdi(#[from] CdiError),
    /// The kernel returned no random bytes.
    #[error("cannot get random bytes for a token: {0}")]
    Random(getrandom::Error),
    /// Not connected to NRI, so the claim's containers would not be pinned.
    #[error(
        "not connected to the container runtime over NRI ({problem}), so the claim's containers could not be pinned: check the node plugin's /readyz; the kubelet retries"
    )]
    Nri {
        /// Why there is no connection.
        problem: String,
    },
    /// A task panicked: a bug.
    #[error("a node plugin task failed: {0}")]
    Task(String),
}
