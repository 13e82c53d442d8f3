//! What the chart renders, compared with what kustomize renders.

use std::{collections::BTreeSet, fs};

use rstest::rstest;
use serde_json::{Value, json};

use super::{
    objects,
    tools::{helm_template, kubeconform, kustomize, root, try_helm_template, try_helm_template_as},
};

/// Every option that adds an object or a field.
const EVERYTHING: &[&str] = &[
    "replicas=2",
    "image.digest=sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
    "nodePlugin.image=registry.example/plugin:1",
    "imagePullSecrets[0].name=pull",
    "podLabels.team=infrastructure",
    "podAnnotations.note=text",
    "nodeSelector.role=system",
    "tolerations[0].operator=Exists",
    "priorityClassName=system-cluster-critical",
    "podDisruptionBudget.enabled=true",
    "podDisruptionBudget.maxUnavailable=50%",
    "serviceAccount.annotations.note=text",
    "metrics.service.enabled=true",
    "metrics.serviceMonitor.enabled=true",
];

#[test]
fn chart_and_kustomize_render_the_same_objects() {
    let mut chart = objects(&helm_template(&[]));
    let mut base = objects(&kustomize("config/default"));
    // Helm is given a namespace; with `kubectl apply -k` it is one of the objects.
    assert!(base.remove("Namespace /dra-operator").is_some());
    chart.values_mut().chain(base.values_mut()).for_each(strip_helm_metadata);
    let names = |of: &std::collections::BTreeMap<String, Value>| of.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&chart), names(&base));
    for (name, object) in &chart {
        let text = |value: &Value| serde_json::to_string_pretty(value).unwrap();
        assert!(
            object == &base[name],
            "{name}: charts/dra-operator gives\n{}\nand config/ gives\n{}",
            text(object),
            text(&base[name])
        );
    }
}

/// Removes the labels and annotations that mark what Helm manages.
fn strip_helm_metadata(object: &mut Value) {
    const HELMS: [&str; 5] = [
        "helm.sh/chart",
        "helm.sh/resource-policy",
        "app.kubernetes.io/instance",
        "app.kubernetes.io/managed-by",
        "app.kubernetes.io/version",
    ];
    for parent in ["/metadata", "/spec/template/metadata", "/spec/selector"] {
        let Some(parent) = object.pointer_mut(parent).and_then(Value::as_object_mut) else { continue };
        for field in ["labels", "annotations", "matchLabels"] {
            if let Some(map) = parent.get_mut(field).and_then(Value::as_object_mut) {
                map.retain(|key, _| !HELMS.contains(&key.as_str()));
            }
        }
        parent.retain(|_, value| *value != json!({}));
    }
    // Only the CRD has no labels of its own.
    if object["kind"] == "CustomResourceDefinition" {
        object["metadata"].as_object_mut().unwrap().remove("labels");
    }
}

#[rstest]
#[case::as_it_is(&[])]
#[case::with_everything(EVERYTHING)]
#[case::with_nothing(&["crds.install=false", "rbac.create=false", "serviceAccount.create=false", "serviceAccount.name=other"])]
fn the_chart_renders_valid_objects(#[case] values: &[&str]) {
    kubeconform(&helm_template(values)).unwrap_or_else(|error| panic!("{values:?}: {error}"));
}

