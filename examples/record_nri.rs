//! Records what a container runtime and an NRI plugin say to each other, for `tests/fixtures/nri`.
//!
//! `cargo run --example record_nri -- /var/run/nri/nri.sock /run/relay.sock DIRECTORY` relays one connection between the
//! runtime's socket and a plugin that connects to the relay's socket, and writes what each side sent into a file.

use std::{
    fs::File,
    io::{Read, Write},
    net::Shutdown,
    os::unix::net::{UnixListener, UnixStream},
    path::PathBuf,
    thread,
};

fn main() -> anyhow::Result<()> {
    let arguments: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    let [runtime, relay, directory] = &arguments[..] else {
        anyhow::bail!("usage: record_nri RUNTIME-SOCKET RELAY-SOCKET DIRECTORY");
    };
    let listener = UnixListener::bind(relay)?;
    let (plugin, _) = listener.accept()?;
    let runtime = UnixStream::connect(runtime)?;
    let recorded =
        (File::create(directory.join("from-runtime.bin"))?, File::create(directory.join("from-plugin.bin"))?);
    let (from_runtime, to_plugin) = (runtime.try_clone()?, plugin.try_clone()?);
    let answers = thread::spawn(move || relay_all(from_runtime, to_plugin, recorded.0));
    relay_all(plugin, runtime, recorded.1)?;
    answers.join().map_err(|_| anyhow::anyhow!("the thread that relays the runtime's answers died"))??;
    std::fs::remove_file(relay)?;
    Ok(())
}

fn relay_all(mut from: UnixStream, mut to: UnixStream, mut recorded: File) -> std::io::Result<()> {
    let mut buffer = vec![0; 64 << 10];
    loop {
        let read = from.read(&mut buffer)?;
        if read == 0 {
            return to.shutdown(Shutdown::Both).or(Ok(()));
        }
        recorded.write_all(&buffer[..read])?;
        to.write_all(&buffer[..read])?;
    }
}
