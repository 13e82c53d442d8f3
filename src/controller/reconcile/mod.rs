//! Reconciles one config: observe → view → plan → apply → judge → status → events. IO: the Kubernetes API.
//!
//! [`Context::serve`] and [`Context::finalize`] run the steps in order, and both end in [`Context::report`]. Comments
//! mark the steps that use the API server; the others only compute.

mod memory;
mod requeue;

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use jiff::Timestamp;
use kube::{
    ResourceExt,
    runtime::{controller::Action, reflector::Store},
};
use tokio::{sync::watch, time::timeout};

use self::{
    memory::{Counted, Remembered},
    requeue::{ASK_WHY, LOOK_AGAIN, Requeue, backoff},
};
use crate::{
    api::DraDriverConfigStatus,
    controller::{
        apply::{Failed, Report, WriteError, Writer, object::has_finalizer},
        build::{self, Settings},
        config::Config,
        judge::{Judged, Seen, daemon_set, judge, rollout::DaemonSet},
        metrics::Failure,
        observe::{self, Caches, Guarded},
        plan::{
            self, Block, Plan, WATCH_LAG,
            deletion::{self, Waiting},
        },
        status::{self, Inputs, events},
        view::{Snapshot, View},
    },
};

/// A reconcile that takes longer is considered hung. The client itself waits minutes for a response.
const LONGEST: Duration = Duration::from_mins(1);

/// Why a reconcile ended early.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The config or one of its slices could not be written.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// The API server does not respond.
    #[error("reconciling timed out after {} s", LONGEST.as_secs())]
    TimedOut,
}

/// What all reconciles share.
pub struct Context {
    /// Writes to the cluster.
    pub writer: Writer,
    /// Settings that are not in the objects.
    pub settings: Settings,
    /// The caches of watched objects.
    pub caches: Caches,
    /// The configs.
    pub configs: Store<Guarded>,
    /// How long reconciles compute.
    pub pace: Arc<Pace>,
    /// What the cluster lacks.
    pub missing_api: watch::Receiver<Option<String>>,
    /// What is remembered about each config, by UID.
    pub remembered: Mutex<HashMap<String, Remembered>>,
}

/// How long the last reconcile computed, without the time that it waited for responses.
#[derive(Debug, Default)]
pub struct Pace(AtomicU64);

impl Pace {
    /// How long the last reconcile computed.
    pub fn last(&self) -> Duration {
        Duration::from_micros(self.0.load(Ordering::Relaxed))
    }

