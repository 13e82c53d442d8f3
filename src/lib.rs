//! The library behind the one binary: the controller, the node plugin, and the verbs at the prompt.
//!
//! Dependencies go one way: `api ← policy, slices, host ← drivers ← plugin, controller ← cli`.

pub mod api;
mod backoff;
pub mod cli;
pub mod controller;
pub mod cpuset;
mod digest;
mod dns;
pub mod drivers;
#[cfg(test)]
mod fake_api;
pub mod host;
mod http;
pub mod plugin;
pub mod policy;
mod replace;
mod shorten;
pub mod slices;
mod suggest;
