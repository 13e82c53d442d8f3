//! Carries out what was planned, and reports what came of it. IO: writes to the Kubernetes API.

pub mod series;

use jiff::Timestamp;
use k8s_openapi::api::resource::v1::ResourceSlice;
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, Patch, PatchParams, Preconditions},
};
use serde_json::Value;

use crate::{
    api::DraDriverConfig,
    controller::{
        build::FIELD_MANAGER,
        child::{Child, ChildKey, ChildKind},
        metrics::{Failure, Metrics, Verb},
        observe::{Live, child_api},
        plan::{Action, Attempt, Block, Memory},
    },
};

/// Where writes go.
#[derive(Clone)]
pub struct Writer {
    /// The API.
    pub client: Client,
    /// The operator's namespace.
    pub namespace: String,
    /// Counts writes.
    pub metrics: Metrics,
}

/// What came of the actions.
#[derive(Debug, Default)]
pub struct Report {
    /// What was written, and why in words.
    pub written: Vec<(ChildKey, String)>,
    /// What only a person can mend.
    pub blocks: Vec<Block>,
    /// What may go well another time.
    pub failures: Vec<(ChildKey, String)>,
    /// What was written and not kept: the first such field.
    pub dropped: Vec<(ChildKey, String)>,
}

/// Why a write did not go well.
enum Trouble {
    Block(Block),
    Failure(String),
}

impl Writer {
    /// Carries out the actions in order. The plugin waits while any of its rights, or what limits them, is not as wanted:
    /// `blocked` are the blocks that are known already.
    pub async fn carry_out(
        &self,
        config: &DraDriverConfig,
        actions: Vec<Action>,
        blocked: &[Block],
        memory: &mut Memory,
        now: Timestamp,
    ) -> Report {
        let mut report = Report::default();
        for action in actions {
            let attempt = action.attempt();
            if let Some(message) = memory.failing(&attempt, now) {
                report.failures.push((attempt.key, message.to_owned()));
                continue;
            }
            let (child, uid, because) = match action {
                Action::Delete { uid, .. } => {
                    let because = "it is no longer wanted".into();
                    self.delete(attempt, &uid, because, &mut report, memory, now).await;
                    continue;
                }
                Action::Remake { uid, because, .. } => {
                    let because = format!("{because} was different");
                    self.delete(attempt, &uid, because, &mut report, memory, now).await;
                    continue;
                }
                Action::Create(child) => (child, None, "it was not there".to_owned()),
                Action::PutRight { child, uid, because } => (child, Some(uid), format!("{because} was different")),
            };
            let is_right = |key: &ChildKey| key.kind < ChildKind::DaemonSet;
            let rights_missing = blocked.iter().chain(&report.blocks).any(|block| is_right(block.key()))
                || report.failures.iter().any(|(key, _)| is_right(key));
            if child.key.kind == ChildKind::DaemonSet && rights_missing {
                continue;
            }
            let done = match uid {
                None => self.create(config, &child).await,
                Some(uid) => self.put_right(&child, &uid).await,
            };
            match done {
                Ok(live) => {
                    let dropped = memory.settle(&child, &live, now);
                    report.dropped.extend(dropped.map(|path| (child.key.clone(), path)));
                    report.written.push((child.key, because));
                }
                Err(Trouble::Block(block)) => {
                    if let Block::Refused { message, .. } = &block {
                        memory.refuse(&child, message.clone(), now);
                    }
                    self.metrics.failed(Failure::Refused);
                    report.blocks.push(block);
                }
                Err(Trouble::Failure(message)) => {
                    self.metrics.failed(Failure::Write);
                    tracing::warn!(config = config.name_any(), child = %child.key, error = message, "could not be written");
                    memory.fail(attempt, message.clone(), now);
                    report.failures.push((child.key, message));
                }
            }
        }
        report
    }

    /// Looks first, then applies without force: what somebody else made meanwhile is theirs, and a conflict.
    async fn create(&self, config: &DraDriverConfig, child: &Child) -> Result<Live, Trouble> {
        let api = child_api(&self.client, &self.namespace, child.key.kind);
        let found = api.get_opt(&child.key.name).await.map_err(|error| Trouble::Failure(in_words(&error)))?;
        if let Some(found) = found.map(|found| Live::of(child.key.kind, found)) {
            if !found.is_of(config) {
                let owner = found.owner_in_words();
                return Err(Trouble::Block(Block::NameTaken { key: child.key.clone(), owner }));
            }
            return self.put_right(child, &found.uid).await;
        }
        self.apply(child, &child.object, false).await
    }

    /// Applies to the object with that id and no other: the API server refuses to go over to a new one of its name.
    async fn put_right(&self, child: &Child, uid: &str) -> Result<Live, Trouble> {
        let mut object = child.object.clone();
        if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.insert("uid".into(), uid.into());
        }
        self.apply(child, &object, true).await
    }

    async fn apply(&self, child: &Child, object: &Value, force: bool) -> Result<Live, Trouble> {
        let parameters = PatchParams { force, ..PatchParams::apply(FIELD_MANAGER) };
        let api = child_api(&self.client, &self.namespace, child.key.kind);
        self.metrics.wrote(child.key.kind.as_str(), Verb::Apply);
        match api.patch(&child.key.name, &parameters, &Patch::Apply(object)).await {
            Ok(applied) => Ok(Live::of(child.key.kind, applied)),
            // What the API server finds wrong in the object itself stays wrong; anything else may pass.
            Err(kube::Error::Api(status)) if matches!(status.code, 400 | 422) => {
                Err(Trouble::Block(Block::Refused { key: child.key.clone(), message: status.message.clone() }))
            }
            Err(error) => Err(Trouble::Failure(in_words(&error))),
        }
    }

    async fn delete(
        &self,
        attempt: Attempt,
        uid: &str,
        because: String,
        report: &mut Report,
        memory: &mut Memory,
        now: Timestamp,
    ) {
        let api = child_api(&self.client, &self.namespace, attempt.key.kind);
        self.metrics.wrote(attempt.key.kind.as_str(), Verb::Delete);
        match api.delete(&attempt.key.name, &only(uid)).await {
            Err(error) if !is_gone(&error) => {
                self.metrics.failed(Failure::Write);
                tracing::warn!(child = %attempt.key, %error, "could not be deleted");
                report.failures.push((attempt.key.clone(), in_words(&error)));
                memory.fail(attempt, in_words(&error), now);
            }
            done => {
                memory.succeed(&attempt.key);
                report.written.extend(done.is_ok().then_some((attempt.key, because)));
            }
        }
    }

    /// Deletes a slice that no driver is left to take back.
    pub async fn delete_slice(&self, name: &str, uid: &str) -> Result<(), kube::Error> {
        let api: Api<ResourceSlice> = Api::all(self.client.clone());
        self.metrics.wrote("ResourceSlice", Verb::Delete);
        match api.delete(name, &only(uid)).await {
            Err(error) if !is_gone(&error) => Err(error),
            _ => Ok(()),
        }
    }
}

fn only(uid: &str) -> DeleteParams {
    let uid = Some(uid.to_owned()).filter(|uid| !uid.is_empty());
    DeleteParams::background().preconditions(Preconditions { uid, resource_version: None })
}

/// Not there, or another object by now: what was to be deleted is gone.
fn is_gone(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if matches!(status.code, 404 | 409))
}

/// An error, as short as it is clear.
pub fn in_words(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => status.message.clone(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests;
