//! The controller: [`reconcile`] goes through observe, [`view`], [`plan`], [`apply`], [`judge`] and [`status`]. IO only
//! at the edges.
//!
//! Decisions are pure: `plan` decides what to write, if anything, and `apply` only carries it out. A steady state
//! writes nothing: the wanted objects are first compared with the live ones, a status is written only when it says
//! something new, and leadership needs no renewals.

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
