//! Whether a live object matches the desired one. Pure.
//!
//! The desired object is a subset of the live one: the API server adds defaults, and others add fields of their own.
//! Neither is drift, but a desired field that is missing or different is. Lists and maps are compared as the API server
//! merges them: element by element if they have keys, otherwise as a whole. An addition to a list or map that is
//! compared as a whole is drift too, and so is one that changes the meaning of the object, such as a selector that
//! disables an admission policy.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use serde_json::{Map, Value};

use crate::{controller::child::ChildKind, slices::quantity};

/// Lists in our objects that the API server merges by key, each given as the suffix of its path without indexes. It replaces all other
/// lists as a whole.
const MERGED: [(&str, &str); 12] = [
    (".containers", "name"),
    (".containers.env", "name"),
    (".containers.ports", "containerPort"),
    (".containers.volumeMounts", "mountPath"),
    (".imagePullSecrets", "name"),
    (".initContainers", "name"),
    (".initContainers.env", "name"),
    (".initContainers.volumeMounts", "mountPath"),
    (".spec.matchConditions", "name"),
    (".metadata.ownerReferences", "uid"),
    (".spec.variables", "name"),
    (".spec.volumes", "name"),
];

/// Maps that the API server replaces as a whole, so that a foreign key is drift.
const ATOMIC_MAPS: [&str; 2] = [".nodeSelector", ".matchLabels"];

/// Defaults that the API server adds to elements of lists that only we write.
const DEFAULTS: [(&str, &str); 1] = [("scope", "*")];

/// The path of the first field in `desired` that is missing or different in `live`.
pub fn first_difference(desired: &Value, live: &Value) -> Option<String> {
    difference(desired, live, "", "", false)
}

/// The path of the first added field that changes the meaning of the object. An apply does not remove it, because
/// another field manager owns it.
pub fn first_intrusion(kind: ChildKind, desired: &Value, live: &Value) -> Option<String> {
    let decisive: &[&str] = match kind {
        // If this is set, another controller writes the rules.
        ChildKind::ClusterRole => &["/aggregationRule"],
        ChildKind::ValidatingAdmissionPolicy => &[
            "/spec/matchConditions",
            "/spec/matchConstraints/excludeResourceRules",
            "/spec/matchConstraints/namespaceSelector",
            "/spec/matchConstraints/objectSelector",
            "/spec/paramKind",
        ],
        ChildKind::ValidatingAdmissionPolicyBinding => &["/spec/matchResources", "/spec/paramRef"],
        ChildKind::DeviceClass => &["/spec/config", "/spec/extendedResourceName", "/spec/selectors"],
        ChildKind::ServiceAccount | ChildKind::ClusterRoleBinding | ChildKind::DaemonSet => &[],
    };
    let is_added = |path: &&&str| {
        let Some(live) = live.pointer(path) else { return false };
        match (desired.pointer(path), live) {
            (None, live) => !is_empty(live),
            (Some(Value::Array(desired)), Value::Array(live)) => live.len() > desired.len(),
            _ => false,
        }
    };
    decisive.iter().find(is_added).map(|path| path.replace('/', "."))
}

/// `field` is the path without indexes; `whole` is set within what the API server replaces as a whole.
fn difference(desired: &Value, live: &Value, field: &str, path: &str, whole: bool) -> Option<String> {
    let differs = || Some(if path.is_empty() { "(object)".to_owned() } else { path.to_owned() });
    match (desired, live) {
        (Value::Object(desired), Value::Object(live)) => {
            let is_atomic = ATOMIC_MAPS.iter().any(|map| field.ends_with(map));
            object_difference(desired, live, field, path, whole || is_atomic)
        }
        (Value::Array(desired), Value::Array(live)) => list_difference(desired, live, field, path),
        // The API server omits empty values.
        (empty, Value::Null) if is_empty(empty) => None,
        _ if desired == live || same_quantity(path, desired, live) => None,
        _ => differs(),
    }
}

