//! One look at one config: observe → plan → apply → status. IO: the Kubernetes API.

use std::{
    collections::{HashMap, hash_map::DefaultHasher},
    hash::{Hash, Hasher},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use jiff::Timestamp;
use k8s_openapi::api::resource::v1::DeviceClassSpec;
use kube::{
    Api, Resource, ResourceExt,
    api::{Patch, PatchParams},
    core::DeserializeGuard,
    runtime::{
        controller::Action,
        events::{Event, EventType, Recorder},
        reflector::Store,
    },
};
use serde_json::{Value, json};
use tokio::sync::watch;

use super::{
    apply::{FIELD_MANAGER, Report, Writer},
    build::{self, Desired, Settings},
    child::ChildKind,
    deletion::{self, Waiting},
    events,
    health::{self, Before, Health, Unwell},
    metrics::Verb,
    observe::{Caches, Live},
    plan::{self, Block, Memory, Plan, WATCH_LAG},
    rollout::{self, Rollout},
    status::{self, Facts},
    usage::{self, Usage},
    view::{Snapshot, View},
};
use crate::{
    api::{DraDriverConfig, DraDriverConfigStatus},
    policy::preview::{MatchError, Matcher},
};

/// Keeps the object until its claims are released and its children are gone.
pub const FINALIZER: &str = "dra-operator.dev/claims";

/// Somebody else's object may go without an event that is watched.
const LOOK_AGAIN: Duration = Duration::from_mins(1);
/// The longest pause between attempts.
const LONGEST_BACKOFF: Duration = Duration::from_mins(2);

/// An object as the API server has it, or why it cannot be read.
pub type Guarded = DeserializeGuard<DraDriverConfig>;

/// Why a look ended early.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The status or the finalizer of an object could not be written.
    #[error("write the {what} of DraDriverConfig {name}: {error}")]
    Write {
        /// What.
        what: &'static str,
        /// Which object.
        name: String,
        /// Why.
        error: Box<kube::Error>,
    },
}

/// What every look needs.
pub struct Context {
    /// Writes.
    pub writer: Writer,
    /// What is not in the objects.
    pub settings: Settings,
    /// What is watched.
    pub caches: Caches,
    /// The configs.
    pub configs: Store<Guarded>,
    /// What the cluster lacks.
    pub lacks: watch::Receiver<Option<String>>,
    /// Events.
    pub recorder: Recorder,
    /// What is remembered of each config, by its id.
    pub remembered: Mutex<HashMap<String, Remembered>>,
}

/// What is remembered of one config between looks.
#[derive(Debug, Default)]
pub struct Remembered {
    children: Memory,
    unwell: Option<Unwell>,
    attempts: u32,
    matchers: HashMap<u64, Arc<Matcher>>,
    written: Option<(u64, DraDriverConfigStatus)>,
    counted: Counted,
}

impl Remembered {
    /// The config with the status it has by now, where the watch has yet to bring back what was written.
    fn latest(&self, config: &DraDriverConfig) -> DraDriverConfig {
        let version = version(config);
        let status = self.written.as_ref().filter(|(written, _)| *written > version).map(|(_, status)| status.clone());
        DraDriverConfig { status: status.or_else(|| config.status.clone()), ..config.clone() }
    }
}

/// Versions only grow (KEP-5504); 0 when it is not told.
fn version(config: &DraDriverConfig) -> u64 {
    config.resource_version().and_then(|version| version.parse().ok()).unwrap_or(0)
}

/// One config's part of the sums in the metrics.
#[derive(Clone, Copy, Debug, Default)]
struct Counted {
    ready: i64,
    unhealthy: i64,
    devices: i64,
}

