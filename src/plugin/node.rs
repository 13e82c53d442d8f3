//! Runs one node plugin: which parts run, and the order in which they start and stop. IO at the edge of its parts.
//!
//! Only the active instance on a node owns the state: it publishes, prepares, and is connected to NRI. An instance that
//! has handed over keeps its sockets, so that calls in flight can finish, and stands by.

mod publish;

use std::{
    convert::Infallible,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use kube::Client;
use tokio::{sync::watch, time::sleep};
use tokio_util::sync::CancellationToken;

use crate::{
    api::DriverName,
    drivers::Driver,
    plugin::{
        claims::{Claims, ClaimsConfig, cdi::Cdi, checkpoint::Checkpoint},
        directories::Directories,
        grants::{Grants, NriStatus},
        handover::{Handover, Leadership, LockError},
        kubelet::{
            Connect, KubeletError, KubeletSide, KubeletThread,
            serving::Conditions,
            sockets::{SocketError, SocketPaths, remove_stale},
        },
        metrics::PluginMetrics,
        nri,
        readiness::{Part, Readiness},
    },
};

/// How often to retry reading a damaged checkpoint, in case someone has fixed it.
const CHECKPOINT_RETRY: Duration = Duration::from_secs(2);
/// How long stopping may take. A pod has 30 s.
const END: Duration = Duration::from_secs(20);

/// Why the node plugin cannot run.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// The lock files cannot be used.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// The sockets cannot be used.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// The kubelet cannot be served.
    #[error(transparent)]
    Kubelet(#[from] KubeletError),
}

/// Where the node plugin runs, and the names it uses.
#[derive(Clone, Debug)]
pub struct NodeSettings {
    /// The driver's name.
    pub driver_name: DriverName,
    /// The node's name.
    pub node_name: String,
    /// The UID of this pod, if the plugin runs in one.
    pub pod_uid: Option<String>,
    /// The kubelet's root directory.
    pub kubelet_root: PathBuf,
    /// The directory of the CDI files.
    pub cdi_dir: PathBuf,
    /// Where the checkpoint and the lock files are, and the DRA socket.
    pub state_dir: PathBuf,
    /// The runtime's NRI socket, if claims are enforced through NRI.
    pub nri_socket: Option<PathBuf>,
    /// The directory that contains the host's sysfs.
    pub host_root: PathBuf,
    /// How long Prepare waits for devices that another claim still holds.
    pub held_timeout: Duration,
}

impl NodeSettings {
    /// Where the kubelet finds this instance.
    pub fn sockets(&self) -> Result<SocketPaths, SocketError> {
        SocketPaths::new(&self.kubelet_root, &self.state_dir, &self.driver_name, self.pod_uid.as_deref())
    }

    /// The parts that must work in a complete plugin.
    pub fn parts(&self) -> Vec<Part> {
        let mut parts =
            vec![Part::Active, Part::Checkpoint, Part::Cdi, Part::Slices, Part::Service, Part::Registration];
        parts.extend(self.nri_socket.is_some().then_some(Part::Nri));
        parts
    }
}

/// A node plugin.
pub struct NodePlugin {
    /// Where it runs, and under which names.
    pub settings: NodeSettings,
    /// The kind of device.
    pub driver: Arc<dyn Driver>,
    /// The client for this thread.
    pub client: Client,
    /// Creates a client for another thread.
    pub connect: Connect,
    /// Where the state of each part is reported.
    pub readiness: Arc<Readiness>,
    /// The metrics.
    pub metrics: PluginMetrics,
}

impl NodePlugin {
    /// The parts that must work in a plugin that only publishes.
    pub const PUBLISHING: [Part; 1] = [Part::Slices];

    /// Only publishes slices and keeps them published, until it is stopped.
    pub async fn publish_only(&self, stop: CancellationToken) {
        tokio::select! {
            never = self.publish(None) => match never {},
            () = stop.cancelled() => {}
        }
    }

    /// Runs until it is stopped. The slices stay published.
    pub async fn run(&self, stop: CancellationToken) -> Result<(), NodeError> {
        let handover = Handover::within(&self.settings.state_dir)?;
        let paths = self.settings.sockets()?;
        let nri = watch::Sender::new(NriStatus::default());
        let claims = self.claims(&nri, stop.clone());

        // Serve the kubelet, on a separate thread.
        let (active, look) = (watch::Sender::new(false), watch::Sender::new(0));
        let conditions = Conditions { look: look.subscribe(), active: active.subscribe(), stop: stop.clone() };
        let side = KubeletSide {
            driver: self.settings.driver_name.to_string(),
            paths: paths.clone(),
            claims: Arc::clone(&claims),
            connect: Arc::clone(&self.connect),
            readiness: Arc::clone(&self.readiness),
            metrics: self.metrics.clone(),
        };
        let mut kubelet = KubeletThread::start(side, conditions)?;

        // The plugin ends when all calls have ended, when they take too long, or when a part fails.
        let too_long = async {
            stop.cancelled().await;
            tracing::info!("stopping: waiting for calls in flight");
            sleep(END).await;
        };
        let ended = async {
            kubelet.ended().await?;
            // Give containers back what claims no longer hold. If this plugin is not replaced, nothing does so later.
            let state = *claims.changes().borrow();
            nri.subscribe().wait_for(|nri| !nri.connected || nri.applied >= state).await.ok();
            Ok(())
        };
        tokio::select! {
            never = self.take_turns(&handover, &paths, &claims, &nri, &active) => never.map(|never| match never {}),
            never = self.guard(&claims, &paths, &look) => match never {},
            // Run this beside the others, because calls in flight still need the checkpoint and NRI.
            ended = ended => ended,
            () = too_long => {
                tracing::warn!("stopping took too long: aborting calls in flight; some containers stay restricted");
                Ok(())
            }
        }
    }

    /// Acts as the active instance whenever it is this instance's turn.
    async fn take_turns(
        &self,
        handover: &Handover,
        paths: &SocketPaths,
        claims: &Arc<Claims>,
        nri: &watch::Sender<NriStatus>,
        active: &watch::Sender<bool>,
    ) -> Result<Infallible, NodeError> {
        let mut leadership = handover.take_over().await?;
        loop {
            remove_stale(paths, &self.settings.driver_name);
            self.readiness.set(Part::Active, Ok(()));
            self.metrics.active.set(1);
            tokio::select! {
                never = self.publish_active(claims, active.subscribe()) => match never {},
                never = self.enforce(claims, nri, active) => match never {},
                () = self.step_down(handover, &leadership, claims) => {}
            }

            // This instance's state is no longer valid.
            tracing::info!("another instance is taking over; standing by");
            active.send_replace(false);
            nri.send_replace(NriStatus::default());
            self.metrics.nri_connected.set(0);
            self.metrics.active.set(0);

            // Only now may the other instance become active.
            drop(leadership);
            leadership = handover.come_back().await?;
            tracing::info!("the instance that took over is gone; active again");
        }
    }

    /// Starts publishing once the claims have been read, or reading them has failed.
    async fn publish_active(&self, claims: &Claims, mut active: watch::Receiver<bool>) -> Infallible {
        // The sender is the caller's, and outlives this.
        active.wait_for(|active| *active).await.ok();
        self.publish(Some(claims)).await
    }

    /// Returns when another instance is waiting to become active and no call is in flight here. Until then the calls
    /// need NRI.
    async fn step_down(&self, handover: &Handover, leadership: &Leadership, claims: &Claims) {
        handover.challenged(leadership).await;
        claims.deactivate().await;
    }

    /// Takes over the claims, serves the kubelet, and enforces the claims through NRI.
    async fn enforce(
        &self,
        claims: &Arc<Claims>,
        nri: &watch::Sender<NriStatus>,
        active: &watch::Sender<bool>,
    ) -> Infallible {
        while let Err(error) = claims.activate().await {
            self.readiness.set(Part::Checkpoint, Err(error.to_string()));
            // Serve the kubelet, so that it gets the reason as its answer. Do not connect to NRI: without the claims,
            // it would give their devices to others.
            active.send_replace(true);
            sleep(CHECKPOINT_RETRY).await;
        }

        // Restore the claims that are already prepared before the kubelet asks for more.
        self.readiness.set(Part::Checkpoint, Ok(()));
        self.readiness.set(Part::Cdi, claims.rewrite_cdi().await.map_err(|error| error.to_string()));
        self.metrics.has_prepared(claims.count());
        active.send_replace(true);

        let Some(socket) = self.settings.nri_socket.clone() else { return std::future::pending().await };
        let settings = nri::Settings {
            socket,
            plugin_name: self.settings.driver_name.to_string(),
            state_dir: self.settings.state_dir.clone(),
            host_root: self.settings.host_root.clone(),
        };
        let mut reported = nri.subscribe();
        let report = |nri: &NriStatus| {
            self.metrics.nri_connected.set(i64::from(nri.connected));
            self.metrics.nri_reconnects.set(i64::try_from(nri.reconnects).unwrap_or(i64::MAX));
            let problem = || nri.problem.clone().unwrap_or_else(|| "not yet".to_owned());
            self.readiness.set(Part::Nri, nri.connected.then_some(()).ok_or_else(problem));
            self.readiness.note(Part::Nri, nri.problem.clone().filter(|_| nri.connected));
        };
        tokio::select! {
            never = nri::run(settings, Arc::clone(claims) as Arc<dyn Grants>, self.driver.attachment(), nri.clone()) => never,
            never = follow(&mut reported, report) => never,
        }
    }

    /// Restores sockets and CDI files that others remove.
    async fn guard(&self, claims: &Claims, paths: &SocketPaths, look: &watch::Sender<u64>) -> Infallible {
        let directories = [&paths.registration, &paths.dra].into_iter().filter_map(|path| path.parent());
        let watched = directories.chain([self.settings.cdi_dir.as_path()]).map(Path::to_owned).collect();
        let mut directories = Directories::new(watched);
        loop {
            directories.changed().await;
            look.send_modify(|looks| *looks += 1);
            self.readiness.set(Part::Cdi, claims.restore_cdi().await.map_err(|error| error.to_string()));
        }
    }

    fn claims(&self, nri: &watch::Sender<NriStatus>, stop: CancellationToken) -> Arc<Claims> {
        let settings = &self.settings;
        Arc::new(Claims::new(ClaimsConfig {
            driver_name: settings.driver_name.to_string(),
            pool: settings.node_name.clone(),
            driver: Arc::clone(&self.driver),
            checkpoint: Checkpoint::within(&settings.state_dir),
            cdi: Cdi::new(&settings.cdi_dir, &settings.driver_name),
            nri: settings.nri_socket.is_some().then(|| nri.subscribe()),
            held_timeout: settings.held_timeout,
            stop,
        }))
    }
}

/// Reports the current value, and then each new one.
async fn follow<T>(values: &mut watch::Receiver<T>, report: impl Fn(&T)) -> Infallible {
    loop {
        report(&values.borrow_and_update());
        if values.changed().await.is_err() {
            // The sender is the caller's, and outlives this.
            std::future::pending::<()>().await;
        }
    }
}

#[cfg(test)]
pub(super) mod fixture;
#[cfg(test)]
mod second_kind;
#[cfg(test)]
mod tests;
