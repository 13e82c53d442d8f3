//! The DeviceClass for one policy. Pure.

use k8s_openapi::api::resource::v1::{DeviceClass, DeviceClassSpec};

use super::metadata;
use crate::controller::config::Config;

/// The DeviceClass with this name.
pub(super) fn build(config: &Config, name: &str, spec: DeviceClassSpec) -> DeviceClass {
    DeviceClass { metadata: metadata(config, name.to_owned()), spec: Some(spec) }
}
