//! Two configs that select the same node: one of them serves it, whatever the drivers are called.

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{ListParams, Patch, PatchParams};
use serde_json::{Value, json};

use super::support::{
    cluster::{CONFIG, Cluster, condition, is_ready},
    eventually,
};

#[tokio::test]
async fn two_configs_of_one_driver_on_one_node_stall_the_younger_which_names_the_older() {
    overlap("overlap", "dra.cpu").await;
}

#[tokio::test]
async fn another_driver_name_does_not_make_them_other_cpus() {
    overlap("overlap-of-kind", "other.cpu").await;
}

async fn overlap(namespace: &str, younger_driver: &str) {
    let c = Cluster::with_driver(namespace).await;
    let mut spec = c.spec();
    spec["driverName"] = json!(younger_driver);
    spec["deviceClasses"] = json!([{"name": "younger-class", "preset": "Intel"}]);
    c.apply_config("younger", spec).await;
    let younger = c
        .config_where("younger", "is stalled", |config| condition(config, "Stalled").is_some_and(|(s, ..)| s == "True"))
        .await;
    let (_, reason, message) = condition(&younger, "Stalled").unwrap();
    assert_eq!(reason, "NodeSelectorOverlap");
    assert!(
        message.contains("the older DraDriverConfig cpu already serves the same devices")
            && message.contains("nodeSelector"),
        "{message}"
    );
    assert!(c.class("younger-class").await.is_none(), "nothing is made for it");
    c.delete_config(CONFIG).await;
    c.config_is_ready("younger").await;
    c.delete_config("younger").await;
}

/// Adds a label to the node, or removes it.
async fn label(c: &Cluster, key: &str, value: Value) {
    let labels = json!({"metadata": {"labels": {key: value}}});
    c.all::<Node>().patch("dra-node-1", &PatchParams::default(), &Patch::Merge(labels)).await.unwrap();
}

#[tokio::test]
async fn a_node_that_two_configs_come_to_select_keeps_the_plugin_it_has() {
    const OLDER: &str = "e2e.dra-operator.dev/older";
    const YOUNGER: &str = "e2e.dra-operator.dev/younger";
    let c = Cluster::with_operator("rivals").await;
    label(&c, OLDER, json!("here")).await;
    label(&c, YOUNGER, json!(null)).await;
    let mut spec = c.spec();
    spec["nodePlugin"]["nodeSelector"] = json!({OLDER: "here"});
    c.apply_config(CONFIG, spec.clone()).await;
    c.config_is_ready(CONFIG).await;
    spec["nodePlugin"]["nodeSelector"] = json!({YOUNGER: "here"});
    spec["driverName"] = json!("other.cpu");
    spec["deviceClasses"] = json!([]);
    c.apply_config("younger", spec).await;
    c.config_is_ready("younger").await;

    label(&c, YOUNGER, json!("here")).await;
    let pods = c.in_operator_namespace::<Pod>();
    let youngers = ListParams::default().labels("dra-operator.dev/config=younger");
    eventually("the younger's pod finds no place", || async {
        let pods = pods.list(&youngers).await.unwrap().items;
        let conditions = pods.iter().filter_map(|pod| pod.status.as_ref()?.conditions.as_ref()).flatten();
        let mut reasons = conditions.filter(|c| c.type_ == "PodScheduled").map(|c| c.reason.as_deref());
        if reasons.next() == Some(Some("Unschedulable")) { Ok(()) } else { Err(pods) }
    })
    .await;
    let younger = c.config_where("younger", "is stalled", |config| condition(config, "Stalled").is_some()).await;
    assert_eq!(condition(&younger, "Stalled").map(|(_, reason, _)| reason), Some("NodeSelectorOverlap"));
    eventually("the older's serves on, alone", || async {
        let pods = c.plugin_pods().await;
        if pods.len() == 1 && pods.iter().all(is_ready) { Ok(()) } else { Err(pods) }
    })
    .await;

    label(&c, OLDER, json!(null)).await;
    eventually("the younger serves the node", || async {
        let status = c.config_is_ready("younger").await.status.unwrap();
        if status.nodes.as_ref().is_some_and(|nodes| nodes.ready == 1) { Ok(()) } else { Err(status) }
    })
    .await;
    c.delete_config("younger").await;
    label(&c, YOUNGER, json!(null)).await;
    c.apply_config(CONFIG, c.spec()).await;
    c.config_is_ready(CONFIG).await;
}
