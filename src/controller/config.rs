//! A `DraDriverConfig` after parsing: from here on, no field can be missing or invalid. Pure.

use std::{sync::Arc, time::Duration};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;

use crate::{
    api::{
        DeletionPolicy, DeviceClassPolicy, DraDriverConfig, DraDriverConfigStatus, DriverKind, DriverName,
        DriverNameError, Fault, NodePluginSettings,
    },
    drivers::kind::Kind,
};

/// A parsed `DraDriverConfig`, with every default resolved. It still identifies the object that it was parsed from.
#[derive(Resource, Clone, Debug)]
#[resource(inherit = DraDriverConfig)]
pub struct Config {
    /// The object's metadata.
    pub metadata: ObjectMeta,
    /// The object's status as last seen.
    pub status: Option<DraDriverConfigStatus>,
    /// The kind of device that is served.
    pub kind: Arc<dyn Kind>,
    /// The name under which the driver registers and publishes devices.
    pub driver_name: DriverName,
    /// How the node plugin runs.
    pub node_plugin: NodePluginSettings,
    /// The DeviceClasses to create.
    pub device_classes: Vec<DeviceClassPolicy>,
    /// How long a node with a plugin pod may take to publish a complete pool.
    pub publish_deadline: Duration,
    /// What happens to claims in use when the object is deleted.
    pub deletion_policy: DeletionPolicy,
}

impl TryFrom<DraDriverConfig> for Config {
    type Error = Fault;

    fn try_from(DraDriverConfig { metadata, spec, status }: DraDriverConfig) -> Result<Self, Fault> {
        let kind: Arc<dyn Kind> = DriverKind::try_from(&spec.driver)?.into_kind().into();
        let driver_name = spec.driver_name.as_deref().unwrap_or(kind.default_driver_name()).parse();
        let driver_name = driver_name
            .map_err(|error: DriverNameError| Fault { path: "spec.driverName".into(), message: error.to_string() })?;

        Ok(Self {
            metadata,
            status,
            kind,
            driver_name,
            node_plugin: spec.node_plugin.unwrap_or_default().into(),
            device_classes: spec.device_classes,
            publish_deadline: spec.health.unwrap_or_default().publish_deadline()?,
            deletion_policy: spec.deletion_policy.unwrap_or_default(),
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn parse(spec: &Value) -> Result<Config, String> {
        let object: DraDriverConfig = serde_json::from_value(json!({"metadata": {"name": "a"}, "spec": spec})).unwrap();
        Config::try_from(object).map_err(|fault| fault.to_string())
    }

    #[test]
    fn defaults_are_resolved() {
        let config = parse(&json!({"driver": {"cpu": {}}})).unwrap();
        assert_eq!(&*config.driver_name, "dra.cpu");
        assert_eq!((config.publish_deadline.as_secs(), config.deletion_policy), (60, DeletionPolicy::WaitForClaims));
        assert_eq!(config.node_plugin.cdi_dir, "/var/run/cdi");
    }

    #[test]
    fn every_error_names_its_field() {
        for (field, value, message) in [
            ("driver", json!({"memory": {}}), "spec.driver: this release only serves spec.driver.cpu"),
            ("driver", json!({"cpu": {"reservedCPUs": "3-1"}}), "spec.driver.cpu.reservedCPUs is not a CPU list"),
            ("driverName", json!("A"), "spec.driverName: \"A\" is not a DNS subdomain"),
            ("health", json!({"publishDeadline": "1h"}), "spec.health.publishDeadline must be a positive whole number"),
        ] {
            let mut spec = json!({"driver": {"cpu": {}}});
            spec[field] = value;
            let fault = parse(&spec).unwrap_err();
            assert!(fault.starts_with(message), "{fault}");
        }
    }
}
