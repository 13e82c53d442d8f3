//! The node plugin's DaemonSet. Pure.
//!
//! As little as serves: uid 0 with no capability, because the kubelet's and the runtime's directories are root's; a
//! read-only root; only the directories it writes to. The host's hardware is read through the container's own `/sys` and
//! `/proc`, which show the node's.

use k8s_openapi::{
    api::{
        apps::v1::{DaemonSet, DaemonSetSpec, DaemonSetUpdateStrategy, RollingUpdateDaemonSet},
        core::v1::{
            Affinity, Capabilities, Container, ContainerPort, EnvVar, EnvVarSource, HTTPGetAction,
            HostPathVolumeSource, LocalObjectReference, ObjectFieldSelector, PodAffinityTerm, PodSecurityContext,
            PodSpec, PodTemplateSpec, Probe, ResourceRequirements, SeccompProfile, SecurityContext, Toleration, Volume,
            VolumeMount,
        },
    },
    apimachinery::pkg::{
        api::resource::Quantity,
        apis::meta::v1::{LabelSelector, LabelSelectorRequirement, ObjectMeta},
        util::intstr::IntOrString,
    },
};
use kube::ResourceExt;

use super::{CONFIG_LABEL, DEVICES_LABEL, HTTP_PORT, Settings, labels, metadata, plugin_name, selector_labels};
use crate::api::{CpuSpec, DraDriverConfig, Granularity, ImagePullPolicy, LogLevel, NodePluginSpec, Pinning};

/// The DaemonSet.
pub(super) fn build(config: &DraDriverConfig, settings: &Settings) -> DaemonSet {
    let plugin = config.spec.node_plugin();
    let name = plugin_name(config);
    let mut labels = labels(config);
    labels.extend(plugin.labels.clone().unwrap_or_default());
    let devices = config.spec.driver.devices();
    let pod_labels = devices.map(|devices| (DEVICES_LABEL.to_owned(), devices.to_owned()));
    let pod_labels = labels.clone().into_iter().chain(pod_labels).collect();
    DaemonSet {
        metadata: ObjectMeta {
            namespace: Some(settings.namespace.clone()),
            labels: Some(labels),
            annotations: plugin.annotations.clone(),
            ..metadata(config, name.clone())
        },
        spec: DaemonSetSpec {
            selector: LabelSelector { match_labels: Some(selector_labels(config)), ..LabelSelector::default() },
            update_strategy: Some(update_strategy(&plugin)),
            template: PodTemplateSpec {
                metadata: Some(ObjectMeta {
                    labels: Some(pod_labels),
                    annotations: plugin.annotations.clone(),
                    ..ObjectMeta::default()
                }),
                spec: Some(pod(config, &plugin, settings, name)),
            },
            ..DaemonSetSpec::default()
        },
        ..DaemonSet::default()
    }
}

