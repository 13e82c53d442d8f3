//! `spec.nodePlugin`: how the DaemonSet runs. Pure.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::core::v1::{Affinity, ResourceRequirements, Toleration},
    apimachinery::pkg::{api::resource::Quantity, util::intstr::IntOrString},
};
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};

use super::strict;

/// How the node plugin's DaemonSet runs.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = socket_outside_cdi_dir())]
#[x_kube(validation = outside_kubelet("cdiDir"))]
#[x_kube(validation = outside_kubelet("nriSocket"))]
pub struct NodePluginSpec {
    /// Container image. Default: the operator's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512))]
    #[x_kube(validation = Rule::new("self.matches('^[A-Za-z0-9][A-Za-z0-9._:/@-]*$')")
        .message("spec.nodePlugin.image must be an image reference without spaces, such as registry.example.com/dra-operator:0.1.0"))]
    pub image: Option<String>,

    /// When the image is pulled: `Always`, `IfNotPresent` or `Never`. By default `Always` for the tag `latest`,
    /// otherwise `IfNotPresent`, as in Kubernetes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_pull_policy: Option<ImagePullPolicy>,

    /// Labels a node must have, besides `kubernetes.io/os: linux`. Two objects of one kind of driver must not select the
    /// same node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("maxProperties" = 32))]
    pub node_selector: Option<BTreeMap<String, String>>,

    /// Additional scheduling constraints, as in a pod.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "affinity")]
    #[schemars(schema_with = "any_object")]
    pub affinity: Option<Affinity>,

    /// Taints that the plugin tolerates, as in a pod. Default: all, because the devices of tainted nodes are published
    /// too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub tolerations: Option<Vec<Toleration>>,

    /// Resources of the plugin's container. Default: requests of 10m CPU and 32Mi memory, and a memory limit of 128Mi.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "resources")]
    #[schemars(schema_with = "any_object")]
    pub resources: Option<ResourceRequirements>,

    /// Priority class of the plugin's pods. Default `system-node-critical`: without the plugin, pods with claims can
    /// neither start nor stop on the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub priority_class_name: Option<String>,

    /// How a new version is rolled out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub update_strategy: Option<UpdateStrategy>,

    /// The kubelet's root directory on the nodes. Default `/var/lib/kubelet`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = absolute("kubeletRootDir", KUBELET_ROOT_DIR))]
    #[schemars(length(max = 60))]
    pub kubelet_root_dir: Option<String>,

    /// Directory from which the container runtime reads CDI files. Default `/var/run/cdi`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = absolute("cdiDir", CDI_DIR))]
    #[schemars(length(max = 255))]
    pub cdi_dir: Option<String>,

    /// The container runtime's NRI socket. Default `/var/run/nri/nri.sock`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = socket("nriSocket", NRI_SOCKET))]
    #[schemars(length(max = 100))]
    pub nri_socket: Option<String>,

    /// How much the plugin logs: `Error`, `Warn`, `Info` (the default), `Debug` or `Trace`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log_level: Option<LogLevel>,

    /// Labels added to the DaemonSet and its pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("maxProperties" = 64))]
    #[x_kube(validation = reserved("labels"))]
    pub labels: Option<BTreeMap<String, String>>,

    /// Annotations added to the DaemonSet and its pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("maxProperties" = 64))]
    pub annotations: Option<BTreeMap<String, String>>,
}

/// When an image is pulled.
#[derive(JsonSchema, Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "Kubernetes' own words")]
pub enum ImagePullPolicy {
    Always,
    IfNotPresent,
    Never,
}

/// How a new version of the plugin is rolled out.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct UpdateStrategy {
    /// How many nodes may be without a ready plugin at once: a number or a percentage. Default: none; on each node, the
    /// old plugin stops only when the new one is ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "int_or_percent")]
    #[x_kube(validation = Rule::new("string(self).matches('^([1-9][0-9]{0,5}|[1-9][0-9]?%|100%)$')")
        .message("spec.nodePlugin.updateStrategy.maxUnavailable must be a number from 1 or a percentage from 1% to 100%; leave it out to stop each plugin only when the new one is ready"))]
    pub max_unavailable: Option<IntOrString>,
}

