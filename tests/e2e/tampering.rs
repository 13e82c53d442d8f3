//! What others do to the operator's objects, and what prevents the operator from creating them.

use dra_operator::api::DraDriverConfig;
use k8s_openapi::api::{
    core::v1::ResourceQuota,
    rbac::v1::{ClusterRole, ClusterRoleBinding},
    resource::v1::DeviceClass,
};
use kube::{
    ResourceExt,
    api::{Patch, PatchParams, PostParams},
};
use serde_json::json;

use super::support::{
    cluster::{CLASS, CONFIG, Cluster, condition},
    eventually,
};

const ROLE: &str = "dra-operator:cpu:node-plugin";

fn by_hand() -> PatchParams {
    PatchParams { field_manager: Some("kubectl-edit".into()), ..PatchParams::default() }
}

#[tokio::test]
async fn a_plugin_that_no_kubelet_registers_halts_the_roll_out_and_is_named_while_the_old_one_serves() {
    let c = Cluster::with_driver("kubelet-root").await;
    let mut wrong = c.spec();
    wrong["nodePlugin"]["kubeletRootDir"] = json!("/var/lib/no-kubelet");
    c.apply_config(CONFIG, wrong).await;
    let config = c
        .config_where(CONFIG, "says which plugin is not ready", |config| {
            condition(config, "Reconciling").is_some_and(|(_, reason, message)| {
                reason == "RolloutBlocked" && message.contains("dra-node-1") && message.contains("/readyz")
            })
        })
        .await;
    assert_eq!(condition(&config, "Ready").map(|(status, ..)| status), Some("False"));
    assert_eq!(condition(&config, "ResourcesHealthy").map(|(status, ..)| status), Some("True"), "the old one serves");
    c.apply_config(CONFIG, c.spec()).await;
    c.config_is_ready(CONFIG).await;

    c.delete_config(CONFIG).await;
    let mut wrong = c.spec();
    wrong["nodePlugin"]["kubeletRootDir"] = json!("/var/lib/no-kubelet");
    c.apply_config(CONFIG, wrong).await;
    c.config_where(CONFIG, "says so of a first rollout too", |config| {
        let problems = config.status.as_ref().and_then(|status| status.problems.as_ref());
        condition(config, "Ready").is_some_and(|(_, reason, m)| reason == "RolloutBlocked" && m.contains("dra-node-1"))
            && problems.is_some_and(|problems| problems.first.iter().any(|p| p.reason == "PluginNotReady"))
            && condition(config, "ResourcesHealthy").is_some_and(|(status, ..)| status == "False")
    })
    .await;
    c.apply_config(CONFIG, c.spec()).await;
    c.config_is_ready(CONFIG).await;
}

#[tokio::test]
async fn pods_that_cannot_be_created_halt_the_roll_out_and_no_device_is_reported_healthy() {
    let c = Cluster::with_operator("quota").await;
    c.delete_config(CONFIG).await;
    let quotas = c.in_operator_namespace::<ResourceQuota>();
    c.delete_and_wait(&quotas, "none").await;
    let quota = json!({"metadata": {"name": "none"}, "spec": {"hard": {"pods": "0"}}});
    quotas.create(&PostParams::default(), &serde_json::from_value(quota).unwrap()).await.unwrap();
    eventually("the quota is in force", || async {
        let status = quotas.get("none").await.unwrap().status;
        if status.as_ref().is_some_and(|status| status.hard.is_some()) { Ok(()) } else { Err(status) }
    })
    .await;
    c.apply_config(CONFIG, c.spec()).await;
    let config = c
        .config_where(CONFIG, "says why no pod can be made", |config| {
            let problems = config.status.as_ref().and_then(|status| status.problems.as_ref());
            condition(config, "Reconciling")
                .is_some_and(|(_, reason, m)| reason == "RolloutBlocked" && m.contains("quota"))
                && problems.is_some_and(|problems| problems.first.iter().any(|p| p.reason == "PodNotCreated"))
        })
        .await;
    assert_eq!(condition(&config, "ResourcesHealthy").map(|(status, ..)| status), Some("False"));
    c.delete_and_wait(&quotas, "none").await;
    // The DaemonSet controller waits longer after each failure, but handles a change of the DaemonSet soon.
    let mut changed = c.spec();
    changed["nodePlugin"]["annotations"] = json!({"example.com/after": "the quota"});
    c.apply_config(CONFIG, changed).await;
    c.config_is_ready(CONFIG).await;
}

