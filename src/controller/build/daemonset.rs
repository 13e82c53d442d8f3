//! The node plugin's DaemonSet. Pure.
//!
//! The plugin has as few privileges as possible: UID 0 without capabilities, because the directories of the kubelet and
//! the runtime belong to root; a read-only root file system; mounts only for the directories that it writes to. It
//! reads the hardware through the container's own `/sys` and `/proc`, which show the node's. The kind of device adds
//! what else it needs.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::{
        apps::v1::{DaemonSet, DaemonSetSpec, DaemonSetUpdateStrategy, RollingUpdateDaemonSet},
        core::v1::{
            Affinity, Capabilities, Container, ContainerPort, EnvVar, EnvVarSource, HTTPGetAction,
            HostPathVolumeSource, LocalObjectReference, ObjectFieldSelector, PodAffinityTerm, PodSecurityContext,
            PodSpec, PodTemplateSpec, Probe, SeccompProfile, SecurityContext, Volume, VolumeMount,
        },
    },
    apimachinery::pkg::{
        apis::meta::v1::{LabelSelector, LabelSelectorRequirement, ObjectMeta},
        util::intstr::IntOrString,
    },
};
use kube::ResourceExt;

use super::{CONFIG_LABEL, DEVICES_LABEL, HTTP_PORT, Settings, labels, metadata, plugin_name, selector_labels};
use crate::{api::NodePluginSettings, controller::config::Config, drivers::kind::HostPath};

/// Annotation on plugin pods with capabilities: which ones they have, and why.
const PRIVILEGES: &str = "dra-operator.dev/capabilities";

/// The DaemonSet.
pub(super) fn build(config: &Config, settings: &Settings) -> DaemonSet {
    let plugin = &config.node_plugin;
    let name = plugin_name(config);
    let mut labels = labels(config);
    labels.extend(plugin.labels.clone());
    let devices = config.kind.devices();
    let pod_labels = devices.map(|devices| (DEVICES_LABEL.to_owned(), devices.to_owned()));
    let pod_labels = labels.clone().into_iter().chain(pod_labels).collect();
    let annotations = (!plugin.annotations.is_empty()).then(|| plugin.annotations.clone());
    let pod_annotations = plugin.annotations.clone().into_iter().chain(privileges(config)).collect::<BTreeMap<_, _>>();

    DaemonSet {
        metadata: ObjectMeta {
            namespace: Some(settings.namespace.clone()),
            labels: Some(labels),
            annotations,
            ..metadata(config, name.clone())
        },
        spec: DaemonSetSpec {
            selector: LabelSelector { match_labels: Some(selector_labels(config)), ..LabelSelector::default() },
            update_strategy: Some(update_strategy(plugin)),
            template: PodTemplateSpec {
                metadata: Some(ObjectMeta {
                    labels: Some(pod_labels),
                    annotations: (!pod_annotations.is_empty()).then_some(pod_annotations),
                    ..ObjectMeta::default()
                }),
                spec: Some(pod(config, settings, name)),
            },
            ..DaemonSetSpec::default()
        },
        ..DaemonSet::default()
    }
}

/// By default the old plugin on a node stops only when the new one is ready, so that a broken image does not replace a
/// working plugin. The kubelet tells the two apart by pod UID.
fn update_strategy(plugin: &NodePluginSettings) -> DaemonSetUpdateStrategy {
    let (max_unavailable, max_surge) = match plugin.max_unavailable.clone() {
        Some(max_unavailable) => (max_unavailable, 0),
        None => (IntOrString::Int(0), 1),
    };
    DaemonSetUpdateStrategy {
        type_: Some("RollingUpdate".into()),
        rolling_update: Some(RollingUpdateDaemonSet {
            max_unavailable: Some(max_unavailable),
            max_surge: Some(IntOrString::Int(max_surge)),
        }),
    }
}

