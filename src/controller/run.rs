//! Runs the controller: lead, fill the caches, reconcile until stopped. IO: the Kubernetes API.

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

use crate::{
    causes::causes,
    controller::{
        apply::{Writer, series::Series},
        build::{FIELD_MANAGER, Settings},
        http::{BEAT, Health, Phase},
        leader::{self, Candidate},
        metrics::{Failure, Metrics},
        observe::{Caches, Changes, Guarded, preflight},
        reconcile::{Context, Pace, on_error, reconcile},
    },
};

/// Changes that come closer together than this are reconciled together.
const TOGETHER: Duration = Duration::from_millis(100);
/// Reconciling takes at most this fraction (1/n) of the time, however large and busy the cluster is.
const SHARE: u32 = 8;
/// Interval between checks for a missing API.
const CHECK_EVERY: Duration = Duration::from_secs(15);
/// How long a running reconcile may take to end once the controller is stopped. A pod has 30 s.
const END: Duration = Duration::from_secs(20);
/// How long giving the Lease back may take after that. One that is kept ends with its pod.
const RESIGN: Duration = Duration::from_secs(5);

/// Everything that the controller needs to run.
pub struct Operator {
    /// The API.
    pub client: Client,
    /// Settings that are not in the objects.
    pub settings: Settings,
    /// The name of this pod, if instances elect a leader.
    pub pod: Option<String>,
    /// Metrics.
    pub metrics: Metrics,
    /// The health of the process.
    pub health: Arc<Health>,
}

/// The controller ended without being stopped.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Leader election failed.
    #[error(transparent)]
    Election(#[from] leader::Error),
    /// Another instance may be leading now.
    #[error("lost the Lease {}: another instance may be leading; restarting", leader::LEASE)]
    Lost,
}

impl Operator {
    /// Leads and reconciles until `stop`.
    pub async fn run(self, stop: CancellationToken) -> Result<(), Error> {
        let Some(pod) = self.pod.clone() else {
            self.work(stop).await;
            return Ok(());
        };

        // Wait for leadership. A standby runs no loop, so its heartbeat comes from here.
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

    /// Connects the watches to kube's Controller, and reconciles until `stop`.
    async fn work(&self, stop: CancellationToken) {
        self.metrics.leader.set(1);
        self.health.enter(Phase::Filling);

        // The watches, and what triggers reconciles besides the configs themselves.
        let (caches, changes) = Caches::new(&self.client, &self.settings.namespace);
        let (missing_api, missing_now) = watch::channel(None);
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
            missing_api: missing_now,
            remembered: HashMap::new().into(),
        });

        // An obstacle to a config may disappear or change without an event for that config. The loop itself polls this,
        // so that the heartbeat stops when the loop does.
        let (seen, left) = (Arc::clone(&context), Arc::clone(&context));
        // A config may come and go between two beats, so forget on every beat.
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
            // Reconcile has logged its own errors, and an object that is gone needs no message.
            if let Err(controller::Error::QueueError(error)) = done {
                self.metrics.failed(Failure::Watch);
                tracing::warn!("watching DraDriverConfig failed (is its CRD installed?), retrying: {}", causes(&error));
            }
        });

        // kube's Controller lets running reconciles end. It does not notice the stop before it has listed the configs, but
        // until then no reconcile runs.
        let stopped = async {
            stop.cancelled().await;
            if configs.wait_until_ready().now_or_never().is_some() {
                sleep(END).await;
                tracing::warn!("a reconcile did not end within {} s", END.as_secs());
            }
        };

        // Only the first two of these end, when stopped.
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
                    tracing::warn!("watch: {}", causes(&error));
                }
            }
        }
    }

    /// Checks whether the cluster serves the required API until it does.
    async fn check_api(&self, missing_api: &watch::Sender<Option<String>>, news: &Notify) {
        loop {
            match preflight::missing_api(&self.client).await {
                Ok(found) => {
                    let passed = found.is_none();
                    if missing_api.send_if_modified(|known| std::mem::replace(known, found.clone()) != found) {
                        news.notify_one();
                    }
                    if passed {
                        return std::future::pending().await;
                    }
                    // Watches of a missing API never fill their caches, so do not wait for them.
                    self.health.enter(Phase::Leading);
                }
                Err(error) => tracing::warn!("listing the API groups failed, retrying: {}", causes(&error)),
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

/// Merges all changes within a short period into one item. The period grows with the cost of reconciling. A debounce
/// would wait forever in a busy cluster.
fn coalesced(news: Arc<Notify>, pace: Arc<Pace>) -> impl Stream<Item = ()> + Send {
    futures::stream::unfold((news, pace), async |(news, pace)| {
        news.notified().await;
        sleep(TOGETHER.max(pace.last() * SHARE)).await;
        Some(((), (news, pace)))
    })
}

/// The beats on which `observe` returns something other than on the previous beat.
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
