//! Several node plugins on one node, over containerd's own NRI code: who sets which field of a container's cpuset.
//! `docs/development/nri-sharing.md` has the decision. IO: go, a process, unix sockets.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::{
    io::{BufRead, BufReader, Write},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    sync::{Arc, OnceLock, mpsc::channel},
    thread::{self, JoinHandle},
    time::Duration,
};

use dra_operator::{
    cpuset::CpuSet,
    drivers::{Grant, GrantError, cpuset_fields::CpusetFields},
    plugin::{
        grants::{ContainerIdentity, Grants, NriStatus, Refusal},
        nri,
    },
};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// The variable by which the recorded pod's container carries the claim of a memory plugin, and the one that says that
/// this claim brings memory nodes.
const MEMORY_CLAIM: &str = "DRA_CLAIM_0A1B_MAIN=dra.memory/token";
const MEMORY_NODES: &str = "DRA_MEMORY_NODES_0A1B_MAIN=dra.memory";

/// One driver's claims: whatever container carries its mark gets the grant.
struct OneGrant {
    driver: &'static str,
    fields: CpusetFields,
    grant: Grant,
    changes: watch::Sender<u64>,
}

impl Grants for OneGrant {
    fn of_container(&self, container: &ContainerIdentity<'_>) -> Result<Option<Grant>, Refusal> {
        let mark = format!("={}/", self.driver);
        let carries = container.env.iter().any(|variable| variable.contains(&mark));
        Ok(carries.then(|| self.grant.clone()))
    }

    fn is_mark(&self, variable: &str) -> bool {
        variable.starts_with("DRA_")
    }

    fn of_pod(&self, _: &str) -> Vec<Grant> {
        vec![]
    }

    fn cpuset_fields(&self) -> CpusetFields {
        self.fields
    }

    fn check(&self, _: &Grant) -> Result<(), GrantError> {
        Ok(())
    }

    fn remainder(&self) -> Option<Grant> {
        let others = Grant { cpus: set("1-3"), ..Grant::default() };
        (self.fields == CpusetFields::Cpus).then_some(others)
    }

    fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }
}

fn set(list: &str) -> CpuSet {
    list.parse().unwrap()
}

/// A claim of CPU 0, whose memory is node 0.
fn cpu() -> OneGrant {
    let grant = Grant { cpus: set("0"), memory_nodes: set("0"), ..Grant::default() };
    OneGrant { driver: "dra.cpu", fields: CpusetFields::Cpus, grant, changes: watch::Sender::new(1) }
}

/// A claim of memory on node 1.
fn memory() -> OneGrant {
    let grant = Grant { memory_nodes: set("1"), ..Grant::default() };
    OneGrant { driver: "dra.memory", fields: CpusetFields::MemoryNodes, grant, changes: watch::Sender::new(1) }
}

/// A plugin that is connected to the runtime, on a thread of its own.
struct Plugin {
    stop: CancellationToken,
    thread: Option<JoinHandle<()>>,
}

impl Plugin {
    fn connect(directory: &Path, grants: OneGrant) -> Self {
        let state_dir = directory.join(grants.driver);
        std::fs::create_dir_all(&state_dir).unwrap();
        let settings = nri::Settings {
            socket: directory.join("nri.sock"),
            plugin_name: grants.driver.to_owned(),
            state_dir,
            host_root: directory.to_owned(),
        };
        let status = watch::Sender::new(NriStatus::default());
        let (stop, (connected, is_connected)) = (CancellationToken::new(), channel());
        let stopped = stop.clone();
        let thread = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let mut reported = status.subscribe();
            let report = async {
                reported.wait_for(|status| status.connected).await.unwrap();
                connected.send(()).unwrap();
                std::future::pending::<()>().await;
            };
            runtime.block_on(async {
                tokio::select! {
                    never = nri::run(settings, Arc::new(grants), None, status.clone()) => match never {},
                    () = report => {}
                    () = stopped.cancelled() => {}
                }
            });
        });
        is_connected.recv_timeout(Duration::from_secs(10)).expect("the runtime synchronises the plugin");
        Self { stop, thread: Some(thread) }
    }
}

impl Drop for Plugin {
    fn drop(&mut self) {
        self.stop.cancel();
        self.thread.take().unwrap().join().unwrap();
    }
}

/// containerd's NRI code in a process of its own.
struct Runtime {
    process: Child,
    questions: ChildStdin,
    answers: BufReader<ChildStdout>,
}

