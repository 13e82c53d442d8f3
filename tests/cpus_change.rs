//! The binary as a node plugin on a machine whose CPUs go offline while it runs.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{TcpListener, TcpStream},
    path::Path,
    process::{Child, Command, Stdio},
    sync::mpsc::{Receiver, channel},
    thread,
    time::Duration,
};

const PATIENCE: Duration = Duration::from_secs(30);

/// Killed when the test ends.
struct Plugin(Child);

impl Drop for Plugin {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// A machine of CPUs 0-3, each a core.
fn machine(root: &Path) {
    for cpu in 0..4 {
        let topology = root.join(format!("sys/devices/system/cpu/cpu{cpu}/topology"));
        fs::create_dir_all(&topology).unwrap();
        for (file, content) in [
            ("core_id", cpu.to_string()),
            ("physical_package_id", "0".into()),
            ("thread_siblings_list", cpu.to_string()),
        ] {
            fs::write(topology.join(file), content).unwrap();
        }
    }
    online(root, "0-3");
}

fn online(root: &Path, cpus: &str) {
    fs::write(root.join("sys/devices/system/cpu/online"), cpus).unwrap();
}

/// A running plugin, and the lines of its log.
fn start(root: &Path, port: u16) -> (Plugin, Receiver<String>) {
    let kubeconfig = root.join("kubeconfig");
    // Nothing listens there: this test is not about what is published.
    fs::write(
        &kubeconfig,
        r#"{"clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:9"}}], "users": [{"name": "u", "user": {}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}], "current-context": "x"}"#,
    )
    .unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_dra-operator"))
        .args(["node-plugin", "--node-name=n", "--log-format=json"])
        .arg(format!("--http-bind=127.0.0.1:{port}"))
        .arg(format!("--host-root={}", root.display()))
        .arg(format!("--kubelet-root-dir={}", root.join("kubelet").display()))
        .arg(format!("--cdi-dir={}", root.join("cdi").display()))
        .args(["cpu", "--pinning=None"])
        .env("KUBECONFIG", kubeconfig)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let (line, lines) = channel();
    let log = BufReader::new(child.stderr.take().unwrap());
    thread::spawn(move || log.lines().map_while(Result::ok).try_for_each(|read| line.send(read)));
    (Plugin(child), lines)
}

fn says(lines: &Receiver<String>, what: &str) {
    let mut said = vec![];
    while !said.last().is_some_and(|line: &String| line.contains(what)) {
        said.push(lines.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("{what:?} is not in {said:#?}")));
    }
}

fn get(port: u16, path: &str) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn when_the_online_cpus_change_the_plugin_rebuilds_its_devices() {
    let root = tempfile::tempdir().unwrap();
    machine(root.path());
    fs::create_dir_all(root.path().join("kubelet/plugins_registry")).unwrap();
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let (_plugin, log) = start(root.path(), port);
    says(&log, r#""devices":4"#);
    online(root.path(), "0-2");
    says(&log, "online CPUs changed to 0-2: rebuilding the devices");
    says(&log, r#""devices":3"#);
    let start = std::time::Instant::now();
    while TcpStream::connect(("127.0.0.1", port)).is_err() {
        assert!(start.elapsed() < PATIENCE, "it is not serving again");
        thread::sleep(Duration::from_millis(10));
    }
    assert!(get(port, "/healthz").starts_with("HTTP/1.1 200"));
}
