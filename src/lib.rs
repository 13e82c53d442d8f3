//! The library behind the one binary: the controller, the node plugin, and the verbs at the prompt.
//!
//! Dependencies go one way: `api ← policy, slices, host ← drivers ← plugin, controller ← cli`.

pub mod api;
pub mod cli;
pub mod controller;
pub mod cpuset;
pub mod drivers;
pub mod host;
mod http;
pub mod plugin;
pub mod policy;
pub mod slices;
mod suggest;
