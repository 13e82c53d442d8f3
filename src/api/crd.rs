//! The CustomResourceDefinition to install. Pure.
//!
//! Derived from the types, then corrected where the derive falls short: nothing is nullable (the API server prunes a
//! `cpu:` without a value, and the rule for the union says what to write), enums do not list null, and the status of a
//! new object says that the controller has not seen it yet.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;
use serde_json::{Value, json};

use super::DraDriverConfig;

/// Label on everything that belongs to the project, as in the chart.
const LABELS: [(&str, &str); 1] = [("app.kubernetes.io/name", "dra-operator")];

/// The CustomResourceDefinition of `DraDriverConfig`.
pub fn crd() -> CustomResourceDefinition {
    let mut crd = DraDriverConfig::crd();
    crd.metadata.labels = Some(LABELS.iter().map(|&(key, value)| (key.into(), value.into())).collect());
    for version in &mut crd.spec.versions {
        let Some(schema) = version.schema.as_mut().and_then(|schema| schema.open_api_v3_schema.as_mut()) else {
            continue;
        };
        // Converts JSON to the typed form and back. If either failed, the drift test would catch it.
        let Ok(mut value) = serde_json::to_value(&*schema) else { continue };
        correct(&mut value);
        if let Some(status) = value.pointer_mut("/properties/status").and_then(Value::as_object_mut) {
            status.insert("default".into(), json!({"observedGeneration": -1}));
        }
        if let Ok(typed) = serde_json::from_value(value) {
            *schema = typed;
        }
    }
    crd
}

/// The schema of the object, for validation without an API server.
pub fn schema() -> Value {
    crd()
        .spec
        .versions
        .into_iter()
        .find_map(|version| version.schema?.open_api_v3_schema)
        .and_then(|schema| serde_json::to_value(schema).ok())
        .unwrap_or_default()
}

fn correct(schema: &mut Value) {
    match schema {
        Value::Object(map) => {
            if map.get("nullable").is_some_and(Value::is_boolean) {
                map.remove("nullable");
            }
            if let Some(Value::Array(values)) = map.get_mut("enum") {
                values.retain(|value| !value.is_null());
            }
            if map.get("x-kubernetes-int-or-string") == Some(&Value::Bool(true)) {
                // These are implied, and the derive leaves them empty.
                map.remove("anyOf");
            }
            map.values_mut().for_each(correct);
        }
        Value::Array(items) => items.iter_mut().for_each(correct),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_object_differs_from_one_that_the_controller_has_seen() {
        assert_eq!(schema().pointer("/properties/status/default/observedGeneration"), Some(&json!(-1)));
    }

    /// Tools that compare objects with git do not expect defaults. Only one is necessary: see [`CpuSpec::granularity`].
    ///
    /// [`CpuSpec::granularity`]: crate::api::CpuSpec::granularity
    #[test]
    fn no_optional_field_of_the_spec_has_a_default_except_the_one_that_keeps_cpu_from_being_empty() {
        fn walk(path: &str, value: &Value, found: &mut Vec<String>) {
            match value {
                Value::Object(map) => {
                    for (key, value) in map {
                        if key == "default" {
                            found.push(path.to_owned());
                        }
                        walk(&format!("{path}/{key}"), value, found);
                    }
                }
                Value::Array(items) => items.iter().for_each(|item| walk(path, item, found)),
                _ => {}
            }
        }
        let mut found = Vec::new();
        walk("", schema().pointer("/properties/spec").unwrap(), &mut found);
        assert_eq!(found, ["/properties/driver/properties/cpu/properties/granularity"]);
    }

    /// `kubectl explain` shows neither what an enum value means nor a default that is not in the schema, so
    /// descriptions must say both. A field without a schema default shows the description of the enum type, not its
    /// own.
    #[test]
    fn every_enum_description_lists_the_values_and_the_default() {
        fn walk(path: &str, value: &Value, choices: &mut usize) {
            if let (Some(Value::Array(values)), Some(Value::String(text))) =
                (value.get("enum"), value.get("description"))
            {
                *choices += 1;
                for value in values {
                    let value = value.as_str().unwrap();
                    assert!(text.contains(&format!("`{value}`")), "{path} does not say {value}: {text}");
                }
                let required = path.ends_with("/operator");
                let said = value.get("default").is_some() || text.contains("default");
                assert!(required || said, "{path} does not say the default: {text}");
            }
            match value {
                Value::Object(map) => {
                    map.iter().for_each(|(key, value)| walk(&format!("{path}/{key}"), value, choices));
                }
                Value::Array(items) => items.iter().for_each(|item| walk(path, item, choices)),
                _ => {}
            }
        }
        let mut choices = 0;
        walk("", schema().pointer("/properties/spec").unwrap(), &mut choices);
        assert!(choices >= 8, "{choices}");
    }

    #[test]
    fn nothing_is_nullable_and_no_enum_has_null() {
        let text = schema().to_string();
        assert!(!text.contains("nullable") && !text.contains(",null]"), "{text}");
    }

    #[test]
    fn every_rule_compiles_and_has_a_message() {
        fn walk(value: &Value, rules: &mut usize) {
            if let Some(Value::Array(validations)) = value.get("x-kubernetes-validations") {
                for validation in validations {
                    *rules += 1;
                    let rule = validation["rule"].as_str().unwrap();
                    assert!(validation["message"].as_str().is_some_and(|m| m.len() > 20), "{rule}");
                    assert!(kube_cel::cel::Program::compile(rule).is_ok(), "{rule}");
                }
            }
            match value {
                Value::Object(map) => map.values().for_each(|value| walk(value, rules)),
                Value::Array(items) => items.iter().for_each(|item| walk(item, rules)),
                _ => {}
            }
        }
        let mut rules = 0;
        walk(&schema(), &mut rules);
        assert!(rules > 15, "{rules}");
    }

    #[test]
    fn the_file_in_crds_is_generated_from_the_types() {
        let file = include_str!("../../crds/dradriverconfigs.dra-operator.dev.yaml");
        let text = serde_saphyr::to_string(&crd()).unwrap();
        assert!(
            file == text,
            "crds/ differs from the types: run `make generate`, or `dra-operator crd > crds/dradriverconfigs.dra-operator.dev.yaml`"
        );
    }
}
