//! What must hold on a real cluster, with a real API server, scheduler, kubelet and container runtime.
//!
//! `make test-cluster` runs these tests: it starts the cluster, loads the image and sets `KUBECONFIG`. They run one at a time,
//! because there is one node and they all test its CPUs.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod admission;
mod bad_input;
mod faults;
mod helm;
mod leader;
mod lifecycle;
mod pinning;
mod rivals;
mod support;
mod tampering;
