//! The container runtime's plugin interface (NRI): a claim's containers get its CPUs, and all others stay off them. IO
//! at the edge.
//!
//! One task keeps one connection (`reconnect`, `session`). The runtime asks before it creates or changes a container
//! (`hooks`), and the plugin asks it to change existing containers when claims come and go. `containers` decides what
//! each container should have, from what the runtime and [`Grants`](super::grants::Grants) report. Devices that are
//! attached to whole pods are in `sandboxes`.
//!
//! # Which container uses which claim
//! The runtime applies the CDI edits while it builds the container's spec. The NRI hook CreateContainer comes after
//! that and sees the result, so the container's `env` in the message has the variables of the CDI edits. The spec is
//! stored, so the same is true at Synchronize. (Read in containerd 2.4.2 with NRI 0.12.3 and ttrpc 1.2.9, and recorded
//! from it in `tests/fixtures/nri`.) `CDI_devices` has the names that the kubelet asked for, but NRI before 0.10 lacks
//! the field. So the environment is used: it works with every runtime. A pod can set variables too, so each mark has a
//! token that only [`Grants`](super::grants::Grants) knows and checks.
//!
//! # What can be relied on, and what cannot
//! - While the plugin is connected, a claim's container is never created unpinned. It is pinned, or refused with a reason
//!   that `kubectl describe pod` shows. An answer that comes later than the runtime's timeout (2 s) would end the connection
//!   and let the pod start without the plugin, so answers are looked up in memory.
//! - Others have left a claim's CPUs before its container starts. Changes that the runtime has not confirmed by then are
//!   part of the answer to CreateContainer, and the runtime makes them before it creates the container.
//! - While the plugin is not connected (it or the runtime restarts), containers start without it. It learns about them
//!   at Synchronize, and then moves them.
//! - UpdateContainers does not say which of several containers failed, so each is then retried alone.
//! - An update for a container that is being created is lost without an error. It is sent after PostCreateContainer.
//! - Only one NRI plugin may set each field of a container's cpuset. If another plugin sets the same one, the runtime
//!   refuses the container and names both. `docs/development/nri-sharing.md` says how drivers share a container.
//! - The sandbox container of a pod is not subject to NRI. Nor are containers outside Kubernetes' namespace.

mod connection;
mod containers;
mod cpuset;
#[cfg(test)]
mod fake_attachment;
#[cfg(test)]
pub(super) mod fake_runtime;
mod hooks;
mod limits;
mod memory_nodes;
mod messages;
mod mux;
mod reconnect;
#[cfg(test)]
mod recorded;
mod remembered;
mod sandboxes;
mod session;
mod ttrpc;

pub use reconnect::{Settings, run};
