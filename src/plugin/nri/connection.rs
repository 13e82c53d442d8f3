//! One connection to the runtime: calls and answers over its socket. IO: a unix socket.

use std::{io, path::Path, time::Duration};

use prost::{Message, bytes::BytesMut};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UnixStream,
    time::timeout,
};

use super::{
    messages::RUNTIME_SERVICE,
    mux::{self, Lane, OversizedFrame},
    ttrpc::{self, Failure, Incoming, TtrpcError},
};

/// How long the runtime may take to read a message. It reads continuously, so if it takes longer, it hangs.
const WRITE_TIMEOUT: Duration = Duration::from_secs(5);

/// How many bytes are read at once, and the approximate size of a buffer between messages.
const READ: usize = 16 << 10;

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
pub enum ConnectionError {
    /// The socket does not exist, or nothing listens on it.
    #[error(
        "cannot connect to the container runtime at {path}: {source}; NRI must be enabled in the runtime, and its socket mounted here"
    )]
    Connect {
        /// The socket.
        path: String,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The runtime closed the connection: it stopped, or this plugin was too slow.
    #[error("the runtime closed the connection")]
    Closed,
    /// Reading or writing failed.
    #[error("the connection to the runtime broke: {0}")]
    Broken(#[from] io::Error),
    /// The runtime does not read the messages sent to it.
    #[error("the runtime did not read a message within {WRITE_TIMEOUT:?}")]
    WriteTimeout,
    /// The bytes do not follow NRI's multiplexing.
    #[error(transparent)]
    Frame(#[from] OversizedFrame),
    /// The bytes are not ttrpc.
    #[error(transparent)]
    Message(#[from] TtrpcError),
}

/// A connection on which both sides may make calls.
#[derive(Debug)]
pub(super) struct Connection {
    socket: UnixStream,
    /// The bytes of frames that are not complete yet.
    read: BytesMut,
    /// The bytes received on each inner connection that are not a complete message yet.
    plugin: BytesMut,
    runtime: BytesMut,
    next_stream: u32,
}

impl Connection {
    pub async fn open(path: &Path) -> Result<Self, ConnectionError> {
        let socket = UnixStream::connect(path)
            .await
            .map_err(|source| ConnectionError::Connect { path: path.display().to_string(), source })?;
        Ok(Self { socket, read: BytesMut::new(), plugin: BytesMut::new(), runtime: BytesMut::new(), next_stream: 1 })
    }

    /// The next message. Nothing is lost if the future is dropped. Memory grows with the bytes received, not with the
    /// announced lengths, up to the limits of [`mux`] and [`ttrpc`].
    pub async fn receive(&mut self) -> Result<Incoming, ConnectionError> {
        loop {
            for read in [&mut self.plugin, &mut self.runtime] {
                if let Some(message) = ttrpc::take_message(read)? {
                    return Ok(message);
                }
                shrink(read);
            }
            if let Some((lane, payload)) = mux::take_frame(&mut self.read)? {
                match lane {
                    Lane::Plugin => self.plugin.extend_from_slice(&payload),
                    Lane::Runtime => self.runtime.extend_from_slice(&payload),
                }
                continue;
            }
            shrink(&mut self.read);
            self.read.reserve(READ);
            if self.socket.read_buf(&mut self.read).await? == 0 {
                return Err(ConnectionError::Closed);
            }
        }
    }

    /// Calls the runtime. The answer will carry the returned stream number.
    pub async fn call(&mut self, method: &str, request: &impl Message) -> Result<u32, ConnectionError> {
        let stream = self.next_stream;
        let message = ttrpc::call(stream, RUNTIME_SERVICE, method, request.encode_to_vec())?;
        self.next_stream += 2;
        self.write(Lane::Runtime, &message).await?;
        Ok(stream)
    }

    /// Answers the runtime's call on `stream`.
    pub async fn answer(&mut self, stream: u32, result: Result<Vec<u8>, Failure>) -> Result<(), ConnectionError> {
        self.write(Lane::Plugin, &ttrpc::answer(stream, result)?).await
    }

    async fn write(&mut self, lane: Lane, message: &[u8]) -> Result<(), ConnectionError> {
        let framed = mux::frame(lane, message);
        timeout(WRITE_TIMEOUT, self.socket.write_all(&framed)).await.map_err(|_| ConnectionError::WriteTimeout)??;
        Ok(())
    }
}

/// Frees the memory that a large message needed.
fn shrink(buffer: &mut BytesMut) {
    if buffer.is_empty() && buffer.capacity() > 4 * READ {
        *buffer = BytesMut::new();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_empty_buffer_that_was_large_is_freed() {
        let kept = |mut buffer: BytesMut| {
            shrink(&mut buffer);
            buffer.capacity()
        };
        assert_eq!(kept(BytesMut::with_capacity(64 << 10)), 64 << 10);
        assert_eq!(kept(BytesMut::with_capacity((64 << 10) + 1)), 0);
        assert_eq!(kept(BytesMut::zeroed(1 << 20)), 1 << 20, "a part of a message");
    }
}