fn pod(config: &Config, settings: &Settings, service_account: String) -> PodSpec {
    let plugin = &config.node_plugin;
    let mounts = host_paths(config);
    let secrets = settings.image_pull_secrets.iter().map(|name| LocalObjectReference { name: name.clone() });

    PodSpec {
        service_account_name: Some(service_account),
        image_pull_secrets: (!settings.image_pull_secrets.is_empty()).then(|| secrets.collect()),
        priority_class_name: Some(plugin.priority_class_name.clone()),
        node_selector: Some(plugin.node_selector.clone()),
        affinity: affinity(config),
        tolerations: Some(plugin.tolerations.clone()),
        security_context: Some(PodSecurityContext {
            seccomp_profile: Some(SeccompProfile { type_: "RuntimeDefault".into(), ..SeccompProfile::default() }),
            ..PodSecurityContext::default()
        }),
        containers: vec![container(config, settings, &mounts)],
        volumes: Some(mounts.into_iter().map(volume).collect()),
        ..PodSpec::default()
    }
}

/// Keeps the pod off nodes that already run another config's plugin for the same devices, even if the two configs only
/// come to select the same node later: both plugins would serve the same hardware.
fn affinity(config: &Config) -> Option<Affinity> {
    let mut affinity = config.node_plugin.affinity.clone();
    let Some(devices) = config.kind.devices() else { return (affinity != Affinity::default()).then_some(affinity) };
    let another = LabelSelectorRequirement {
        key: CONFIG_LABEL.into(),
        operator: "NotIn".into(),
        values: Some(vec![config.name_any()]),
    };
    let rival = PodAffinityTerm {
        label_selector: Some(LabelSelector {
            match_labels: Some([(DEVICES_LABEL.to_owned(), devices.to_owned())].into()),
            match_expressions: Some(vec![another]),
        }),
        topology_key: "kubernetes.io/hostname".into(),
        ..PodAffinityTerm::default()
    };
    let keep_off = affinity.pod_anti_affinity.get_or_insert_default();
    keep_off.required_during_scheduling_ignored_during_execution.get_or_insert_default().push(rival);
    Some(affinity)
}

fn container(config: &Config, settings: &Settings, mounts: &[HostPath]) -> Container {
    let plugin = &config.node_plugin;
    let probes = config.kind.probes();

    Container {
        name: "node-plugin".into(),
        image: Some(plugin.image.clone().unwrap_or_else(|| settings.image.clone())),
        image_pull_policy: plugin.image_pull_policy.map(|policy| policy.as_str().into()),
        args: Some(arguments(config)),
        env: Some(vec![from_field("NODE_NAME", "spec.nodeName"), from_field("POD_UID", "metadata.uid")]),
        ports: Some(vec![ContainerPort {
            name: Some("http".into()),
            container_port: HTTP_PORT,
            protocol: Some("TCP".into()),
            ..ContainerPort::default()
        }]),
        startup_probe: Some(asking("/healthz", probes.startup)),
        liveness_probe: Some(asking("/healthz", probes.liveness)),
        readiness_probe: Some(asking("/readyz", probes.readiness)),
        resources: Some(plugin.resources.clone()),
        security_context: Some(security_context(config)),
        volume_mounts: Some(mounts.iter().map(volume_mount).collect()),
        ..Container::default()
    }
}

/// Root without any capabilities except those that the kind of device needs.
fn security_context(config: &Config) -> SecurityContext {
    let kept: Vec<String> = config.kind.capabilities().iter().map(|capability| capability.name.into()).collect();
    SecurityContext {
        run_as_user: Some(0),
        run_as_group: Some(0),
        privileged: Some(false),
        allow_privilege_escalation: Some(false),
        read_only_root_filesystem: Some(true),
        capabilities: Some(Capabilities { drop: Some(vec!["ALL".into()]), add: (!kept.is_empty()).then_some(kept) }),
        ..SecurityContext::default()
    }
}

/// An annotation that explains the plugin's capabilities, if it has any.
fn privileges(config: &Config) -> Option<(String, String)> {
    let capabilities = config.kind.capabilities();
    let reasons: Vec<_> = capabilities.iter().map(|one| format!("{}: {}", one.name, one.reason)).collect();
    (!reasons.is_empty()).then(|| (PRIVILEGES.to_owned(), reasons.join("; ")))
}

fn arguments(config: &Config) -> Vec<String> {
    let plugin = &config.node_plugin;
    let mut arguments = vec![
        "node-plugin".into(),
        format!("--driver-name={}", config.driver_name),
        format!("--kubelet-root-dir={}", plugin.kubelet_root_dir),
        format!("--cdi-dir={}", plugin.cdi_dir),
        format!("--nri-socket={}", plugin.nri_socket),
        format!("--log-level={}", plugin.log_level.as_argument()),
    ];
    arguments.extend(config.kind.arguments());
    arguments
}

