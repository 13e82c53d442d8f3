//! Parses each config once, when it arrives. If it cannot be parsed, as much of it as possible is kept. Pure.
//!
//! The CRD rejects almost every error, but the CRD in the cluster may be from another release. An object that cannot be
//! parsed may still have a plugin on its nodes, and must be deletable.

use std::{borrow::Cow, sync::Arc};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use serde::{
    Deserialize, Deserializer,
    de::{DeserializeOwned, Error as _},
};
use serde_json::Value;

use crate::{
    api::{
        DraDriverConfig, DraDriverConfigStatus, DriverKind, DriverName, HealthSpec, NodePluginSettings, NodePluginSpec,
    },
    controller::config::Config,
    drivers::kind::Kind,
};

/// A config, or the readable part of it.
#[derive(Clone, Debug)]
pub struct Guarded {
    /// The object. If it cannot be parsed: its metadata, and the fields that say where its plugin runs and how it is
    /// deleted.
    pub config: Config,
    /// Why it cannot be parsed, if so.
    pub invalid: Option<String>,
}

impl<'de> Deserialize<'de> for Guarded {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let object = Value::deserialize(deserializer)?;
        let read = DraDriverConfig::deserialize(&object).map_err(|error| error.to_string());
        let parsed = read.and_then(|read| Config::try_from(read).map_err(|fault| fault.to_string()));

        match parsed {
            Ok(config) => Ok(Self { config, invalid: None }),
            Err(error) => {
                let metadata = object.get("metadata").unwrap_or(&Value::Null);
                let metadata = ObjectMeta::deserialize(metadata).map_err(D::Error::custom)?;
                Ok(Self { config: known(metadata, &object), invalid: Some(error) })
            }
        }
    }
}

/// Unreadable fields are dropped. Without a readable placement, the config selects every node.
fn known(metadata: ObjectMeta, object: &Value) -> Config {
    let status: Option<DraDriverConfigStatus> = read(object, "/status");
    let kind = known_kind(object);
    // If the spec does not set a name, the one in use is in the status.
    let in_spec = read(object, "/spec/driverName");
    let in_status = status.as_ref().and_then(|status| status.driver_name.clone());
    let names = [in_spec, in_status, Some(kind.default_driver_name().to_owned())];
    let driver_name = names.into_iter().flatten().find_map(|name: String| name.parse().ok());

    Config {
        metadata,
        status,
        driver_name: driver_name.unwrap_or_else(DriverName::unknown),
        kind,
        node_plugin: NodePluginSettings::from(NodePluginSpec {
            node_selector: read(object, "/spec/nodePlugin/nodeSelector"),
            affinity: read(object, "/spec/nodePlugin/affinity"),
            ..NodePluginSpec::default()
        }),
        device_classes: Vec::new(),
        publish_deadline: HealthSpec::DEFAULT_DEADLINE,
        deletion_policy: read(object, "/spec/deletionPolicy").unwrap_or_default(),
    }
}

/// The kind of an unparsable object, because other configs of that kind must stay off its nodes.
fn known_kind(object: &Value) -> Arc<dyn Kind> {
    let driver = object.pointer("/spec/driver").and_then(Value::as_object);
    let members = || driver.into_iter().flat_map(|driver| driver.keys());
    if let Some(kind) = members().find_map(|member| DriverKind::of_member(member)) {
        return kind.into_kind().into();
    }
    // An external driver may serve anything.
    Arc::new(Unserved { devices: members().find(|member| *member != "external").cloned() })
}

/// A kind that this release does not support. Nothing is built for it.
#[derive(Debug)]
struct Unserved {
    devices: Option<String>,
}

impl Kind for Unserved {
    fn devices(&self) -> Option<&str> {
        self.devices.as_deref()
    }

    fn default_driver_name(&self) -> &'static str {
        ""
    }

    fn arguments(&self) -> Vec<String> {
        Vec::new()
    }

    fn why_no_device(&self) -> String {
        "this release does not support its kind of device".into()
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
    use k8s_openapi::api::core::v1::Affinity;
    use serde_json::json;

    use super::*;
    use crate::api::DeletionPolicy;

    fn guarded(object: &Value) -> Guarded {
        serde_json::from_value(object.clone()).unwrap()
    }

    #[test]
    fn an_object_that_cannot_be_parsed_keeps_its_nodes_and_deletion_policy() {
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
        assert_eq!(config.kind.devices(), Some("cpu"));
        assert_eq!((&*config.driver_name, config.deletion_policy), ("x.cpu", DeletionPolicy::Force));
        assert_eq!(config.node_plugin.node_selector["pool"], "a");
        assert_eq!(config.node_plugin.affinity, Affinity::default());
        assert_eq!(config.status.unwrap().driver_name.as_deref(), Some("x.cpu"));
    }

    #[test]
    fn an_object_without_readable_fields_keeps_only_its_metadata() {
        for object in [json!({"metadata": {"name": "a"}, "spec": 1, "status": 2}), json!({"metadata": {"name": "a"}})] {
            let guarded = guarded(&object);
            assert!(guarded.invalid.is_some(), "{object}");
            assert_eq!((guarded.config.metadata.name.as_deref(), guarded.config.status), (Some("a"), None));
        }
    }

    #[test]
    fn an_object_that_can_be_parsed_is_complete() {
        let object = json!({"metadata": {"name": "a"}, "spec": {"driver": {"cpu": {"reservedCPUs": "0"}}}});
        let Guarded { config, invalid } = guarded(&object);
        assert_eq!(invalid, None);
        assert!(config.kind.arguments().contains(&"--reserved-cpus=0".to_owned()));
    }

    #[test]
    fn a_kind_that_another_crd_accepted_is_invalid_and_not_mistaken_for_cpus() {
        for (driver, devices) in [
            (json!({"memory": {}}), Some("memory")),
            (json!({"network": {}}), Some("network")),
            (json!({"external": {}}), None),
        ] {
            let Guarded { config, invalid } = guarded(&json!({"metadata": {"name": "a"}, "spec": {"driver": driver}}));
            assert!(invalid.is_some_and(|error| error.contains("this release only serves spec.driver.cpu")));
            assert_eq!(config.kind.devices(), devices);
            assert_eq!(config.driver_name, DriverName::unknown(), "a CPU driver must not lose its slices to it");
        }
        let named =
            json!({"metadata": {"name": "a"}, "spec": {"driver": {"memory": {}}}, "status": {"driverName": "x.mem"}});
        assert_eq!(&*guarded(&named).config.driver_name, "x.mem");
    }

    #[test]
    fn what_the_schema_accepts_but_parsing_rejects_is_invalid() {
        for (spec, message) in [
            (json!({"driver": {"cpu": {"reservedCPUs": "all"}}}), "spec.driver.cpu.reservedCPUs is not a CPU list"),
            (json!({"driver": {"cpu": {}}, "health": {"publishDeadline": "soon"}}), "publishDeadline must be"),
            (json!({"driver": {"cpu": {}}, "driverName": "A"}), "spec.driverName: \"A\" is not a DNS subdomain"),
        ] {
            let invalid = guarded(&json!({"metadata": {"name": "a"}, "spec": spec})).invalid.unwrap();
            assert!(invalid.contains(message), "{invalid}");
        }
    }
}
