//! One look at one config: observe → plan → apply → status. IO: the Kubernetes API.

pub(super) mod memory;
mod object;

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
use tokio::sync::watch;

pub use memory::Remembered;
pub use object::FINALIZER;

use crate::{
    api::DraDriverConfig,
    backoff::Backoff,
    controller::{
        apply::{Writer, series::Series},
        build::{self, Settings},
        judge::{Seen, daemon_set, judge, rollout},
        metrics::Failure,
        observe::{self, Caches, Guarded, Live},
        plan::{
            self, Block, Plan, WATCH_LAG,
            deletion::{self, Waiting},
        },
        status::{self, Facts},
        view::{Snapshot, View},
    },
};
use memory::Counted;
use object::write_error;

/// Somebody else's object may go without an event that is watched.
const LOOK_AGAIN: Duration = Duration::from_mins(1);
/// Why a pod cannot be made is said some moments after it should have been, and not watched.
const ASK_WHY: Duration = Duration::from_secs(5);
/// A look that takes longer hangs; the client itself gives an answer up only after minutes.
const LONGEST_LOOK: Duration = Duration::from_mins(1);
/// Between attempts.
const BACKOFF: Backoff = Backoff { first: Duration::from_secs(1), longest: Duration::from_mins(2) };

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
    /// The API server does not answer.
    #[error("the look at a DraDriverConfig took more than {} s and was given up", LONGEST_LOOK.as_secs())]
    Hangs,
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
    /// What a look costs.
    pub pace: Arc<Pace>,
    /// What the cluster lacks.
    pub lacks: watch::Receiver<Option<String>>,
    /// Events.
    pub events: Series,
    /// What is remembered of each config, by its id.
    pub remembered: Mutex<HashMap<String, Remembered>>,
}

/// How long the last look computed, without waiting for answers.
#[derive(Debug, Default)]
pub struct Pace(AtomicU64);

impl Pace {
    /// How long the last look computed.
    pub fn last(&self) -> Duration {
        Duration::from_micros(self.0.load(Ordering::Relaxed))
    }

    fn note(&self, took: Duration) {
        self.0.store(u64::try_from(took.as_micros()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }
}

/// Looks at one config and brings the cluster closer to it.
pub async fn reconcile(guarded: Arc<Guarded>, context: Arc<Context>) -> Result<Action, Error> {
    tokio::time::timeout(LONGEST_LOOK, look(guarded, context)).await.map_err(|_| Error::Hangs)?
}

async fn look(guarded: Arc<Guarded>, context: Arc<Context>) -> Result<Action, Error> {
    let _timing = context.writer.metrics.time();
    let config = &guarded.config;
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
    } else if let Some(error) = &guarded.invalid {
        context.say_invalid(config, error, &mut memory, now).await
    } else {
        context.serve(config, &snapshot, &view, lacks.as_deref(), &mut memory, now).await
    };
    memory.attempts = if looked.is_ok() { 0 } else { memory.attempts.saturating_add(1) };
    let pause = BACKOFF.pause(memory.attempts.saturating_sub(1));
    let lag = memory.children.lags().then(|| Duration::try_from(WATCH_LAG).unwrap_or_default());
    let due = memory.owed.into_iter().chain(memory.children.next_try(now)).map(|at| until(at, now));
    let due: Vec<_> = lag.into_iter().chain(due).collect();
    let gone = matches!(&looked, Ok(looked) if looked.gone);
    context.keep(id, memory, gone);
    let looked = match looked {
        Ok(looked) => looked,
        Err(error) => {
            tracing::warn!(%error, retry_in = ?pause, "reconcile");
            return Ok(Action::requeue(pause));
        }
    };
    Ok(looked.next(due.into_iter(), now))
}

/// What a look came to.
#[derive(Default)]
struct Looked {
    blocks: Vec<Block>,
    next_deadline: Option<Timestamp>,
    /// Whether pods that should be there are not, and whether it is known why.
    podless: Option<bool>,
    gone: bool,
}

impl Looked {
    fn next(&self, others: impl Iterator<Item = Duration>, now: Timestamp) -> Action {
        let taken = self.blocks.iter().any(|block| !matches!(block, Block::Unbuildable { .. }));
        let look_again = taken.then_some(LOOK_AGAIN);
        let deadline = self.next_deadline.map(|due| until(due, now));
        let podless = self.podless.map(|why| if why { LOOK_AGAIN } else { ASK_WHY });
        match look_again.into_iter().chain(deadline).chain(podless).chain(others).min() {
            Some(pause) => Action::requeue(pause),
            None => Action::await_change(),
        }
    }
}

fn until(due: Timestamp, now: Timestamp) -> Duration {
    Duration::try_from(due.duration_since(now)).unwrap_or_default().max(Duration::from_millis(100))
}

/// After an error that came of reconcile itself.
#[expect(clippy::needless_pass_by_value, reason = "the shape kube's Controller asks for")]
pub fn on_error(_: Arc<Guarded>, error: &Error, context: Arc<Context>) -> Action {
    context.writer.metrics.failed(Failure::Reconcile);
    tracing::warn!(%error, "reconcile");
    Action::requeue(Duration::from_secs(5))
}

impl Context {
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

