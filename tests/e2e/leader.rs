//! Two controllers: one leads, and the other takes over at once when the first stops.

use k8s_openapi::api::{apps::v1::DaemonSet, coordination::v1::Lease, core::v1::Pod};
use kube::{
    ResourceExt,
    api::{DeleteParams, Patch, PatchParams},
};
use serde_json::json;

use super::support::{
    cluster::{CONFIG, Cluster},
    eventually,
};

async fn leader(c: &Cluster) -> Option<String> {
    let lease = c.in_operator_namespace::<Lease>().get_opt("dra-operator").await.unwrap();
    lease.and_then(|lease| lease.spec?.holder_identity)
}

#[tokio::test]
async fn when_the_leader_stops_the_standby_leads_and_the_lease_is_never_renewed() {
    let c = Cluster::with_driver("leader").await;
    c.helm_install(&["--set", "replicas=2"]);
    let leases = c.in_operator_namespace::<Lease>();
    let first = eventually("somebody leads", || async { leader(&c).await.ok_or("nobody") }).await;
    let before = leases.get("dra-operator").await.unwrap();
    let pods = c.in_operator_namespace::<Pod>();
    pods.delete(&first, &DeleteParams::default()).await.unwrap();
    let second = eventually("another leads", || async {
        match leader(&c).await {
            Some(now) if now != first => Ok(now),
            other => Err(other),
        }
    })
    .await;
    // It works: it reverts a manual change.
    let name = c.daemon_set().await.name_any();
    let edit = json!({"spec": {"template": {"spec": {"priorityClassName": "system-cluster-critical"}}}});
    let sets = c.in_operator_namespace::<DaemonSet>();
    sets.patch(&name, &PatchParams::default(), &Patch::Strategic(edit)).await.unwrap();
    eventually("the new leader puts the DaemonSet right", || async {
        let class = c.daemon_set().await.spec.template.spec.unwrap().priority_class_name;
        if class.as_deref() == Some("system-node-critical") { Ok(()) } else { Err(class) }
    })
    .await;
    let after = leases.get("dra-operator").await.unwrap();
    assert_ne!(after.uid(), before.uid());
    assert_eq!(after.spec.as_ref().unwrap().renew_time, None);
    assert_eq!(leader(&c).await, Some(second));
    c.helm_install(&["--set", "replicas=1"]);
    c.config_is_ready(CONFIG).await;
}
