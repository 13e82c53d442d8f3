//! What the long-running verbs log, and how. IO: standard error.

use std::io::stderr;

use clap::{Args as ClapArgs, ValueEnum};
use tracing::level_filters::LevelFilter;

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
            Format::Text => log.with_ansi(std::io::IsTerminal::is_terminal(&stderr())).with_target(false).init(),
            Format::Json => log.json().flatten_event(true).init(),
        }
    }
}