/// How much the plugin logs.
#[derive(JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names say it")]
pub enum LogLevel {
    Error,
    Warn,
    #[default]
    Info,
    Debug,
    Trace,
}

/// Default of `kubeletRootDir`.
const KUBELET_ROOT_DIR: &str = "/var/lib/kubelet";
/// Default of `cdiDir`.
const CDI_DIR: &str = "/var/run/cdi";
/// Default of `nriSocket`.
const NRI_SOCKET: &str = "/var/run/nri/nri.sock";
/// Default of `priorityClassName`.
const PRIORITY_CLASS: &str = "system-node-critical";

/// A [`NodePluginSpec`] with defaults resolved, except those that depend on how the operator runs.
#[derive(Clone, Debug, PartialEq)]
pub struct NodePluginSettings {
    /// Container image; `None` for the operator's own.
    pub image: Option<String>,
    /// When the image is pulled; `None` for the Kubernetes default.
    pub image_pull_policy: Option<ImagePullPolicy>,
    /// Labels a node must have.
    pub node_selector: BTreeMap<String, String>,
    /// Additional scheduling constraints.
    pub affinity: Affinity,
    /// Taints the plugin tolerates.
    pub tolerations: Vec<Toleration>,
    /// Resources of the plugin's container.
    pub resources: ResourceRequirements,
    /// Priority class of the plugin's pods.
    pub priority_class_name: String,
    /// How many nodes may be without a ready plugin at once during a rollout; `None` to replace each plugin only when
    /// the new one is ready.
    pub max_unavailable: Option<IntOrString>,
    /// The kubelet's root directory.
    pub kubelet_root_dir: String,
    /// Directory for CDI files.
    pub cdi_dir: String,
    /// The runtime's NRI socket.
    pub nri_socket: String,
    /// How much the plugin logs.
    pub log_level: LogLevel,
    /// Labels added to the DaemonSet and its pods.
    pub labels: BTreeMap<String, String>,
    /// Annotations added to the DaemonSet and its pods.
    pub annotations: BTreeMap<String, String>,
}

/// The plugin runs only on Linux, and a cluster may have nodes with other systems.
fn with_linux(mut selector: BTreeMap<String, String>) -> BTreeMap<String, String> {
    selector.entry("kubernetes.io/os".into()).or_insert_with(|| "linux".into());
    selector
}

impl From<NodePluginSpec> for NodePluginSettings {
    fn from(spec: NodePluginSpec) -> Self {
        Self {
            image: spec.image,
            image_pull_policy: spec.image_pull_policy,
            node_selector: with_linux(spec.node_selector.unwrap_or_default()),
            affinity: spec.affinity.unwrap_or_default(),
            tolerations: spec.tolerations.unwrap_or_else(|| vec![every_taint()]),
            resources: spec.resources.unwrap_or_else(default_resources),
            priority_class_name: spec.priority_class_name.unwrap_or_else(|| PRIORITY_CLASS.into()),
            max_unavailable: spec.update_strategy.and_then(|strategy| strategy.max_unavailable),
            kubelet_root_dir: spec.kubelet_root_dir.unwrap_or_else(|| KUBELET_ROOT_DIR.into()),
            cdi_dir: spec.cdi_dir.unwrap_or_else(|| CDI_DIR.into()),
            nri_socket: spec.nri_socket.unwrap_or_else(|| NRI_SOCKET.into()),
            log_level: spec.log_level.unwrap_or_default(),
            labels: spec.labels.unwrap_or_default(),
            annotations: spec.annotations.unwrap_or_default(),
        }
    }
}

impl Default for NodePluginSettings {
    fn default() -> Self {
        NodePluginSpec::default().into()
    }
}

impl ImagePullPolicy {
    /// The value as Kubernetes spells it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Always => "Always",
            Self::IfNotPresent => "IfNotPresent",
            Self::Never => "Never",
        }
    }
}

