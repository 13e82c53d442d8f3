//! The verb `discover`: its tables for people, its YAML and JSON for programs.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::{path::Path, process::Stdio};

use assert_cmd::{Command, assert::Assert};
use k8s_openapi::{List, api::resource::v1::ResourceSlice};

mod machines;

use machines::{Machine, servers::server};

fn host(machine: &Machine) -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    machine.write(root.path()).unwrap();
    root
}

fn discover(root: &Path, arguments: &[&str]) -> Assert {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dra-operator"));
    command.env_remove("NODE_NAME").arg("discover").arg("--host-root").arg(root).args(arguments).assert()
}

fn stdout(assert: &Assert) -> String {
    String::from_utf8(assert.get_output().stdout.clone()).unwrap()
}

fn stderr(assert: &Assert) -> String {
    String::from_utf8(assert.get_output().stderr.clone()).unwrap()
}

fn slices(assert: &Assert) -> Vec<ResourceSlice> {
    serde_json::from_slice::<List<ResourceSlice>>(&assert.get_output().stdout).unwrap().items
}

#[test]
fn people_get_the_machine_and_its_devices_as_tables() {
    let root = host(&server("xeon-small").unwrap());
    let assert = discover(root.path(), &["--reserved-cpus", "0,9"]).success();
    assert_eq!(stderr(&assert), "");
    insta::assert_snapshot!(stdout(&assert));
}

#[test]
fn yaml_is_the_list_of_slices_that_a_node_plugin_would_publish() {
    let root = host(&Machine { cores_per_socket: 2, ..Machine::default() });
    let assert = discover(root.path(), &["--granularity", "Thread", "-o", "yaml", "--reserved-cpus", "0"]).success();
    insta::assert_snapshot!(stdout(&assert));
}

#[test]
fn a_large_machine_takes_several_slices_of_one_pool() {
    let root = host(&Machine { sockets: 2, cores_per_socket: 48, threads_per_core: 2, ..Machine::default() });
    let cores = slices(&discover(root.path(), &["-o", "json"]).success());
    assert_eq!(cores.len(), 1);
    let threads = slices(&discover(root.path(), &["--granularity", "Thread", "-o", "json"]).success());
    assert_eq!(threads.iter().map(|slice| slice.spec.devices.iter().flatten().count()).collect::<Vec<_>>(), [128, 64]);
    assert!(threads.iter().all(|slice| slice.spec.pool.resource_slice_count == 2 && slice.spec.pool.name == "testbed"));
}

#[test]
fn a_reader_that_stops_early_is_not_an_error() {
    let root = host(&Machine { sockets: 2, cores_per_socket: 48, ..Machine::default() });
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_dra-operator"));
    command.args(["discover", "-o", "json", "--host-root"]).arg(root.path());
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
}

#[test]
fn driver_and_node_names_can_be_set() {
    let root = host(&Machine::default());
    let arguments = ["-o", "json", "--driver-name", "cpu.example.com", "--node-name", "worker-7"];
    let slice = slices(&discover(root.path(), &arguments).success()).remove(0);
    assert_eq!((slice.spec.driver.as_str(), slice.spec.node_name.as_deref()), ("cpu.example.com", Some("worker-7")));
}

#[test]
fn warnings_go_to_standard_error_and_the_output_stays_complete() {
    let root = host(&Machine::default());
    machines::put(root.path(), "sys/devices/system/cpu/cpu3/topology/core_id", "three").unwrap();
    let assert = discover(root.path(), &["-o", "json"]).success();
    assert_eq!(slices(&assert)[0].spec.devices.as_ref().unwrap().len(), 4);
    let warning = format!("warning: {}/sys/devices/system/cpu/cpu3/topology/core_id says", root.path().display());
    assert!(stderr(&assert).starts_with(&warning), "{}", stderr(&assert));
}

#[test]
fn a_name_that_no_node_can_have_is_rejected() {
    let root = host(&Machine::default());
    machines::put(root.path(), "proc/sys/kernel/hostname", "My Laptop").unwrap();
    for (arguments, name) in [(&[][..], "my laptop"), (&["--node-name", "BAD_NAME"][..], "BAD_NAME")] {
        let said = stderr(&discover(root.path(), arguments).failure());
        assert!(said.contains(&format!("{name:?} is not a valid Node name")) && said.contains("--node-name"), "{said}");
    }
}

#[test]
fn errors_say_what_to_do() {
    let root = host(&Machine::default());
    let empty = tempfile::tempdir().unwrap();
    let file = root.path().join("proc/cpuinfo");
    for (at, arguments, message) in [
        (Path::new("/nowhere/at/all"), vec![], "cannot read --host-root /nowhere/at/all: No such file or directory"),
        (file.as_path(), vec![], "is not a directory: it must contain proc and sys"),
        (empty.path(), vec![], "no CPU found under"),
        (root.path(), vec!["--granularity", "Socket"], "possible values: Core, Thread"),
        (root.path(), vec!["--reserved-cpus", "3-1"], "the range 3-1 runs backwards"),
    ] {
        let assert = discover(at, &arguments).failure();
        assert!(stderr(&assert).contains(message), "{arguments:?}: {}", stderr(&assert));
        assert_eq!(stdout(&assert), "");
    }
}

#[test]
fn a_machine_whose_cpus_are_all_reserved_has_an_empty_slice() {
    let root = host(&Machine::default());
    let assert = discover(root.path(), &["-o", "json", "--reserved-cpus", "0-3"]).success();
    assert_eq!(slices(&assert)[0].spec.devices.as_ref().map(Vec::len), Some(0));
    assert!(stderr(&assert).contains("every online CPU (0-3) is reserved"));
}

#[test]
fn a_machine_whose_cpus_are_all_reserved_is_still_shown() {
    let root = host(&server("xeon-small").unwrap());
    let assert = discover(root.path(), &["--reserved-cpus", "0-15"]).success();
    assert!(stdout(&assert).contains("Xeon(R) Silver 4309Y"), "{}", stdout(&assert));
    assert!(!stdout(&assert).contains("<none>"), "{}", stdout(&assert));
    assert!(
        stderr(&assert).ends_with("no devices left: all of them include CPUs from --reserved-cpus 0-15\n"),
        "{}",
        stderr(&assert)
    );
}
