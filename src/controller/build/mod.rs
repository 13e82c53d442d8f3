//! Builds every child object of a `DraDriverConfig`, one file per kind. Pure, and the same for `controller` and `render`.

mod admission_policy;
mod cluster_role;
mod daemonset;
mod device_class;
mod service_account;

use std::collections::BTreeMap;

use k8s_openapi::{
    Metadata,
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference},
};
use kube::{Resource, ResourceExt};
use serde::Serialize;
use serde_json::Value;

use super::child::{Child, ChildKey, ChildKind};
use crate::{api::DraDriverConfig, controller::config::Config, digest::short_sha256, policy};

/// Label with the name of the `DraDriverConfig` that a child belongs to.
pub const CONFIG_LABEL: &str = "dra-operator.dev/config";
/// Label on plugin pods with the kind of devices that they serve.
pub const DEVICES_LABEL: &str = "dra-operator.dev/devices";
/// Label and value that identify the operator's children.
pub const MANAGED_BY: (&str, &str) = ("app.kubernetes.io/managed-by", "dra-operator");
/// The field manager of everything the controller applies.
pub const FIELD_MANAGER: &str = "dra-operator";
/// Label and value on node plugin objects.
pub const COMPONENT: (&str, &str) = ("app.kubernetes.io/component", "node-plugin");
/// Annotation with a hash of the applied object. Comparing fields does not reveal one that is no longer wanted; the
/// hash does.
pub const APPLIED_HASH: &str = "dra-operator.dev/applied-hash";
/// Port of the plugin's `/healthz`, `/readyz` and `/metrics`, as in its default `--http-bind`.
pub const HTTP_PORT: i32 = 8081;

/// Settings that come from how the operator runs instead of from the object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// The operator's namespace, where DaemonSets and ServiceAccounts go.
    pub namespace: String,
    /// The node plugin's image if the object does not set one.
    pub image: String,
    /// Names of image pull secrets in that namespace.
    pub image_pull_secrets: Vec<String>,
}

/// A child that cannot be built from the object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unbuildable {
    /// The child.
    pub key: ChildKey,
    /// What is wrong, and what to write.
    pub message: String,
}

/// Everything that one `DraDriverConfig` asks for.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Desired {
    /// The children, in the order they are applied.
    pub children: Vec<Child>,
    /// The children that cannot be built.
    pub unbuildable: Vec<Unbuildable>,
}

/// Builds every child of `config`.
pub fn children(config: &Config, settings: &Settings) -> Desired {
    let mut desired = Desired::default();
    desired.add(ChildKind::ServiceAccount, &service_account::build(config, settings));
    desired.add(ChildKind::ClusterRole, &cluster_role::build(config));
    desired.add(ChildKind::ClusterRoleBinding, &cluster_role::build_binding(config, settings));
    desired.add(ChildKind::ValidatingAdmissionPolicy, &admission_policy::build(config, settings));
    desired.add(ChildKind::ValidatingAdmissionPolicyBinding, &admission_policy::build_binding(config));
    desired.add(ChildKind::DaemonSet, &daemonset::build(config, settings));
    desired.add_classes(config);
    desired
}

impl Desired {
    fn add_classes(&mut self, config: &Config) {
        let classes = policy::device_classes(&config.device_classes, &config.driver_name);
        for (index, (name, class)) in classes.into_iter().enumerate() {
            let class = class.map_err(|error| error.to_string());
            let has_preset = unknown_preset(config, index).map_or(Ok(()), Err);
            match has_preset.and(class) {
                Ok(spec) => self.add(ChildKind::DeviceClass, &device_class::build(config, name, spec)),
                Err(message) => self.unbuildable.push(Unbuildable {
                    key: ChildKey { kind: ChildKind::DeviceClass, name: name.to_owned() },
                    message,
                }),
            }
        }
    }

    fn add<K>(&mut self, kind: ChildKind, object: &K)
    where
        K: Serialize + Metadata<Ty = ObjectMeta>,
    {
        let key = ChildKey { kind, name: object.metadata().name.clone().unwrap_or_default() };
        match serde_json::to_value(object) {
            Ok(mut object) => {
                stamp(&mut object);
                self.children.push(Child { key, object });
            }
            Err(error) => self.unbuildable.push(Unbuildable { key, message: error.to_string() }),
        }
    }
}

/// The error for a class whose preset is not defined for the kind, which would match no device or all of them.
fn unknown_preset(config: &Config, index: usize) -> Option<String> {
    let preset = config.device_classes.get(index)?.preset.filter(|preset| !config.kind.has_preset(*preset))?;
    Some(format!(
        "spec.deviceClasses[{index}].preset: {preset:?} is not defined for the devices of {}: use matchAttributes",
        config.driver_name
    ))
}

/// Adds a hash of the object without its owner, whose UID differs between clusters.
fn stamp(object: &mut Value) {
    let mut hashed = object.clone();
    if let Some(metadata) = hashed.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("ownerReferences");
    }
    let hash = short_sha256(hashed.to_string(), 16);
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        let annotations = metadata.entry("annotations").or_insert_with(|| Value::Object(serde_json::Map::new()));
        if let Some(annotations) = annotations.as_object_mut() {
            annotations.insert(APPLIED_HASH.into(), hash.into());
        }
    }
}

/// Name of the plugin's DaemonSet and ServiceAccount.
pub fn plugin_name(config: &Config) -> String {
    plugin_name_of(&config.name_any())
}

/// The same, given the config's name.
pub fn plugin_name_of(config: &str) -> String {
    format!("{config}-node-plugin")
}

/// Name of the plugin's ClusterRole and its binding.
fn role_name(config: &Config) -> String {
    format!("dra-operator:{}:node-plugin", config.name_any())
}

/// Name of the plugin's admission policy and its binding: a DNS subdomain, unlike a role's.
fn policy_name(config: &Config) -> String {
    format!("dra-operator-{}-node-plugin", config.name_any())
}

/// Labels that select the plugin's pods. They must never change, because a DaemonSet's selector cannot.
fn selector_labels(config: &Config) -> BTreeMap<String, String> {
    [(COMPONENT.0, COMPONENT.1.to_owned()), (CONFIG_LABEL, config.name_any())]
        .into_iter()
        .map(|(key, value)| (key.to_owned(), value))
        .collect()
}

/// Labels on every child. None are copied from the object: GitOps tools recognise by labels what they applied, and
/// would mistake the children for their own objects.
fn labels(config: &Config) -> BTreeMap<String, String> {
    let mut labels = selector_labels(config);
    labels.insert("app.kubernetes.io/name".into(), "dra-operator".into());
    labels.insert(MANAGED_BY.0.into(), MANAGED_BY.1.into());
    labels
}

/// Metadata of a cluster-scoped child.
fn metadata(config: &Config, name: String) -> ObjectMeta {
    ObjectMeta {
        name: Some(name),
        labels: Some(labels(config)),
        owner_references: owner(config).map(|owner| vec![owner]),
        ..ObjectMeta::default()
    }
}

/// The owner reference to `config`. `None` if it is not an object in a cluster (as in `render`).
fn owner(config: &Config) -> Option<OwnerReference> {
    Some(OwnerReference {
        api_version: DraDriverConfig::api_version(&()).into_owned(),
        kind: DraDriverConfig::kind(&()).into_owned(),
        name: config.name_any(),
        uid: config.uid()?,
        controller: Some(true),
        block_owner_deletion: Some(true),
    })
}

#[cfg(test)]
mod tests;
