//! Runs the tools that `make tools` builds, and the product. IO.

use std::{
    ffi::OsStr,
    io::Write as _,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

/// The version of Kubernetes that the objects are for.
const KUBERNETES: &str = "1.37.2";

/// The root of the checkout.
pub(crate) fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn run(program: impl AsRef<OsStr>, directory: &Path, arguments: &[&str], input: &str) -> Output {
    let program = program.as_ref();
    let mut child = Command::new(program)
        .args(arguments)
        .current_dir(directory)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("{} does not start, `make tools` builds it: {error}", program.display()));
    // If a program ends without reading its input, its status says why.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    child.wait_with_output().unwrap()
}

/// Standard output of a program that must succeed.
fn output(program: impl AsRef<OsStr>, directory: &Path, arguments: &[&str], input: &str) -> String {
    let program = program.as_ref();
    let output = run(program, directory, arguments, input);
    let text = String::from_utf8(output.stdout).unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{} {arguments:?}:\n{text}{errors}", program.display());
    text
}

fn tool(name: &str) -> PathBuf {
    root().join("target/tools/bin").join(name)
}

/// `helm template` of the chart as the release `dra-operator`, or why helm rejects the values.
pub(crate) fn try_helm_template(values: &[&str]) -> Result<String, String> {
    try_helm_template_as("dra-operator", "dra-operator", values)
}

/// The same for another release in another namespace.
pub(crate) fn try_helm_template_as(release: &str, namespace: &str, values: &[&str]) -> Result<String, String> {
    let mut arguments = vec!["template", release, "charts/dra-operator", "--namespace", namespace];
    arguments.extend(["--kube-version", KUBERNETES]);
    arguments.extend(values.iter().flat_map(|value| ["--set", *value]));
    let output = run(tool("helm"), &root(), &arguments, "");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    if output.status.success() { Ok(text(output.stdout)) } else { Err(text(output.stderr)) }
}

/// `helm template` with valid values.
pub(crate) fn helm_template(values: &[&str]) -> String {
    try_helm_template(values).unwrap_or_else(|error| panic!("{values:?}: {error}"))
}

/// `kustomize build` of a directory of the checkout.
pub(crate) fn kustomize(directory: &str) -> String {
    output(tool("kustomize"), &root(), &["build", directory], "")
}

/// Why kubeconform rejects the objects, if it does. ServiceMonitor is not part of Kubernetes and has no schema here.
pub(crate) fn kubeconform(yaml: &str) -> Result<(), String> {
    let schemas = super::schemas::directory().join("{{.ResourceKind}}{{.KindSuffix}}.json");
    let schemas = schemas.to_str().unwrap();
    let arguments = ["-strict", "-skip", "ServiceMonitor", "-schema-location", schemas, "-summary", "-"];
    let output = run(tool("kubeconform"), &root(), &arguments, yaml);
    let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(!said.contains(": 0 resources"), "nothing to validate");
    if output.status.success() { Ok(()) } else { Err(said) }
}

/// Standard output of the product.
pub(crate) fn dra_operator(arguments: &[&str]) -> String {
    output(env!("CARGO_BIN_EXE_dra-operator"), &root(), arguments, "")
}

/// Where the source of a Go module of the local cluster is.
pub(crate) fn go_module(path: &str) -> PathBuf {
    let directory = root().join("tests/cluster");
    output("go", &directory, &["list", "-m", "-f", "{{.Dir}}", path], "").trim().into()
}
