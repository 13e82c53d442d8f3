//! Checks a document against the CRD without an API server, so that `render` rejects what `kubectl apply` would. Pure.
//!
//! The schema is the CRD's own, so the two cannot drift apart. Types, unknown fields, required fields, enums, lengths
//! and list keys are checked here; kube-cel evaluates the rules. The API server has the last word. An object that it
//! would accept but the controller could not parse is a fault as well.

use std::{collections::BTreeSet, fmt};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube_cel::Validator;
use serde_json::{Map, Value};

use super::{DraDriverConfig, strict};
use crate::suggest;

/// An error in a document, and where it is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Fault {
    /// Path of the field, such as `spec.deviceClasses[0].name`.
    pub path: String,
    /// What is wrong, and what to write.
    pub message: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // CEL rule messages already begin with the field, because the API server does not always name it.
        if self.message.starts_with(&self.path) {
            f.write_str(&self.message)
        } else {
            write!(f, "{}: {}", self.path, self.message)
        }
    }
}

/// Every fault in `document`, a whole `DraDriverConfig`; empty if the API server would accept it and the controller can
/// parse it.
pub fn check(document: &Value) -> Vec<Fault> {
    parse(document).err().unwrap_or_default()
}

/// Parses `document`, or returns everything that is wrong with it. As in the API server, rules are evaluated only if
/// the types are correct.
pub fn parse(document: &Value) -> Result<DraDriverConfig, Vec<Fault>> {
    let schema = super::schema();
    let document = without_nulls(&schema, document);
    let mut faults = Vec::new();
    walk(&schema, &document, "", &mut faults);
    faults.extend(metadata(&document).err());
    if faults.is_empty()
        && let Err(errors) = Validator::new().validate(&schema, &document, None)
    {
        faults.extend(
            errors.into_vec().into_iter().map(|error| Fault { path: error.field_path, message: error.message }),
        );
    }
    faults.sort();
    if !faults.is_empty() {
        return Err(faults);
    }
    // serde's message already contains the path.
    serde_json::from_value(document).map_err(|error| vec![Fault { path: String::new(), message: error.to_string() }])
}

/// Removes nulls, as the API server does before validation: nothing in the schema is nullable. Parts that preserve
/// unknown fields are left unchanged.
fn without_nulls(schema: &Value, value: &Value) -> Value {
    if schema.get("x-kubernetes-preserve-unknown-fields") == Some(&Value::Bool(true)) {
        return value.clone();
    }
    let none = Value::Null;
    match value {
        Value::Object(map) => {
            let properties = schema.get("properties");
            let below = |key: &str| properties.and_then(|known| known.get(key)).or(schema.get("additionalProperties"));
            Value::Object(
                map.iter()
                    .filter(|(_, value)| !value.is_null())
                    .map(|(key, value)| (key.clone(), without_nulls(below(key).unwrap_or(&none), value)))
                    .collect(),
            )
        }
        Value::Array(items) => {
            let below = schema.get("items").unwrap_or(&none);
            Value::Array(items.iter().map(|item| without_nulls(below, item)).collect())
        }
        other => other.clone(),
    }
}

/// Checks `metadata`, which the CRD's schema does not cover.
fn metadata(document: &Value) -> Result<(), Fault> {
    let metadata = document.get("metadata").cloned().unwrap_or_else(|| Value::Object(Map::new()));
    let read: Result<ObjectMeta, _> = strict::read("metadata", metadata);
    let metadata = read.map_err(|error| Fault { path: String::new(), message: error.to_string() })?;
    if metadata.name.is_none_or(|name| name.is_empty()) {
        return Err(Fault { path: "metadata.name".into(), message: "is required".into() });
    }
    Ok(())
}