    pub(super) fn note(&self, took: Duration) {
        self.0.store(u64::try_from(took.as_micros()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }
}

/// Reconciles one config, and returns when to do so again. Called by [`Controller`](kube::runtime::Controller).
pub async fn reconcile(guarded: Arc<Guarded>, context: Arc<Context>) -> Result<Action, Error> {
    let reconciled = reconcile_once(&guarded, &context, Timestamp::now());
    timeout(LONGEST, reconciled).await.map_err(|_| Error::TimedOut)?
}

/// Called after [`reconcile`] has returned an error.
#[expect(clippy::needless_pass_by_value, reason = "the shape kube's Controller asks for")]
pub fn on_error(_: Arc<Guarded>, error: &Error, context: Arc<Context>) -> Action {
    context.writer.metrics.failed(Failure::Reconcile);
    tracing::warn!(%error, "reconcile");
    Action::requeue(Duration::from_secs(5))
}

async fn reconcile_once(guarded: &Guarded, context: &Context, now: Timestamp) -> Result<Action, Error> {
    let _timing = context.writer.metrics.time();

    // Never decide on a partial view of the cluster. Caches of a missing API never fill, but then `missing_api` is set.
    let missing_api = context.missing_api.borrow().clone();
    if missing_api.is_none() && !context.caches.are_ready() {
        // Filling the last cache triggers a reconcile.
        return Ok(Action::await_change());
    }

    // Observe: what the watches show, and what was written since.
    let id = guarded.uid().unwrap_or_default();
    let mut memory = context.recall(&id);
    let mut snapshot = context.snapshot();
    snapshot.children = memory.children.catch_up(snapshot.children, now);
    let config = &memory.status.latest(&guarded.config);

    // View: this config's part of it.
    let view = View::new(config, &snapshot);

    // The other steps depend on whether the config is served or being deleted.
    let subject = Subject { config, snapshot: &snapshot, view: &view, now };
    let reconciled = if config.metadata.deletion_timestamp.is_some() {
        context.finalize(subject, &mut memory).await
    } else if let Some(error) = &guarded.invalid {
        context.reject(subject, error, &mut memory).await
    } else {
        context.serve(subject, missing_api.as_deref(), &mut memory).await
    };

    // When to reconcile again. A failure is not fatal: the next attempt starts from the state at that time.
    memory.failures = if reconciled.is_ok() { 0 } else { memory.failures.saturating_add(1) };
    let action = match &reconciled {
        Ok(Outcome::Gone) => Action::await_change(),
        Ok(Outcome::Remains(next)) => next.requeue(&memory, now).action(),
        Err(error) => {
            let pause = backoff(memory.failures);
            tracing::warn!(%error, retry_in = ?pause, "reconcile");
            Action::requeue(pause)
        }
    };
    if !matches!(reconciled, Ok(Outcome::Gone)) {
        context.remember(id, memory);
    }
    context.forget();
    Ok(action)
}

/// The input of a reconcile.
#[derive(Clone, Copy)]
struct Subject<'a> {
    /// The config, with its latest status.
    config: &'a Config,
    /// The cluster.
    snapshot: &'a Snapshot,
    /// The config's view of it.
    view: &'a View<'a>,
    /// Now.
    now: Timestamp,
}

/// The results of the steps before the judge.
#[derive(Default)]
struct Findings<'a> {
    /// What the cluster lacks.
    missing_api: Option<&'a str>,
    /// Why pods that should exist cannot be created.
    refusal: Option<String>,
    /// Blocks from the plan and from the writes.
    blocks: Vec<Block>,
    /// Deleted children that finalizers keep.
    held: Vec<String>,
    /// The results of the writes.
    report: Report,
    /// What the deletion waits for.
    waiting: Option<Waiting>,
}

/// The outcome of a reconcile.
enum Outcome {
    /// The config is gone, or has no finalizer of ours.
    Gone,
    /// The config exists, and may change state without an event as described.
    Remains(Next),
}

/// What may change without an event.
#[derive(Default)]
struct Next {
    /// Whether an object is blocked by something that is not watched.
    is_blocked: bool,
    /// When the next node or pod passes its deadline.
    deadline: Option<Timestamp>,
    /// Set if pods are missing: whether the reason is known.
    podless: Option<bool>,
}

impl Next {
    fn requeue(&self, memory: &Remembered, now: Timestamp) -> Requeue {
        let mut requeue = Requeue::default();
        if self.is_blocked {
            requeue.within(LOOK_AGAIN);
        }
        if let Some(is_known_why) = self.podless {
            requeue.within(if is_known_why { LOOK_AGAIN } else { ASK_WHY });
        }
        requeue.at(self.deadline, now);

        // What memory holds back or waits to retry.
        if memory.children.lags() {
            requeue.within(Duration::try_from(WATCH_LAG).unwrap_or_default());
        }
        requeue.at(memory.children.next_try(now), now);
        requeue.at(memory.status.held_back(), now);
        requeue
    }
}

