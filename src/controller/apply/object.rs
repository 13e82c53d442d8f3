//! Writes to the config itself: its finalizer, its status, and Events about it. IO: the Kubernetes API.

use kube::{
    Api, Resource, ResourceExt,
    api::{Patch, PatchParams},
    runtime::events::Event,
};
use serde_json::{Value, json};

use super::{WriteError, Writer};
use crate::{
    api::DraDriverConfigStatus,
    controller::{build::FIELD_MANAGER, config::Config, metrics::Verb, observe::Guarded},
};

/// Keeps the object until its claims are released and its children are deleted.
pub const FINALIZER: &str = "dra-operator.dev/claims";

/// The part of the config that is written.
#[derive(Clone, Copy)]
enum Part {
    Status,
    Finalizer,
}

impl Writer {
    /// Adds our finalizer.
    pub async fn add_finalizer(&self, config: &Config) -> Result<(), WriteError> {
        if has_finalizer(config) {
            return Ok(());
        }
        let mut patch = vec![json!({"op": "test", "path": "/metadata/uid", "value": config.uid()})];
        if config.finalizers().is_empty() {
            // Adding a list would replace one that another client has added in the meantime.
            patch.push(json!({"op": "test", "path": "/metadata/finalizers", "value": null}));
            patch.push(json!({"op": "add", "path": "/metadata/finalizers", "value": [FINALIZER]}));
        } else {
            patch.push(json!({"op": "add", "path": "/metadata/finalizers/-", "value": FINALIZER}));
        }
        self.patch(config, Part::Finalizer, patch).await.map(|_| ())
    }

    /// Removes our finalizer.
    pub async fn remove_finalizer(&self, config: &Config) -> Result<(), WriteError> {
        let Some(index) = config.finalizers().iter().position(|finalizer| finalizer == FINALIZER) else {
            return Ok(());
        };
        let ours = format!("/metadata/finalizers/{index}");
        let removal =
            vec![json!({"op": "test", "path": ours, "value": FINALIZER}), json!({"op": "remove", "path": ours})];
        self.patch(config, Part::Finalizer, removal).await.map(|_| ())
    }

    /// Overwrites the whole status, including anything that other clients wrote into it: a merge would keep their stale
    /// fields. Returns the stored object, or `None` if it is gone.
    pub async fn write_status(
        &self,
        config: &Config,
        status: &DraDriverConfigStatus,
    ) -> Result<Option<Config>, WriteError> {
        let patch = vec![
            json!({"op": "test", "path": "/metadata/uid", "value": config.uid()}),
            json!({"op": "add", "path": "/status", "value": status}),
        ];
        self.patch(config, Part::Status, patch).await
    }

    /// Writes an Event about the object. A failure is only logged.
    pub async fn publish_event(&self, config: &Config, event: &Event) {
        self.metrics.wrote("Event", Verb::Event);
        if let Err(error) = self.events.publish(event, &config.object_ref(&())).await {
            tracing::warn!(%error, reason = event.reason, "writing an Event failed");
        }
    }

    async fn patch(&self, config: &Config, part: Part, operations: Vec<Value>) -> Result<Option<Config>, WriteError> {
        let api: Api<Guarded> = Api::all(self.client.clone());
        let name = config.name_any();
        let parameters = PatchParams { field_manager: Some(FIELD_MANAGER.into()), ..PatchParams::default() };
        let failed = |what: &str, error: kube::Error| WriteError {
            what: format!("write the {what} of DraDriverConfig {name}"),
            error: error.into(),
        };
        let patch = serde_json::from_value(operations.into())
            .map(Patch::<()>::Json)
            .map_err(|error| failed("patch", kube::Error::SerdeError(error)))?;

        let (what, patched) = match part {
            Part::Status => {
                self.metrics.wrote("DraDriverConfig", Verb::Status);
                ("status", api.patch_status(&name, &parameters, &patch).await)
            }
            Part::Finalizer => {
                self.metrics.wrote("DraDriverConfig", Verb::Finalizer);
                ("finalizer", api.patch(&name, &parameters, &patch).await)
            }
        };
        match patched {
            Ok(patched) => Ok(Some(patched.config)),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
            Err(error) => Err(failed(what, error)),
        }
    }
}

/// Whether the object has our finalizer.
pub fn has_finalizer(config: &Config) -> bool {
    config.finalizers().iter().any(|finalizer| finalizer == FINALIZER)
}
