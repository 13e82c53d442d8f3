//! Keeps a gRPC service where the kubelet looks for it. IO: a unix socket.

use std::{path::PathBuf, time::Duration};

use tokio::{net::UnixListener, sync::watch, time::sleep};
use tokio_stream::wrappers::UnixListenerStream;
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};
use tonic::{service::Routes, transport::Server};

use crate::plugin::kubelet::sockets::OwnSocket;

/// Between attempts to listen.
const RETRY: Duration = Duration::from_secs(1);

/// What a served socket goes by.
#[derive(Clone, Debug)]
pub struct Conditions {
    /// Changes when it is time to look whether the socket is there.
    pub look: watch::Receiver<u64>,
    /// Whether this instance is the one that the kubelet should find: only then is a lost socket made anew.
    pub active: watch::Receiver<bool>,
    /// Ends the serving.
    pub stop: CancellationToken,
}

/// Serves `routes` on `path` until told to stop, and then until the calls in flight have ended. A socket that somebody
/// removed is made anew; calls on connections to the old one go on. `tell` learns whether the socket is there.
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
                tracing::warn!(socket = %path.display(), "the socket was removed; making it anew");
                tell(Err("the socket was removed from the kubelet's directory".to_owned()));
            }
        }
        // First out of the kubelet's sight, then the end: nothing new comes in between.
        drop(socket);
        ended.cancel();
        previous = Some(serving);
    }
    if let Some(serving) = previous {
        // A panic in there would have ended the process.
        serving.await.ok();
    }
}

async fn serve(listener: UnixListener, routes: Routes, ended: CancellationToken) {
    let incoming = UnixListenerStream::new(listener);
    let server = Server::builder().add_routes(routes);
    if let Err(error) = server.serve_with_incoming_shutdown(incoming, ended.cancelled_owned()).await {
        tracing::error!(%error, "a gRPC server ended");
    }
}

/// Returns when the socket is gone while this instance is the active one.
async fn removed(socket: &OwnSocket, mut look: watch::Receiver<u64>, mut active: watch::Receiver<bool>) {
    while socket.is_there() || !*active.borrow() {
        // A sender that is gone means that the process ends: the caller's other branch.
        let changed = tokio::select! {
            changed = look.changed() => changed,
            changed = active.changed() => changed,
        };
        if changed.is_err() {
            std::future::pending::<()>().await;
        }
    }
}
