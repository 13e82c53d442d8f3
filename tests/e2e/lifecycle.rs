//! The life of a DraDriverConfig: applied, changed, disturbed, deleted.

use k8s_openapi::api::{
    apps::v1::DaemonSet,
    core::v1::{Pod, ServiceAccount},
    rbac::v1::{ClusterRole, ClusterRoleBinding},
    resource::v1::{DeviceClass, ResourceClaim},
};
use kube::{
    ResourceExt,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use serde_json::json;

use super::support::{
    cluster::{CLASS, CONFIG, Cluster, condition, stalled_for},
    eventually,
    node::{controller_processes, kill, online},
    objects::{claim, pod},
};

#[tokio::test]
async fn a_config_is_applied_changed_and_deleted() {
    let c = Cluster::with_operator("life").await;
    c.delete_config(CONFIG).await;
    c.apply_config(CONFIG, c.spec()).await;
    let ready = c.config_is_ready(CONFIG).await;
    let status = ready.status.unwrap();
    assert_eq!(status.driver_name.as_deref(), Some("dra.cpu"));
    let nodes = status.nodes.unwrap();
    assert_eq!((nodes.desired, nodes.ready, nodes.publishing, nodes.unhealthy), (1, 1, 1, 0));
    assert_eq!(status.devices.unwrap().total, i32::try_from(online().len()).unwrap());
    let class = &status.device_classes[0];
    assert_eq!((class.name.as_str(), class.nodes, class.reason.as_ref()), (CLASS, 1, None));
    assert!(status.conditions.iter().any(|k| k.type_ == "ResourcesHealthy" && k.status == "True"));
    assert!(
        !status.conditions.iter().any(|k| k.type_ == "Stalled" || k.type_ == "Reconciling"),
        "only there while true"
    );

    let mut changed = c.spec();
    changed["driver"]["cpu"]["granularity"] = json!("Thread");
    changed["nodePlugin"]["logLevel"] = json!("Debug");
    changed["deviceClasses"] =
        json!([{"name": "every-cpu", "matchAttributes": [{"key": "cores", "operator": "Exists"}]}]);
    c.apply_config(CONFIG, changed).await;
    c.config_is_ready(CONFIG).await;
    assert!(c.class(CLASS).await.is_none(), "a class that left the policy is deleted");
    assert!(c.class("every-cpu").await.is_some());
    eventually("devices are threads now", || async {
        let slices = c.slices().await;
        if slices.iter().flat_map(|s| s.spec.devices.iter().flatten()).all(|d| d.name.starts_with("cpu-")) {
            Ok(())
        } else {
            Err(slices)
        }
    })
    .await;

    c.delete_config(CONFIG).await;
    let left = c.in_operator_namespace::<DaemonSet>().get_opt("cpu-node-plugin").await.unwrap();
    assert!(left.is_none_or(|set| set.metadata.deletion_timestamp.is_some()));
    for gone in ["every-cpu", CLASS] {
        assert!(c.class(gone).await.is_none());
    }
    eventually("everything made for it is gone", || async {
        let sets = c.in_operator_namespace::<DaemonSet>().get_opt("cpu-node-plugin").await.unwrap();
        let accounts = c.in_operator_namespace::<ServiceAccount>().get_opt("cpu-node-plugin").await.unwrap();
        let roles = c.all::<ClusterRole>().get_opt("dra-operator:cpu:node-plugin").await.unwrap();
        let bindings = c.all::<ClusterRoleBinding>().get_opt("dra-operator:cpu:node-plugin").await.unwrap();
        let pods = c.plugin_pods().await;
        let slices = c.slices().await;
        if sets.is_none()
            && accounts.is_none()
            && roles.is_none()
            && bindings.is_none()
            && pods.is_empty()
            && slices.is_empty()
        {
            Ok(())
        } else {
            Err((sets.is_some(), accounts.is_some(), roles.is_some(), bindings.is_some(), pods.len(), slices.len()))
        }
    })
    .await;
}

#[tokio::test]
async fn a_node_that_offers_nothing_and_a_class_that_matches_nothing_say_why() {
    let c = Cluster::with_driver("nothing").await;
    let mut spec = c.spec();
    spec["deviceClasses"] =
        json!([{"name": "typo", "matchAttributes": [{"key": "coers", "operator": "Gte", "value": 1}]}]);
    c.apply_config(CONFIG, spec).await;
    c.config_where(CONFIG, "says which name no device has", |config| {
        let classes = config.status.as_ref().map(|status| status.device_classes.as_slice()).unwrap_or_default();
        classes.iter().any(|class| class.message.as_ref().is_some_and(|m| m.contains("dra.cpu/coers")))
    })
    .await;
    let mut spec = c.spec();
    spec["driver"]["cpu"]["reservedCPUs"] = json!(online().to_string());
    c.apply_config(CONFIG, spec).await;
    c.config_where(CONFIG, "says that the node offers nothing", |config| {
        let problems = config.status.as_ref().and_then(|status| status.problems.as_ref());
        problems.is_some_and(|problems| problems.first.iter().any(|p| p.reason == "NoDevices"))
            && condition(config, "ResourcesHealthy").is_some_and(|(status, ..)| status == "False")
            && condition(config, "Ready").is_some_and(|(status, ..)| status == "True")
    })
    .await;
    c.apply_config(CONFIG, c.spec()).await;
    c.config_where(CONFIG, "is well again", |config| {
        condition(config, "ResourcesHealthy").is_some_and(|(status, ..)| status == "True")
    })
    .await;
}

#[tokio::test]
async fn a_daemon_set_edited_by_hand_is_restored() {
    let c = Cluster::with_driver("drift").await;
    let before = c.daemon_set().await;
    let edit = json!({"spec": {"template": {"spec": {"priorityClassName": "", "containers": [{"name": before.spec.template.spec.as_ref().unwrap().containers[0].name, "image": "docker.io/local/other:1"}]}}}});
    let sets = c.in_operator_namespace::<DaemonSet>();
    sets.patch(
        &before.name_any(),
        &PatchParams { field_manager: Some("kubectl-edit".into()), ..PatchParams::default() },
        &Patch::Strategic(edit),
    )
    .await
    .unwrap();
    eventually("the DaemonSet is as it was", || async {
        let now = c.daemon_set().await;
        let template = |set: &DaemonSet| set.spec.template.clone().spec;
        if template(&now) == template(&before) { Ok(()) } else { Err(template(&now)) }
    })
    .await;
    c.config_is_ready(CONFIG).await;
}

#[tokio::test]
async fn a_device_class_of_someone_else_is_never_overwritten() {
    let c = Cluster::with_operator("foreign").await;
    c.delete_config(CONFIG).await;
    let foreign = json!({"metadata": {"name": "taken", "labels": {"app.kubernetes.io/managed-by": "somebody"}}, "spec": {"selectors": [{"cel": {"expression": "device.driver == \"other\""}}]}});
    c.delete_and_wait(&c.all::<DeviceClass>(), "taken").await;
    let before: DeviceClass =
        c.all().create(&PostParams::default(), &serde_json::from_value(foreign).unwrap()).await.unwrap();
    let mut spec = c.spec();
    spec["deviceClasses"] = json!([{"name": "taken", "preset": "Intel"}, {"name": CLASS, "matchAttributes": [{"key": "cores", "operator": "Exists"}]}]);
    c.apply_config(CONFIG, spec).await;
    let config = c
        .config_where(CONFIG, "is stalled and names the class and its owner", |config| {
            stalled_for(config, "taken") && stalled_for(config, "somebody")
        })
        .await;
    assert_eq!(condition(&config, "Ready").map(|(status, ..)| status), Some("False"));
    let after = c.class("taken").await.unwrap();
    assert_eq!(after.resource_version(), before.resource_version());
    assert!(c.class(CLASS).await.is_some(), "the others are made all the same");
    c.delete_and_wait(&c.all::<DeviceClass>(), "taken").await;
    c.config_is_ready(CONFIG).await;
    c.delete_config(CONFIG).await;
}

#[tokio::test]
async fn a_config_deleted_while_a_claim_is_in_use_waits_and_names_the_claim() {
    let c = Cluster::with_driver("in-use").await;
    c.create::<ResourceClaim>(claim("held", 1)).await;
    c.create::<Pod>(pod("holder", Some("held"))).await;
    c.pod_is_ready("holder").await;
    let configs = c.all::<dra_operator::api::DraDriverConfig>();
    let held = format!("{}/held", c.namespace);
    configs.delete(CONFIG, &DeleteParams::default()).await.unwrap();
    eventually("the status names the claim waited for", || async {
        let config = configs.get(CONFIG).await.unwrap();
        let conditions = config.status.map(|s| s.conditions).unwrap_or_default();
        if conditions.iter().any(|k| k.message.contains(&held)) { Ok(()) } else { Err(conditions) }
    })
    .await;
    assert_eq!(c.cpus_of("holder", "main"), c.cpus_of_claim("held").await);
    assert!(!c.plugin_pods().await.is_empty(), "the plugin stays until the claim is released");

    c.delete_and_wait(&c.here::<Pod>(), "holder").await;
    c.delete_and_wait(&c.here::<ResourceClaim>(), "held").await;
    eventually("the configuration is gone", || async {
        match configs.get_opt(CONFIG).await.unwrap() {
            None => Ok(()),
            Some(config) => Err(config.status),
        }
    })
    .await;
}

#[tokio::test]
async fn a_controller_killed_during_a_roll_out_finishes_it() {
    let c = Cluster::with_driver("controller-killed").await;
    let mut spec = c.spec();
    spec["nodePlugin"]["annotations"] = json!({"example.com/roll": "again"});
    c.apply_config(CONFIG, spec).await;
    let before = controller_processes();
    assert!(!before.is_empty());
    kill(&before);
    let config = c.config_is_ready(CONFIG).await;
    assert_eq!(config.status.unwrap().nodes.unwrap().ready, 1);
    let set = c.daemon_set().await;
    assert_eq!(set.spec.template.metadata.unwrap().annotations.unwrap()["example.com/roll"], "again");
}

#[tokio::test]
async fn a_broken_image_halts_the_roll_out_and_the_old_pod_keeps_serving() {
    let c = Cluster::with_driver("broken-image").await;
    let old = c.plugin_pods().await[0].name_any();
    let mut spec = c.spec();
    spec["nodePlugin"]["image"] = json!("docker.io/local/not-there:1");
    spec["nodePlugin"]["imagePullPolicy"] = json!("Never");
    c.apply_config(CONFIG, spec).await;
    c.config_where(CONFIG, "says why the rollout halts", |config| {
        let conditions = config.status.as_ref().map(|s| s.conditions.clone()).unwrap_or_default();
        conditions.iter().any(|k| k.message.contains("docker.io/local/not-there:1"))
    })
    .await;
    assert!(c.plugin_pods().await.iter().any(|pod| pod.name_any() == old), "the old pod is there");
    c.create::<ResourceClaim>(claim("one", 1)).await;
    c.create::<Pod>(pod("served", Some("one"))).await;
    c.pod_is_ready("served").await;
    assert_eq!(c.cpus_of("served", "main"), c.cpus_of_claim("one").await);
    c.apply_config(CONFIG, c.spec()).await;
    c.config_is_ready(CONFIG).await;
}

#[tokio::test]
async fn an_upgraded_plugin_takes_over_while_a_pod_runs() {
    let c = Cluster::with_driver("surge").await;
    c.create::<ResourceClaim>(claim("one", 1)).await;
    c.create::<Pod>(pod("pinned", Some("one"))).await;
    c.pod_is_ready("pinned").await;
    let held = c.cpus_of_claim("one").await;
    let old = c.plugin_pods().await[0].name_any();
    let mut spec = c.spec();
    spec["nodePlugin"]["annotations"] = json!({"example.com/roll": "surge"});
    c.apply_config(CONFIG, spec).await;
    eventually("the new pod has replaced the old", || async {
        let names: Vec<_> = c.plugin_pods().await.iter().map(ResourceExt::name_any).collect();
        if names.len() == 1 && names[0] != old { Ok(()) } else { Err(names) }
    })
    .await;
    c.config_is_ready(CONFIG).await;
    c.container_has("pinned", "main", &held).await;
    c.delete_and_wait(&c.here::<Pod>(), "pinned").await;
}
