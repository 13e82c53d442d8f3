//! Serves the kubelet, on a thread of its own. IO: the sockets, the API server.
//!
//! The kubelet's calls wait for the disk: Prepare is answered once the checkpoint is synced. On a thread of their own they
//! may block for that without holding up NRI, which must be answered within two seconds.

pub mod grpc;
pub mod serving;
pub mod sockets;

use std::{io, path::Path, sync::Arc, thread};

use kube::Client;
use tokio::sync::oneshot;
use tokio_util::{
    sync::{CancellationToken, DropGuard},
    task::TaskTracker,
};
use tonic::service::Routes;

use crate::plugin::{
    claims::{Claims, reader::ClaimReader},
    metrics::PluginMetrics,
    readiness::{Part, Readiness},
};

use self::{
    grpc::{
        DraService, RegistrationService, dra::dra_plugin_server::DraPluginServer,
        registration::registration_server::RegistrationServer,
    },
    serving::{Conditions, keep_serving},
    sockets::SocketPaths,
};

/// Creates a client for the calling thread: a client's connections live on the thread that opened them.
pub type Connect = Arc<dyn Fn() -> Result<Client, kube::Error> + Send + Sync>;

/// The kubelet cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum KubeletError {
    /// No thread, or no runtime on it.
    #[error("cannot start the thread that serves the kubelet: {0}")]
    Thread(#[from] io::Error),
    /// No client.
    #[error("cannot create a client for the API server: {0}")]
    Client(#[from] kube::Error),
    /// The thread died.
    #[error("the thread that serves the kubelet died")]
    Died,
}

/// What is served, and where its state is noted.
pub struct KubeletSide {
    /// The driver's name.
    pub driver: String,
    /// Where the kubelet finds it.
    pub paths: SocketPaths,
    /// The claims.
    pub claims: Arc<Claims>,
    /// Reaches the API server.
    pub connect: Connect,
    /// Where it is noted whether the kubelet has registered the plugin.
    pub readiness: Arc<Readiness>,
    /// Counts every call.
    pub metrics: PluginMetrics,
}

/// The thread. It ends when this is dropped, even with calls in flight.
pub struct KubeletThread {
    ended: oneshot::Receiver<Result<(), KubeletError>>,
    _kill: DropGuard,
}

impl KubeletThread {
    /// Starts it.
    pub fn start(side: KubeletSide, conditions: Conditions) -> Result<Self, KubeletError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (end, ended) = oneshot::channel();
        let kill = CancellationToken::new();
        let killed = kill.clone();
        let main = move || {
            let done = runtime.block_on(async {
                tokio::select! {
                    done = side.serve(conditions) => done,
                    () = killed.cancelled() => Ok(()),
                }
            });
            // The sockets are removed with the runtime's tasks, before the end is reported. If the receiver was dropped, no
            // one waits for it.
            drop(runtime);
            end.send(done).ok();
        };
        thread::Builder::new().name("kubelet".to_owned()).spawn(main)?;
        Ok(Self { ended, _kill: kill.drop_guard() })
    }

    /// Returns when the thread has ended, after it was asked to stop and has answered every call in flight.
    pub async fn ended(&mut self) -> Result<(), KubeletError> {
        (&mut self.ended).await.unwrap_or(Err(KubeletError::Died))
    }
}

impl KubeletSide {
    /// Serves from when this instance is active for the first time, the DRA service before registration.
    async fn serve(self, mut conditions: Conditions) -> Result<(), KubeletError> {
        let reader = Arc::new(ClaimReader::new((self.connect)()?));
        tokio::select! {
            // If the sender is gone, the process ends as well.
            _ = conditions.active.wait_for(|active| *active) => {}
            () = conditions.stop.cancelled() => return Ok(()),
        }
        let calls = TaskTracker::new();
        let dra = DraService { claims: self.claims, reader, calls: calls.clone(), metrics: self.metrics };
        let registration = RegistrationService {
            driver: self.driver,
            endpoint: self.paths.dra.display().to_string(),
            readiness: Arc::clone(&self.readiness),
        };
        let (dra, registration) = (DraPluginServer::new(dra), RegistrationServer::new(registration));
        let tell_service = |there| self.readiness.set(Part::Service, there);
        // A socket that exists is not enough: the kubelet says when it has found it.
        let directory = self.paths.registration.parent().unwrap_or(Path::new("/")).display().to_string();
        let tell_registration = |there: Result<(), String>| {
            match there {
            Ok(()) => self.readiness.waits(
                Part::Registration,
                format!(
                    "the kubelet has not connected to the socket in {directory}: check that this is in the kubelet's root directory"
                ),
            ),
            lost @ Err(_) => self.readiness.set(Part::Registration, lost),
        }
        };
        tokio::join!(
            keep_serving(self.paths.dra, Routes::new(dra), conditions.clone(), tell_service),
            keep_serving(self.paths.registration, Routes::new(registration), conditions.clone(), tell_registration),
        );
        calls.close();
        calls.wait().await;
        Ok(())
    }
}
