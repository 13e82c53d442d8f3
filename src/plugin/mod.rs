//! The node plugin: registration, DRA service, checkpoint, CDI, NRI. It depends on no kind of device, only on
//! `drivers::Driver`. IO at the edge.

pub mod claims;
pub mod directories;
pub mod grants;
pub mod handover;
pub mod kubelet;
pub mod metrics;
pub mod node;
pub mod nri;
pub mod readiness;
