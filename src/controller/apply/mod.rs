//! Carries out the planned actions, and reports the results. IO: writes to the Kubernetes API.

pub mod object;
pub mod series;

use jiff::Timestamp;
use k8s_openapi::api::resource::v1::ResourceSlice;
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, Patch, PatchParams, Preconditions},
};
use serde_json::Value;

use self::series::Series;
use crate::{
    causes::causes,
    controller::{
        build::FIELD_MANAGER,
        child::{Child, ChildKey},
        config::Config,
        metrics::{Failure, Metrics, Verb},
        observe::{Live, child_api},
        plan::{Action, Because, Block, Memory},
    },
};

/// Writes to the cluster.
pub struct Writer {
    /// The API client.
    pub client: Client,
    /// The operator's namespace.
    pub namespace: String,
    /// Counts writes.
    pub metrics: Metrics,
    /// Writes Events.
    pub events: Series,
}

/// A write to the config itself, or to a slice, that failed.
#[derive(Debug, thiserror::Error)]
#[error("{what}: {}", causes(error))]
pub struct WriteError {
    what: String,
    error: Box<kube::Error>,
}

/// The results of the actions.
#[derive(Debug, Default)]
pub struct Report {
    /// Children that were written or deleted, and why.
    pub written: Vec<(ChildKey, Because)>,
    /// Children that are blocked until someone acts.
    pub blocks: Vec<Block>,
    /// Writes that may succeed at the next attempt.
    pub failures: Vec<Failed>,
    /// Writes that the API server did not keep as sent.
    pub dropped: Vec<Dropped>,
}

/// A write that failed and will be retried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failed {
    /// The child.
    pub key: ChildKey,
    /// The API server's message, or why it could not be reached.
    pub message: String,
}

/// A write that the API server accepted but changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dropped {
    /// The child.
    pub key: ChildKey,
    /// The first field that was dropped or changed.
    pub path: String,
}

/// The result of one write.
enum Done<'a> {
    /// The API server stored `child` as `live`.
    Applied { child: &'a Child, live: Live },
    /// The object is deleted, or is being deleted.
    Deleted,
    /// There was nothing to delete.
    WasGone,
}

/// Why a write did not succeed.
enum Trouble {
    Block(Block),
    Failure(kube::Error),
}

/// What happens to fields that another field manager owns.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Conflicts {
    /// The write fails, because the object may have another owner.
    Fail,
    /// They are taken over, because the object is ours.
    TakeOver,
}

impl Report {
    /// Whether any of the plugin's rights, or the limits on them, is not in place.
    fn lacks_rights(&self, blocked: &[Block]) -> bool {
        blocked.iter().chain(&self.blocks).any(|block| block.key().kind.gates_plugin())
            || self.failures.iter().any(|failed| failed.key.kind.gates_plugin())
    }
}

impl Writer {
    /// Carries out the actions in order. The plugin is not applied until all its rights and the limits on them are in
    /// place. `blocked` are the blocks that are already known.
    pub async fn carry_out(
        &self,
        config: &Config,
        actions: Vec<Action>,
        blocked: &[Block],
        memory: &mut Memory,
        now: Timestamp,
    ) -> Report {
        let mut report = Report::default();
        for action in actions {
            // A recent failure waits for its next attempt, even if something else has changed since.
            let attempt = action.attempt();
            if let Some(message) = memory.failing(&attempt, now) {
                report.failures.push(Failed { key: attempt.key, message: message.to_owned() });
                continue;
            }
            if action.applies_plugin() && report.lacks_rights(blocked) {
                continue;
            }

            let done = match &action {
                Action::Create(child) => self.create(config, child).await,
                Action::Correct { child, uid, .. } => self.correct(child, uid).await,
                Action::Recreate { key, uid, .. } | Action::Delete { key, uid } => self.delete(key, uid).await,
            };

            match done {
                Ok(Done::Applied { child, live }) => {
                    let because = action.because();
                    tracing::info!(config = config.name_any(), child = %child.key, %because, "applied");
                    report.written.push((child.key.clone(), because));
                    if let Some(path) = memory.settle(child, &live, now) {
                        tracing::warn!(config = config.name_any(), child = %child.key, path, "the API server dropped or changed a field");
                        report.dropped.push(Dropped { key: child.key.clone(), path });
                    }
                }
                Ok(Done::Deleted) => {
                    let because = action.because();
                    tracing::info!(config = config.name_any(), child = %attempt.key, %because, "deleted");
                    memory.clear_failure(&attempt.key);
                    report.written.push((attempt.key, because));
                }
                Ok(Done::WasGone) => memory.clear_failure(&attempt.key),
                Err(Trouble::Block(block)) => {
                    if let Block::Refused { message, .. } = &block {
                        memory.refuse(attempt, message.clone(), now);
                    }
                    self.metrics.failed(Failure::Refused);
                    report.blocks.push(block);
                }
                Err(Trouble::Failure(error)) => {
                    let message = causes(&error);
                    self.metrics.failed(Failure::Write);
                    tracing::warn!(config = config.name_any(), child = %attempt.key, error = message, "write failed, retrying");
                    report.failures.push(Failed { key: attempt.key.clone(), message: message.clone() });
                    memory.fail(attempt, message, now);
                }
            }
        }
        report
    }

