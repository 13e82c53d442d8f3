//! The controller's life: lead, fill the caches, reconcile until it is stopped. IO: the Kubernetes API.

use std::{collections::HashMap, sync::Arc, time::Duration};

use futures::{FutureExt, Stream, StreamExt};
use kube::{
    Api, Client,
    runtime::{
        Controller,
        controller::{self, Config as Tuning},
        events::Reporter,
        watcher,
    },
};
use tokio::{
    sync::{Notify, watch},
    time::{interval, sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use crate::controller::{
    apply::{Writer, series::Series},
    build::{FIELD_MANAGER, Settings},
    http::{BEAT, Health, Phase},
    leader::{self, Candidate},
    metrics::{Failure, Metrics},
    observe::{Caches, Changes, Guarded, preflight},
    reconcile::{Context, Pace, on_error, reconcile},
};

/// Changes that come closer together are reconciled together.
const TOGETHER: Duration = Duration::from_millis(100);
/// Reconciling takes at most one part in so many of the time, however large the cluster and busy its claims.
const SHARE: u32 = 8;
/// Between two checks for an API that is missing.
const CHECK_EVERY: Duration = Duration::from_secs(15);
/// How long a reconcile may take to end once the controller is stopped: a pod has 30 s.
const END: Duration = Duration::from_secs(20);
/// How long giving the Lease back may take after that. One that is kept ends with its pod.
const RESIGN: Duration = Duration::from_secs(5);

/// What the controller is run with.
pub struct Operator {
    /// The API.
    pub client: Client,
    /// What is not in the objects.
    pub settings: Settings,
    /// This pod, where instances elect a leader.
    pub pod: Option<String>,
    /// Metrics.
    pub metrics: Metrics,
    /// How the process is doing.
    pub health: Arc<Health>,
}

/// The controller ended without being stopped.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The election failed.
    #[error(transparent)]
    Election(#[from] leader::Error),
    /// Another instance may lead now.
    #[error("lost the Lease {}: another instance may lead; restarting", leader::LEASE)]
    Lost,
}

impl Operator {
    /// Leads and reconciles until `stop`.
    pub async fn run(self, stop: CancellationToken) -> Result<(), Error> {
        let Some(pod) = self.pod.clone() else {
            self.work(stop).await;
            return Ok(());
        };

        // Wait for leadership. No loop turns in a standby: its heartbeat comes from here.
        let leads = async {
            let candidate = Candidate::new(&self.client, &self.settings.namespace, &pod).await?;
            candidate.lead(|| self.health.enter(Phase::StandingBy)).await?;
            Ok::<_, leader::Error>(candidate)
        };
        let heartbeat = async {
            self.heartbeat().for_each(async |()| {}).await;
            std::future::pending().await
        };
        let candidate = tokio::select! {
            candidate = leads => candidate?,
            () = stop.cancelled() => return Ok(()),
            never = heartbeat => match never {},
        };
        tracing::info!(pod, "leading");

        // Lead until stopped, or until the Lease is lost.
        let done = tokio::select! {
            () = self.work(stop) => Ok(()),
            () = candidate.lost() => Err(Error::Lost),
        };
        timeout(RESIGN, candidate.resign()).await.ok();
        done
    }

    /// Connects the watches with kube's Controller, and reconciles until `stop`.
    async fn work(&self, stop: CancellationToken) {
        self.metrics.leader.set(1);
        self.health.enter(Phase::Filling);

        // What is watched, and what wakes the loop beside the configs themselves.
        let (caches, changes) = Caches::new(&self.client, &self.settings.namespace);
        let (missing_api, lacks) = watch::channel(None);
        let news = Arc::new(Notify::new());
        let pace = Arc::new(Pace::default());
        let configs: Api<Guarded> = Api::all(self.client.clone());
        let controller = Controller::new(configs, watcher::Config::default())
            .with_config(Tuning::default().concurrency(1))
            .reconcile_all_on(coalesced(Arc::clone(&news), Arc::clone(&pace)))
            .graceful_shutdown_on(stop.clone().cancelled_owned());

        let context = Arc::new(Context {
            writer: Writer {
                client: self.client.clone(),
                namespace: self.settings.namespace.clone(),
                metrics: self.metrics.clone(),
                events: Series::new(
                    self.client.clone(),
                    Reporter { controller: FIELD_MANAGER.into(), instance: self.pod.clone() },
                ),
            },
            settings: self.settings.clone(),
            caches: caches.clone(),
            pace,
            configs: controller.store(),
            lacks,
            remembered: HashMap::new().into(),
        });

        // What stands in a config's way may go, or be edited, without an event of that config. The loop itself polls this, so
        // that the heartbeat stops when the loop does.
        let (seen, left) = (Arc::clone(&context), Arc::clone(&context));
        // A config may also come and go between two beats, so forgetting does not wait for a difference.
        let beats = self.heartbeat().inspect(move |()| left.forget());
        let others = differing(beats, move || seen.generations());
        let controller = controller.reconcile_all_on(others);

        let configs = controller.store();
        let filled = async {
            configs.wait_until_ready().await.ok();
            caches.filled().await;
            self.health.enter(Phase::Leading);
            tracing::info!("caches are filled");
            std::future::pending::<()>().await;
        };
        let reconciles = controller.run(reconcile, on_error, context).for_each(async |done| {
            // Reconcile has logged its own errors; an object that is gone meanwhile needs no message.
            if let Err(controller::Error::QueueError(error)) = done {
                self.metrics.failed(Failure::Watch);
                tracing::warn!(%error, "watching DraDriverConfig failed (is its CRD installed?), retrying");
            }
        });

        // kube's Controller lets a reconcile end. It does not notice the stop before it has listed the configs, but then
        // there is nothing that could end.
        let stopped = async {
            stop.cancelled().await;
            if configs.wait_until_ready().now_or_never().is_some() {
                sleep(END).await;
                tracing::warn!("a reconcile did not end within {} s", END.as_secs());
            }
        };

        // Only the first two of these end, when the controller is stopped.
        tokio::select! {
            () = reconciles => {}
            () = stopped => {}
            () = filled => {}
            () = self.follow(changes, &news) => {}
            () = self.check_api(&missing_api, &news) => {}
        }
    }

    /// Keeps the caches filled, and wakes the loop on changes.
    async fn follow(&self, mut changes: Changes, news: &Notify) {
        while let Some(change) = changes.next().await {
            match change {
                Ok(()) => news.notify_one(),
                Err(error) => {
                    self.metrics.failed(Failure::Watch);
                    tracing::warn!(%error, "watch");
                }
            }
        }
    }

    /// Checks whether the cluster serves the API that is needed, until it does.
    async fn check_api(&self, lacks: &watch::Sender<Option<String>>, news: &Notify) {
        loop {
            match preflight::lacks(&self.client).await {
                Ok(found) => {
                    let passed = found.is_none();
                    if lacks.send_if_modified(|known| std::mem::replace(known, found.clone()) != found) {
                        news.notify_one();
                    }
                    if passed {
                        return std::future::pending().await;
                    }
                    // Watches of a missing API never fill their caches: there is nothing to wait for.
                    self.health.enter(Phase::Leading);
                }
                Err(error) => tracing::warn!(%error, "listing the API groups failed, retrying"),
            }
            sleep(CHECK_EVERY).await;
        }
    }

    fn heartbeat(&self) -> impl Stream<Item = ()> + Send + use<> {
        let health = Arc::clone(&self.health);
        futures::stream::unfold(interval(BEAT), move |mut interval| {
            let health = Arc::clone(&health);
            async move {
                interval.tick().await;
                health.beat();
                Some(((), interval))
            }
        })
    }
}

/// One item for all news within a moment, which grows with what reconciling costs. A debounce would wait for ever in a busy
/// cluster.
fn coalesced(news: Arc<Notify>, pace: Arc<Pace>) -> impl Stream<Item = ()> + Send {
    futures::stream::unfold((news, pace), async |(news, pace)| {
        news.notified().await;
        sleep(TOGETHER.max(pace.last() * SHARE)).await;
        Some(((), (news, pace)))
    })
}

/// The beats on which `observe` sees something else than on the one before.
fn differing<T: PartialEq>(beats: impl Stream<Item = ()>, observe: impl Fn() -> T) -> impl Stream<Item = ()> {
    let mut known = None;
    beats.filter(move |()| {
        let now = Some(observe());
        let changed = known != now;
        known = now;
        std::future::ready(changed)
    })
}

#[cfg(test)]
mod tests;
