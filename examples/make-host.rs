//! Writes the `/proc` and `/sys` of a made-up server: `make-host KIND DIR`.
//!
//! `discover --host-root DIR` shows its devices, and `node-plugin --publish-only --host-root DIR` publishes them: these are the
//! demo's simulated servers. Without arguments it lists the kinds.
//!
//! Uses the standard library only, so that `rustc examples/make-host.rs` compiles it in a second.

use std::{path::Path, process::ExitCode};

#[path = "../tests/machines/mod.rs"]
mod machines;

use machines::servers::{KINDS, server};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [kind, directory] = arguments.as_slice() else {
        eprintln!("usage: make-host KIND DIR\nkinds: {}", kinds());
        return ExitCode::from(2);
    };
    let Some(machine) = server(kind) else {
        eprintln!("error: no server of kind {kind:?}; kinds: {}", kinds());
        return ExitCode::from(2);
    };
    match machine.write(Path::new(directory)) {
        Ok(()) => {
            println!("{directory}: {kind}, {} cores, {} GB", machine.cores(), machine.memory_gb);
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("error: writing a host below {directory}: {error}");
            ExitCode::FAILURE
        }
    }
}

fn kinds() -> String {
    KINDS.map(|(kind, _)| kind).join(" ")
}