impl Context {
    /// Brings the cluster to the state that the config asks for.
    async fn serve(
        &self,
        subject: Subject<'_>,
        missing_api: Option<&str>,
        memory: &mut Remembered,
    ) -> Result<Outcome, Error> {
        let Subject { config, snapshot, view, now } = subject;

        // Observe (API, only while pods are missing): why they cannot be created.
        let refusal = self.refusal(subject, memory).await;

        // Plan: build the wanted children and compare them with the live ones. Nothing is rolled out if the cluster
        // lacks the API or an older config has the nodes.
        let may_roll_out = missing_api.is_none() && view.overlap.is_none();
        let plan = if may_roll_out {
            let desired = build::children(config, &self.settings);
            plan::plan(config, &desired, &snapshot.children, &memory.children, now)
        } else {
            Plan::default()
        };

        // Apply (API). The finalizer comes first, so that nothing created outlives the config.
        if may_roll_out {
            self.writer.add_finalizer(config).await?;
        }
        let mut report = self.writer.carry_out(config, plan.actions, &plan.blocks, &mut memory.children, now).await;
        let mut blocks = plan.blocks;
        blocks.append(&mut report.blocks);

        // Judge, status (API), events (API).
        let findings = Findings { missing_api, refusal, blocks, held: plan.held, report, waiting: None };
        self.report(subject, findings, memory).await
    }

    /// Takes the next step of the config's deletion.
    async fn finalize(&self, subject: Subject<'_>, memory: &mut Remembered) -> Result<Outcome, Error> {
        let Subject { config, snapshot, view, now } = subject;
        if !has_finalizer(config) {
            return Ok(Outcome::Gone);
        }

        // Plan: what can be deleted now, and what the rest waits for.
        let step = deletion::step(config, &snapshot.children, view);

        // Apply (API).
        let report = self.writer.carry_out(config, step.actions, &[], &mut memory.children, now).await;
        for (name, uid) in &step.slices {
            self.writer.delete_slice(name, uid).await?;
        }
        let failed = report
            .failures
            .first()
            .map(|Failed { key, message }| Waiting::Children(format!("deleting {key} failed, retrying: {message}")));
        let Some(waiting) = failed.or(step.waiting) else {
            self.writer.remove_finalizer(config).await?;
            return Ok(Outcome::Gone);
        };

        // Judge, status (API), events (API).
        let findings = Findings { waiting: Some(waiting), ..Findings::default() };
        self.report(subject, findings, memory).await
    }

    /// Reports that a config cannot be parsed. Its existing objects are left unchanged.
    async fn reject(&self, subject: Subject<'_>, error: &str, memory: &mut Remembered) -> Result<Outcome, Error> {
        let Subject { config, now, .. } = subject;
        let before = config.status.clone().unwrap_or_default();
        let status = status::invalid(&before, config.metadata.generation, error, now);
        if status != before {
            self.writer.metrics.failed(Failure::InvalidObject);
        }
        self.publish(config, status, &Report::default(), memory, now).await?;
        Ok(Outcome::Remains(Next::default()))
    }

    /// The end of every reconcile: judges the current state, and reports it in the status and in Events.
    async fn report(
        &self,
        subject: Subject<'_>,
        findings: Findings<'_>,
        memory: &mut Remembered,
    ) -> Result<Outcome, Error> {
        let Subject { config, snapshot, view, now } = subject;
        let Findings { missing_api, refusal, blocks, held, report, waiting } = findings;

        // Judge: the rollout, device health and device usage, including what was just written.
        let children = memory.children.catch_up(snapshot.children.clone(), now);
        let start = Instant::now();
        let seen = Seen { children: &children, claims: &snapshot.claims, view, refusal: refusal.as_deref() };
        let judged = judge(config, seen, &mut memory.judge, now);
        self.pace.note(start.elapsed());
        memory.counted = Counted::of(&judged);

        // Status.
        let status = status::status(&Inputs {
            config,
            missing_api,
            // A config that is being deleted need not give way.
            overlap: view.overlap.as_ref().filter(|_| waiting.is_none()),
            blocks: &blocks,
            held: &held,
            failures: &report.failures,
            deletion: waiting.as_ref(),
            rollout: &judged.rollout,
            health: &judged.health,
            usage: &judged.usage,
            now,
        });

        // Status and events (API).
        self.publish(config, status, &report, memory, now).await?;

        let Judged { rollout, .. } = &judged;
        Ok(Outcome::Remains(Next {
            is_blocked: blocks.iter().any(|block| !matches!(block, Block::Unbuildable { .. })),
            deadline: judged.next_deadline(),
            podless: (waiting.is_none() && rollout.missing > 0).then_some(refusal.is_some()),
        }))
    }

