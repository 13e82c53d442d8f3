//! Observe (reads), plan (pure), apply (server-side apply), status. IO at the edge.

pub mod build;
pub mod child;
pub mod deletion;
pub mod drift;
pub mod events;
pub mod health;
pub mod observe;
pub mod placement;
pub mod plan;
pub mod rollout;
pub mod status;
#[cfg(test)]
mod testing;
pub mod usage;
