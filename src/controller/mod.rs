//! Observe (reads), plan (pure), apply (server-side apply), status. IO at the edge.
//!
//! The controller decides everything in `plan`, `deletion` and `status`, also "nothing to do"; `apply` only carries out. A
//! steady state writes nothing: what is wanted is compared with what is live first, a status is written only when it says
//! something else, and leadership is held without renewals.

pub mod apply;
pub mod build;
pub mod child;
pub mod deletion;
pub mod drift;
pub mod events;
pub mod health;
pub mod http;
pub mod leader;
pub mod metrics;
pub mod observe;
pub mod own_pod;
pub mod placement;
pub mod plan;
pub mod preflight;
pub mod reconcile;
pub mod rollout;
pub mod run;
pub mod series;
pub mod status;
#[cfg(test)]
mod testing;
pub mod unready;
pub mod usage;
pub mod view;