    /// Writes the status if it says something new, and Events for the change and the writes.
    async fn publish(
        &self,
        config: &Config,
        status: DraDriverConfigStatus,
        report: &Report,
        memory: &mut Remembered,
        now: Timestamp,
    ) -> Result<(), Error> {
        let mut events = events::of_writes(config, report);

        let mut written = Ok(());
        if memory.status.is_due(config.status.as_ref(), &status, now) {
            match self.writer.write_status(config, &status).await {
                Ok(stored) => {
                    events.extend(events::of_status(config.status.as_ref(), &status));
                    memory.status.wrote(stored.as_ref(), status, now);
                }
                Err(error) => written = Err(error.into()),
            }
        }

        // Publish these even if the status could not be written, because the writes will not be repeated.
        for event in &events {
            self.writer.publish_event(config, event).await;
        }
        written
    }

    /// The current content of the caches.
    fn snapshot(&self) -> Snapshot {
        let configs = self.configs.state();
        Snapshot {
            configs: configs.iter().map(|guarded| Arc::new(guarded.config.clone())).collect(),
            children: self.caches.children(),
            slices: self.caches.slices(),
            pods: self.caches.pods(),
            nodes: self.caches.nodes(),
            claims: self.caches.claims(),
        }
    }

    /// Why missing pods cannot be created. Checked at most every few seconds, because a busy cluster is reconciled
    /// often.
    async fn refusal(&self, subject: Subject<'_>, memory: &mut Remembered) -> Option<String> {
        let Subject { config, snapshot, view, now } = subject;
        let daemon_set = daemon_set(config, &snapshot.children);
        let daemon_set = daemon_set.filter(|_| DaemonSet::of(daemon_set).missing(&view.pods) > 0)?;
        if let Some((at, answer)) = &memory.refusal
            && Duration::try_from(now.duration_since(*at)).unwrap_or_default() < ASK_WHY
        {
            return answer.clone();
        }

        let asked = observe::refusal(&self.writer.client, &self.writer.namespace, &daemon_set.uid, now).await;
        let answer = asked.unwrap_or_else(|error| {
            tracing::warn!(%error, "listing the Events of the node plugin's DaemonSet failed, retrying");
            None
        });
        memory.refusal = Some((now, answer.clone()));
        answer
    }

    /// Which configs exist, and in which generation: configs depend on one another.
    pub fn generations(&self) -> BTreeSet<(Option<String>, Option<i64>, bool)> {
        let configs = self.configs.state();
        let of = |config: &Guarded| {
            let metadata = &config.config.metadata;
            (metadata.uid.clone(), metadata.generation, metadata.deletion_timestamp.is_some())
        };
        configs.iter().map(|config| of(config)).collect()
    }

    fn recall(&self, id: &str) -> Remembered {
        self.remembered.lock().unwrap_or_else(PoisonError::into_inner).remove(id).unwrap_or_default()
    }

    fn remember(&self, id: String, memory: Remembered) {
        self.remembered.lock().unwrap_or_else(PoisonError::into_inner).insert(id, memory);
    }

    /// Forgets configs that no longer exist, and updates the metrics with the sums over the others.
    pub fn forget(&self) {
        let existing: HashSet<_> = self.configs.state().iter().filter_map(|guarded| guarded.uid()).collect();
        let mut all = self.remembered.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|id, _| existing.contains(id));

        let sum = |part: fn(&Counted) -> i64| all.values().map(|one| part(&one.counted)).sum();
        let metrics = &self.writer.metrics;
        metrics.nodes_ready.set(sum(|one| one.ready));
        metrics.nodes_unhealthy.set(sum(|one| one.unhealthy));
        metrics.devices.set(sum(|one| one.devices));
    }
}

#[cfg(test)]
mod tests;
