//! Serves the kubelet, on a thread of its own. IO: the sockets, the API server.
//!
//! Prepare is answered only after the checkpoint is synced, so the kubelet's calls wait for the disk. On their own
//! thread they can block without delaying NRI, which must be answered within two seconds.

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

use crate::{
    causes::causes,
    plugin::{
        claims::{Claims, reader::ClaimReader},
        metrics::PluginMetrics,
        readiness::{Part, Readiness},
    },
};

use self::{
    grpc::{
        DraService, RegistrationService, dra::dra_plugin_server::DraPluginServer,
        registration::registration_server::RegistrationServer,
    },
    serving::{Conditions, keep_serving},
    sockets::SocketPaths,
};

/// Creates a client for the calling thread. A client's connections are tied to the thread that opened them.
pub type Connect = Arc<dyn Fn() -> Result<Client, kube::Error> + Send + Sync>;

/// The kubelet cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum KubeletError {
    /// The thread or its runtime could not be started.
    #[error("cannot start the thread that serves the kubelet: {0}")]
    Thread(#[from] io::Error),
    /// The client could not be created.
    #[error("cannot create a client for the API server: {}", causes(.0))]
    Client(#[from] kube::Error),
    /// The thread died.
    #[error("the thread that serves the kubelet died")]
    Died,
}

/// What is served, and where its state is reported.
pub struct KubeletSide {
    /// The driver's name.
    pub driver: String,
    /// Where the kubelet finds it.
    pub paths: SocketPaths,
    /// The claims.
    pub claims: Arc<Claims>,
    /// Reaches the API server.
    pub connect: Connect,
    /// Where to report whether the kubelet has registered the plugin.
    pub readiness: Arc<Readiness>,
    /// Counts every call.
    pub metrics: PluginMetrics,
}

/// The server thread. It ends when this is dropped, even if calls are in flight.
pub struct KubeletThread {
    ended: oneshot::Receiver<Result<(), KubeletError>>,
    _kill: DropGuard,
}

impl KubeletThread {
    /// Starts the thread.
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
            // Dropping the runtime removes the sockets, before the end is reported. A dropped receiver means that the
            // caller is not waiting.
            drop(runtime);
            end.send(done).ok();
        };
        thread::Builder::new().name("kubelet".to_owned()).spawn(main)?;
        Ok(Self { ended, _kill: kill.drop_guard() })
    }

    /// Returns when the thread has ended, that is, after a stop request and the last call in flight.
    pub async fn ended(&mut self) -> Result<(), KubeletError> {
        (&mut self.ended).await.unwrap_or(Err(KubeletError::Died))
    }
}

impl KubeletSide {
    /// Starts serving when this instance first becomes active: first the DRA service, then registration.
    async fn serve(self, mut conditions: Conditions) -> Result<(), KubeletError> {
        let reader = Arc::new(ClaimReader::new((self.connect)()?));
        tokio::select! {
            // If the sender is gone, the process is ending too.
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
        // The socket's existence is not enough: the kubelet reports when it has found it.
        let directory = self.paths.registration.parent().unwrap_or(Path::new("/")).display().to_string();
        let tell_registration = |there: Result<(), String>| {
            match there {
            Ok(()) => self.readiness.waits(
                Part::Registration,
                format!(
                    "the kubelet has not connected to the socket in {directory}: check that it is inside the kubelet's root directory"
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
