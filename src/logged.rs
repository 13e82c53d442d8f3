//! Captures what is logged, for tests.

use std::{
    io::Write,
    sync::{Arc, Mutex, OnceLock},
};

use tracing::{Dispatch, level_filters::LevelFilter, subscriber::DefaultGuard};

/// What was logged.
#[derive(Clone, Default)]
pub(crate) struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Captures what this thread logs at level info and above, until the guard is dropped.
pub(crate) fn capture() -> (Log, DefaultGuard) {
    // With only one subscriber, tracing caches the answer of the first thread that reaches a message, which may belong to a
    // test without a subscriber.
    static SECOND: OnceLock<Dispatch> = OnceLock::new();
    SECOND.get_or_init(|| Dispatch::new(tracing_subscriber::registry()));

    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(LevelFilter::INFO)
        .with_ansi(false)
        .with_writer(move || writer.clone())
        .finish();
    (log, tracing::subscriber::set_default(subscriber))
}
