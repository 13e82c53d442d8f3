//! The library behind the one binary: the controller, the node plugin, and the verbs at the prompt.
//!
//! | module | what it does |
//! |---|---|
//! | `api` | the custom resource: its types, their validation, and what they mean once parsed |
//! | `slices` | devices into ResourceSlices, and ResourceSlices kept published |
//! | `host` | `/proc` and `/sys` into a `Machine` |
//! | `drivers` | a folder for each kind of device: a machine into devices, an allocation into a grant |
//! | `policy` | a policy into DeviceClasses, and a preview of what they match |
//! | `plugin` | the node plugin: the kubelet's calls, the claims, the container runtime's hooks |
//! | `controller` | a DraDriverConfig into objects and a status, a folder for each step |
//! | `cli` | the verbs |
//!
//! The others are one rule each, said in one place. Dependencies go one way, and a test holds every `use` to it: a module
//! uses only modules that come before it on this line.
//!
//! `backoff, cpuset, digest, dns, http, replace, shorten, suggest ← api, host, slices ← drivers ← policy ← plugin, controller ← cli`

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
