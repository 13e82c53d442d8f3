//! Observe (reads), plan (pure), apply (server-side apply), status. IO at the edge.
//!
//! The controller decides everything in `plan`, `deletion` and `status`, also "nothing to do"; `apply` only carries out. A
//! steady state writes nothing: what is wanted is compared with what is live first, a status is written only when it says
//! something else, and leadership is held without renewals.

pub mod apply;
pub mod build;
pub mod child;
pub mod config;
pub mod http;
pub mod judge;
pub mod leader;
pub mod metrics;
pub mod observe;
pub mod plan;
pub mod reconcile;
pub mod run;
pub mod status;
#[cfg(test)]
mod testing;
pub mod view;
