//! The container runtime's plugin interface (NRI): containers with a claim get its CPUs, all others keep off them. IO at
//! the edge.
//!
//! One task keeps one connection. The runtime asks before it creates or changes a container, and is asked to change
//! those that exist when claims come and go (`session`). What each container should have is decided in `containers`,
//! from what the runtime told and what [`Grants`](super::grants::Grants) says.
//!
//! # Which container uses which claim
//! Read in containerd 2.4.2 (NRI 0.12.3, ttrpc 1.2.9), and recorded from it in `tests/fixtures/nri`: the CDI edits are
//! made while the container's spec is built, and the NRI hook CreateContainer comes after that and sees the result. So
//! the container's `env` in the message has the variables of the CDI edits, both at CreateContainer and, because the
//! spec is stored, at Synchronize. `CDI_devices` has the names that the kubelet asked for, in both too, but NRI before
//! 0.10 lacks the field. So the environment is used: it works with every runtime. Pods write environments as well,
//! hence the token in it, which only [`Grants`](super::grants::Grants) knows and checks.
//!
//! # What can be relied on, and what not
//! - A claim's container is never created unpinned while the plugin is connected: it is pinned, or refused with a
//!   reason that `kubectl describe pod` shows. An answer later than the runtime's timeout (2 s) would end the connection
//!   and let the pod start without; answers are looked up in memory.
//! - Others have left a claim's CPUs before its container starts: what the runtime has not confirmed by then is part of
//!   the answer to CreateContainer, and the runtime makes these changes before it creates the container.
//! - While the plugin is not connected (it restarts, the runtime restarts), containers start without it. Synchronize
//!   tells them, and they are then moved.
//! - The runtime's UpdateContainers does not say which of several containers failed, so each is then tried alone.
//! - An update for a container that is being created is lost without an error; it is sent after PostCreateContainer.
//! - Only one NRI plugin may set the cpuset of a container: with another one that does, the runtime refuses the
//!   container and names both.
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
