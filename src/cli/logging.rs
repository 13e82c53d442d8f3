//! Logging for the long-running subcommands. IO: standard error.

use std::io::stderr;

use clap::{Args as ClapArgs, ValueEnum};
use tracing::level_filters::LevelFilter;
use tracing_subscriber::{filter::Targets, layer::SubscriberExt, util::SubscriberInitExt};

/// Arguments for logging.
#[derive(Debug, ClapArgs)]
pub(super) struct Logging {
    /// Log messages of this level and above.
    #[arg(long, value_enum, default_value = "info", value_name = "LEVEL", global = true)]
    log_level: Level,
    /// Log each message as a line of text or as a JSON object.
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
    /// Starts logging. Must be called only once.
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

/// Two of kube's targets are logged only at level debug and below. The controller prefixes every message with the
/// object and trigger of the reconcile, but our messages already name the object. The client logs every failed request,
/// but our messages already report it, along with what was tried.
fn targets(level: LevelFilter) -> Targets {
    let debugging = level > LevelFilter::INFO;
    let controller = if debugging { level } else { level.min(LevelFilter::WARN) };
    let client = if debugging { level } else { LevelFilter::OFF };
    Targets::new()
        .with_default(level)
        .with_target("kube_runtime::controller", controller)
        .with_target("kube_client::client::builder", client)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::logged::Log;

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
            tracing::error!(target: "kube_client::client::builder", "failed with error");
        });
        log.text()
    }

    #[test]
    fn kube_messages_that_repeat_ours_are_logged_only_at_debug() {
        let info = logged(LevelFilter::INFO);
        assert!(info.contains("wrote") && !info.contains("reconciling object"), "{info}");
        assert!(!info.contains("failed with error"), "{info}");
        let debug = logged(LevelFilter::DEBUG);
        assert!(debug.contains("reconciling object") && debug.contains("failed with error"), "{debug}");
    }
}