#[tokio::test]
async fn a_copy_of_a_class_belongs_to_its_creator_and_stays() {
    let c = Cluster::with_driver("copy").await;
    let original = c.class(CLASS).await.unwrap();
    let classes = c.all::<DeviceClass>();
    c.delete_and_wait(&classes, "a-copy").await;
    let mut copy = DeviceClass { spec: original.spec.clone(), ..DeviceClass::default() };
    copy.metadata.name = Some("a-copy".into());
    copy.metadata.labels.clone_from(&original.metadata.labels);
    copy.metadata.owner_references.clone_from(&original.metadata.owner_references);
    classes.create(&PostParams::default(), &copy).await.unwrap();
    let mut changed = c.spec();
    changed["nodePlugin"]["annotations"] = json!({"example.com/after": "the copy"});
    c.apply_config(CONFIG, changed).await;
    c.config_is_ready(CONFIG).await;
    assert!(c.class("a-copy").await.is_some());
    c.delete_and_wait(&classes, "a-copy").await;
}

#[tokio::test]
async fn rights_that_someone_adds_or_aggregates_are_removed() {
    let c = Cluster::with_driver("rights").await;
    let (roles, bindings) = (c.all::<ClusterRole>(), c.all::<ClusterRoleBinding>());
    let (role, binding) = (roles.get(ROLE).await.unwrap(), bindings.get(ROLE).await.unwrap());
    let eve = json!([{"op": "add", "path": "/subjects/-", "value": {"kind": "User", "name": "eve", "apiGroup": "rbac.authorization.k8s.io"}}]);
    let eve = Patch::Json::<()>(serde_json::from_value(eve).unwrap());
    bindings.patch(ROLE, &by_hand(), &eve).await.unwrap();
    let aggregate = json!({"aggregationRule": {"clusterRoleSelectors": [{"matchLabels": {"example.com/no": "role"}}]}});
    roles.patch(ROLE, &by_hand(), &Patch::Merge(aggregate)).await.unwrap();
    eventually("both are as they were", || async {
        let now = (roles.get_opt(ROLE).await.unwrap(), bindings.get(ROLE).await.unwrap());
        let as_before = now.0.as_ref().is_some_and(|now| now.rules == role.rules && now.aggregation_rule.is_none())
            && now.1.subjects == binding.subjects;
        if as_before { Ok(()) } else { Err(now) }
    })
    .await;
    c.config_is_ready(CONFIG).await;
}

#[tokio::test]
async fn a_condition_that_someone_else_wrote_is_removed() {
    let c = Cluster::with_driver("status").await;
    let configs = c.all::<DraDriverConfig>();
    let foreign = json!({
        "apiVersion": "dra-operator.dev/v1alpha1", "kind": "DraDriverConfig", "metadata": {"name": CONFIG},
        "status": {"conditions": [{
            "type": "Stalled", "status": "True", "reason": "Restored", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z",
        }]},
    });
    configs.patch_status(CONFIG, &PatchParams::apply("restore").force(), &Patch::Apply(foreign)).await.unwrap();
    let config = c.config_where(CONFIG, "is not stalled", |config| condition(config, "Stalled").is_none()).await;
    let manages = |by: &str| config.managed_fields().iter().any(|fields| fields.manager.as_deref() == Some(by));
    assert!(!manages("restore"), "{:?}", config.managed_fields());
}
