//! Serves a gRPC service where the kubelet expects it, and recreates a removed socket. IO: a unix socket.

use std::{path::PathBuf, time::Duration};

use tokio::{net::UnixListener, sync::watch, time::sleep};
use tokio_stream::wrappers::UnixListenerStream;
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};
use tonic::{service::Routes, transport::Server};

use crate::plugin::kubelet::sockets::OwnSocket;

/// The pause between attempts to listen.
const RETRY: Duration = Duration::from_secs(1);

/// When to check a served socket, recreate it, and stop.
#[derive(Clone, Debug)]
pub struct Conditions {
    /// Changes when it is time to check that the socket exists.
    pub look: watch::Receiver<u64>,
    /// Whether the kubelet should find this instance. Only then is a removed socket recreated.
    pub active: watch::Receiver<bool>,
    /// Stops the server.
    pub stop: CancellationToken,
}

/// Serves `routes` on `path` until it is stopped and the calls in flight have ended. A removed socket is recreated;
/// calls on existing connections continue. `tell` is called with whether the socket exists.
pub async fn keep_serving(path: PathBuf, routes: Routes, conditions: Conditions, tell: impl Fn(Result<(), String>)) {
    let Conditions { look, active, stop } = conditions;
    let mut previous = None;
    while !stop.is_cancelled() {
        let (socket, listener) = match OwnSocket::listen(&path) {
            Ok(listening) => listening,
            Err(error) => {
                tell(Err(error.to_string()));
                tokio::select! {
                    () = sleep(RETRY) => continue,
                    () = stop.cancelled() => break,
                }
            }
        };
        tell(Ok(()));
        let ended = CancellationToken::new();
        let serving = AbortOnDropHandle::new(tokio::spawn(serve(listener, routes.clone(), ended.clone())));
        tokio::select! {
            () = stop.cancelled() => {}
            () = removed(&socket, look.clone(), active.clone()) => {
                tracing::warn!(socket = %path.display(), "the socket was removed; recreating it");
                tell(Err("the socket was removed from the kubelet's directory".to_owned()));
            }
        }
        // Remove the socket first, so that no new call arrives.
        drop(socket);
        ended.cancel();
        previous = Some(serving);
    }
    if let Some(serving) = previous {
        // A panic in the task would already have ended the process.
        serving.await.ok();
    }
}

async fn serve(listener: UnixListener, routes: Routes, ended: CancellationToken) {
    let incoming = UnixListenerStream::new(listener);
    let server = Server::builder().add_routes(routes);
    if let Err(error) = server.serve_with_incoming_shutdown(incoming, ended.cancelled_owned()).await {
        tracing::error!(%error, "a gRPC server failed");
    }
}

/// Returns when the socket is gone while this instance is active.
async fn removed(socket: &OwnSocket, mut look: watch::Receiver<u64>, mut active: watch::Receiver<bool>) {
    while socket.is_there() || !*active.borrow() {
        // If a sender is gone, the process is ending, which the caller's other branch handles.
        let changed = tokio::select! {
            changed = look.changed() => changed,
            changed = active.changed() => changed,
        };
        if changed.is_err() {
            std::future::pending::<()>().await;
        }
    }
}
