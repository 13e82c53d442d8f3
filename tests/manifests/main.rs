//! The chart, the kustomize base and the samples: they render the same objects, which are valid for Kubernetes.
//!
//! Run by `make test-manifests`, which builds helm, kustomize and kubeconform. IO: reads the checkout, runs the tools.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod chart;
mod samples;
mod schemas;
mod tools;

use std::collections::BTreeMap;

use serde_json::Value;

/// The objects of a stream of YAML documents by kind, namespace and name.
fn objects(yaml: &str) -> BTreeMap<String, Value> {
    let documents: Vec<Value> = serde_saphyr::from_multiple(yaml).unwrap_or_else(|error| panic!("{error}\n{yaml}"));
    let key = |object: &Value| {
        let text = |pointer| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
        format!("{} {}/{}", text("/kind"), text("/metadata/namespace"), text("/metadata/name"))
    };
    documents.into_iter().filter(|document| !document.is_null()).map(|object| (key(&object), object)).collect()
}
