//! The ServiceAccount of one config's node plugins. Pure.

use k8s_openapi::{api::core::v1::ServiceAccount, apimachinery::pkg::apis::meta::v1::ObjectMeta};

use super::{Settings, metadata, plugin_name};
use crate::controller::config::Config;

/// The ServiceAccount.
pub(super) fn build(config: &Config, settings: &Settings) -> ServiceAccount {
    ServiceAccount {
        metadata: ObjectMeta { namespace: Some(settings.namespace.clone()), ..metadata(config, plugin_name(config)) },
        ..ServiceAccount::default()
    }
}
