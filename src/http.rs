//! The HTTP port of the controller and the node plugin, for probes and metrics. IO: a TCP port.
//!
//! Anyone who can reach the port may connect. So the number of connections is limited, and a new one closes the oldest:
//! a client that holds many connections can neither exhaust the process's file descriptors nor keep probes out.

use std::{
    collections::VecDeque,
    convert::Infallible,
    io,
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use axum::{
    Router,
    extract::State,
    http::{StatusCode, header::CONTENT_TYPE},
    response::IntoResponse,
};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto::Builder,
    service::TowerToHyperService,
};
use prometheus_client::registry::Registry;
use tokio::{
    net::{TcpListener, TcpSocket, TcpStream},
    task::yield_now,
    time::sleep,
};
use tokio_util::task::AbortOnDropHandle;

/// The media type of OpenMetrics 1.0.
const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// Maximum number of open connections.
const CONNECTIONS: usize = 64;
/// How many connections may wait to be accepted.
const BACKLOG: u32 = 128;
/// Maximum number of bytes that a connection may buffer. Requests are short here.
const BUFFER: usize = 16 * 1024;
/// The pause after failing to accept a connection, for example when out of file descriptors.
const RETRY: Duration = Duration::from_millis(100);

/// The port cannot be served.
#[derive(Debug, thiserror::Error)]
#[error("cannot serve HTTP on {address}: {source}; choose another address with --http-bind")]
pub struct ServeError {
    address: SocketAddr,
    source: std::io::Error,
}

/// Serves until dropped.
pub(crate) async fn serve(address: SocketAddr, router: Router) -> Result<Infallible, ServeError> {
    let listener = listen(address).map_err(|source| ServeError { address, source })?;
    Ok(accept(listener, router).await)
}

/// Listens. `[::]` takes IPv4 connections too; on a node without IPv6, listens on 0.0.0.0 instead.
fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let bound = bind(address);
    match address {
        SocketAddr::V6(any) if any.ip().is_unspecified() => {
            bound.or_else(|_| bind((Ipv4Addr::UNSPECIFIED, any.port()).into()))
        }
        _ => bound,
    }
}

fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv6() { TcpSocket::new_v6()? } else { TcpSocket::new_v4()? };
    if address.is_ipv6() {
        // Do not depend on the node's default (net.ipv6.bindv6only).
        rustix::net::sockopt::set_ipv6_v6only(&socket, false)?;
    }
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

async fn accept(listener: TcpListener, router: Router) -> Infallible {
    let mut open: VecDeque<AbortOnDropHandle<()>> = VecDeque::with_capacity(CONNECTIONS);
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "cannot accept an HTTP connection; retrying");
                sleep(RETRY).await;
                continue;
            }
        };
        open.retain(|connection| !connection.is_finished());
        if open.len() == CONNECTIONS {
            open.pop_front();
        }
        open.push_back(AbortOnDropHandle::new(tokio::spawn(answer(stream, router.clone()))));
        // Let the new task run: under a flood, a request that has already arrived is answered before its connection is
        // closed.
        yield_now().await;
    }
}

async fn answer(stream: TcpStream, router: Router) {
    let mut http = Builder::new(TokioExecutor::new()).http1_only();
    http.http1().max_buf_size(BUFFER);
    let connection = http.serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    if let Err(error) = connection.await {
        tracing::debug!(error, "an HTTP connection ended");
    }
}

/// The handler of `/metrics`: every metric of the registry.
pub(crate) async fn metrics(State(registry): State<Arc<Registry>>) -> impl IntoResponse {
    let mut text = String::new();
    match prometheus_client::encoding::text::encode(&mut text, &registry) {
        Ok(()) => (StatusCode::OK, [(CONTENT_TYPE, OPENMETRICS)], text),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, [(CONTENT_TYPE, "text/plain")], error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::routing::get;
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        time::timeout,
    };

    async fn ask(stream: &mut TcpStream) -> std::io::Result<String> {
        let mut answer = vec![0; 64];
        stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n").await?;
        let read = stream.read(&mut answer).await?;
        Ok(String::from_utf8_lossy(&answer[..read]).into_owned())
    }

    #[tokio::test]
    async fn the_oldest_connections_of_a_greedy_client_are_closed_for_new_ones() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let router = Router::new().route("/healthz", get(async || "ok\n"));
        let _serving = AbortOnDropHandle::new(tokio::spawn(accept(listener, router)));
        let mut held = vec![];
        for _ in 0..3 * CONNECTIONS {
            held.push(TcpStream::connect(address).await.unwrap());
        }
        let mut probe = TcpStream::connect(address).await.unwrap();
        assert!(ask(&mut probe).await.unwrap().starts_with("HTTP/1.1 200"));
        let end = timeout(Duration::from_secs(5), held[0].read(&mut [0; 1])).await.expect("still open");
        assert!(matches!(end, Ok(0) | Err(_)), "the oldest: {end:?}");
        assert!(ask(held.last_mut().unwrap()).await.unwrap().starts_with("HTTP/1.1 200"), "a newer one");
    }

    #[tokio::test]
    async fn the_unspecified_ipv6_address_serves_ipv4_too() {
        let listener = listen("[::]:0".parse().unwrap()).unwrap();
        let port = listener.local_addr().unwrap().port();
        let _serving = AbortOnDropHandle::new(tokio::spawn(accept(listener, Router::new())));
        for host in ["127.0.0.1", "::1"] {
            // A machine without IPv6 has no ::1.
            if host == "127.0.0.1" || std::net::TcpListener::bind("[::1]:0").is_ok() {
                TcpStream::connect((host, port)).await.unwrap();
            }
        }
    }

    #[tokio::test]
    async fn an_address_that_is_taken_is_an_error() {
        let taken = listen("127.0.0.1:0".parse().unwrap()).unwrap();
        assert_eq!(listen(taken.local_addr().unwrap()).unwrap_err().kind(), io::ErrorKind::AddrInUse);
    }
}