#[test]
fn kustomize_renders_valid_objects() {
    kubeconform(&kustomize("config/default")).unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn an_unknown_field_is_found() {
    let misspelt =
        helm_template(&[]).replace("automountServiceAccountToken: true", "automountServiceAcountToken: true");
    let said = kubeconform(&misspelt).unwrap_err();
    assert!(said.contains("automountServiceAcountToken"), "{said}");
}

#[rstest]
#[case("replicas=-1", "/replicas")]
#[case("replicas=two", "/replicas")]
#[case("logLevel=loud", "/logLevel")]
#[case("logFormat=xml", "/logFormat")]
#[case("image.tagg=1", "tagg")]
#[case("image.digest=sha256:12", "/image/digest")]
#[case("image.registry=https://host", "/image/registry")]
#[case("image.registry=host/", "/image/registry")]
#[case("image.repository=registry.example/dra-operator", "begins with a registry")]
#[case("image.pullPolicy=Sometimes", "/image/pullPolicy")]
#[case("crds.keep=maybe", "/crds/keep")]
#[case("resources.request.cpu=1", "request")]
#[case("podDisruptionBudget.maxUnavailable=half", "/podDisruptionBudget/maxUnavailable")]
#[case("metrics.serviceMonitor.enabled=true", "requires metrics.service.enabled")]
#[case("serviceAccount.create=false", "serviceAccount.name is required")]
fn an_invalid_value_is_rejected_by_name(#[case] value: &str, #[case] said: &str) {
    let error = try_helm_template(&[value]).expect_err(value);
    assert!(error.contains(said), "{error}");
}

#[test]
fn the_crd_is_kept_on_uninstall_unless_disabled() {
    let crd = |values: &[&str]| {
        objects(&helm_template(values)).remove("CustomResourceDefinition /dradriverconfigs.dra-operator.dev")
    };
    let policy = "/metadata/annotations/helm.sh~1resource-policy";
    assert_eq!(crd(&[]).unwrap().pointer(policy), Some(&json!("keep")));
    assert_eq!(crd(&["crds.keep=false"]).unwrap().pointer(policy), None);
    assert_eq!(crd(&["crds.install=false"]), None);
}

#[test]
fn the_controllers_pod_meets_the_restricted_pod_security_standard() {
    let deployment = objects(&helm_template(&[])).remove("Deployment dra-operator/dra-operator").unwrap();
    let pod = &deployment["spec"]["template"]["spec"];
    assert_eq!(pod["securityContext"]["runAsNonRoot"], true);
    assert_eq!(pod["securityContext"]["seccompProfile"]["type"], "RuntimeDefault");
    assert_eq!(pod["volumes"], Value::Null);
    for host in ["hostNetwork", "hostPID", "hostIPC"] {
        assert_eq!(pod[host], Value::Null);
    }
    let [container] = pod["containers"].as_array().unwrap().as_slice() else { panic!("one container: {pod}") };
    assert_eq!(
        container["securityContext"],
        json!({"allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true, "capabilities": {"drop": ["ALL"]}})
    );
}

#[test]
fn the_view_role_may_read_what_can_be_claimed_and_no_more() {
    let role = objects(&helm_template(&[])).remove("ClusterRole /dra-operator-viewer").unwrap();
    assert_eq!(role["metadata"]["labels"]["rbac.authorization.k8s.io/aggregate-to-view"], "true");
    let rules = role["rules"].as_array().unwrap();
    for rule in rules {
        assert_eq!(rule["verbs"], json!(["get", "list", "watch"]));
    }
    // What `menu` lists.
    assert_eq!(rules[0]["resources"], json!(["deviceclasses", "resourceslices", "resourceclaims"]));
}

#[test]
fn the_node_plugin_runs_the_controllers_image_unless_another_is_set() {
    let image = |values: &[&str]| {
        let deployment = objects(&helm_template(values)).remove("Deployment dra-operator/dra-operator").unwrap();
        let container = deployment["spec"]["template"]["spec"]["containers"][0].clone();
        let env = container["env"].as_array().unwrap().iter().find(|e| e["name"] == "NODE_PLUGIN_IMAGE").cloned();
        (container["image"].as_str().unwrap().to_owned(), env.map(|env| env["value"].as_str().unwrap().to_owned()))
    };
    let (own, plugin) = image(&["image.registry=registry.example:5000", "image.tag=v2"]);
    assert_eq!(own, "registry.example:5000/dra-operator/dra-operator:v2");
    let (proxied, _) = image(&["image.registry=registry.example/proxy/ghcr", "image.tag=v2"]);
    assert_eq!(proxied, "registry.example/proxy/ghcr/dra-operator/dra-operator:v2");
    let (whole, _) = image(&["image.registry=", "image.repository=registry.example/dra-operator", "image.tag=v2"]);
    assert_eq!(whole, "registry.example/dra-operator:v2");
    assert_eq!(plugin, None, "the controller takes its own pod's");
    assert_eq!(image(&["nodePlugin.image=other:1"]).1.as_deref(), Some("other:1"));
}

#[test]
fn the_image_is_named_in_one_place() {
    let named = |yaml: &str| yaml.matches("dra-operator/dra-operator:").count();
    assert_eq!((named(&helm_template(&[])), named(&kustomize("config/default"))), (1, 1));
}

#[rstest]
#[case("123", "123")]
#[case("true", "1e3")]
#[case("null", "0x10")]
#[case(
    "a-release-whose-name-has-all-of-the-53-characters-yes",
    "a-namespace-whose-name-is-as-long-as-63-characters-would-allow-x"
)]
fn any_release_name_and_namespace_renders_valid_objects(#[case] release: &str, #[case] namespace: &str) {
    let namespace = &namespace[..namespace.len().min(63)];
    let values =
        ["metrics.service.enabled=true", "metrics.serviceMonitor.enabled=true", "podDisruptionBudget.enabled=true"];
    let yaml = try_helm_template_as(release, namespace, &values).unwrap();
    kubeconform(&yaml).unwrap_or_else(|error| panic!("{release}: {error}"));
    for (name, object) in objects(&yaml) {
        let metadata = &object["metadata"];
        let own = metadata["name"].as_str().unwrap_or_else(|| panic!("{name}: {metadata}"));
        assert!(own.len() <= 63 || own.contains('.'), "{own}");
        assert!(metadata["namespace"].is_null() || metadata["namespace"] == *namespace, "{name}: {metadata}");
        for value in metadata["labels"].as_object().unwrap().values() {
            assert!(value.as_str().is_some_and(|value| value.len() <= 63), "{name}: {metadata}");
        }
    }
}

#[test]
fn the_same_values_render_the_same_text_without_a_cluster() {
    assert_eq!(helm_template(EVERYTHING), helm_template(EVERYTHING));
    for file in fs::read_dir(root().join("charts/dra-operator/templates")).unwrap() {
        let file = file.unwrap().path();
        let text = fs::read_to_string(&file).unwrap();
        for word in ["lookup", "rand", "uuidv4", "now ", "genCA", "helm.sh/hook"] {
            assert!(
                !text.contains(word),
                "{}: {word:?} has no place in a chart that GitOps tools render",
                file.display()
            );
        }
    }
}

#[test]
fn the_charts_readme_lists_every_value() {
    let read = |file: &str| fs::read_to_string(root().join("charts/dra-operator").join(file)).unwrap();
    let values: Value = serde_saphyr::from_str(&read("values.yaml")).unwrap();
    let mut names = BTreeSet::new();
    leaves("", &values, &mut names);
    let readme = read("README.md");
    let missing: Vec<_> = names.iter().filter(|name| !readme.contains(&format!("`{name}`"))).collect();
    assert!(missing.is_empty(), "charts/dra-operator/README.md lacks {missing:?}");
}

/// The names of values as an admin sets them. `resources` counts as one, because Kubernetes defines its content.
fn leaves(name: &str, value: &Value, names: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) if !fields.is_empty() && name != "resources" => {
            for (key, value) in fields {
                leaves(&if name.is_empty() { key.clone() } else { format!("{name}.{key}") }, value, names);
            }
        }
        _ => {
            names.insert(name.to_owned());
        }
    }
}

#[test]
fn values_for_a_parent_chart_are_accepted_and_change_nothing() {
    assert_eq!(helm_template(&["enabled=true", "global.imageRegistry=other"]), helm_template(&[]));
}

#[test]
fn the_controller_runs_on_linux_unless_the_admin_selects_otherwise() {
    let selector = |values: &[&str]| {
        objects(&helm_template(values))["Deployment dra-operator/dra-operator"]["spec"]["template"]["spec"]["nodeSelector"].clone()
    };
    assert_eq!(selector(&[]), json!({"kubernetes.io/os": "linux"}));
    assert_eq!(selector(&["nodeSelector.pool=infra"]), json!({"kubernetes.io/os": "linux", "pool": "infra"}));
}
