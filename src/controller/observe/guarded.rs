//! A config as the API server has it, also one that no type can read: then as much of it as can be known. Pure.
//!
//! An unreadable object still has a plugin on its nodes, and must be able to go.

use std::borrow::Cow;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use serde::{
    Deserialize, Deserializer,
    de::{DeserializeOwned, Error as _},
};
use serde_json::Value;

use crate::api::{CpuSpec, DraDriverConfig, DraDriverConfigSpec, DriverSpec, NodePluginSpec, Reserved};

/// A config, or what can be known of it.
#[derive(Clone, Debug)]
pub struct Guarded {
    /// The object. Of one that cannot be read: its metadata, and what says where its plugin runs and how it goes.
    pub config: DraDriverConfig,
    /// Why it cannot be read.
    pub invalid: Option<String>,
}

impl<'de> Deserialize<'de> for Guarded {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let object = Value::deserialize(deserializer)?;
        match DraDriverConfig::deserialize(&object) {
            Ok(config) => Ok(Self { config, invalid: None }),
            Err(error) => {
                let metadata = object.get("metadata").unwrap_or(&Value::Null);
                let metadata = ObjectMeta::deserialize(metadata).map_err(D::Error::custom)?;
                Ok(Self { config: known(metadata, &object), invalid: Some(error.to_string()) })
            }
        }
    }
}

/// What is not readable is left out: a placement that cannot be read is every node.
fn known(metadata: ObjectMeta, object: &Value) -> DraDriverConfig {
    let has = |kind: &str| object.pointer("/spec/driver").is_some_and(|driver| driver.get(kind).is_some());
    DraDriverConfig {
        metadata,
        spec: DraDriverConfigSpec {
            driver: DriverSpec {
                cpu: has("cpu").then(CpuSpec::default),
                memory: has("memory").then(Reserved::default),
                network: has("network").then(Reserved::default),
                external: has("external").then(Reserved::default),
            },
            driver_name: read(object, "/spec/driverName"),
            node_plugin: Some(NodePluginSpec {
                node_selector: read(object, "/spec/nodePlugin/nodeSelector"),
                affinity: read(object, "/spec/nodePlugin/affinity"),
                ..NodePluginSpec::default()
            }),
            deletion_policy: read(object, "/spec/deletionPolicy"),
            ..DraDriverConfigSpec::default()
        },
        status: read(object, "/status"),
    }
}

fn read<T: DeserializeOwned>(object: &Value, path: &str) -> Option<T> {
    T::deserialize(object.pointer(path)?).ok()
}

impl Resource for Guarded {
    type DynamicType = ();
    type Scope = <DraDriverConfig as Resource>::Scope;

    fn kind((): &()) -> Cow<'_, str> {
        DraDriverConfig::kind(&())
    }

    fn group((): &()) -> Cow<'_, str> {
        DraDriverConfig::group(&())
    }

    fn version((): &()) -> Cow<'_, str> {
        DraDriverConfig::version(&())
    }

    fn plural((): &()) -> Cow<'_, str> {
        DraDriverConfig::plural(&())
    }

    fn meta(&self) -> &ObjectMeta {
        &self.config.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.config.metadata
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::api::DeletionPolicy;

    fn guarded(object: &Value) -> Guarded {
        serde_json::from_value(object.clone()).unwrap()
    }

    #[test]
    fn of_an_object_that_cannot_be_read_the_nodes_and_the_way_it_goes_are_known() {
        let object = json!({
            "metadata": {"name": "a", "uid": "u", "finalizers": ["f"]},
            "spec": {
                "driver": {"cpu": "all"}, "driverName": "x.cpu", "deletionPolicy": "Force",
                "nodePlugin": {"image": 7, "nodeSelector": {"pool": "a"}, "affinity": []}, "deviceClasses": "none",
            },
            "status": {"driverName": "x.cpu"},
        });
        let Guarded { config, invalid } = guarded(&object);
        assert!(invalid.is_some_and(|error| error.contains("invalid type")));
        assert_eq!(config.metadata.finalizers, Some(vec!["f".into()]));
        assert!(config.spec.driver.cpu.is_some() && config.spec.driver.memory.is_none());
        assert_eq!((config.spec.driver_name(), config.spec.deletion_policy()), ("x.cpu", DeletionPolicy::Force));
        let plugin = config.spec.node_plugin();
        assert_eq!((plugin.node_selector.unwrap()["pool"].as_str(), plugin.affinity), ("a", None));
        assert_eq!(config.status.unwrap().driver_name.as_deref(), Some("x.cpu"));
    }

    #[test]
    fn an_object_with_no_readable_field_is_its_metadata() {
        for object in [json!({"metadata": {"name": "a"}, "spec": 1, "status": 2}), json!({"metadata": {"name": "a"}})] {
            let guarded = guarded(&object);
            assert!(guarded.invalid.is_some(), "{object}");
            assert_eq!((guarded.config.metadata.name.as_deref(), guarded.config.status), (Some("a"), None));
        }
    }

    #[test]
    fn an_object_that_can_be_read_is_whole() {
        let object = json!({"metadata": {"name": "a"}, "spec": {"driver": {"cpu": {"reservedCPUs": "0"}}}});
        let Guarded { config, invalid } = guarded(&object);
        assert_eq!((invalid, config.spec.driver.cpu.unwrap().reserved_cpus.as_deref()), (None, Some("0")));
    }
}
