//! What a verb prints. IO: standard output.

use std::io::{self, ErrorKind, Write as _};

use anyhow::Context as _;

/// Prints `text`. A reader that has seen enough (`| head`) is no error.
pub(super) fn print(text: &str) -> anyhow::Result<()> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(error).context("cannot write to standard output"),
        _ => Ok(()),
    }
}