    /// Which configs there are, and of which generation: what one may do hangs on the others.
    pub fn generations(&self) -> BTreeSet<(Option<String>, Option<i64>, bool)> {
        let configs = self.configs.state();
        let of = |config: &Guarded| {
            let metadata = &config.config.metadata;
            (metadata.uid.clone(), metadata.generation, metadata.deletion_timestamp.is_some())
        };
        configs.iter().map(|config| of(config)).collect()
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
        let Plan { actions, mut blocks, held } = if lacks.is_none() && view.overlap.is_none() {
            self.add_finalizer(config).await?;
            plan::plan(config, &desired, &snapshot.children, &memory.children, now)
        } else {
            Plan::default()
        };
        let mut report = self.writer.carry_out(config, actions, &blocks, &mut memory.children, now).await;
        blocks.append(&mut report.blocks);
        let children = memory.children.catch_up(snapshot.children.clone(), now);
        let refusal = self.refusal(daemon_set(config, &children), view, memory, now).await;
        let start = Instant::now();
        let seen = Seen { children: &children, claims: &snapshot.claims, view, refusal: refusal.as_deref() };
        let judged = judge(config, seen, &mut memory.judge, now);
        memory.counted = Counted::of(&judged);
        self.pace.note(start.elapsed());
        let status = status::status(&Facts {
            config,
            lacks,
            overlap: view.overlap.as_ref(),
            blocks: &blocks,
            held: &held,
            failures: &report.failures,
            deletion: None,
            rollout: &judged.rollout,
            health: &judged.health,
            usage: &judged.usage,
            now,
        });
        self.tell_written(config, &report).await;
        self.write_status(config, status, memory, now).await?;
        let podless = (judged.rollout.missing > 0).then_some(refusal.is_some());
        let next_deadline = judged.next_deadline();
        Ok(Looked { blocks, next_deadline, podless, gone: false })
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
        let step = deletion::step(config, &snapshot.children, view);
        let report = self.writer.carry_out(config, step.actions, &[], &mut memory.children, now).await;
        for (name, uid) in &step.slices {
            self.writer.delete_slice(name, uid).await.map_err(|error| write_error("slices", config, error))?;
        }
        self.tell_written(config, &report).await;
        if step.waiting.is_none() && report.failures.is_empty() {
            self.remove_finalizer(config).await?;
            return Ok(Looked { gone: true, ..Looked::default() });
        }
        let seen = Seen { children: &snapshot.children, claims: &snapshot.claims, view, refusal: None };
        let judged = judge(config, seen, &mut memory.judge, now);
        memory.counted = Counted::of(&judged);
        let waiting = step.waiting.unwrap_or_else(|| Waiting::Children("objects could not be deleted yet".into()));
        let status = status::status(&Facts {
            config,
            lacks: None,
            overlap: None,
            blocks: &[],
            held: &[],
            failures: &report.failures,
            deletion: Some(&waiting),
            rollout: &judged.rollout,
            health: &judged.health,
            usage: &judged.usage,
            now,
        });
        self.write_status(config, status, memory, now).await?;
        let next_deadline = judged.next_deadline();
        Ok(Looked { next_deadline, ..Looked::default() })
    }

    /// Why pods that should be there cannot be made, where there are any.
    /// Not asked for at each look: a cluster that changes looks often.
    async fn refusal(
        &self,
        daemon_set: Option<&Live>,
        view: &View<'_>,
        memory: &mut Remembered,
        now: Timestamp,
    ) -> Option<String> {
        let daemon_set = daemon_set.filter(|_| rollout::missing(daemon_set, &view.pods) > 0)?;
        if let Some((at, answer)) = &memory.refusal
            && Duration::try_from(now.duration_since(*at)).unwrap_or_default() < ASK_WHY
        {
            return answer.clone();
        }
        let asked = observe::refusal(&self.writer.client, &self.writer.namespace, &daemon_set.uid, now).await;
        let answer = asked.unwrap_or_else(|error| {
            tracing::warn!(%error, "list the Events of the node plugin's DaemonSet");
            None
        });
        memory.refusal = Some((now, answer.clone()));
        answer
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
        drop(all);
        self.forget();
    }

    /// Forgets configs that are no more, also those that went without a word, and counts the others.
    pub fn forget(&self) {
        let there: HashSet<_> = self.configs.state().iter().filter_map(|guarded| guarded.uid()).collect();
        let mut all = self.remembered.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|id, _| there.contains(id));
        let sum = |part: fn(&Counted) -> i64| all.values().map(|one| part(&one.counted)).sum();
        let metrics = &self.writer.metrics;
        metrics.nodes_ready.set(sum(|one| one.ready));
        metrics.nodes_unhealthy.set(sum(|one| one.unhealthy));
        metrics.devices.set(sum(|one| one.devices));
    }
}

#[cfg(test)]
mod tests;
