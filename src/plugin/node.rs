//! One node plugin: what runs, when, and in which order it starts and ends. IO at the edge of its parts.
//!
//! Of several instances on a node only the active one owns the state: it publishes, prepares, and is connected to NRI.
//! One that has handed over keeps its sockets, so that calls in flight end, and stands by.

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

/// How often a checkpoint that cannot be read is tried again: a person may have mended it.
const CHECKPOINT_RETRY: Duration = Duration::from_secs(2);
/// How long the end may take: a pod has 30 s.
const END: Duration = Duration::from_secs(20);

/// Why the node plugin cannot run.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// No lock files.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// No sockets.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// The kubelet is not served.
    #[error(transparent)]
    Kubelet(#[from] KubeletError),
}

/// Where and as whom the node plugin runs.
#[derive(Clone, Debug)]
pub struct NodeSettings {
    /// The driver's name.
    pub driver_name: String,
    /// The node's name.
    pub node_name: String,
    /// The own pod's UID, where there is a pod.
    pub pod_uid: Option<String>,
    /// The kubelet's root directory.
    pub kubelet_root: PathBuf,
    /// Where CDI files go.
    pub cdi_dir: PathBuf,
    /// Where the checkpoint and the lock files are, and the DRA socket.
    pub state_dir: PathBuf,
    /// The runtime's NRI socket, if claims are enforced through it.
    pub nri_socket: Option<PathBuf>,
    /// Under which the host's sysfs is.
    pub host_root: PathBuf,
    /// How long Prepare waits for what another claim still holds.
    pub held_timeout: Duration,
}

impl NodeSettings {
    /// Where the kubelet finds this instance.
    pub fn sockets(&self) -> Result<SocketPaths, SocketError> {
        SocketPaths::new(&self.kubelet_root, &self.state_dir, &self.driver_name, self.pod_uid.as_deref())
    }

    /// The parts that must be well in a whole plugin.
    pub fn parts(&self) -> Vec<Part> {
        let mut parts =
            vec![Part::Active, Part::Checkpoint, Part::Cdi, Part::Slices, Part::Service, Part::Registration];
        parts.extend(self.nri_socket.is_some().then_some(Part::Nri));
        parts
    }
}

/// A node plugin.
pub struct NodePlugin {
    /// Where and as whom.
    pub settings: NodeSettings,
    /// The kind of device.
    pub driver: Arc<dyn Driver>,
    /// The API server, for this thread.
    pub client: Client,
    /// The API server, for another thread.
    pub connect: Connect,
    /// Told how each part is.
    pub readiness: Arc<Readiness>,
    /// Told what happens.
    pub metrics: PluginMetrics,
}

impl NodePlugin {
    /// The parts that must be well in a plugin that only publishes.
    pub const PUBLISHING: [Part; 1] = [Part::Slices];

    /// Publishes and keeps slices, until told to stop, and nothing else.
    pub async fn publish_only(&self, stop: CancellationToken) {
        tokio::select! {
            never = self.publish(None) => match never {},
            () = stop.cancelled() => {}
        }
    }

    /// Runs until told to stop; slices stay published then.
    pub async fn run(&self, stop: CancellationToken) -> Result<(), NodeError> {
        let handover = Handover::within(&self.settings.state_dir)?;
        let paths = self.settings.sockets()?;
        let nri = watch::Sender::new(NriStatus::default());
        let claims = self.claims(&nri, stop.clone());
        let (active, look) = (watch::Sender::new(false), watch::Sender::new(0));
        let conditions = Conditions { look: look.subscribe(), active: active.subscribe(), stop: stop.clone() };
        let side = KubeletSide {
            driver: self.settings.driver_name.clone(),
            paths: paths.clone(),
            claims: Arc::clone(&claims),
            connect: Arc::clone(&self.connect),
            readiness: Arc::clone(&self.readiness),
            metrics: self.metrics.clone(),
        };
        let mut kubelet = KubeletThread::start(side, conditions)?;
        let too_long = async {
            stop.cancelled().await;
            tracing::info!("stopping: no new calls, those in flight end");
            sleep(END).await;
        };
        let ended = async {
            kubelet.ended().await?;
            // What claims do not hold any more is given back to the containers: later nobody may be there to do it.
            let state = *claims.changes().borrow();
            nri.subscribe().wait_for(|nri| !nri.connected || nri.applied >= state).await.ok();
            Ok(())
        };
        tokio::select! {
            never = self.take_turns(&handover, &paths, &claims, &nri, &active) => never.map(|never| match never {}),
            never = self.guard(&claims, &paths, &look) => match never {},
            // Beside the others: the calls in flight still have checkpoint and NRI.
            ended = ended => ended,
            () = too_long => {
                tracing::warn!("calls in flight, or giving back what is not claimed any more, did not end in time");
                Ok(())
            }
        }
    }