fn object_difference(
    desired: &Map<String, Value>,
    live: &Map<String, Value>,
    field: &str,
    path: &str,
    whole: bool,
) -> Option<String> {
    let is_ours = |key: &String, value: &Value| {
        desired.contains_key(key) || is_empty(value) || DEFAULTS.contains(&(key.as_str(), value.as_str().unwrap_or("")))
    };
    let added =
        || live.iter().find(|(key, value)| whole && !is_ours(key, value)).map(|(key, _)| format!("{path}.{key}"));
    desired
        .iter()
        .find_map(|(key, value)| {
            let live = live.get(key).unwrap_or(&Value::Null);
            difference(value, live, &format!("{field}.{key}"), &format!("{path}.{key}"), whole)
        })
        .or_else(added)
}

fn list_difference(desired: &[Value], live: &[Value], field: &str, path: &str) -> Option<String> {
    match MERGED.iter().find(|(list, _)| field.ends_with(list)) {
        Some((_, key)) => desired.iter().find_map(|item| {
            let path = format!("{path}[{key}={}]", item[*key]);
            match live.iter().find(|other| other.get(key) == item.get(key)) {
                Some(other) => difference(item, other, field, &path, false),
                None => Some(path),
            }
        }),
        None if desired.len() != live.len() => Some(path.to_owned()),
        None => {
            desired.iter().zip(live).enumerate().find_map(|(index, (desired, live))| {
                difference(desired, live, field, &format!("{path}[{index}]"), true)
            })
        }
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(items) => items.is_empty(),
        Value::Object(map) => map.is_empty(),
        _ => false,
    }
}

