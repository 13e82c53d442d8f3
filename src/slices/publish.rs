//! Publishes a node's slices and keeps them correct in the API. IO: the API server.
//!
//! Watches the driver's slices of this node. A slice that is deleted or changed is restored (the kubelet deletes all of them
//! when it starts). In a steady state nothing is written.

mod pace;
mod seen;

use std::{collections::BTreeSet, convert::Infallible, sync::Arc};

use futures::{Stream, StreamExt};
use k8s_openapi::api::{
    core::v1::Node,
    resource::v1::{Device, ResourceSlice},
};
use kube::{
    Api, Client, Error,
    api::{DeleteParams, PostParams, Preconditions},
    runtime::{
        WatchStreamExt,
        watcher::{self, Event, watcher},
    },
};
use prometheus_client::metrics::counter::Counter;
use tokio::{
    sync::watch,
    time::{Instant, sleep, sleep_until},
};

use self::{pace::Pace, seen::Seen};
use super::{
    diff::{Accepted, Change, diff},
    pack::{NodePool, node_owner},
};
use crate::causes::causes;

/// Whether the slices in the API are complete and correct.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Published {
    /// All slices of the pool are published.
    pub complete: bool,
    /// Why they are not, as a message.
    pub problem: Option<String>,
}

/// The devices to publish, in a stable order.
#[derive(Clone)]
pub struct Offered {
    /// All devices of the node. Shared with the driver, because on a node with many devices each copy takes megabytes.
    pub devices: Arc<dyn AsRef<[Device]> + Send + Sync>,
    /// Names of the devices that are left out.
    pub withheld: BTreeSet<String>,
}

/// The publisher's metrics.
#[derive(Clone, Debug, Default)]
pub struct PublishCounters {
    /// Writes that the API server accepted.
    pub writes: Counter,
    /// Requests that failed.
    pub errors: Counter,
}

/// The request that failed, and its object.
#[derive(Debug, thiserror::Error)]
enum PublishError {
    #[error("Node {0:?} does not exist yet, and it must own the slices: check that --node-name is the Node's name")]
    NoNode(String),
    #[error("cannot read Node {node:?}: {}", causes(source))]
    ReadNode { node: String, source: Box<Error> },
    #[error("cannot {verb} ResourceSlice {name:?}: {}", causes(source))]
    Write { verb: &'static str, name: String, source: Box<Error> },
}

/// Publishes the slices of one driver on one node.
pub struct Publisher {
    client: Client,
    slices: Api<ResourceSlice>,
    pool: NodePool,
    offered: watch::Receiver<Offered>,
    counters: PublishCounters,
    seen: Seen,
    accepted: Accepted,
    reported: BTreeSet<String>,
    /// Whether the slices have been complete before. If so, a missing slice was deleted.
    published: bool,
}

impl Publisher {
    /// A publisher for the devices that `driver` offers on `node`.
    pub fn new(
        client: Client,
        driver: &str,
        node: &str,
        offered: watch::Receiver<Offered>,
        counters: PublishCounters,
    ) -> Self {
        Self {
            slices: Api::all(client.clone()),
            client,
            pool: NodePool { driver: driver.to_owned(), node: node.to_owned(), owner: None },
            offered,
            counters,
            seen: Seen::default(),
            accepted: Accepted::default(),
            reported: BTreeSet::new(),
            published: false,
        }
    }

    /// Publishes the slices and keeps them correct until dropped. The slices stay in the API.
    pub async fn run(mut self, status: &watch::Sender<Published>) -> Infallible {
        let selector = format!("spec.driver={},spec.nodeName={}", self.pool.driver, self.pool.node);
        let events = watcher(self.slices.clone(), watcher::Config::default().fields(&selector)).default_backoff();
        let mut events = std::pin::pin!(events);
        let mut pace = Pace::default();
        // The first write needs both the owner and the list, so they are requested at the same time.
        let first_list = first_list(&mut self.seen, &mut events, &self.counters, status);
        let (uid, ()) = tokio::join!(first_owner(&self.client, &self.pool.node, &self.counters, status), first_list);
        self.owned_by(&uid);
        loop {
            let mut due = match self.restore().await {
                Ok(writes) => {
                    if writes > 0 {
                        pace.acted(Instant::now());
                    }
                    status.send_replace(Published { complete: true, problem: None });
                    None
                }
                Err(error) => {
                    self.counters.errors.inc();
                    let problem = error.to_string();
                    tracing::warn!(problem, "publishing the slices failed, retrying");
                    status.send_replace(Published { complete: false, problem: Some(problem) });
                    pace.acted(Instant::now());
                    Some(Instant::now() + pace.pause(Instant::now()))
                }
            };
            loop {
                tokio::select! {
                    event = events.next() => if self.note(event) && due.is_none() {
                        due = Some(Instant::now() + pace.pause(Instant::now()));
                    },
                    Ok(()) = self.offered.changed() => due = due.or(Some(Instant::now() + pace.pause(Instant::now()))),
                    () = until(due) => break,
                }
            }
        }
    }

    /// Whether the event changes what is known about the slices.
    fn note(&mut self, event: Option<watcher::Result<Event<ResourceSlice>>>) -> bool {
        match event {
            Some(Ok(event)) => self.seen.note(event),
            Some(Err(error)) => {
                self.counters.errors.inc();
                tracing::warn!("watching ResourceSlices failed, retrying: {}", causes(&error));
                false
            }
            // The watcher's stream never ends.
            None => false,
        }
    }