#[derive(Debug, Default, Deserialize, PartialEq, Eq, PartialOrd, Ord)]
#[serde(default)]
struct Placement {
    id: String,
    cpus: String,
    mems: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Answer {
    error: String,
    placements: Vec<Placement>,
}

fn placed(id: &str, cpus: &str, mems: &str) -> Placement {
    Placement { id: id.into(), cpus: cpus.into(), mems: mems.into() }
}

/// Builds the runtime, once.
fn runtime() -> &'static Path {
    static RUNTIME: OnceLock<PathBuf> = OnceLock::new();
    RUNTIME.get_or_init(|| {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/nri_sharing/runtime");
        let binary = Path::new(env!("CARGO_TARGET_TMPDIR")).join("nri-runtime");
        let mut go = Command::new("go");
        go.args(["build", "-trimpath", "-tags", "nri_no_wasm", "-o"]).arg(&binary).arg(".").current_dir(source);
        let built = go.output().unwrap_or_else(|error| {
            panic!("cannot run `go`: {error}. These tests ask containerd's own NRI code: install Go 1.26 or later")
        });
        assert!(built.status.success(), "go build: {}", String::from_utf8_lossy(&built.stderr));
        binary
    })
}

impl Runtime {
    fn start(directory: &Path) -> Self {
        let online = directory.join("sys/devices/system/cpu/online");
        std::fs::create_dir_all(online.parent().unwrap()).unwrap();
        std::fs::write(online, "0-3").unwrap();
        let recording = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/nri/from-runtime.bin");
        let mut process = Command::new(runtime())
            .arg(directory.join("nri.sock"))
            .arg(recording)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (questions, answers) = (process.stdin.take().unwrap(), BufReader::new(process.stdout.take().unwrap()));
        Self { process, questions, answers }
    }

    fn ask(&mut self, question: &Value) -> Result<Vec<Placement>, String> {
        writeln!(self.questions, "{question}").unwrap();
        let mut answer = String::new();
        self.answers.read_line(&mut answer).unwrap();
        let Answer { error, mut placements } = serde_json::from_str(&answer).unwrap();
        placements.sort();
        if error.is_empty() { Ok(placements) } else { Err(error) }
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

#[test]
fn a_container_with_a_cpu_claim_and_a_memory_claim_is_created_with_both() {
    let directory = tempfile::tempdir().unwrap();
    let mut runtime = Runtime::start(directory.path());
    let _plugins = [Plugin::connect(directory.path(), cpu()), Plugin::connect(directory.path(), memory())];
    let created = runtime.ask(&json!({"plugins": 2, "create": "both", "env": [MEMORY_CLAIM, MEMORY_NODES]}));
    assert_eq!(created.unwrap(), [placed("both", "0", "1")]);

    // As the kubelet's static policies do.
    let resized = runtime.ask(&json!({"plugins": 2, "update": "both", "cpus": "0-3", "mems": "0-1"}));
    assert_eq!(resized.unwrap(), [placed("both", "0", "1")]);
}

#[test]
fn without_a_word_of_the_memory_claim_the_runtime_refuses_the_container() {
    let directory = tempfile::tempdir().unwrap();
    let mut runtime = Runtime::start(directory.path());
    let _plugins = [Plugin::connect(directory.path(), cpu()), Plugin::connect(directory.path(), memory())];
    let refused = runtime.ask(&json!({"plugins": 2, "create": "both", "env": [MEMORY_CLAIM]})).unwrap_err();
    assert!(refused.contains(r#"plugins "90-dra.memory" and "90-dra.cpu" both tried to set"#), "{refused}");
}

#[test]
fn a_container_with_a_cpu_claim_alone_gets_the_memory_nodes_of_its_cpus() {
    let directory = tempfile::tempdir().unwrap();
    let mut runtime = Runtime::start(directory.path());
    let _plugins = [Plugin::connect(directory.path(), cpu()), Plugin::connect(directory.path(), memory())];
    let created = runtime.ask(&json!({"plugins": 2, "create": "cpu"}));
    assert_eq!(created.unwrap(), [placed("cpu", "0", "0")]);
}

#[test]
fn a_pod_that_claims_to_have_memory_nodes_loses_only_its_own_local_memory() {
    let directory = tempfile::tempdir().unwrap();
    let mut runtime = Runtime::start(directory.path());
    let _plugins = [Plugin::connect(directory.path(), cpu()), Plugin::connect(directory.path(), memory())];
    let created = runtime.ask(&json!({"plugins": 2, "create": "liar", "env": [MEMORY_NODES]}));
    assert_eq!(created.unwrap(), [placed("liar", "0", "")]);
    let created = runtime.ask(&json!({"plugins": 2, "create": "honest"}));
    assert_eq!(created.unwrap(), [placed("honest", "0", "0")]);
}

#[test]
fn plugins_that_restart_change_only_what_is_theirs() {
    let directory = tempfile::tempdir().unwrap();
    let mut runtime = Runtime::start(directory.path());
    let plugins = [Plugin::connect(directory.path(), cpu()), Plugin::connect(directory.path(), memory())];
    let created = runtime.ask(&json!({"plugins": 2, "create": "both", "env": [MEMORY_CLAIM, MEMORY_NODES]}));
    created.unwrap();
    drop(plugins);
    let _plugins = [Plugin::connect(directory.path(), cpu()), Plugin::connect(directory.path(), memory())];
    let asked = runtime.ask(&json!({"plugins": 4, "unsolicited": 2}));
    assert_eq!(asked.unwrap(), [placed("both", "", "1"), placed("both", "0", "")]);
}
