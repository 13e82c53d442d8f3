//! `helm upgrade` and `helm uninstall`.

use k8s_openapi::{
    api::{
        admissionregistration::v1::ValidatingAdmissionPolicy,
        apps::v1::Deployment,
        core::v1::Pod,
        rbac::v1::{ClusterRole, ClusterRoleBinding},
        resource::v1::{DeviceClass, ResourceClaim},
    },
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{ResourceExt, api::ListParams};

use super::support::{
    cluster::{CONFIG, Cluster, NAMESPACE, tool},
    objects::{claim, pod},
};

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
    c.delete_and_wait(&c.here::<Pod>(), "pinned").await;
}

#[tokio::test]
async fn helm_uninstall_leaves_nothing_but_what_keep_says() {
    let c = Cluster::with_driver("helm-uninstall").await;
    c.delete_config(CONFIG).await;
    tool("helm", &["uninstall", "dra-operator", "--namespace", NAMESPACE, "--wait"]);
    let crds = c.all::<CustomResourceDefinition>();
    assert!(crds.get_opt("dradriverconfigs.dra-operator.dev").await.unwrap().is_some(), "crds.keep keeps the CRD");
    let ours = |name: String| name.contains("dra-operator");
    let left: Vec<String> = [
        names(c.all::<ClusterRole>().list(&ListParams::default()).await.unwrap()),
        names(c.all::<ClusterRoleBinding>().list(&ListParams::default()).await.unwrap()),
        names(c.all::<ValidatingAdmissionPolicy>().list(&ListParams::default()).await.unwrap()),
        names(c.all::<DeviceClass>().list(&ListParams::default()).await.unwrap()),
        names(c.in_operator_namespace::<Deployment>().list(&ListParams::default()).await.unwrap()),
    ]
    .into_iter()
    .flatten()
    .filter(|name| ours(name.clone()))
    .collect();
    assert!(left.is_empty(), "{left:?}");

    c.helm_install(&["--set", "crds.keep=false"]);
    tool("helm", &["uninstall", "dra-operator", "--namespace", NAMESPACE, "--wait"]);
    super::support::eventually("without keep the CRD goes too", || async {
        match crds.get_opt("dradriverconfigs.dra-operator.dev").await.unwrap() {
            None => Ok(()),
            Some(crd) => Err(crd.metadata),
        }
    })
    .await;
}

fn names<K: kube::Resource + Clone>(list: kube::core::ObjectList<K>) -> Vec<String> {
    list.into_iter().map(|object| object.name_any()).collect()
}
