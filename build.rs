//! Compiles the messages under proto/ with protox (no protoc on the machine), and finds the recorded machines of the tests.

use std::{
    env,
    path::{Path, PathBuf},
};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=proto");
    let mut files: Vec<PathBuf> =
        std::fs::read_dir("proto")?.map(|entry| Ok(entry?.path())).collect::<std::io::Result<_>>()?;
    files.retain(|file| file.extension().is_some_and(|extension| extension == "proto"));
    files.sort();
    let descriptors = protox::compile(&files, ["proto"])?;
    tonic_prost_build::configure()
        .bytes(".nri.SynchronizeRequest.containers")
        .build_client(true)
        .build_server(true)
        .compile_fds(descriptors)?;

    find_recorded_machines();
    Ok(())
}

/// The recordings are not part of the project: without them `tests/recorded_machines.rs` is reported as ignored.
fn find_recorded_machines() {
    println!("cargo::rustc-check-cfg=cfg(recorded_machines)");
    println!("cargo::rerun-if-env-changed=RECORDED_MACHINES");
    let folder = env::var("RECORDED_MACHINES").unwrap_or_else(|_| {
        let manifest = env::var("CARGO_MANIFEST_DIR").unwrap_or_default();
        format!("{manifest}/../shared/machines")
    });
    if Path::new(&folder).is_dir() {
        println!("cargo::rustc-cfg=recorded_machines");
        // Only where it is there: to cargo, a missing path has always changed, and every build would compile everything again.
        println!("cargo::rerun-if-changed={folder}");
    }
    println!("cargo::rustc-env=RECORDED_MACHINES={folder}");
}
