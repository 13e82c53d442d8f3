//! Writes to the config itself, its status and its finalizer, and Events about it. IO: the Kubernetes API.

use jiff::{SignedDuration, Timestamp};
use kube::{
    Api, Resource, ResourceExt,
    api::{Patch, PatchParams},
    core::{ApiResource, DynamicObject},
    runtime::{
        controller::Action,
        events::{Event, EventType},
    },
};
use serde_json::{Value, json};

use super::{
    Context, Error, Guarded,
    memory::{Remembered, version},
};
use crate::{
    api::{DraDriverConfig, DraDriverConfigStatus},
    controller::{
        apply::{FIELD_MANAGER, Report},
        build::APPLIED_HASH,
        events,
        metrics::Verb,
        status,
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
        let before = config.status.as_ref().map(|status| status.conditions.clone()).unwrap_or_default();
        let name = config.name_any();
        let uid = config.uid();
        let object = status_object(&name, uid.as_deref(), &serde_json::to_value(&status).unwrap_or_default());
        let written = self.patch_status(&name, &object).await.map_err(|error| write_error("status", config, error))?;
        memory.written = written.0.ok().map(|config| (version(&config), now, status.clone()));
        for event in events::transitions(&before, &status.conditions) {
            self.tell(config, event).await;
        }
        Ok(())
    }

    pub(super) async fn patch_status(&self, name: &str, object: &Value) -> Result<Guarded, kube::Error> {
        let api: Api<Guarded> = Api::all(self.writer.client.clone());
        self.writer.metrics.wrote("DraDriverConfig", Verb::Status);
        let parameters = PatchParams::apply(FIELD_MANAGER).force();
        api.patch_status(name, &parameters, &Patch::Apply(object)).await
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
        self.patch_finalizer(config, patch).await
    }

    pub(super) async fn remove_finalizer(&self, config: &DraDriverConfig) -> Result<(), Error> {
        let Some(index) = config.finalizers().iter().position(|finalizer| finalizer == FINALIZER) else {
            return Ok(());
        };
        let path = format!("/metadata/finalizers/{index}");
        self.patch_finalizer(
            config,
            json!([{"op": "test", "path": path, "value": FINALIZER}, {"op": "remove", "path": path}]),
        )
        .await
    }

    pub(super) async fn patch_finalizer(&self, config: &DraDriverConfig, patch: Value) -> Result<(), Error> {
        let api: Api<Guarded> = Api::all(self.writer.client.clone());
        let patch = serde_json::from_value(patch).map(Patch::<()>::Json);
        let Ok(patch) = patch else { return Ok(()) };
        self.writer.metrics.wrote("DraDriverConfig", Verb::Finalizer);
        match api.patch(&config.name_any(), &PatchParams::default(), &patch).await {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            Err(error) => Err(write_error("finalizer", config, error)),
        }
    }

    /// Tells an object that cannot be read that it cannot.
    pub(super) async fn say_invalid(&self, name: Option<&str>, error: &str) -> Result<Action, Error> {
        let Some(name) = name else { return Ok(Action::await_change()) };
        let written = |error| Error::Write { what: "status", name: name.to_owned(), error: Box::new(error) };
        let api: Api<DynamicObject> =
            Api::all_with(self.writer.client.clone(), &ApiResource::erase::<DraDriverConfig>(&()));
        let Some(object) = api.get_opt(name).await.map_err(written)? else { return Ok(Action::await_change()) };
        let before: DraDriverConfigStatus = object
            .data
            .get("status")
            .and_then(|status| serde_json::from_value(status.clone()).ok())
            .unwrap_or_default();
        let status = status::invalid(&before, object.metadata.generation, error, Timestamp::now());
        if before == status {
            return Ok(Action::await_change());
        }
        let value = serde_json::to_value(&status).unwrap_or_default();
        self.patch_status(name, &status_object(name, object.uid().as_deref(), &value)).await.map_err(written)?;
        self.writer.metrics.failed("invalid_object");
        let resource = ApiResource::erase::<DraDriverConfig>(&());
        for event in events::transitions(&before.conditions, &status.conditions) {
            self.publish(&event, &object.object_ref(&resource)).await;
        }
        Ok(Action::await_change())
    }

    pub(super) async fn tell_written(&self, config: &DraDriverConfig, report: &Report) {
        for (key, because) in &report.written {
            tracing::info!(config = config.name_any(), child = %key, because, "wrote");
            // A roll-out's own first objects are no news; what somebody changed by hand is.
            let edited = because.ends_with("was different") && !because.contains(APPLIED_HASH);
            if edited && config.metadata.generation == observed(config) {
                let note = format!("{key} was put right: {because}");
                self.tell(config, events::event(EventType::Normal, "DriftCorrected", "Apply", note)).await;
            }
        }
        for (key, message) in &report.failures {
            tracing::warn!(config = config.name_any(), child = %key, error = message, "could not be written");
        }
    }

    pub(super) async fn tell(&self, config: &DraDriverConfig, event: Event) {
        self.publish(&event, &config.object_ref(&())).await;
    }

    pub(super) async fn publish(&self, event: &Event, about: &k8s_openapi::api::core::v1::ObjectReference) {
        self.writer.metrics.wrote("Event", Verb::Event);
        if let Err(error) = self.recorder.publish(event, about).await {
            tracing::warn!(%error, "an Event could not be written");
        }
    }
}

fn observed(config: &DraDriverConfig) -> Option<i64> {
    config.status.as_ref()?.observed_generation
}

fn status_object(name: &str, uid: Option<&str>, status: &Value) -> Value {
    json!({
        "apiVersion": DraDriverConfig::api_version(&()), "kind": DraDriverConfig::kind(&()),
        "metadata": {"name": name, "uid": uid}, "status": status,
    })
}

pub(super) fn write_error(what: &'static str, config: &DraDriverConfig, error: kube::Error) -> Error {
    Error::Write { what, name: config.name_any(), error: Box::new(error) }
}