/// Looks at one config and brings the cluster closer to it.
pub async fn reconcile(guarded: Arc<Guarded>, context: Arc<Context>) -> Result<Action, Error> {
    let _timing = context.writer.metrics.time();
    let config = match &guarded.0 {
        Ok(config) => config,
        Err(invalid) => return context.say_invalid(guarded.meta().name.as_deref(), &invalid.error).await,
    };
    let lacks = context.lacks.borrow().clone();
    if lacks.is_none() && !context.caches.are_ready() {
        // The last cache to be filled is an event.
        return Ok(Action::await_change());
    }
    let now = Timestamp::now();
    let id = config.uid().unwrap_or_default();
    let mut memory = context.remember(&id);
    let mut snapshot = context.snapshot();
    snapshot.children = memory.children.catch_up(snapshot.children, now);
    let config = &memory.latest(config);
    let view = View::new(config, &snapshot);
    let looked = if config.metadata.deletion_timestamp.is_some() {
        context.go(config, &snapshot, &view, &mut memory, now).await
    } else {
        context.serve(config, &snapshot, &view, lacks.as_deref(), &mut memory, now).await
    };
    memory.attempts = match &looked {
        Ok(looked) if looked.report.failures.is_empty() => 0,
        _ => memory.attempts.saturating_add(1),
    };
    let pause = backoff(memory.attempts);
    let lags = memory.children.lags();
    let gone = matches!(&looked, Ok(looked) if looked.gone);
    context.keep(id, memory, gone);
    let looked = match looked {
        Ok(looked) => looked,
        Err(error) => {
            tracing::warn!(%error, retry_in = ?pause, "reconcile");
            return Ok(Action::requeue(pause));
        }
    };
    Ok(looked.next(pause, lags, now))
}

/// What a look came to.
#[derive(Default)]
struct Looked {
    report: Report,
    blocks: Vec<Block>,
    next_deadline: Option<Timestamp>,
    gone: bool,
}

impl Looked {
    fn next(&self, pause: Duration, lags: bool, now: Timestamp) -> Action {
        if !self.report.failures.is_empty() {
            return Action::requeue(pause);
        }
        let taken = self.blocks.iter().any(|block| !matches!(block, Block::Unbuildable { .. }));
        let look_again = taken.then_some(LOOK_AGAIN);
        let deadline = self
            .next_deadline
            .map(|due| Duration::try_from(due.duration_since(now)).unwrap_or_default().max(Duration::from_millis(100)));
        let catch_up = lags.then(|| Duration::try_from(WATCH_LAG).unwrap_or_default());
        match look_again.into_iter().chain(deadline).chain(catch_up).min() {
            Some(pause) => Action::requeue(pause),
            None => Action::await_change(),
        }
    }
}

/// 1 s, 2 s, 4 s, … 2 min.
fn backoff(attempts: u32) -> Duration {
    Duration::from_secs(1 << attempts.saturating_sub(1).min(7)).min(LONGEST_BACKOFF)
}

/// After an error that came of reconcile itself.
#[expect(clippy::needless_pass_by_value, reason = "the shape kube's Controller asks for")]
pub fn on_error(_: Arc<Guarded>, error: &Error, context: Arc<Context>) -> Action {
    context.writer.metrics.failed("reconcile");
    tracing::warn!(%error, "reconcile");
    Action::requeue(Duration::from_secs(5))
}

impl Context {
    fn snapshot(&self) -> Snapshot {
        let configs = self.configs.state();
        Snapshot {
            configs: configs.iter().filter_map(|guarded| guarded.0.as_ref().ok().cloned().map(Arc::new)).collect(),
            children: self.caches.children(),
            slices: self.caches.slices(),
            pods: self.caches.pods(),
            nodes: self.caches.nodes(),
            claims: self.caches.claims(),
        }
    }

    /// Brings about what the config asks for.
    async fn serve(
        &self,
        config: &DraDriverConfig,
        snapshot: &Snapshot,
        view: &View<'_>,
        lacks: Option<&str>,
        memory: &mut Remembered,
        now: Timestamp,
    ) -> Result<Looked, Error> {
        let desired = build::children(config, &self.settings);
        let Plan { actions, mut blocks } = if lacks.is_none() && view.overlap.is_none() {
            self.add_finalizer(config).await?;
            plan::plan(config, &desired, &snapshot.children, &memory.children, now)
        } else {
            Plan::default()
        };
        let mut report = self.writer.carry_out(config, actions, &blocks, &mut memory.children, now).await;
        blocks.append(&mut report.blocks);
        let children = memory.children.catch_up(snapshot.children.clone(), now);
        let judged = judge(config, &desired, &children, snapshot, view, memory, now);
        let status = status::status(&Facts {
            config,
            lacks,
            overlap: view.overlap.as_deref(),
            blocks: &blocks,
            failures: &report.failures,
            deletion: None,
            rollout: &judged.rollout,
            health: &judged.health,
            usage: &judged.usage,
            now,
        });
        self.tell_written(config, &report).await;
        self.write_status(config, status, memory).await?;
        memory.unwell = Some(judged.health.unwell);
        Ok(Looked { report, blocks, next_deadline: judged.health.next_deadline, gone: false })
    }

