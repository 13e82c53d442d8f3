//! The ValidatingAdmissionPolicy of each node plugin: it may write its own driver's slices of its own node, and nothing else.

use serde_json::{Value, json};

use super::support::{
    cluster::{Cluster, NAMESPACE},
    eventually,
};

const NODE: &str = "dra-node-1";

fn slice(node: &str, driver: &str) -> Value {
    json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": format!("{NODE}-{driver}-admission-test")},
        "spec": {"driver": driver, "nodeName": node, "pool": {"name": node, "generation": 1, "resourceSliceCount": 1}, "devices": []},
    })
}

/// Creates a slice (dry run) as the plugin, with the token of a pod on `node`. Returns the API server's objection, if any.
async fn as_plugin_on(c: &Cluster, node: Option<&str>, slice: &Value) -> Option<String> {
    let mut request = http::Request::post("/apis/resource.k8s.io/v1/resourceslices?dryRun=All")
        .header("content-type", "application/json")
        .header("impersonate-user", format!("system:serviceaccount:{NAMESPACE}:cpu-node-plugin"))
        .header("impersonate-group", "system:serviceaccounts")
        .header("impersonate-group", "system:authenticated");
    if let Some(node) = node {
        request = request.header("impersonate-extra-authentication.kubernetes.io%2Fnode-name", node);
    }
    let request = request.body(slice.to_string().into_bytes()).unwrap();
    match c.client.request::<Value>(request).await {
        Ok(_) => None,
        Err(kube::Error::Api(status)) => Some(status.message.clone()),
        Err(other) => panic!("{other}"),
    }
}

#[tokio::test]
async fn a_node_plugin_writes_its_own_drivers_slices_of_its_own_node_and_nothing_else() {
    let c = Cluster::with_driver("admission").await;
    // The API server compiles a policy some time after it was created.
    eventually("the policy is in force", || async {
        as_plugin_on(&c, Some(NODE), &slice("elsewhere", "dra.cpu")).await.ok_or("a foreign slice was taken")
    })
    .await;
    assert_eq!(as_plugin_on(&c, Some(NODE), &slice(NODE, "dra.cpu")).await, None);
    let changed = |path: &str, value: &str| {
        let mut slice = slice(NODE, "dra.cpu");
        *slice.pointer_mut(path).unwrap() = json!(value);
        slice
    };
    let of_pool = |name| changed("/spec/pool/name", name);
    let named = |name| changed("/metadata/name", name);
    for (node, slice, wanted) in [
        (Some(NODE), slice("elsewhere", "dra.cpu"), "may only write ResourceSlices of that node"),
        (Some(NODE), slice(NODE, "gpu.example.com"), "of the driver dra.cpu"),
        (Some(NODE), of_pool("elsewhere"), "of the pool with that name"),
        (Some(NODE), named("elsewhere-dra.cpu-0a1b2c3d-0"), "whose name begins with dra-node-1-dra.cpu-"),
        (None, slice(NODE, "dra.cpu"), "does not name a node"),
    ] {
        let said = as_plugin_on(&c, node, &slice).await.unwrap_or_else(|| panic!("{slice} was taken"));
        assert!(said.contains(wanted), "{said}");
    }
}