/// Whether two values under `requests` or `limits` are the same quantity: the API server writes `0.5` as `500m`.
fn same_quantity(path: &str, desired: &Value, live: &Value) -> bool {
    let amount = |value: &Value| match value {
        Value::String(text) => Some(Quantity(text.clone())),
        Value::Number(number) => Some(Quantity(number.to_string())),
        _ => None,
    };
    (path.contains(".limits.") || path.contains(".requests."))
        && amount(desired).zip(amount(live)).is_some_and(|(desired, live)| quantity::same(&desired, &live))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn additions_by_the_api_server_are_not_drift() {
        let desired = json!({"spec": {"containers": [{"name": "a", "image": "x", "env": []}], "tolerations": [{"operator": "Exists"}]}});
        let live = json!({"spec": {
            "containers": [{"name": "a", "image": "x", "terminationMessagePath": "/dev/termination-log"}],
            "tolerations": [{"operator": "Exists"}], "dnsPolicy": "ClusterFirst",
        }, "status": {}});
        assert_eq!(first_difference(&desired, &live), None);
    }

    #[test]
    fn a_changed_field_is_named_by_its_path() {
        let desired = json!({"spec": {"containers": [{"name": "a", "image": "x", "args": ["p", "q"]}], "nodeSelector": {"k": "v"}}});
        for (path, value, named) in [
            ("/spec/containers/0/image", json!("y"), ".spec.containers[name=\"a\"].image"),
            ("/spec/containers/0/name", json!("b"), ".spec.containers[name=\"a\"]"),
            ("/spec/containers/0/args", json!(["p"]), ".spec.containers[name=\"a\"].args"),
            ("/spec/containers/0/args/1", json!("r"), ".spec.containers[name=\"a\"].args[1]"),
            ("/spec/nodeSelector", json!({"k": "v", "l": "w"}), ".spec.nodeSelector.l"),
            ("/spec/containers", json!(null), ".spec.containers"),
        ] {
            let mut live = desired.clone();
            *live.pointer_mut(path).unwrap() = value;
            assert_eq!(first_difference(&desired, &live).as_deref(), Some(named));
        }
    }

    #[test]
    fn a_foreign_element_in_a_merged_list_is_not_drift() {
        let container = |env: Value| json!({"containers": [{"name": "a", "env": env}]});
        let desired = container(json!([{"name": "A", "value": "1"}]));
        let live = container(json!([{"name": "B", "value": "2"}, {"name": "A", "value": "1"}]));
        assert_eq!(first_difference(&desired, &live), None);
        // A list of the same name elsewhere is replaced as a whole.
        let rule = |ports: Value| json!({"spec": {"ingress": [{"ports": ports}]}});
        let (desired, live) = (rule(json!([{"port": 1}])), rule(json!([{"port": 1}, {"port": 2}])));
        assert_eq!(first_difference(&desired, &live).as_deref(), Some(".spec.ingress[0].ports"));
    }

    #[test]
    fn an_element_added_to_a_list_that_is_replaced_as_a_whole_is_drift() {
        let account = json!({"kind": "ServiceAccount", "name": "plugin"});
        let desired = json!({"subjects": [account]});
        let live = json!({"subjects": [account, {"kind": "User", "name": "eve"}]});
        assert_eq!(first_difference(&desired, &live).as_deref(), Some(".subjects"));
        let rule = json!({"verbs": ["get"], "resources": ["nodes"]});
        let mut narrowed = rule.clone();
        narrowed["resourceNames"] = json!(["n"]);
        let path = first_difference(&json!({"rules": [rule]}), &json!({"rules": [narrowed]}));
        assert_eq!(path.as_deref(), Some(".rules[0].resourceNames"));
        let mut defaulted = rule.clone();
        defaulted["scope"] = json!("*");
        assert_eq!(first_difference(&json!({"resourceRules": [rule]}), &json!({"resourceRules": [defaulted]})), None);
    }

    #[test]
    fn an_addition_that_changes_the_meaning_of_an_object_is_named() {
        let condition = json!({"name": "ours", "expression": "true"});
        let policy = json!({"spec": {"matchConstraints": {"resourceRules": []}, "matchConditions": [condition]}});
        let class = json!({"spec": {}});
        for (kind, desired, path, value) in [
            (ChildKind::ClusterRole, json!({"rules": []}), "aggregationRule", json!({"clusterRoleSelectors": []})),
            (
                ChildKind::ValidatingAdmissionPolicy,
                policy.clone(),
                "spec.matchConditions",
                json!([condition, {"name": "b", "expression": "false"}]),
            ),
            (
                ChildKind::ValidatingAdmissionPolicy,
                policy.clone(),
                "spec.matchConstraints.objectSelector",
                json!({"matchLabels": {"a": "b"}}),
            ),
            (
                ChildKind::ValidatingAdmissionPolicyBinding,
                class.clone(),
                "spec.matchResources",
                json!({"namespaceSelector": {}}),
            ),
            (ChildKind::DeviceClass, class.clone(), "spec.selectors", json!([{"cel": {"expression": "false"}}])),
        ] {
            let mut live = desired.clone();
            let field = path.split('.').fold(&mut live, |live, key| &mut live[key]);
            *field = value;
            assert_eq!(first_intrusion(kind, &desired, &live), Some(format!(".{path}")));
            assert_eq!(first_intrusion(kind, &desired, &desired), None);
        }
        let mut defaulted = policy.clone();
        defaulted["spec"]["matchConstraints"]["objectSelector"] = json!({});
        assert_eq!(first_intrusion(ChildKind::ValidatingAdmissionPolicy, &policy, &defaulted), None);
    }

    #[test]
    fn quantities_are_compared_as_quantities_and_only_under_requests_and_limits() {
        let of = |path: &str, value: &str| json!({path: {"limits": {"cpu": value}}});
        for (desired, live, same) in
            [("0.5", "500m", true), ("1000m", "1", true), ("1Gi", "1024Mi", true), ("2", "1", false), ("x", "y", false)]
        {
            assert_eq!(
                first_difference(&of("resources", desired), &of("resources", live)).is_none(),
                same,
                "{desired} {live}"
            );
        }
        assert!(first_difference(&json!({"args": ["1"]}), &json!({"args": ["1000m"]})).is_some());
    }
}