    /// Takes the next step of the config's deletion.
    async fn go(
        &self,
        config: &DraDriverConfig,
        snapshot: &Snapshot,
        view: &View<'_>,
        memory: &mut Remembered,
        now: Timestamp,
    ) -> Result<Looked, Error> {
        if !config.finalizers().iter().any(|finalizer| finalizer == FINALIZER) {
            return Ok(Looked { gone: true, ..Looked::default() });
        }
        let claims = view.claims(config.spec.driver_name(), &snapshot.claims);
        let step = deletion::step(config, &snapshot.children, &view.pods, &claims, &view.own_slices);
        let report = self.writer.carry_out(config, step.actions, &[], &mut memory.children, now).await;
        for (name, uid) in &step.slices {
            self.writer.delete_slice(name, uid).await.map_err(|error| write_error("slices", config, error))?;
        }
        self.tell_written(config, &report).await;
        if step.waiting.is_none() && report.failures.is_empty() {
            self.remove_finalizer(config).await?;
            return Ok(Looked { report, gone: true, ..Looked::default() });
        }
        let desired = build::children(config, &self.settings);
        let judged = judge(config, &desired, &snapshot.children, snapshot, view, memory, now);
        let waiting = step.waiting.unwrap_or_else(|| Waiting::Children("objects could not be deleted yet".into()));
        let status = status::status(&Facts {
            config,
            lacks: None,
            overlap: None,
            blocks: &[],
            failures: &report.failures,
            deletion: Some(&waiting),
            rollout: &judged.rollout,
            health: &judged.health,
            usage: &judged.usage,
            now,
        });
        self.write_status(config, status, memory).await?;
        memory.unwell = Some(judged.health.unwell);
        Ok(Looked { report, next_deadline: judged.health.next_deadline, ..Looked::default() })
    }

    /// Writes the status where it says something else than before, and tells of what went over.
    async fn write_status(
        &self,
        config: &DraDriverConfig,
        status: DraDriverConfigStatus,
        memory: &mut Remembered,
    ) -> Result<(), Error> {
        if config.status.as_ref() == Some(&status) {
            return Ok(());
        }
        let before = config.status.as_ref().map(|status| status.conditions.clone()).unwrap_or_default();
        let name = config.name_any();
        let uid = config.uid();
        let object = status_object(&name, uid.as_deref(), &serde_json::to_value(&status).unwrap_or_default());
        let written = self.patch_status(&name, &object).await.map_err(|error| write_error("status", config, error))?;
        memory.written = written.0.ok().map(|config| (version(&config), status.clone()));
        for event in events::transitions(&before, &status.conditions) {
            self.tell(config, event).await;
        }
        Ok(())
    }

    async fn patch_status(&self, name: &str, object: &Value) -> Result<Guarded, kube::Error> {
        let api: Api<Guarded> = Api::all(self.writer.client.clone());
        self.writer.metrics.wrote("DraDriverConfig", Verb::Status);
        let parameters = PatchParams::apply(FIELD_MANAGER).force();
        api.patch_status(name, &parameters, &Patch::Apply(object)).await
    }

