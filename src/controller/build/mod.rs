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

/// Label with the name of the `DraDriverConfig` a child is for.
pub const CONFIG_LABEL: &str = "dra-operator.dev/config";
/// Label of plugin pods with the kind of devices they give out.
pub const DEVICES_LABEL: &str = "dra-operator.dev/devices";
/// Label and value by which the operator's children are found.
pub const MANAGED_BY: (&str, &str) = ("app.kubernetes.io/managed-by", "dra-operator");
/// The field manager of everything the controller applies.
pub const FIELD_MANAGER: &str = "dra-operator";
/// Label and value of node plugin objects.
pub const COMPONENT: (&str, &str) = ("app.kubernetes.io/component", "node-plugin");
/// Annotation with a hash of what was applied. A field that is no longer wanted does not differ from the live object; the
/// hash does.
pub const APPLIED_HASH: &str = "dra-operator.dev/applied-hash";
/// Port of the plugin's `/healthz`, `/readyz` and `/metrics`, as its default `--http-bind` has it.
pub const HTTP_PORT: i32 = 8081;

/// Settings that do not come from the object but from how the operator runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// The operator's namespace, where DaemonSets and ServiceAccounts go.
    pub namespace: String,
    /// The node plugin's image, if the object does not name one.
    pub image: String,
    /// Names of the image pull secrets in that namespace.
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

/// Everything one `DraDriverConfig` asks for.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Desired {
    /// The children, in the order they are applied.
    pub children: Vec<Child>,
    /// What cannot be built.
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

/// What is wrong with a class whose preset is not defined for the kind: it would match no device, or all.
fn unknown_preset(config: &Config, index: usize) -> Option<String> {
    let preset = config.device_classes.get(index)?.preset.filter(|preset| !config.kind.has_preset(*preset))?;
    Some(format!(
        "spec.deviceClasses[{index}].preset: {preset:?} is not defined for the devices of {}: use matchAttributes",
        config.driver_name
    ))
}

/// Adds the hash of the object, without its owner, whose id differs between clusters.
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

/// The same by the config's name.
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

/// Labels that select the plugin's pods. A DaemonSet's selector cannot change, so neither can these.
fn selector_labels(config: &Config) -> BTreeMap<String, String> {
    [(COMPONENT.0, COMPONENT.1.to_owned()), (CONFIG_LABEL, config.name_any())]
        .into_iter()
        .map(|(key, value)| (key.to_owned(), value))
        .collect()
}

/// Labels of every child. None is copied from the object: GitOps tools recognise what they applied by labels, and would take
/// the children for their own.
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

/// The reference to the owner, `config` itself. None if it is not an object in a cluster (`render` of a file).
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