fn walk(schema: &Value, value: &Value, path: &str, faults: &mut Vec<Fault>) {
    let mut fault = |message: String| faults.push(Fault { path: path.to_owned(), message });
    if let Some(expected) = mistyped(schema, value) {
        fault(format!("must be {expected}, not {}", described(value)));
        return;
    }
    if let Some(Value::Array(allowed)) = schema.get("enum")
        && !allowed.contains(value)
    {
        let allowed: Vec<_> = allowed.iter().filter_map(Value::as_str).collect();
        fault(format!("{value} is not supported: use one of {}", allowed.join(", ")));
    }
    let limit = |name: &str| schema.get(name).and_then(Value::as_u64);
    let (length, longest, what) = match value {
        Value::String(text) => (text.chars().count(), limit("maxLength"), "characters"),
        Value::Array(items) => (items.len(), limit("maxItems"), "items"),
        Value::Object(map) => (map.len(), limit("maxProperties"), "entries"),
        _ => (0, None, ""),
    };
    if let Some(longest) = longest
        && u64::try_from(length).is_ok_and(|length| length > longest)
    {
        fault(format!("has {length} {what}, but at most {longest} are allowed"));
    }
    if limit("minLength").is_some_and(|shortest| shortest > 0) && value.as_str() == Some("") {
        fault("must not be empty".into());
    }
    match value {
        Value::Object(map) => walk_object(schema, map, path, faults),
        Value::Array(items) => walk_list(schema, items, path, faults),
        _ => {}
    }
}

fn walk_object(schema: &Value, map: &Map<String, Value>, path: &str, faults: &mut Vec<Fault>) {
    let below = |key: &str| if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") };
    if schema.get("x-kubernetes-preserve-unknown-fields") == Some(&Value::Bool(true)) {
        return;
    }
    if let Some(additional) = schema.get("additionalProperties") {
        for (key, value) in map {
            walk(additional, value, &below(key), faults);
        }
        return;
    }
    let Some(properties) = schema.get("properties").and_then(Value::as_object) else {
        faults.extend(map.keys().map(|key| Fault { path: below(key), message: "unknown field".into() }));
        return;
    };
    for (key, value) in map {
        match properties.get(key) {
            Some(schema) => walk(schema, value, &below(key), faults),
            // Not in the schema: the API server checks these itself.
            None if path.is_empty() && ["apiVersion", "kind", "metadata"].contains(&key.as_str()) => {}
            None => faults.push(Fault { path: below(key), message: unknown(key, properties) }),
        }
    }
    for required in schema.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str) {
        if !map.contains_key(required) {
            faults.push(Fault { path: below(required), message: "is required".into() });
        }
    }
}

fn walk_list(schema: &Value, items: &[Value], path: &str, faults: &mut Vec<Fault>) {
    if let Some(schema) = schema.get("items") {
        for (index, item) in items.iter().enumerate() {
            walk(schema, item, &format!("{path}[{index}]"), faults);
        }
    }
    let Some(keys) = schema.get("x-kubernetes-list-map-keys").and_then(Value::as_array) else { return };
    let mut seen = BTreeSet::new();
    for (index, item) in items.iter().enumerate() {
        let values: Vec<_> = keys.iter().filter_map(|key| Some(item.get(key.as_str()?)?.to_string())).collect();
        if !seen.insert(values.clone()) {
            let message = format!("{} is used twice: give each entry its own", values.join(", "));
            faults.push(Fault { path: format!("{path}[{index}]"), message });
        }
    }
}

/// The message for a field that is not in `properties`.
pub(super) fn unknown(key: &str, properties: &Map<String, Value>) -> String {
    let known = || properties.keys().map(String::as_str);
    match suggest::closest(key, known()) {
        Some(known) => format!("unknown field; did you mean {known}?"),
        None => format!("unknown field; known fields: {}", known().collect::<Vec<_>>().join(", ")),
    }
}

/// The type that the schema expects, if `value` has a different one.
fn mistyped(schema: &Value, value: &Value) -> Option<&'static str> {
    if schema.get("x-kubernetes-int-or-string") == Some(&Value::Bool(true)) {
        return (!(value.is_i64() || value.is_string())).then_some("an integer or a string (in quotes)");
    }
    match schema.get("type").and_then(Value::as_str)? {
        "string" => (!value.is_string()).then_some("a string"),
        "integer" => (!value.is_i64()).then_some("an integer"),
        "boolean" => (!value.is_boolean()).then_some("true or false"),
        "array" => (!value.is_array()).then_some("a list"),
        "object" => (!value.is_object()).then_some("an object"),
        _ => None,
    }
}

