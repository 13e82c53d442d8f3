//! The messages of `proto/nri.proto` and `proto/ttrpc.proto`, and NRI's names for its services. Pure.

#![allow(missing_docs, clippy::pedantic, reason = "generated; documented in proto/")]

tonic::include_proto!("nri");

/// The envelopes of ttrpc.
pub mod ttrpc {
    tonic::include_proto!("ttrpc");
}

/// The service that the plugin calls.
pub const RUNTIME_SERVICE: &str = "nri.pkg.api.v1alpha1.Runtime";

/// The service that the runtime calls.
pub const PLUGIN_SERVICE: &str = "nri.pkg.api.v1alpha1.Plugin";