/// Host directories, each mounted at its own path, so that paths in CDI files and socket names mean the same to the
/// plugin, the kubelet and the runtime.
fn host_paths(config: &Config) -> Vec<HostPath> {
    let plugin = &config.node_plugin;
    let kubelet = &plugin.kubelet_root_dir;
    let written = |name, path| HostPath { name, path, read_only: false };
    let mut paths = vec![
        written("plugins-registry", format!("{kubelet}/plugins_registry")),
        written("plugin-state", format!("{kubelet}/plugins/{}", config.driver_name)),
        written("cdi", plugin.cdi_dir.clone()),
    ];
    paths.extend(config.kind.host_paths(plugin));
    paths
}

fn volume(HostPath { name, path, .. }: HostPath) -> Volume {
    Volume {
        name: name.into(),
        host_path: Some(HostPathVolumeSource { path, type_: Some("DirectoryOrCreate".into()) }),
        ..Volume::default()
    }
}

fn volume_mount(HostPath { name, path, read_only }: &HostPath) -> VolumeMount {
    VolumeMount {
        name: (*name).into(),
        mount_path: path.clone(),
        read_only: read_only.then_some(true),
        ..VolumeMount::default()
    }
}

fn from_field(name: &str, path: &str) -> EnvVar {
    EnvVar {
        name: name.into(),
        value_from: Some(EnvVarSource {
            field_ref: Some(ObjectFieldSelector { field_path: path.into(), ..ObjectFieldSelector::default() }),
            ..EnvVarSource::default()
        }),
        ..EnvVar::default()
    }
}

fn asking(path: &str, probe: Probe) -> Probe {
    let port = IntOrString::String("http".into());
    Probe { http_get: Some(HTTPGetAction { path: Some(path.into()), port, ..HTTPGetAction::default() }), ..probe }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::controller::testing::mk_config;

    #[test]
    fn plugins_for_the_same_devices_avoid_each_other_and_the_admins_affinity_is_kept() {
        let set = |spec| build(&mk_config("cpu", &spec), &Settings::default());
        let template = set(json!({})).spec.template;
        assert_eq!(template.metadata.unwrap().labels.unwrap()[DEVICES_LABEL], "cpu");
        let rival = json!({
            "topologyKey": "kubernetes.io/hostname",
            "labelSelector": {
                "matchLabels": {DEVICES_LABEL: "cpu"},
                "matchExpressions": [{"key": CONFIG_LABEL, "operator": "NotIn", "values": ["cpu"]}],
            },
        });
        let affinity = |set: DaemonSet| serde_json::to_value(set.spec.template.spec.unwrap().affinity).unwrap();
        let required = "requiredDuringSchedulingIgnoredDuringExecution";
        assert_eq!(affinity(set(json!({}))), json!({"podAntiAffinity": {required: [rival]}}));
        let own = json!({"topologyKey": "zone"});
        let given = json!({"nodeAffinity": {}, "podAntiAffinity": {required: [own]}});
        let both = affinity(set(json!({"nodePlugin": {"affinity": given}})));
        assert_eq!(both, json!({"nodeAffinity": {}, "podAntiAffinity": {required: [own, rival]}}));
    }

    #[test]
    fn plugins_use_the_controllers_image_pull_secrets() {
        let settings = |secrets: &[&str]| Settings {
            namespace: "ns".into(),
            image: "own:1".into(),
            image_pull_secrets: secrets.iter().map(|&secret| secret.into()).collect(),
        };
        let pod = |secrets: &[&str]| {
            build(&mk_config("cpu", &json!({})), &settings(secrets)).spec.template.spec.unwrap_or_default()
        };
        let with = pod(&["a", "b"]);
        assert_eq!(with.containers[0].image.as_deref(), Some("own:1"));
        let names: Vec<_> = with.image_pull_secrets.unwrap_or_default().into_iter().map(|secret| secret.name).collect();
        assert_eq!(names, ["a", "b"]);
        assert_eq!(pod(&[]).image_pull_secrets, None);
    }
}
