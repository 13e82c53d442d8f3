//! JSON schemas for kubeconform, generated from the OpenAPI document in the source of Kubernetes and from the CRD, so
//! that nothing is downloaded. They are strict: an unknown field is an error. IO: reads both, writes target/schemas.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    sync::OnceLock,
};

use serde_json::{Map, Value, json};

use super::tools::{go_module, root};

/// The directory with a schema for each kind. Written once.
pub(crate) fn directory() -> &'static Path {
    static DIRECTORY: OnceLock<PathBuf> = OnceLock::new();
    DIRECTORY.get_or_init(|| {
        let directory = root().join("target/schemas");
        fs::create_dir_all(&directory).unwrap();
        write_kubernetes(&directory);
        write_crds(&directory);
        directory
    })
}

/// The file's name as kubeconform looks for it: kind, first word of the group, version.
fn file_name(group: &str, version: &str, kind: &str) -> String {
    let group = group.split('.').next().filter(|group| !group.is_empty());
    let words = [Some(kind), group, Some(version)];
    words.into_iter().flatten().map(str::to_lowercase).collect::<Vec<_>>().join("-") + ".json"
}

fn write_kubernetes(directory: &Path) {
    let file = go_module("k8s.io/kubernetes").join("api/openapi-spec/swagger.json");
    let text = fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    let mut document: Value = serde_json::from_str(&text).unwrap();
    let mut definitions: BTreeMap<String, Value> = serde_json::from_value(document["definitions"].take()).unwrap();
    definitions.values_mut().for_each(strict);
    // Both may also be numbers, which the document does not say.
    definitions.insert("io.k8s.apimachinery.pkg.api.resource.Quantity".into(), json!({"type": ["string", "number"]}));
    definitions
        .insert("io.k8s.apimachinery.pkg.util.intstr.IntOrString".into(), json!({"type": ["string", "integer"]}));

    for (name, definition) in &definitions {
        // A definition with several is a kind such as DeleteOptions, which is not an object.
        let Some([kind]) = definition["x-kubernetes-group-version-kind"].as_array().map(Vec::as_slice) else {
            continue;
        };
        let text = |key: &str| kind[key].as_str().unwrap();
        let mut needed = Map::new();
        collect(name, &definitions, &mut needed);
        let schema = json!({"$ref": format!("#/definitions/{name}"), "definitions": needed});
        let file = file_name(text("group"), text("version"), text("kind"));
        fs::write(directory.join(file), serde_json::to_string(&schema).unwrap()).unwrap();
    }
}

/// A definition and everything it refers to.
fn collect(name: &str, definitions: &BTreeMap<String, Value>, needed: &mut Map<String, Value>) {
    if needed.contains_key(name) {
        return;
    }
    needed.insert(name.to_owned(), definitions[name].clone());
    let mut pending = vec![&definitions[name]];
    while let Some(value) = pending.pop() {
        match value {
            Value::Object(fields) => {
                if let Some(name) = fields.get("$ref").and_then(Value::as_str) {
                    collect(name.trim_start_matches("#/definitions/"), definitions, needed);
                }
                pending.extend(fields.values());
            }
            Value::Array(items) => pending.extend(items),
            _ => {}
        }
    }
}

fn write_crds(directory: &Path) {
    for file in fs::read_dir(root().join("crds")).unwrap() {
        let text = fs::read_to_string(file.unwrap().path()).unwrap();
        let crd: Value = serde_saphyr::from_str(&text).unwrap();
        if crd["kind"] != "CustomResourceDefinition" {
            continue;
        }
        for version in crd["spec"]["versions"].as_array().unwrap() {
            let mut schema = version["schema"]["openAPIV3Schema"].clone();
            for field in ["apiVersion", "kind"] {
                schema["properties"][field] = json!({"type": "string"});
            }
            schema["properties"]["metadata"] = json!({"type": "object"});
            strict(&mut schema);
            // Strict except for metadata, which has fields of its own.
            schema["properties"]["metadata"] = json!({"type": "object"});
            let text = |value: &Value| value.as_str().unwrap().to_owned();
            let (group, kind) = (text(&crd["spec"]["group"]), text(&crd["spec"]["names"]["kind"]));
            let file = file_name(&group, &text(&version["name"]), &kind);
            fs::write(directory.join(file), serde_json::to_string(&schema).unwrap()).unwrap();
        }
    }
}

/// Forbids other fields in every object whose fields are known.
fn strict(schema: &mut Value) {
    match schema {
        Value::Object(fields) => {
            let preserves = fields.contains_key("x-kubernetes-preserve-unknown-fields");
            if fields.get("properties").is_some_and(Value::is_object) && !preserves {
                fields.entry("additionalProperties").or_insert(Value::Bool(false));
            }
            fields.values_mut().for_each(strict);
        }
        Value::Array(items) => items.iter_mut().for_each(strict),
        _ => {}
    }
}
