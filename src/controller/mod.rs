//! The controller: [`reconcile`] goes through observe, [`view`], [`plan`], [`apply`], [`judge`] and [`status`]. IO at the
//! edge.
//!
//! Decisions are pure: `plan` decides what to write, also when that is nothing, and `apply` only carries it out. A steady
//! state writes nothing: what is wanted is compared with what is live first, a status is written only when it says something
//! new, and leadership is held without renewals.

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
