//! What must hold on a real cluster: real API server, scheduler, kubelet and container runtime.
//!
//! Run by `make test-cluster`, which starts the cluster, loads the image and says where it is by `KUBECONFIG`. Tests run
//! one at a time: there is one node, and its CPUs are what the tests are about.

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