    /// Leads whenever it is this instance's turn.
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
            tracing::info!("another instance takes over; standing by");
            active.send_replace(false);
            nri.send_replace(NriStatus::default());
            self.metrics.active.set(0);
            drop(leadership);
            leadership = handover.come_back().await?;
            tracing::info!("the instance that took over is gone; active again");
        }
    }

    /// Publishes from when the claims are known, or cannot be.
    async fn publish_active(&self, claims: &Claims, mut active: watch::Receiver<bool>) -> Infallible {
        // The sender is the caller's, and outlives this.
        active.wait_for(|active| *active).await.ok();
        self.publish(Some(claims)).await
    }

    /// Returns when another instance shall lead and no call is in flight here: until then NRI is there for them.
    async fn step_down(&self, handover: &Handover, leadership: &Leadership, claims: &Claims) {
        handover.challenged(leadership).await;
        claims.deactivate().await;
    }

    /// Takes the claims over, lets the kubelet in, and enforces the claims through NRI.
    async fn enforce(
        &self,
        claims: &Arc<Claims>,
        nri: &watch::Sender<NriStatus>,
        active: &watch::Sender<bool>,
    ) -> Infallible {
        while let Err(error) = claims.activate().await {
            self.readiness.set(Part::Checkpoint, Err(error.to_string()));
            // The kubelet is let in, to get the reason as its answer. NRI is not: without the claims, it would give what
            // they hold to others.
            active.send_replace(true);
            sleep(CHECKPOINT_RETRY).await;
        }
        self.readiness.set(Part::Checkpoint, Ok(()));
        self.readiness.set(Part::Cdi, claims.rewrite_cdi().await.map_err(|error| error.to_string()));
        self.metrics.has_prepared(claims.count());
        active.send_replace(true);
        let Some(socket) = self.settings.nri_socket.clone() else { return std::future::pending().await };
        let settings = nri::Settings {
            socket,
            plugin_name: self.settings.driver_name.clone(),
            state_dir: self.settings.state_dir.clone(),
            host_root: self.settings.host_root.clone(),
        };
        let mut told = nri.subscribe();
        let tell = |nri: &NriStatus| {
            self.metrics.nri_connected.set(i64::from(nri.connected));
            self.metrics.nri_reconnects.set(i64::try_from(nri.reconnects).unwrap_or(i64::MAX));
            let problem = || nri.problem.clone().unwrap_or_else(|| "not yet".to_owned());
            self.readiness.set(Part::Nri, nri.connected.then_some(()).ok_or_else(problem));
        };
        tokio::select! {
            never = nri::run(settings, Arc::clone(claims) as Arc<dyn Grants>, self.driver.attachment(), nri.clone()) => never,
            never = follow(&mut told, tell) => never,
        }
    }

    /// Puts back what others remove: sockets and CDI files.
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
            driver_name: settings.driver_name.clone(),
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

/// Tells of each new value, the present one first.
async fn follow<T>(values: &mut watch::Receiver<T>, tell: impl Fn(&T)) -> Infallible {
    loop {
        tell(&values.borrow_and_update());
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