    /// Writes until the slices match the wanted ones. Returns the number of writes.
    async fn restore(&mut self) -> Result<usize, PublishError> {
        let mut changes = self.changes();
        if self.published && changes.iter().any(|change| matches!(change, Change::Create(_))) {
            // A slice is gone, perhaps with its owner: the Node may have been recreated with another UID.
            let uid = owner_uid(&self.client, &self.pool.node).await?;
            self.owned_by(&uid);
            changes = self.changes();
        }
        let count = changes.len();
        for change in changes {
            self.carry_out(change).await?;
            self.counters.writes.inc();
        }
        self.published = true;
        Ok(count)
    }

    /// Computes what to write. The wanted slices are not stored, because on a node with many devices each copy takes
    /// megabytes.
    fn changes(&mut self) -> Vec<Change> {
        let wanted = {
            let offered = self.offered.borrow_and_update();
            let (devices, withheld) = ((*offered.devices).as_ref(), &offered.withheld);
            if withheld.is_empty() {
                self.pool.pack(devices)
            } else {
                let left = devices.iter().filter(|device| !withheld.contains(&device.name));
                self.pool.pack(&left.cloned().collect::<Vec<_>>())
            }
        };
        diff(wanted, &self.seen.slices(), &self.accepted)
    }

    fn owned_by(&mut self, uid: &str) {
        self.pool.owner = Some(node_owner(&self.pool.node, uid));
    }

    async fn carry_out(&mut self, change: Change) -> Result<(), PublishError> {
        let (sent, answer) = match change {
            Change::Create(slice) => {
                tracing::info!(slice = named(&slice), generation = slice.spec.pool.generation, "creating");
                let answer = self.slices.create(&PostParams::default(), &slice).await;
                (slice, answer.map_err(|source| ("create", source)))
            }
            Change::Update(slice) => {
                tracing::info!(slice = named(&slice), generation = slice.spec.pool.generation, "updating");
                let answer = self.slices.replace(named(&slice), &PostParams::default(), &slice).await;
                (slice, answer.map_err(|source| ("update", source)))
            }
            Change::Delete { name, uid, resource_version } => return self.delete(name, uid, resource_version).await,
        };
        match answer {
            Ok(answer) => {
                let dropped = self.accepted.note(&sent, &answer);
                for field in dropped {
                    if self.reported.insert(field.clone()) {
                        tracing::warn!(field, "the API server dropped a field of the slices: check its feature gate");
                    }
                }
                self.seen.wrote(answer);
                Ok(())
            }
            Err((verb, source)) => {
                if matches!(&source, Error::Api(status) if status.is_not_found()) {
                    self.seen.is_gone(named(&sent));
                }
                Err(PublishError::Write { verb, name: named(&sent).to_owned(), source: Box::new(source) })
            }
        }
    }

    async fn delete(
        &mut self,
        name: String,
        uid: Option<String>,
        resource_version: Option<String>,
    ) -> Result<(), PublishError> {
        tracing::info!(slice = name, "deleting");
        let preconditions = Some(Preconditions { uid, resource_version });
        match self.slices.delete(&name, &DeleteParams { preconditions, ..DeleteParams::default() }).await {
            Err(Error::Api(status)) if status.is_not_found() => {}
            Err(source) => return Err(PublishError::Write { verb: "delete", name, source: Box::new(source) }),
            Ok(_) => {}
        }
        self.seen.is_gone(&name);
        Ok(())
    }
}

fn named(slice: &ResourceSlice) -> &str {
    slice.metadata.name.as_deref().unwrap_or_default()
}

async fn until(due: Option<Instant>) {
    match due {
        Some(due) => sleep_until(due).await,
        None => std::future::pending().await,
    }
}

/// Reads events until the first list is complete.
async fn first_list(
    seen: &mut Seen,
    events: &mut (impl Stream<Item = watcher::Result<Event<ResourceSlice>>> + Unpin),
    counters: &PublishCounters,
    status: &watch::Sender<Published>,
) {
    while let Some(event) = events.next().await {
        match event {
            Ok(event) => {
                let whole = matches!(event, Event::InitDone);
                seen.note(event);
                if whole {
                    return;
                }
            }
            Err(error) => {
                counters.errors.inc();
                let problem = format!("cannot list ResourceSlices: {}", causes(&error));
                tracing::warn!(problem, "retrying");
                status.send_replace(Published { complete: false, problem: Some(problem) });
            }
        }
    }
}

/// The Node's UID; waits until the Node exists.
async fn first_owner(
    client: &Client,
    node: &str,
    counters: &PublishCounters,
    status: &watch::Sender<Published>,
) -> String {
    let mut pace = Pace::default();
    loop {
        match owner_uid(client, node).await {
            Ok(uid) => return uid,
            Err(error) => {
                counters.errors.inc();
                let problem = error.to_string();
                tracing::warn!(problem, "retrying");
                status.send_replace(Published { complete: false, problem: Some(problem) });
                pace.acted(Instant::now());
                sleep(pace.pause(Instant::now())).await;
            }
        }
    }
}

async fn owner_uid(client: &Client, node: &str) -> Result<String, PublishError> {
    let nodes: Api<Node> = Api::all(client.clone());
    match nodes.get_metadata_opt(node).await {
        Ok(Some(found)) => Ok(found.metadata.uid.unwrap_or_default()),
        Ok(None) => Err(PublishError::NoNode(node.to_owned())),
        Err(source) => Err(PublishError::ReadNode { node: node.to_owned(), source: Box::new(source) }),
    }
}

#[cfg(test)]
mod tests;
