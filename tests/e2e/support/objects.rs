//! Small builders for the objects that tests create. Pure.

use serde_json::{Value, json};

use super::cluster::CLASS;

/// A claim of `count` devices of the class of every CPU, request name `cpus`.
pub(crate) fn claim(name: &str, count: u32) -> Value {
    claim_of(name, &json!([{"name": "cpus", "exactly": {"deviceClassName": CLASS, "count": count}}]))
}

/// A claim with the given requests.
pub(crate) fn claim_of(name: &str, requests: &Value) -> Value {
    json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": name}, "spec": {"devices": {"requests": requests}}})
}

/// A pod on the real node with one sleeping container `main`, which uses `claim` if there is one.
pub(crate) fn pod(name: &str, claim: Option<&str>) -> Value {
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {
            "terminationGracePeriodSeconds": 1,
            "nodeSelector": {"kubernetes.io/hostname": "dra-node-1"},
            "containers": [container("main")],
        },
    });
    if let Some(claim) = claim {
        pod["spec"]["resourceClaims"] = json!([{"name": "cpus", "resourceClaimName": claim}]);
        pod["spec"]["containers"][0]["resources"] = json!({"claims": [{"name": "cpus"}]});
    }
    pod
}

/// A container that sleeps, and exits on SIGTERM.
pub(crate) fn container(name: &str) -> Value {
    let command = ["sh", "-c", "trap exit TERM; sleep 100000 & wait"];
    json!({"name": name, "image": "docker.io/local/busybox:1", "imagePullPolicy": "Never", "command": command})
}