    /// Looks up the object first, then applies without force. If another client creates it in the meantime, it is
    /// theirs and the apply conflicts.
    async fn create<'a>(&self, config: &Config, child: &'a Child) -> Result<Done<'a>, Trouble> {
        let api = child_api(&self.client, &self.namespace, child.key.kind);
        let found = api.get_opt(&child.key.name).await.map_err(Trouble::Failure)?;
        match found.map(|found| Live::of(child.key.kind, found)) {
            None => self.apply(child, &child.object, Conflicts::Fail).await,
            Some(found) if found.is_of(config) => self.correct(child, &found.uid).await,
            Some(found) => Err(Trouble::Block(Block::NameTaken { key: child.key.clone(), owner: found.owner_name() })),
        }
    }

    /// Applies only to the object with this UID: the API server rejects the apply if that object is gone.
    async fn correct<'a>(&self, child: &'a Child, uid: &str) -> Result<Done<'a>, Trouble> {
        let mut object = child.object.clone();
        if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.insert("uid".into(), uid.into());
        }
        self.apply(child, &object, Conflicts::TakeOver).await
    }

    async fn apply<'a>(&self, child: &'a Child, object: &Value, conflicts: Conflicts) -> Result<Done<'a>, Trouble> {
        let parameters = PatchParams { force: conflicts == Conflicts::TakeOver, ..PatchParams::apply(FIELD_MANAGER) };
        let api = child_api(&self.client, &self.namespace, child.key.kind);
        self.metrics.wrote(child.key.kind.as_str(), Verb::Apply);
        match api.patch(&child.key.name, &parameters, &Patch::Apply(object)).await {
            Ok(applied) => Ok(Done::Applied { child, live: Live::of(child.key.kind, applied) }),
            // An invalid object stays invalid; any other error may be temporary.
            Err(kube::Error::Api(status)) if matches!(status.code, 400 | 422) => {
                Err(Trouble::Block(Block::Refused { key: child.key.clone(), message: status.message.clone() }))
            }
            Err(error) => Err(Trouble::Failure(error)),
        }
    }

    /// Deletes only the object with this UID.
    async fn delete(&self, key: &ChildKey, uid: &str) -> Result<Done<'static>, Trouble> {
        let api = child_api(&self.client, &self.namespace, key.kind);
        self.metrics.wrote(key.kind.as_str(), Verb::Delete);
        match api.delete(&key.name, &only(uid)).await {
            Ok(_) => Ok(Done::Deleted),
            Err(error) if is_gone(&error) => Ok(Done::WasGone),
            Err(error) => Err(Trouble::Failure(error)),
        }
    }

    /// Deletes a slice that no running driver will withdraw.
    pub async fn delete_slice(&self, name: &str, uid: &str) -> Result<(), WriteError> {
        let api: Api<ResourceSlice> = Api::all(self.client.clone());
        self.metrics.wrote("ResourceSlice", Verb::Delete);
        match api.delete(name, &only(uid)).await {
            Err(error) if !is_gone(&error) => {
                Err(WriteError { what: format!("delete ResourceSlice {name}"), error: error.into() })
            }
            _ => Ok(()),
        }
    }
}

fn only(uid: &str) -> DeleteParams {
    let uid = Some(uid.to_owned()).filter(|uid| !uid.is_empty());
    DeleteParams::background().preconditions(Preconditions { uid, resource_version: None })
}

/// Whether the object to delete is gone: it does not exist, or another object has taken its name.
fn is_gone(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if matches!(status.code, 404 | 409))
}

#[cfg(test)]
mod tests;