fn described(value: &Value) -> String {
    match value {
        Value::Array(_) => "a list".into(),
        Value::Object(_) => "an object".into(),
        Value::String(text) => format!("the string {text:?}"),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// A valid object, changed in one place; null removes the field.
    fn faults(path: &str, value: Value) -> String {
        let mut document = json!({
            "apiVersion": "dra-operator.dev/v1alpha1", "kind": "DraDriverConfig", "metadata": {"name": "cpu"},
            "spec": {
                "driver": {"cpu": {}}, "driverName": "dra.cpu", "nodePlugin": {"updateStrategy": {}}, "health": {},
                "deviceClasses": [{"name": "a", "preset": "Intel", "matchAttributes": [{"key": "cores", "operator": "Gte", "value": 4}]}],
            },
        });
        let (parent, key) = path.rsplit_once('/').unwrap();
        document.pointer_mut(parent).unwrap()[key] = value;
        check(&document).iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn a_valid_object_has_no_fault() {
        for class in [
            json!({"name": "b", "matchCapacity": [{"key": "dra.cpu/cpu", "operator": "Gte", "value": "2"}]}),
            json!({"name": "b", "matchAttributes": [{"key": "turboBoost", "operator": "In", "values": ["true"]}]}),
            json!({"name": "b", "matchAttributes": [{"key": "firmware", "operator": "Gt", "value": "1.2.0"}]}),
            json!({"name": "b", "selectors": ["device.driver == \"dra.cpu\""], "config": [{"opaque": {"driver": "x"}}]}),
        ] {
            assert_eq!(faults("/spec/deviceClasses", json!([class])), "");
        }
        assert_eq!(faults("/spec/nodePlugin/updateStrategy/maxUnavailable", json!("10%")), "");
        assert_eq!(faults("/spec/driver/cpu/reservedCPUs", json!("0-1,8,10-11,9999")), "");
        let paths =
            json!({"kubeletRootDir": "/data/kubelet", "cdiDir": "/data/cdi", "nriSocket": "/data/cdi2/nri.sock"});
        assert_eq!(faults("/spec/nodePlugin", paths), "");
        for emptied in ["nodePlugin", "deviceClasses", "health", "driverName"] {
            assert_eq!(faults(&format!("/spec/{emptied}"), Value::Null), "", "the API server prunes it");
        }
    }

    #[test]
    fn every_fault_says_where_it_is_and_what_to_write() {
        for (path, value, wanted) in [
            ("/spec/nodeplugin", json!({}), "spec.nodeplugin: unknown field; did you mean nodePlugin?"),
            ("/spec/foo", json!(1), "spec.foo: unknown field; known fields: deletionPolicy, deviceClasses, driver,"),
            ("/spec/driver", json!(null), "spec.driver: is required"),
            ("/spec/driver/cpu", json!(null), "must have exactly one kind, such as `cpu: {}`"),
            ("/spec/driver/memory", json!({}), "must have exactly one kind"),
            ("/spec/driver", json!({"network": {}}), "only serves spec.driver.cpu"),
            ("/metadata/name", json!("a.b"), "must be a DNS label"),
            ("/metadata/name", json!(null), "metadata.name: is required"),
            ("/metadata/name", json!(5), "metadata: invalid type: integer"),
            ("/metadata/labels", json!({"a": 1}), "metadata: invalid type: integer"),
            ("/metadata/label", json!({}), "metadata.label: unknown field; did you mean labels?"),
            ("/spec/driverName", json!("DRA"), "must be a DNS subdomain"),
            ("/spec/driver/cpu/granularity", json!("core"), "use one of Core, Thread"),
            ("/spec/driver/cpu/reservedCPUs", json!("3-1"), "ascending ranges without spaces, such as 0-1,8"),
            ("/spec/driver/cpu/reservedCPUs", json!("0, 1"), "is not a CPU list"),
            ("/spec/driver/cpu/reservedCPUs", json!("0,65536"), "CPU numbers up to 9999"),
            ("/spec/nodePlugin/kubeletRootDir", json!("var/lib"), "must be an absolute path"),
            ("/spec/nodePlugin/cdiDir", json!("/var/../cdi"), "must be an absolute path"),
            ("/spec/nodePlugin/nriSocket", json!("/nri.sock"), "such as /var/run/nri/nri.sock"),
            (
                "/spec/nodePlugin",
                json!({"cdiDir": "/run/both", "nriSocket": "/run/both/nri.sock"}),
                "must not be in spec.nodePlugin.cdiDir",
            ),
            ("/spec/nodePlugin/cdiDir", json!("/var/run"), "must not be in spec.nodePlugin.cdiDir"),
            (
                "/spec/nodePlugin/cdiDir",
                json!("/var/lib/kubelet/plugins_registry"),
                "nodePlugin.cdiDir must not be inside the kubelet's",
            ),
            ("/spec/nodePlugin/cdiDir", json!("/var/lib"), "nodePlugin.cdiDir must not be inside the kubelet's"),
            (
                "/spec/nodePlugin",
                json!({"kubeletRootDir": "/k", "nriSocket": "/k/plugins/dra.cpu/nri.sock"}),
                "nodePlugin.nriSocket must not be inside the kubelet's",
            ),
            (
                "/spec/nodePlugin/affinity",
                json!({"nodeAffinty": {}}),
                "spec.nodePlugin.affinity.nodeAffinty: unknown field",
            ),
            ("/spec/nodePlugin/image", json!("my image"), "must be an image reference"),
            ("/spec/nodePlugin/labels", json!({"app.kubernetes.io/name": "x"}), "must not set app.kubernetes.io/name"),
            ("/spec/nodePlugin/updateStrategy/maxUnavailable", json!(0), "from 1 or a percentage"),
            ("/spec/nodePlugin/updateStrategy/maxUnavailable", json!(true), "must be an integer or a string"),
            ("/spec/health/publishDeadline", json!("1h"), "such as 60s or 5m"),
            ("/spec/deviceClasses", json!([{"name": ""}]), "must be a DNS subdomain"),
            ("/spec/deviceClasses", json!([{"name": "a"}]), "an empty policy would match every device"),
            ("/spec/deviceClasses", json!([{"preset": "Intel"}]), "spec.deviceClasses[0].name: is required"),
            (
                "/spec/deviceClasses",
                json!([{"name": "a", "preset": "Arm"}, {"name": "a", "preset": "Amd"}]),
                "\"a\" is used twice",
            ),
            ("/spec/deviceClasses/0/extendedResourceName", json!("cpu"), "must be domain/name"),
            ("/spec/deviceClasses/0/preset", json!("Fast"), "use one of HighPerformance"),
            ("/spec/deviceClasses/0/matchAttributes/0/operator", json!("Equals"), "use one of In, NotIn"),
            ("/spec/deviceClasses/0/matchAttributes/0/value", json!("many"), "compare numbers or versions"),
            ("/spec/deviceClasses/0/matchAttributes/0/value", json!(true), "must be an integer or a string"),
            ("/spec/deviceClasses/0/matchAttributes/0/values", json!([1]), "need a `value` and no `values`"),
            ("/spec/deviceClasses/0/matchAttributes/0/key", json!("a b"), "such as cores or cpu.intel.com/family"),
        ] {
            let found = faults(path, value.clone());
            assert!(found.contains(wanted), "{path} = {value}: {found:?}");
            for line in found.lines() {
                let (place, message) = line.split_once(' ').unwrap();
                let place = place.trim_end_matches(':');
                assert!(!message.contains(&format!("{place} ")), "the place is named twice: {line}");
            }
        }
    }
}