    async fn add_finalizer(&self, config: &DraDriverConfig) -> Result<(), Error> {
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

    async fn remove_finalizer(&self, config: &DraDriverConfig) -> Result<(), Error> {
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

    async fn patch_finalizer(&self, config: &DraDriverConfig, patch: Value) -> Result<(), Error> {
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
    async fn say_invalid(&self, name: Option<&str>, error: &str) -> Result<Action, Error> {
        let Some(name) = name else { return Ok(Action::await_change()) };
        let written = |error| Error::Write { what: "status", name: name.to_owned(), error: Box::new(error) };
        let api: Api<kube::core::DynamicObject> =
            Api::all_with(self.writer.client.clone(), &kube::core::ApiResource::erase::<DraDriverConfig>(&()));
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
        let resource = kube::core::ApiResource::erase::<DraDriverConfig>(&());
        for event in events::transitions(&before.conditions, &status.conditions) {
            self.publish(&event, &object.object_ref(&resource)).await;
        }
        Ok(Action::await_change())
    }

    async fn tell_written(&self, config: &DraDriverConfig, report: &Report) {
        for (key, because) in &report.written {
            tracing::info!(config = config.name_any(), child = %key, because, "wrote");
            // A roll-out's own first objects are no news; what somebody changed by hand is.
            if because.ends_with("was different") && config.metadata.generation == observed(config) {
                let note = format!("{key} was put right: {because}");
                self.tell(config, events::event(EventType::Normal, "DriftCorrected", "Apply", note)).await;
            }
        }
        for (key, message) in &report.failures {
            tracing::warn!(config = config.name_any(), child = %key, error = message, "could not be written");
        }
    }

    async fn tell(&self, config: &DraDriverConfig, event: Event) {
        self.publish(&event, &config.object_ref(&())).await;
    }

    async fn publish(&self, event: &Event, about: &k8s_openapi::api::core::v1::ObjectReference) {
        self.writer.metrics.wrote("Event", Verb::Event);
        if let Err(error) = self.recorder.publish(event, about).await {
            tracing::warn!(%error, "an Event could not be written");
        }
    }

    fn remember(&self, id: &str) -> Remembered {
        self.remembered.lock().unwrap_or_else(PoisonError::into_inner).remove(id).unwrap_or_default()
    }

    /// Keeps what is to be remembered, and adds the config's counts to the metrics.
    fn keep(&self, id: String, memory: Remembered, gone: bool) {
        let mut all = self.remembered.lock().unwrap_or_else(PoisonError::into_inner);
        if !gone {
            all.insert(id, memory);
        }
        let sum = |part: fn(&Counted) -> i64| all.values().map(|one| part(&one.counted)).sum();
        let metrics = &self.writer.metrics;
        metrics.nodes_ready.set(sum(|one| one.ready));
        metrics.nodes_unhealthy.set(sum(|one| one.unhealthy));
        metrics.devices.set(sum(|one| one.devices));
    }
}

/// What is true of the config's plugin and devices now.
struct Judged {
    rollout: Rollout,
    health: Health,
    usage: Usage,
}

fn judge(
    config: &DraDriverConfig,
    desired: &Desired,
    children: &[Live],
    snapshot: &Snapshot,
    view: &View<'_>,
    memory: &mut Remembered,
    now: Timestamp,
) -> Judged {
    let daemon_set = children
        .iter()
        .find(|live| live.key.kind == ChildKind::DaemonSet && live.key.name == build::plugin_name(config));
    let rollout = rollout::judge(daemon_set.filter(|live| live.is_of(config)), &view.pods, &view.nodes);
    let pools = view.pools();
    let pools: Vec<_> = pools.iter().collect();
    let problems = config.status.as_ref().and_then(|status| status.problems.as_ref()).map(|problems| &problems.first);
    let before = Before { unwell: memory.unwell.as_ref(), problems: problems.map(Vec::as_slice).unwrap_or_default() };
    let deadline = config.spec.health().publish_deadline();
    let health = health::judge(&view.pods, &view.nodes, &pools, deadline, before, now);
    let matchers = matchers(desired, &mut memory.matchers);
    let names: Vec<_> = config.spec.device_classes.iter().map(|class| class.name.as_str()).collect();
    let driver = config.spec.driver_name();
    let usage = usage::count(driver, &pools, &snapshot.claims, &names, |class, device| {
        let Some(matcher) = matchers.get(class) else { return Ok(false) };
        matcher.matches(driver, device).map_err(|error| match error {
            MatchError::Unknown(_) => "NotCounted",
            MatchError::Aborts(_) => "AbortsClaims",
        })
    });
    memory.counted = Counted {
        ready: rollout.ready.into(),
        unhealthy: i64::try_from(health.unhealthy).unwrap_or(i64::MAX),
        devices: usage.devices.total.into(),
    };
    Judged { rollout, health, usage }
}

/// A matcher for each class, kept while the class stays as it is: it remembers its answers.
fn matchers(desired: &Desired, kept: &mut HashMap<u64, Arc<Matcher>>) -> HashMap<String, Arc<Matcher>> {
    let mut current = HashMap::new();
    let mut by_name = HashMap::new();
    for child in desired.children.iter().filter(|child| child.key.kind == ChildKind::DeviceClass) {
        let spec = child.object.get("spec").cloned().unwrap_or_default();
        let mut hasher = DefaultHasher::new();
        spec.to_string().hash(&mut hasher);
        let Ok(class) = serde_json::from_value::<DeviceClassSpec>(spec) else { continue };
        let hash = hasher.finish();
        let matcher = kept.get(&hash).cloned().unwrap_or_else(|| Arc::new(Matcher::new(&class)));
        current.insert(hash, Arc::clone(&matcher));
        by_name.insert(child.key.name.clone(), matcher);
    }
    *kept = current;
    by_name
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

fn write_error(what: &'static str, config: &DraDriverConfig, error: kube::Error) -> Error {
    Error::Write { what, name: config.name_any(), error: Box::new(error) }
}
