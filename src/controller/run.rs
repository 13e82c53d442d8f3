//! The controller's life: lead, fill the caches, reconcile until told to stop. IO: the Kubernetes API.

use std::{collections::HashMap, sync::Arc, time::Duration};

use futures::{Stream, StreamExt};
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
    time::{interval, sleep},
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

/// Changes that come closer together are looked at together.
const TOGETHER: Duration = Duration::from_millis(100);
/// Looks take at most one part in so many of the time, however large the cluster and busy its claims.
const SHARE: u32 = 8;
/// Between questions for an API that is missing.
const ASK_AGAIN: Duration = Duration::from_secs(15);

/// What the controller is run with.
pub struct Operator {
    /// The API.
    pub client: Client,
    /// What is not in the objects.
    pub settings: Settings,
    /// The own pod, where there is to be an election.
    pub pod: Option<String>,
    /// Metrics.
    pub metrics: Metrics,
    /// How the process does.
    pub health: Arc<Health>,
}

/// The controller ended for another reason than that it was told to.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Leadership cannot be sought.
    #[error(transparent)]
    Election(#[from] leader::Error),
    /// Another instance leads now.
    #[error("the Lease {} was taken away: another instance may lead, starting over", leader::LEASE)]
    Lost,
}

impl Operator {
    /// Runs until `stop`.
    pub async fn run(self, stop: CancellationToken) -> Result<(), Error> {
        let Some(pod) = self.pod.clone() else {
            self.work(stop).await;
            return Ok(());
        };
        // Standing by is no work: the heart beats by itself.
        let beats = self.beats();
        let candidate = Candidate::new(&self.client, &self.settings.namespace, &pod).await?;
        let leads = candidate.lead(|| self.health.enter(Phase::StandingBy));
        tokio::select! {
            leads = leads => leads?,
            () = stop.cancelled() => return Ok(()),
            () = beats.for_each(async |()| {}) => {}
        }
        tracing::info!(pod, "leads");
        let done = tokio::select! {
            () = self.work(stop) => Ok(()),
            () = candidate.lost() => Err(Error::Lost),
        };
        candidate.resign().await;
        done
    }

    async fn work(&self, stop: CancellationToken) {
        self.metrics.leader.set(1);
        self.health.enter(Phase::Filling);
        let (caches, changes) = Caches::new(&self.client, &self.settings.namespace);
        let (asked, lacks) = watch::channel(None);
        let news = Arc::new(Notify::new());
        let pace = Arc::new(Pace::default());
        let configs: Api<Guarded> = Api::all(self.client.clone());
        let controller = Controller::new(configs, watcher::Config::default())
            .with_config(Tuning::default().concurrency(1))
            .reconcile_all_on(coalesced(Arc::clone(&news), Arc::clone(&pace)))
            .graceful_shutdown_on(stop.cancelled_owned());
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
        // Polled by the loop itself: while it turns, the heart beats. What stands in a config's way may go, or be edited,
        // without an event of that config.
        let (seen, left) = (Arc::clone(&context), Arc::clone(&context));
        let others = differing(self.beats(), move || seen.generations()).inspect(move |()| left.forget());
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
            // What reconcile itself met is told there; an object that is gone meanwhile is no news.
            if let Err(controller::Error::QueueError(error)) = done {
                self.metrics.failed(Failure::Watch);
                tracing::warn!(%error, "watch DraDriverConfig (is its CRD installed?); it is tried again");
            }
        });
        tokio::select! {
            () = reconciles => {}
            () = filled => {}
            () = self.follow(changes, &news) => {}
            () = self.ask(&asked, &news) => {}
        }
    }

    /// Keeps the caches filled, and tells of changes.
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

    /// Asks whether the cluster has what is needed, until it has.
    async fn ask(&self, lacks: &watch::Sender<Option<String>>, news: &Notify) {
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
                    // Watches of what is missing never fill their caches: there is nothing to wait for.
                    self.health.enter(Phase::Leading);
                }
                Err(error) => tracing::warn!(%error, "ask which APIs there are; it is tried again"),
            }
            sleep(ASK_AGAIN).await;
        }
    }

    fn beats(&self) -> impl Stream<Item = ()> + Send + use<> {
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

/// One item for all news within a moment: a busy cluster delays nothing for ever, as a debounce would. The moment grows
/// with what a look costs.
fn coalesced(news: Arc<Notify>, pace: Arc<Pace>) -> impl Stream<Item = ()> + Send {
    futures::stream::unfold((news, pace), async |(news, pace)| {
        news.notified().await;
        sleep(TOGETHER.max(pace.last() * SHARE)).await;
        Some(((), (news, pace)))
    })
}

/// The beats on which `look` sees something else than on the one before.
fn differing<T: PartialEq>(beats: impl Stream<Item = ()>, look: impl Fn() -> T) -> impl Stream<Item = ()> {
    let mut known = None;
    beats.filter(move |()| {
        let now = Some(look());
        let changed = known != now;
        known = now;
        std::future::ready(changed)
    })
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    #[tokio::test]
    async fn a_beat_on_which_the_configs_are_others_is_a_change_and_no_other_is() {
        let looks = RefCell::new(vec![1, 1, 2, 2, 3].into_iter());
        let beats = futures::stream::iter([(); 5]);
        assert_eq!(differing(beats, || looks.borrow_mut().next()).count().await, 3);
    }
}
