//! Whether a live object is what was asked for. Pure.
//!
//! Asked for is a part of what is live: the API server adds defaults and others add fields of their own, and neither is
//! drift. What was asked for and is missing or different is, also inside lists, whose elements are paired as the API
//! server pairs them when it merges.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use serde_json::{Map, Value};

use crate::slices::quantity;

/// Fields by which elements of the lists we write are paired; without any of them a list is compared in order.
const MERGE_KEYS: [&str; 3] = ["name", "mountPath", "containerPort"];

/// Maps that the API server takes as a whole: a foreign key in one is drift.
const ATOMIC_MAPS: [&str; 2] = ["nodeSelector", "matchLabels"];

/// The path of the first field in `desired` that is not so in `live`; none when all is well.
pub fn first_difference(desired: &Value, live: &Value) -> Option<String> {
    difference(desired, live, "", "")
}

fn difference(desired: &Value, live: &Value, key: &str, path: &str) -> Option<String> {
    let differs = || Some(if path.is_empty() { "(object)".to_owned() } else { path.to_owned() });
    match (desired, live) {
        (Value::Object(desired), Value::Object(live)) => {
            if ATOMIC_MAPS.contains(&key) && desired.len() != live.len() {
                return differs();
            }
            object_difference(desired, live, path)
        }
        (Value::Array(desired), Value::Array(live)) => list_difference(desired, live, path),
        // The API server leaves out what is empty.
        (empty, Value::Null) if is_empty(empty) => None,
        _ if desired == live || same_quantity(path, desired, live) => None,
        _ => differs(),
    }
}

fn object_difference(desired: &Map<String, Value>, live: &Map<String, Value>, path: &str) -> Option<String> {
    desired.iter().find_map(|(key, value)| {
        difference(value, live.get(key).unwrap_or(&Value::Null), key, &format!("{path}.{key}"))
    })
}

fn list_difference(desired: &[Value], live: &[Value], path: &str) -> Option<String> {
    let key = MERGE_KEYS.iter().find(|key| !desired.is_empty() && desired.iter().all(|item| item.get(key).is_some()));
    match key {
        Some(key) => desired.iter().find_map(|item| {
            let path = format!("{path}[{key}={}]", item[*key]);
            match live.iter().find(|other| other.get(key) == item.get(key)) {
                Some(other) => difference(item, other, "", &path),
                None => Some(path),
            }
        }),
        None if desired.len() != live.len() => Some(path.to_owned()),
        None => desired
            .iter()
            .zip(live)
            .enumerate()
            .find_map(|(index, (desired, live))| difference(desired, live, "", &format!("{path}[{index}]"))),
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

/// Whether two texts are the same amount under `requests` or `limits`: the API server writes `0.5` as `500m`.
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
    fn what_the_api_server_adds_is_no_drift() {
        let desired = json!({"spec": {"containers": [{"name": "a", "image": "x", "env": []}], "tolerations": [{"operator": "Exists"}]}});
        let live = json!({"spec": {
            "containers": [{"name": "a", "image": "x", "terminationMessagePath": "/dev/termination-log"}],
            "tolerations": [{"operator": "Exists"}], "dnsPolicy": "ClusterFirst",
        }, "status": {}});
        assert_eq!(first_difference(&desired, &live), None);
    }

    #[test]
    fn what_somebody_changed_is_named_by_its_path() {
        let desired = json!({"spec": {"containers": [{"name": "a", "image": "x", "args": ["p", "q"]}], "nodeSelector": {"k": "v"}}});
        for (path, value, named) in [
            ("/spec/containers/0/image", json!("y"), ".spec.containers[name=\"a\"].image"),
            ("/spec/containers/0/name", json!("b"), ".spec.containers[name=\"a\"]"),
            ("/spec/containers/0/args", json!(["p"]), ".spec.containers[name=\"a\"].args"),
            ("/spec/containers/0/args/1", json!("r"), ".spec.containers[name=\"a\"].args[1]"),
            ("/spec/nodeSelector", json!({"k": "v", "l": "w"}), ".spec.nodeSelector"),
            ("/spec/containers", json!(null), ".spec.containers"),
        ] {
            let mut live = desired.clone();
            *live.pointer_mut(path).unwrap() = value;
            assert_eq!(first_difference(&desired, &live).as_deref(), Some(named));
        }
    }

    #[test]
    fn an_added_element_of_a_merged_list_is_the_others_own() {
        let desired = json!({"env": [{"name": "A", "value": "1"}]});
        let live = json!({"env": [{"name": "B", "value": "2"}, {"name": "A", "value": "1"}]});
        assert_eq!(first_difference(&desired, &live), None);
    }

    #[test]
    fn amounts_are_compared_as_amounts_and_only_where_amounts_are() {
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
