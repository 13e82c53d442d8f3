//! Parses Kubernetes types strictly, so that no field is silently ignored. Pure.
//!
//! The schema leaves them open (`x-kubernetes-preserve-unknown-fields`). The API server therefore accepts a misspelt
//! field without a warning, and deserializing would drop it silently.

use schemars::{JsonSchema, generate::SchemaSettings};
use serde::{Deserialize, Deserializer, de::Error};
use serde_ignored::Path;
use serde_json::{Map, Value};

use super::check;

/// Parses the value of a field. An error begins with the path of the offending field.
pub(super) fn read<'de, T, D>(field: &str, deserializer: D) -> Result<T, D::Error>
where
    T: Deserialize<'de> + JsonSchema,
    D: Deserializer<'de>,
{
    let mut unknown = Vec::new();
    let read = serde_ignored::deserialize(deserializer, |path| unknown.push(described::<T>(field, &path)));
    let value = read.map_err(|error| D::Error::custom(format!("{field}: {error}")))?;

    if unknown.is_empty() {
        return Ok(value);
    }
    Err(D::Error::custom(unknown.join("; ")))
}

/// Describes an unknown field of `T`, with its path below `field`.
fn described<T: JsonSchema>(field: &str, path: &Path<'_>) -> String {
    let schema = SchemaSettings::draft07().into_generator().into_root_schema_for::<T>().to_value();
    let message = match path {
        Path::Map { parent, key } => properties(&schema, parent).map(|known| check::unknown(key, known)),
        _ => None,
    };
    format!("{field}{}: {}", below(path), message.unwrap_or_else(|| "unknown field".into()))
}

/// The fields that the schema `root` has at `path`; `None` if it leaves them open.
fn properties<'a>(root: &'a Value, path: &Path<'_>) -> Option<&'a Map<String, Value>> {
    schema_at(root, path)?.get("properties")?.as_object()
}

fn schema_at<'a>(root: &'a Value, path: &Path<'_>) -> Option<&'a Value> {
    let found = match path {
        Path::Root => root,
        Path::Seq { parent, .. } => schema_at(root, parent)?.get("items")?,
        Path::Map { parent, key } => {
            let schema = schema_at(root, parent)?;
            schema.get("properties").and_then(|known| known.get(key)).or_else(|| schema.get("additionalProperties"))?
        }
        Path::Some { parent } | Path::NewtypeStruct { parent } | Path::NewtypeVariant { parent } => {
            schema_at(root, parent)?
        }
    };
    Some(resolved(root, found))
}

/// Follows references, and skips the "or null" alternative of an optional field.
fn resolved<'a>(root: &'a Value, schema: &'a Value) -> &'a Value {
    let reference = schema.get("$ref").and_then(Value::as_str).and_then(|path| root.pointer(path.strip_prefix('#')?));
    let alternatives = ["anyOf", "allOf"].into_iter().filter_map(|of| schema.get(of)?.as_array()).flatten();
    let behind = reference.or_else(|| alternatives.into_iter().find(|one| one.get("type") != Some(&"null".into())));
    behind.map_or(schema, |behind| resolved(root, behind))
}

/// A path below a field, as the API server writes it.
fn below(path: &Path<'_>) -> String {
    match path {
        Path::Root => String::new(),
        Path::Seq { parent, index } => format!("{}[{index}]", below(parent)),
        Path::Map { parent, key } => format!("{}.{key}", below(parent)),
        Path::Some { parent } | Path::NewtypeStruct { parent } | Path::NewtypeVariant { parent } => below(parent),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use crate::api::DraDriverConfigSpec;

    fn error(node_plugin: &Value, config: &Value) -> String {
        let spec = json!({"driver": {"cpu": {}}, "nodePlugin": node_plugin, "deviceClasses": [{"name": "a", "config": config}]});
        serde_json::from_value::<DraDriverConfigSpec>(spec).map_or_else(|error| error.to_string(), |_| "none".into())
    }

    #[test]
    fn an_unknown_field_is_reported_with_its_path() {
        let term = json!({"matchExpresions": []});
        for (node_plugin, config, wanted) in [
            (
                json!({"affinity": {"nodeAffinty": {}}}),
                json!([]),
                "spec.nodePlugin.affinity.nodeAffinty: unknown field; did you mean nodeAffinity?",
            ),
            (
                json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}}}),
                json!([]),
                "spec.nodePlugin.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0].matchExpresions: unknown field; did you mean matchExpressions?",
            ),
            (
                json!({"resources": {"limit": {}}}),
                json!([]),
                "spec.nodePlugin.resources.limit: unknown field; did you mean limits?",
            ),
            (
                json!({"affinity": {"near": "here", "far": 1}}),
                json!([]),
                "spec.nodePlugin.affinity.far: unknown field; known fields: nodeAffinity, podAffinity, podAntiAffinity; spec.nodePlugin.affinity.near: unknown field",
            ),
            (
                json!({}),
                json!([{"opaque": {"driver": "d", "parameter": {}}}]),
                "spec.deviceClasses[].config[0].opaque.parameter: unknown field; did you mean parameters?",
            ),
            (
                json!({"affinity": {"nodeAffinity": "here"}}),
                json!([]),
                "spec.nodePlugin.affinity: invalid type: string \"here\"",
            ),
        ] {
            let found = error(&node_plugin, &config);
            assert!(found.contains(wanted), "{found}");
        }
    }

    #[test]
    fn open_maps_and_nulls_are_accepted() {
        let affinity = json!({"nodeAffinity": null, "podAntiAffinity": {}});
        let parameters = json!({"apiVersion": "x/v1", "anything": {"goes": null}});
        let node_plugin = json!({"affinity": affinity, "resources": {"limits": {"example.com/x": 1}}});
        assert_eq!(error(&node_plugin, &json!([{"opaque": {"driver": "d", "parameters": parameters}}])), "none");
        assert_eq!(error(&json!({"affinity": null}), &json!([])), "none");
    }
}