/// By default a node's new plugin is ready before its old one goes, so that a broken image takes no serving plugin away;
/// the kubelet knows the two apart by pod UID.
fn update_strategy(plugin: &NodePluginSpec) -> DaemonSetUpdateStrategy {
    let chosen = plugin.update_strategy.as_ref().and_then(|strategy| strategy.max_unavailable.clone());
    let (max_unavailable, max_surge) = match chosen {
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

fn pod(config: &DraDriverConfig, plugin: &NodePluginSpec, settings: &Settings, service_account: String) -> PodSpec {
    let mounts = host_paths(config, plugin);
    PodSpec {
        service_account_name: Some(service_account),
        image_pull_secrets: (!settings.image_pull_secrets.is_empty()).then(|| {
            settings.image_pull_secrets.iter().map(|name| LocalObjectReference { name: name.clone() }).collect()
        }),
        priority_class_name: Some(plugin.priority_class_name.clone().unwrap_or_else(|| "system-node-critical".into())),
        node_selector: plugin.node_selector.clone(),
        affinity: affinity(config, plugin),
        tolerations: Some(
            plugin
                .tolerations
                .clone()
                .unwrap_or_else(|| vec![Toleration { operator: Some("Exists".into()), ..Toleration::default() }]),
        ),
        security_context: Some(PodSecurityContext {
            seccomp_profile: Some(SeccompProfile { type_: "RuntimeDefault".into(), ..SeccompProfile::default() }),
            ..PodSecurityContext::default()
        }),
        containers: vec![container(config, plugin, settings, &mounts)],
        volumes: Some(
            mounts
                .into_iter()
                .map(|(name, path)| Volume {
                    name: name.into(),
                    host_path: Some(HostPathVolumeSource { path, type_: Some("DirectoryOrCreate".into()) }),
                    ..Volume::default()
                })
                .collect(),
        ),
        ..PodSpec::default()
    }
}

/// Keeps the pod off nodes with the plugin of another config for the same devices, also where a node came to be both's
/// only later: the two would give out the same hardware.
fn affinity(config: &DraDriverConfig, plugin: &NodePluginSpec) -> Option<Affinity> {
    let Some(devices) = config.spec.driver.devices() else { return plugin.affinity.clone() };
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
    let mut affinity = plugin.affinity.clone().unwrap_or_default();
    let keep_off = affinity.pod_anti_affinity.get_or_insert_default();
    keep_off.required_during_scheduling_ignored_during_execution.get_or_insert_default().push(rival);
    Some(affinity)
}

fn container(
    config: &DraDriverConfig,
    plugin: &NodePluginSpec,
    settings: &Settings,
    mounts: &[(&'static str, String)],
) -> Container {
    Container {
        name: "node-plugin".into(),
        image: Some(plugin.image.clone().unwrap_or_else(|| settings.image.clone())),
        image_pull_policy: plugin.image_pull_policy.map(|policy| {
            match policy {
                ImagePullPolicy::Always => "Always",
                ImagePullPolicy::IfNotPresent => "IfNotPresent",
                ImagePullPolicy::Never => "Never",
            }
            .into()
        }),
        args: Some(arguments(config, plugin)),
        env: Some(vec![from_field("NODE_NAME", "spec.nodeName"), from_field("POD_UID", "metadata.uid")]),
        ports: Some(vec![ContainerPort {
            name: Some("http".into()),
            container_port: HTTP_PORT,
            protocol: Some("TCP".into()),
            ..ContainerPort::default()
        }]),
        startup_probe: Some(Probe { period_seconds: Some(1), failure_threshold: Some(60), ..probe("/healthz") }),
        liveness_probe: Some(Probe { period_seconds: Some(10), failure_threshold: Some(3), ..probe("/healthz") }),
        readiness_probe: Some(Probe { period_seconds: Some(2), failure_threshold: Some(2), ..probe("/readyz") }),
        resources: Some(plugin.resources.clone().unwrap_or_else(default_resources)),
        security_context: Some(SecurityContext {
            run_as_user: Some(0),
            run_as_group: Some(0),
            privileged: Some(false),
            allow_privilege_escalation: Some(false),
            read_only_root_filesystem: Some(true),
            capabilities: Some(Capabilities { drop: Some(vec!["ALL".into()]), ..Capabilities::default() }),
            ..SecurityContext::default()
        }),
        volume_mounts: Some(
            mounts
                .iter()
                .map(|(name, path)| VolumeMount {
                    name: (*name).into(),
                    mount_path: path.clone(),
                    ..VolumeMount::default()
                })
                .collect(),
        ),
        ..Container::default()
    }
}

fn arguments(config: &DraDriverConfig, plugin: &NodePluginSpec) -> Vec<String> {
    let cpu = config.spec.driver.cpu.clone().unwrap_or_default();
    let mut arguments = vec![
        "node-plugin".into(),
        format!("--driver-name={}", config.spec.driver_name()),
        format!("--kubelet-root-dir={}", plugin.kubelet_root_dir()),
        format!("--cdi-dir={}", plugin.cdi_dir()),
        format!("--nri-socket={}", plugin.nri_socket()),
        format!("--log-level={}", log_level(plugin.log_level.unwrap_or_default())),
        "cpu".into(),
    ];
    arguments.extend(cpu_arguments(&cpu));
    arguments
}

fn cpu_arguments(cpu: &CpuSpec) -> Vec<String> {
    let granularity = match cpu.granularity {
        Granularity::Core => "Core",
        Granularity::Thread => "Thread",
    };
    let pinning = match cpu.pinning.unwrap_or_default() {
        Pinning::Nri => "NRI",
        Pinning::None => "None",
    };
    let mut arguments = vec![format!("--granularity={granularity}"), format!("--pinning={pinning}")];
    arguments.extend(cpu.reserved_cpus.as_ref().map(|cpus| format!("--reserved-cpus={cpus}")));
    arguments
}

const fn log_level(level: LogLevel) -> &'static str {
    match level {
        LogLevel::Error => "error",
        LogLevel::Warn => "warn",
        LogLevel::Info => "info",
        LogLevel::Debug => "debug",
        LogLevel::Trace => "trace",
    }
}

/// Directories of the host, each mounted where it is on the host: paths in CDI files and socket names then mean the same
/// to the plugin, the kubelet and the runtime.
fn host_paths(config: &DraDriverConfig, plugin: &NodePluginSpec) -> Vec<(&'static str, String)> {
    let kubelet = plugin.kubelet_root_dir();
    let mut paths = vec![
        ("plugins-registry", format!("{kubelet}/plugins_registry")),
        ("plugin-state", format!("{kubelet}/plugins/{}", config.spec.driver_name())),
        ("cdi", plugin.cdi_dir().to_owned()),
    ];
    let pinning = config.spec.driver.cpu.as_ref().and_then(|cpu| cpu.pinning).unwrap_or_default();
    if pinning == Pinning::Nri
        && let Some((directory, _)) = plugin.nri_socket().rsplit_once('/')
    {
        paths.push(("nri", directory.to_owned()));
    }
    paths
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

fn probe(path: &str) -> Probe {
    Probe {
        http_get: Some(HTTPGetAction {
            path: Some(path.into()),
            port: IntOrString::String("http".into()),
            ..HTTPGetAction::default()
        }),
        ..Probe::default()
    }
}

fn default_resources() -> ResourceRequirements {
    let quantity = |name: &str, amount: &str| (name.to_owned(), Quantity(amount.to_owned()));
    ResourceRequirements {
        requests: Some([quantity("cpu", "10m"), quantity("memory", "32Mi")].into()),
        limits: Some([quantity("memory", "128Mi")].into()),
        ..ResourceRequirements::default()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::controller::testing::mk_config;

    #[test]
    fn plugins_for_the_same_devices_keep_off_one_another_and_the_admins_affinity_stays() {
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
    fn plugins_are_pulled_as_the_controller_is() {
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
