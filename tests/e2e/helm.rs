//! `helm upgrade`, `helm uninstall`, and what the chart lets people read.

use k8s_openapi::{
    api::{
        apps::v1::Deployment,
        coordination::v1::Lease,
        core::v1::{Pod, PodSpec},
        resource::v1::ResourceClaim,
    },
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api, ResourceExt,
    api::ListParams,
    core::DynamicObject,
    discovery::{Discovery, verbs},
};

use super::support::{
    cluster::{CONFIG, Cluster, NAMESPACE, tool, try_tool},
    eventually,
    objects::{claim, pod},
};

/// Name of the CRD.
const CRD: &str = "dradriverconfigs.dra-operator.dev";

#[tokio::test]
async fn helm_upgrade_changes_the_controller_and_leaves_pods_pinned() {
    let c = Cluster::with_driver("helm-upgrade").await;
    c.create::<ResourceClaim>(claim("one", 1)).await;
    c.create::<Pod>(pod("pinned", Some("one"))).await;
    c.pod_is_ready("pinned").await;
    let held = c.cpus_of_claim("one").await;
    c.helm_install(&["--set", "podAnnotations.upgraded=yes"]);
    let deployment =
        c.in_operator_namespace::<Deployment>().list(&ListParams::default()).await.unwrap().items.remove(0);
    assert_eq!(deployment.spec.template.metadata.unwrap().annotations.unwrap()["upgraded"], "yes");
    c.config_is_ready(CONFIG).await;
    assert_eq!(c.cpus_of("pinned", "main"), held);
    // Node plugins run the controller's own image without a value that names it.
    let image = |spec: Option<PodSpec>| spec.unwrap().containers.remove(0).image;
    let own = image(c.in_operator_namespace::<Deployment>().get("dra-operator").await.unwrap().spec.template.spec);
    assert_eq!(image(c.daemon_set().await.spec.template.spec), own);
    c.delete_and_wait(&c.here::<Pod>(), "pinned").await;
}

#[tokio::test]
async fn helm_uninstall_removes_everything_but_what_it_is_told_to_keep() {
    let c = Cluster::with_driver("helm-uninstall").await;
    c.delete_config(CONFIG).await;
    tool("helm", &["uninstall", "dra-operator", "--namespace", NAMESPACE, "--wait"]);
    let crds = c.all::<CustomResourceDefinition>();
    assert!(crds.get_opt(CRD).await.unwrap().is_some(), "crds.keep keeps the CRD");
    eventually("nothing else is left", || async {
        match left(&c).await {
            left if left == [format!("CustomResourceDefinition {CRD}")] => Ok(()),
            left => Err(left),
        }
    })
    .await;

    c.helm_install(&["--set", "crds.keep=false"]);
    tool("helm", &["uninstall", "dra-operator", "--namespace", NAMESPACE, "--wait"]);
    eventually("without keep the CRD goes too", || async {
        match crds.get_opt(CRD).await.unwrap() {
            None => Ok(()),
            Some(crd) => Err(crd.metadata),
        }
    })
    .await;
}

#[tokio::test]
async fn whoever_may_view_the_cluster_may_read_everything_that_the_menu_reads() {
    let c = Cluster::with_operator("viewer").await;
    let (binding, user) = ("viewer-of-e2e", "viewer-of-e2e");
    let unbind = || tool("kubectl", &["delete", "clusterrolebinding", binding, "--ignore-not-found"]);
    unbind();
    let may = |verb: &str, what: &str| {
        try_tool("kubectl", &["auth", "can-i", verb, what, "--all-namespaces", &format!("--as={user}")])
    };
    assert!(may("list", "deviceclasses.resource.k8s.io").is_err(), "not everybody may");
    tool("kubectl", &["create", "clusterrolebinding", binding, "--clusterrole=view", &format!("--user={user}")]);
    for what in ["deviceclasses", "resourceslices", "resourceclaims"] {
        let what = format!("{what}.resource.k8s.io");
        eventually(&format!("a viewer may list {what}"), || async { may("list", &what) }).await;
        assert!(may("delete", &what).is_err(), "{what}");
    }
    unbind();
    drop(c);
}

/// Everything of the product that exists: objects of any kind with the label that all have, and what does not have it.
async fn left(c: &Cluster) -> Vec<String> {
    let ours = ListParams::default().labels("app.kubernetes.io/name=dra-operator");
    let mut left: Vec<String> = Vec::new();
    let discovery = Discovery::new(c.client.clone()).run().await.unwrap();
    let kinds = discovery.groups().flat_map(kube::discovery::ApiGroup::recommended_resources);
    for (resource, _) in kinds.filter(|(_, capabilities)| capabilities.supports_operation(verbs::LIST)) {
        let objects = Api::<DynamicObject>::all_with(c.client.clone(), &resource).list(&ours).await;
        for object in objects.unwrap_or_else(|error| panic!("{}: {error}", resource.kind)) {
            left.push(format!("{} {}", resource.kind, object.name_any()));
        }
    }
    let leases = c.in_operator_namespace::<Lease>().list(&ListParams::default()).await.unwrap();
    left.extend(leases.iter().map(|lease| format!("Lease {}", lease.name_any())));
    left.extend(c.slices().await.iter().map(|slice| format!("ResourceSlice {}", slice.name_any())));
    left
}
