//! Writes to the config itself, its status and its finalizer, and Events about it. IO: the Kubernetes API.

use jiff::{SignedDuration, Timestamp};
use kube::{
    Api, Resource, ResourceExt,
    api::{Patch, PatchParams},
    runtime::events::{Event, EventType},
};
use serde_json::{Value, json};

use super::{
    Context, Error, Looked,
    memory::{Remembered, version},
};
use crate::{
    api::{DraDriverConfig, DraDriverConfigStatus},
    controller::{
        apply::Report,
        build::{APPLIED_HASH, FIELD_MANAGER},
        metrics::{Failure, Verb},
        observe::Guarded,
        status::{self, events},
    },
};

/// Keeps the object until its claims are released and its children are gone.
pub const FINALIZER: &str = "dra-operator.dev/claims";

/// A status in which only counts moved on is written this often at most: claims come and go by the second.
const COUNTS_EVERY: SignedDuration = SignedDuration::from_secs(5);

impl Context {
    /// Writes the status where it says something else than before, and tells of what went over.
    pub(super) async fn write_status(
        &self,
        config: &DraDriverConfig,
        status: DraDriverConfigStatus,
        memory: &mut Remembered,
        now: Timestamp,
    ) -> Result<(), Error> {
        memory.owed = None;
        if config.status.as_ref() == Some(&status) {
            return Ok(());
        }
        if let Some(before) = &config.status
            && status::only_counts_differ(before, &status)
            && let Some(due) = memory.written.as_ref().and_then(|(_, at, _)| at.checked_add(COUNTS_EVERY).ok())
            && due > now
        {
            memory.owed = Some(due);
            return Ok(());
        }
        let before = config.status.clone().unwrap_or_default();
        // The whole of it, whoever wrote what of it before: what is left of another's is neither true nor ours to take back.
        let patch = json!([{"op": "test", "path": "/metadata/uid", "value": config.uid()},
                           {"op": "add", "path": "/status", "value": status}]);
        let written = self.patch(config, "status", patch).await?;
        memory.written = written.map(|written| (version(&written.config), now, status.clone()));
        let changes = events::transitions(&before.conditions, &status.conditions).into_iter();
        for event in changes.chain(events::aborting(&before.device_classes, &status.device_classes)) {
            self.tell(config, event).await;
        }
        Ok(())
    }

    pub(super) async fn add_finalizer(&self, config: &DraDriverConfig) -> Result<(), Error> {
        if config.finalizers().iter().any(|finalizer| finalizer == FINALIZER) {
            return Ok(());
        }
        let patch = if config.finalizers().is_empty() {
            json!([{"op": "test", "path": "/metadata/uid", "value": config.uid()},
                   {"op": "test", "path": "/metadata/finalizers", "value": null},
                   {"op": "add", "path": "/metadata/finalizers", "value": [FINALIZER]}])
        } else {
            json!([{"op": "test", "path": "/metadata/uid", "value": config.uid()},
                   {"op": "add", "path": "/metadata/finalizers/-", "value": FINALIZER}])
        };
        self.patch(config, "finalizer", patch).await.map(|_| ())
    }

    pub(super) async fn remove_finalizer(&self, config: &DraDriverConfig) -> Result<(), Error> {
        let Some(index) = config.finalizers().iter().position(|finalizer| finalizer == FINALIZER) else {
            return Ok(());
        };
        let ours = format!("/metadata/finalizers/{index}");
        let removal = json!([{"op": "test", "path": ours, "value": FINALIZER}, {"op": "remove", "path": ours}]);
        self.patch(config, "finalizer", removal).await.map(|_| ())
    }

    /// Patches the object or its status; what came of it, or nothing where the object is gone.
    async fn patch(
        &self,
        config: &DraDriverConfig,
        what: &'static str,
        patch: Value,
    ) -> Result<Option<Guarded>, Error> {
        let api: Api<Guarded> = Api::all(self.writer.client.clone());
        let Ok(patch) = serde_json::from_value(patch).map(Patch::<()>::Json) else { return Ok(None) };
        let parameters = PatchParams { field_manager: Some(FIELD_MANAGER.into()), ..PatchParams::default() };
        let name = config.name_any();
        let patched = if what == "status" {
            self.writer.metrics.wrote("DraDriverConfig", Verb::Status);
            api.patch_status(&name, &parameters, &patch).await
        } else {
            self.writer.metrics.wrote("DraDriverConfig", Verb::Finalizer);
            api.patch(&name, &parameters, &patch).await
        };
        match patched {
            Ok(patched) => Ok(Some(patched)),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
            Err(error) => Err(write_error(what, config, error)),
        }
    }

    /// Tells an object that cannot be read that it cannot.
    pub(super) async fn say_invalid(
        &self,
        config: &DraDriverConfig,
        error: &str,
        memory: &mut Remembered,
        now: Timestamp,
    ) -> Result<Looked, Error> {
        let before = config.status.clone().unwrap_or_default();
        let status = status::invalid(&before, config.metadata.generation, error, now);
        if status != before {
            self.writer.metrics.failed(Failure::InvalidObject);
        }
        self.write_status(config, status, memory, now).await?;
        Ok(Looked::default())
    }

    pub(super) async fn tell_written(&self, config: &DraDriverConfig, report: &Report) {
        for (key, because) in &report.written {
            tracing::info!(config = config.name_any(), child = %key, because, "wrote");
            // A roll-out's own first objects are no news; what somebody changed by hand is.
            let edited = because.ends_with("was different") && !because.contains(APPLIED_HASH);
            let kept = !report.dropped.iter().any(|(dropped, _)| dropped == key);
            if edited && kept && config.metadata.generation == observed(config) {
                let note = format!("{key} was put right: {because}");
                self.tell(config, events::event(EventType::Normal, "DriftCorrected", "Apply", note)).await;
            }
        }
        for (key, path) in &report.dropped {
            tracing::warn!(config = config.name_any(), child = %key, path, "not kept as written");
            let note = format!(
                "{key}: the API server takes it and does not keep {path} as it was written: a feature gate is off, or a webhook changes it"
            );
            self.tell(config, events::event(EventType::Warning, "NotKept", "Apply", note)).await;
        }
    }

    pub(super) async fn tell(&self, config: &DraDriverConfig, event: Event) {
        self.publish(&event, &config.object_ref(&())).await;
    }

    pub(super) async fn publish(&self, event: &Event, about: &k8s_openapi::api::core::v1::ObjectReference) {
        self.writer.metrics.wrote("Event", Verb::Event);
        if let Err(error) = self.events.publish(event, about).await {
            tracing::warn!(%error, "an Event could not be written");
        }
    }
}

fn observed(config: &DraDriverConfig) -> Option<i64> {
    config.status.as_ref()?.observed_generation
}

pub(super) fn write_error(what: &'static str, config: &DraDriverConfig, error: kube::Error) -> Error {
    Error::Write { what, name: config.name_any(), error: Box::new(error) }
}
