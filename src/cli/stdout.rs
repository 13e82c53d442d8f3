//! Prints a subcommand's output. IO: standard output.

use std::io::{self, ErrorKind, Write as _};

use anyhow::Context as _;

/// Prints `text`. It is not an error if the reader stops early (`| head`).
pub(super) fn print(text: &str) -> anyhow::Result<()> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(error).context("cannot write to standard output"),
        _ => Ok(()),
    }
}
