//! The library behind the one binary: the controller, the node plugin, and the command-line verbs.
//!
//! | module | what it does |
//! |---|---|
//! | `api` | the custom resource: its types, their validation, and what they mean once parsed |
//! | `slices` | turns devices into ResourceSlices, and keeps them published |
//! | `host` | reads `/proc` and `/sys` into a `Machine` |
//! | `drivers` | a folder for each kind of device: turns a machine into devices, and an allocation into a grant |
//! | `policy` | turns a policy into DeviceClasses, and previews what they match |
//! | `plugin` | the node plugin: the kubelet's calls, the claims, the container runtime's hooks |
//! | `controller` | turns a DraDriverConfig into objects and a status, with a folder for each step |
//! | `cli` | the subcommands |
//!
//! Each of the other modules holds one rule, defined once. Dependencies go one way, which a test enforces for every `use`: a
//! module uses only modules that come before it on this line.
//!
//! `backoff, causes, cpuset, digest, dns, http, replace, shorten, suggest ← api, host, slices ← drivers ← policy ← plugin, controller ← cli`

pub mod api;
mod backoff;
mod causes;
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
#[cfg(test)]
mod logged;
pub mod plugin;
pub mod policy;
mod replace;
mod shorten;
pub mod slices;
mod suggest;
