//! A claim's containers run on exactly the CPUs that were allocated to it, and no other container does.

use k8s_openapi::api::{core::v1::Pod, resource::v1::ResourceClaim};
use serde_json::json;

use super::support::{
    cluster::{CLASS, Cluster},
    eventually,
    node::online,
    objects::{claim, claim_of, container, pod},
};

#[tokio::test]
async fn a_claims_container_runs_on_its_cpus_and_a_neighbour_stays_off_until_it_ends() {
    let c = Cluster::with_driver("pinning").await;
    c.create::<Pod>(pod("neighbour", None)).await;
    c.pod_is_ready("neighbour").await;
    c.container_has("neighbour", "main", &online()).await;

    c.create::<ResourceClaim>(claim("one", 1)).await;
    c.create::<Pod>(pod("pinned", Some("one"))).await;
    c.pod_is_ready("pinned").await;
    let held = c.cpus_of_claim("one").await;
    assert!(!held.is_empty() && held != online(), "one core of this machine is not all of it: {held}");
    assert_eq!(c.cpus_of("pinned", "main"), held);
    c.container_has("neighbour", "main", &online().difference(&held)).await;

    c.create::<Pod>(pod("late-neighbour", None)).await;
    c.pod_is_ready("late-neighbour").await;
    assert_eq!(
        c.cpus_of("late-neighbour", "main"),
        online().difference(&held),
        "a container created later keeps off from its start"
    );

    c.delete_and_wait(&c.here::<Pod>(), "pinned").await;
    c.container_has("neighbour", "main", &online()).await;
    c.container_has("late-neighbour", "main", &online()).await;
}

#[tokio::test]
async fn without_a_claim_on_the_node_no_container_is_touched() {
    let c = Cluster::with_driver("untouched").await;
    c.create::<Pod>(pod("plain", None)).await;
    let pod = c.pod_is_ready("plain").await;
    let status = pod.status.unwrap().container_statuses.unwrap().remove(0);
    let id = status.container_id.unwrap().rsplit('/').next().unwrap().to_owned();
    // The container was created without a cpuset: an empty string in the runtime's own spec.
    let spec = super::support::cluster::tool(
        "ctr",
        &["--address", c.place("CONTAINERD_SOCKET"), "-n", "k8s.io", "containers", "info", "--spec", &id],
    );
    let spec: serde_json::Value = serde_json::from_str(&spec).unwrap();
    let cpus = spec.pointer("/linux/resources/cpu/cpus").and_then(|cpus| cpus.as_str()).unwrap_or_default();
    assert_eq!(cpus, "", "{spec:#}");
}

#[tokio::test]
async fn two_claims_fill_the_node_and_a_third_waits_with_a_clear_reason() {
    let c = Cluster::with_driver("full").await;
    let half =
        u32::try_from(c.slices().await.iter().map(|s| s.spec.devices.as_ref().map_or(0, Vec::len)).sum::<usize>() / 2)
            .unwrap();
    for name in ["first", "second"] {
        c.create::<ResourceClaim>(claim(name, half)).await;
        c.create::<Pod>(pod(name, Some(name))).await;
        c.pod_is_ready(name).await;
    }
    let (first, second) = (c.cpus_of("first", "main"), c.cpus_of("second", "main"));
    assert!(first.is_disjoint(&second), "{first} and {second} overlap");
    assert_eq!(first.union(&second), online());

    c.create::<ResourceClaim>(claim("third", 1)).await;
    c.create::<Pod>(pod("third", Some("third"))).await;
    eventually("the third pod waits with a reason", || async {
        let pod: Pod = c.here().get("third").await.unwrap();
        let conditions = pod.status.and_then(|s| s.conditions).unwrap_or_default();
        let scheduled = conditions.into_iter().find(|k| k.type_ == "PodScheduled" && k.status == "False");
        let message = scheduled.and_then(|k| k.message).unwrap_or_default();
        if message.contains("cannot allocate all claims") { Ok(()) } else { Err(message) }
    })
    .await;

    c.delete_and_wait(&c.here::<Pod>(), "first").await;
    c.delete_and_wait(&c.here::<ResourceClaim>(), "first").await;
    c.pod_is_ready("third").await;
    assert_eq!(c.cpus_of("third", "main").len(), c.cpus_of_claim("third").await.len());
    assert_eq!(c.cpus_of("second", "main"), second, "what runs is not moved");
}