impl LogLevel {
    /// The value on the node plugin's command line.
    pub const fn as_argument(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warn => "warn",
            Self::Info => "info",
            Self::Debug => "debug",
            Self::Trace => "trace",
        }
    }
}

fn every_taint() -> Toleration {
    Toleration { operator: Some("Exists".into()), ..Toleration::default() }
}

fn default_resources() -> ResourceRequirements {
    let quantity = |name: &str, amount: &str| (name.to_owned(), Quantity(amount.to_owned()));
    ResourceRequirements {
        requests: Some([quantity("cpu", "10m"), quantity("memory", "32Mi")].into()),
        limits: Some([quantity("memory", "128Mi")].into()),
        ..ResourceRequirements::default()
    }
}

/// CEL for a path: the field's value, or its default.
fn path(field: &str) -> String {
    let default = match field {
        "kubeletRootDir" => KUBELET_ROOT_DIR,
        "cdiDir" => CDI_DIR,
        _ => NRI_SOCKET,
    };
    format!("(has(self.{field}) ? self.{field} : '{default}')")
}

/// A rule that keeps the two mounts separate: a pod cannot mount two volumes at one path.
fn socket_outside_cdi_dir() -> kube::core::Rule {
    kube::core::Rule::new(format!("!{}.startsWith({} + '/')", path("nriSocket"), path("cdiDir"))).message(
        "spec.nodePlugin.nriSocket must not be in spec.nodePlugin.cdiDir: use two directories, as in /var/run/nri/nri.sock and /var/run/cdi",
    )
}

/// A rule that keeps a path out of the directories in which the kubelet looks for plugin sockets.
fn outside_kubelet(field: &str) -> kube::core::Rule {
    let message = format!(
        "spec.nodePlugin.{field} must not be inside the kubelet's plugins or plugins_registry directory, nor contain them"
    );
    let (path, root) = (path(field), path("kubeletRootDir"));
    kube::core::Rule::new(format!(
        "!({path} + '/').startsWith({root} + '/plugins/') && !({path} + '/').startsWith({root} + '/plugins_registry/') && !({root} + '/').startsWith({path} + '/')"
    ))
    .message(message.as_str())
}

/// A rule that a path must be absolute and clean.
fn absolute(field: &str, example: &str) -> kube::core::Rule {
    clean_path(field, example, "+")
}

/// A rule for a socket's path: its directory is mounted, so it must not be the root.
fn socket(field: &str, example: &str) -> kube::core::Rule {
    clean_path(field, example, "{2,}")
}

fn clean_path(field: &str, example: &str, parts: &str) -> kube::core::Rule {
    let message = format!(
        "spec.nodePlugin.{field} must be an absolute path on the node without '..' or a trailing '/', such as {example}"
    );
    kube::core::Rule::new(format!(
        "self.matches('^(/[A-Za-z0-9._-]+){parts}$') && !self.contains('/../') && !self.endsWith('/..')"
    ))
    .message(message.as_str())
}

/// A rule that reserves the labels by which the operator recognises its objects.
fn reserved(field: &str) -> kube::core::Rule {
    let message = format!(
        "spec.nodePlugin.{field} must not set app.kubernetes.io/name, app.kubernetes.io/component, app.kubernetes.io/managed-by or dra-operator.dev/config: the operator finds its pods by them"
    );
    kube::core::Rule::new(
        "!('app.kubernetes.io/name' in self || 'app.kubernetes.io/component' in self || 'app.kubernetes.io/managed-by' in self || 'dra-operator.dev/config' in self)",
    )
    .message(message.as_str())
}

fn affinity<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Affinity>, D::Error> {
    strict::read("spec.nodePlugin.affinity", deserializer)
}

fn resources<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<ResourceRequirements>, D::Error> {
    strict::read("spec.nodePlugin.resources", deserializer)
}

/// An open schema for a Kubernetes type whose own schema is long. The API server validates the value when the DaemonSet
/// is applied.
fn any_object(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({"type": "object", "x-kubernetes-preserve-unknown-fields": true})
}

fn int_or_percent(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({"x-kubernetes-int-or-string": true, "maxLength": 8})
}
