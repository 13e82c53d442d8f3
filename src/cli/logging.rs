//! What the long-running verbs log, and how. IO: standard error.

use std::io::stderr;

use clap::{Args as ClapArgs, ValueEnum};
use tracing::level_filters::LevelFilter;
use tracing_subscriber::{filter::Targets, layer::SubscriberExt, util::SubscriberInitExt};

/// Arguments on logging.
#[derive(Debug, ClapArgs)]
pub(super) struct Logging {
    /// The least severe level that is logged.
    #[arg(long, value_enum, default_value = "info", value_name = "LEVEL", global = true)]
    log_level: Level,
    /// A line of text, or a JSON object, for each message.
    #[arg(long, value_enum, default_value = "text", value_name = "FORMAT", global = true)]
    log_format: Format,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Level {
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Format {
    Text,
    Json,
}

impl Logging {
    /// Begins logging; to be called once.
    pub(super) fn begin(&self) {
        let level = match self.log_level {
            Level::Error => LevelFilter::ERROR,
            Level::Warn => LevelFilter::WARN,
            Level::Info => LevelFilter::INFO,
            Level::Debug => LevelFilter::DEBUG,
            Level::Trace => LevelFilter::TRACE,
        };
        let log = tracing_subscriber::fmt().with_max_level(level).with_writer(stderr);
        match self.log_format {
            Format::Text => {
                let log = log.with_ansi(std::io::IsTerminal::is_terminal(&stderr())).with_target(false);
                log.finish().with(targets(level)).init();
            }
            Format::Json => log.json().flatten_event(true).finish().with(targets(level)).init(),
        }
    }
}

/// kube puts before each message of a reconcile which object it is about, which the messages say themselves, and why it
/// was looked at: for those who look for faults.
fn targets(level: LevelFilter) -> Targets {
    let kube = if level > LevelFilter::INFO { level } else { level.min(LevelFilter::WARN) };
    Targets::new().with_default(level).with_target("kube_runtime::controller", kube)
}

#[cfg(test)]
mod tests {
    use std::{
        io::Write,
        sync::{Arc, Mutex},
    };

    use super::*;

    #[derive(Clone, Default)]
    struct Log(Arc<Mutex<Vec<u8>>>);

    impl Write for Log {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    fn logged(level: LevelFilter) -> String {
        let log = Log::default();
        let writer = log.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(level)
            .with_ansi(false)
            .with_writer(move || writer.clone())
            .finish()
            .with(targets(level));
        tracing::subscriber::with_default(subscriber, || {
            let span = tracing::info_span!(target: "kube_runtime::controller", "reconciling object");
            span.in_scope(|| tracing::info!(config = "cpu", "wrote"));
        });
        String::from_utf8(log.0.lock().unwrap().clone()).unwrap()
    }

    #[test]
    fn a_message_comes_without_the_librarys_words_before_it_unless_a_fault_is_looked_for() {
        let info = logged(LevelFilter::INFO);
        assert!(info.contains("wrote") && !info.contains("reconciling object"), "{info}");
        assert!(logged(LevelFilter::DEBUG).contains("reconciling object"));
    }
}
