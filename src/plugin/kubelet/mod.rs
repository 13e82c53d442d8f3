//! Serves the kubelet, on a thread of its own. IO: the sockets, the API server.
//!
//! Its calls wait for the disk: a Prepare is answered when the checkpoint is synced. On their own thread they may block
//! for that, and NRI, which has two seconds for an answer, is not held up by a slow disk.

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

/// Makes a client for the thread that calls it: a client's connections live on the thread that opened them.
pub type Connect = Arc<dyn Fn() -> Result<Client, kube::Error> + Send + Sync>;

/// The kubelet cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum KubeletError {
    /// No thread, or no runtime on it.
    #[error("cannot start the thread that serves the kubelet: {0}")]
    Thread(#[from] io::Error),
    /// No client.
    #[error("cannot make a client of the API server: {0}")]
    Client(#[from] kube::Error),
    /// The thread is gone.
    #[error("the thread that serves the kubelet died")]
    Died,
}

/// What is served, and to whom it tells.
pub struct KubeletSide {
    /// The driver's name.
    pub driver: String,
    /// Where the kubelet finds it.
    pub paths: SocketPaths,
    /// The claims.
    pub claims: Arc<Claims>,
    /// Reaches the API server.
    pub connect: Connect,
    /// Told whether the kubelet knows the plugin.
    pub readiness: Arc<Readiness>,
    /// Told of every call.
    pub metrics: PluginMetrics,
}

/// The thread; dropped, it ends, whatever it does.
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
            // Sockets go with the runtime's tasks, before the end is told. Who dropped the receiver does not ask.
            drop(runtime);
            end.send(done).ok();
        };
        thread::Builder::new().name("kubelet".to_owned()).spawn(main)?;
        Ok(Self { ended, _kill: kill.drop_guard() })
    }

    /// Returns when it has ended: told to stop, and every call in flight answered.
    pub async fn ended(&mut self) -> Result<(), KubeletError> {
        (&mut self.ended).await.unwrap_or(Err(KubeletError::Died))
    }
}

impl KubeletSide {
    /// Serves from when this instance is active for the first time, the DRA service before registration.
    async fn serve(self, mut conditions: Conditions) -> Result<(), KubeletError> {
        let reader = Arc::new(ClaimReader::new((self.connect)()?));
        tokio::select! {
            // No sender is an end as well.
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
        // That it is there is not enough: the kubelet says when it has found it.
        let directory = self.paths.registration.parent().unwrap_or(Path::new("/")).display().to_string();
        let tell_registration = |there: Result<(), String>| match there {
            Ok(()) => self.readiness.waits(
                Part::Registration,
                format!(
                    "the kubelet has not come to the socket in {directory}: is that in the kubelet's root directory?"
                ),
            ),
            lost @ Err(_) => self.readiness.set(Part::Registration, lost),
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
