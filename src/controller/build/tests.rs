//! Builds a plugin for a kind that exists only in tests, which shows that `build` does not depend on any kind.

use std::sync::Arc;

use serde_json::{Value, json};

use super::*;
use crate::controller::testing::{Fabric, mk_config};

fn fabric(spec: &Value) -> Config {
    Config { kind: Arc::new(Fabric), driver_name: "dra.nic".parse().unwrap(), ..mk_config("nics", spec) }
}

fn child(config: &Config, kind: ChildKind) -> Value {
    let settings = Settings { namespace: "ns".into(), image: "i".into(), ..Settings::default() };
    let desired = children(config, &settings);
    desired.children.into_iter().find(|child| child.key.kind == kind).unwrap().object
}

#[test]
fn a_kind_brings_its_own_arguments_mounts_capabilities_and_probes_to_the_daemon_set() {
    let set = child(&fabric(&json!({})), ChildKind::DaemonSet);
    let template = &set["spec"]["template"];
    assert_eq!(template["metadata"]["labels"][DEVICES_LABEL], "nic");
    assert_eq!(
        template["metadata"]["annotations"]["dra-operator.dev/capabilities"],
        "NET_ADMIN: moves network devices into pods"
    );

    let pod = &template["spec"];
    let volumes: Vec<_> = pod["volumes"].as_array().unwrap().iter().map(|volume| volume["name"].clone()).collect();
    assert_eq!(volumes, ["plugins-registry", "plugin-state", "cdi", "netns"]);

    let container = &pod["containers"][0];
    let arguments: Vec<_> = container["args"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    assert_eq!(arguments[1], "--driver-name=dra.nic");
    assert_eq!(arguments[arguments.len() - 2..], ["nic", "--uplink=eth1"]);
    assert!(!set.to_string().contains("granularity"));
    assert_eq!(container["volumeMounts"][3], json!({"name": "netns", "mountPath": "/var/run/netns", "readOnly": true}));
    assert_eq!(container["securityContext"]["capabilities"], json!({"add": ["NET_ADMIN"], "drop": ["ALL"]}));
    assert_eq!(container["startupProbe"]["failureThreshold"], 300);
    assert_eq!(container["startupProbe"]["httpGet"]["path"], "/healthz");
}

#[test]
fn a_kind_adds_rules_to_the_cluster_role_and_removes_none() {
    let role = child(&fabric(&json!({})), ChildKind::ClusterRole);
    let resources: Vec<_> = role["rules"].as_array().unwrap().iter().map(|rule| rule["resources"][0].clone()).collect();
    assert_eq!(resources, ["resourceslices", "resourceclaims", "nodes", "pods"]);
}

#[test]
fn a_kind_with_shared_pools_may_write_only_those_besides_its_own() {
    let expressions = |config: &Config| -> Vec<String> {
        let policy = child(config, ChildKind::ValidatingAdmissionPolicy);
        let all = policy["spec"]["validations"].as_array().unwrap().iter();
        all.map(|one| one["expression"].as_str().unwrap().to_owned()).collect()
    };
    let (shared, cpu) = (expressions(&fabric(&json!({}))), expressions(&mk_config("cpu", &json!({}))));
    assert_eq!(
        shared[1],
        r#"variables.slices.all(s, s.?nodeName.orValue('') == variables.ownNode || s.?nodeName.orValue('') == '' && s.pool.name in ["fabric"])"#
    );
    assert_eq!(
        shared[3],
        r#"request.operation == 'DELETE' || object.spec.pool.name == variables.ownNode || object.spec.?nodeName.orValue('') == '' && object.spec.pool.name in ["fabric"]"#
    );
    assert!(cpu.iter().all(|expression| !expression.contains("fabric")), "{cpu:?}");
    assert_eq!((&shared[0], &shared[4]), (&cpu[0], &cpu[4]), "the other rules hold for every kind");
}

#[test]
fn a_preset_that_a_kind_does_not_define_is_rejected_and_the_other_classes_are_built() {
    let config = fabric(&json!({"deviceClasses": [
        {"name": "fast", "preset": "HighPerformance"},
        {"name": "any", "matchAttributes": [{"key": "speed", "operator": "Gte", "value": 100}]},
    ]}));
    let desired = children(&config, &Settings::default());
    let [refused] = &desired.unbuildable[..] else { panic!("{:?}", desired.unbuildable) };
    assert_eq!(
        refused.message,
        "spec.deviceClasses[0].preset: HighPerformance is not defined for the devices of dra.nic: use matchAttributes"
    );
    let classes: Vec<_> = desired.children.iter().filter(|child| child.key.kind == ChildKind::DeviceClass).collect();
    assert_eq!(classes.len(), 1);
    assert_eq!(classes[0].key.name, "any");
}