#[tokio::test]
async fn a_claim_used_by_two_containers_gives_each_its_own_request() {
    let c = Cluster::with_driver("two-containers").await;
    let request = |name| json!({"name": name, "exactly": {"deviceClassName": CLASS, "count": 1}});
    c.create::<ResourceClaim>(claim_of("pair", &json!([request("left"), request("right")]))).await;
    let mut both = pod("both", Some("pair"));
    let using = |name: &str| {
        let mut container = container(name);
        container["resources"] = json!({"claims": [{"name": "cpus", "request": name}]});
        container
    };
    both["spec"]["containers"] = json!([using("left"), using("right")]);
    c.create::<Pod>(both).await;
    c.pod_is_ready("both").await;
    let (left, right) = (c.cpus_of("both", "left"), c.cpus_of("both", "right"));
    assert!(left.is_disjoint(&right), "{left} and {right} overlap");
    assert_eq!(left.union(&right), c.cpus_of_claim("pair").await);
}

#[tokio::test]
async fn init_containers_and_restarted_containers_are_pinned_too() {
    let c = Cluster::with_driver("init").await;
    c.create::<ResourceClaim>(claim("one", 1)).await;
    let mut with_init = pod("init", Some("one"));
    let claims = json!({"claims": [{"name": "cpus"}]});
    let say = |name: &str, command: &str| json!({"name": name, "image": "docker.io/local/busybox:1", "imagePullPolicy": "Never", "command": ["sh", "-c", command], "resources": claims});
    with_init["spec"]["initContainers"] = json!([say("prepare", "grep Cpus_allowed_list /proc/self/status | cut -f2")]);
    with_init["spec"]["containers"][0]["command"] =
        json!(["sh", "-c", "test -e /dev/termination-log || exit 1; sleep 100000 & wait"]);
    c.create::<Pod>(with_init).await;
    c.pod_is_ready("init").await;
    let held = c.cpus_of_claim("one").await;
    let said = super::support::cluster::tool("kubectl", &["-n", &c.namespace, "logs", "init", "-c", "prepare"]);
    assert_eq!(said.trim(), held.to_string());
    assert_eq!(c.cpus_of("init", "main"), held);

    super::support::cluster::tool(
        "kubectl",
        &["-n", &c.namespace, "exec", "init", "-c", "main", "--", "sh", "-c", "kill -9 $(pidof sleep)"],
    );
    eventually("the container is restarted", || async {
        let pod: Pod = c.here().get("init").await.unwrap();
        let statuses = pod.status.clone().and_then(|s| s.container_statuses).unwrap_or_default();
        if statuses.iter().any(|s| s.restart_count > 0 && s.ready) { Ok(()) } else { Err(pod.status) }
    })
    .await;
    assert_eq!(c.cpus_of("init", "main"), held);
}

#[tokio::test]
async fn invalid_opaque_parameters_fail_only_their_claim() {
    let c = Cluster::with_driver("parameters").await;
    let mut broken = claim("broken", 1);
    let parameters = json!({"pinTo": "the moon"});
    broken["spec"]["devices"]["config"] = json!([{"opaque": {"driver": "dra.cpu", "parameters": parameters}}]);
    c.create::<ResourceClaim>(broken).await;
    c.create::<Pod>(pod("broken", Some("broken"))).await;
    eventually("the kubelet reports what is wrong with the parameters", || async {
        let events = c.events("broken").await;
        if events.iter().any(|e| e.contains("pinTo")) { Ok(()) } else { Err(events) }
    })
    .await;
    c.create::<ResourceClaim>(claim("good", 1)).await;
    c.create::<Pod>(pod("good", Some("good"))).await;
    c.pod_is_ready("good").await;
}
