//! Builds and asks the Go program in `tests/oracle`. IO: go, a process.

use std::{
    io::Write as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::OnceLock,
};

use k8s_openapi::api::resource::v1::Device;
use serde::Deserialize;
use serde_json::{Value, json};

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Answer {
    pub error: String,
    pub max_cost: u64,
    pub matches: Vec<MatchAnswer>,
    pub nano: String,
    pub devices: Vec<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct MatchAnswer {
    pub r#match: bool,
    pub error: String,
}

/// Builds the oracle, once.
fn oracle() -> &'static Path {
    static ORACLE: OnceLock<PathBuf> = OnceLock::new();
    ORACLE.get_or_init(|| {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/oracle");
        let binary = Path::new(env!("CARGO_TARGET_TMPDIR")).join("oracle");
        // The flags of tests/cluster/build, so that what was compiled for the cluster is reused.
        let built =
            Command::new("go").args(["build", "-trimpath", "-o"]).arg(&binary).arg(".").current_dir(source).output();
        let built = built.unwrap_or_else(|error| {
            panic!("cannot run `go`: {error}. These tests ask Kubernetes' own Go libraries: install Go 1.26 or later")
        });
        assert!(built.status.success(), "go build of tests/oracle: {}", String::from_utf8_lossy(&built.stderr));
        binary
    })
}

/// Asks all questions at once.
pub fn ask(questions: &[Value]) -> Vec<Answer> {
    let mut oracle = Command::new(oracle()).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut stdin = oracle.stdin.take().unwrap();
    let text = questions.iter().map(Value::to_string).collect::<Vec<_>>().join("\n");
    let writer = std::thread::spawn(move || stdin.write_all(text.as_bytes()).unwrap());
    let output = oracle.wait_with_output().unwrap();
    writer.join().unwrap();
    assert!(output.status.success(), "the oracle failed");
    let answers = String::from_utf8(output.stdout).unwrap();
    let answers: Vec<Answer> = answers.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(answers.len(), questions.len());
    answers
}

/// A device, and the driver that offers it.
pub type Offered = (String, Device);

pub fn question(expression: &str, devices: &[Offered]) -> Value {
    let devices: Vec<Value> =
        devices.iter().map(|(driver, device)| json!({"driver": driver, "device": device})).collect();
    json!({"expression": expression, "devices": devices})
}
