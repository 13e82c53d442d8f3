//! `menu` where there is no menu: what it says when the cluster cannot be asked.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    io::{BufRead as _, BufReader, Write as _},
    net::{TcpListener, TcpStream},
    path::PathBuf,
    process::Output,
};

use assert_cmd::Command;

fn kubeconfig(directory: &tempfile::TempDir, server: &str) -> PathBuf {
    let file = directory.path().join("kubeconfig");
    let text = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{{name: c, context: {{cluster: c, user: u}}}}]\n\
         clusters: [{{name: c, cluster: {{server: \"{server}\"}}}}]\nusers: [{{name: u, user: {{token: t}}}}]\n"
    );
    std::fs::write(&file, text).unwrap();
    file
}

fn menu(arguments: &[&str]) -> Output {
    Command::cargo_bin("dra-operator").unwrap().arg("menu").args(arguments).env_remove("KUBECONFIG").output().unwrap()
}

fn complaint(arguments: &[&str]) -> String {
    let output = menu(arguments);
    assert_eq!(output.status.code(), Some(1));
    assert!(output.stdout.is_empty());
    String::from_utf8(output.stderr).unwrap()
}

/// Serves one connection at a time, every request with the same answer; returns the address.
fn server(answer: impl Fn(&str) -> (u16, String) + Send + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let _ = serve(&stream.unwrap(), &answer);
        }
    });
    address
}

fn serve(mut stream: &TcpStream, answer: &impl Fn(&str) -> (u16, String)) -> std::io::Result<()> {
    let mut lines = BufReader::new(stream).lines();
    while let Some(request) = lines.next().transpose()? {
        while lines.next().transpose()?.is_some_and(|line| !line.is_empty()) {}
        let (code, body) = answer(&request);
        let length = body.len();
        write!(
            stream,
            "HTTP/1.1 {code} x\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
        )?;
    }
    Ok(())
}

fn status(code: u16, message: &str) -> (u16, String) {
    let status = serde_json::json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code,
        "message": message, "reason": "x"});
    (code, status.to_string())
}

#[test]
fn a_kubeconfig_that_is_not_there_is_named() {
    let said = complaint(&["--kubeconfig", "/nowhere/kubeconfig"]);
    assert!(said.starts_with("error: cannot read kubeconfig /nowhere/kubeconfig: "), "{said}");
}

#[test]
fn a_context_that_is_not_there_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let file = kubeconfig(&directory, "http://127.0.0.1:1");
    let said = complaint(&["--kubeconfig", file.to_str().unwrap(), "--context", "gone"]);
    assert!(said.starts_with("error: cannot use context gone of the kubeconfig: "), "{said}");
}

#[test]
fn a_cluster_that_does_not_answer_is_named() {
    let directory = tempfile::tempdir().unwrap();
    // A port that was free a moment ago: nobody listens.
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let address = format!("http://127.0.0.1:{port}");
    let said = complaint(&["--kubeconfig", kubeconfig(&directory, &address).to_str().unwrap()]);
    assert!(said.starts_with(&format!("error: cannot list deviceclasses of the cluster at {address}/: ")), "{said}");
    assert!(said.contains("refused"), "{said}");
}

#[test]
fn a_cluster_without_the_api_is_told_what_it_needs() {
    let directory = tempfile::tempdir().unwrap();
    let address = server(|_| status(404, "the server could not find the requested resource"));
    let said = complaint(&["--kubeconfig", kubeconfig(&directory, &address).to_str().unwrap()]);
    assert_eq!(
        said,
        format!(
            "error: the cluster at {address}/ has no deviceclasses of resource.k8s.io/v1: Dynamic Resource Allocation needs Kubernetes 1.34 or later\n"
        )
    );
}

#[test]
fn what_one_may_not_read_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let address = server(|_| status(403, "deviceclasses is forbidden for you"));
    let said = complaint(&["--kubeconfig", kubeconfig(&directory, &address).to_str().unwrap()]);
    assert_eq!(
        said,
        "error: you may not list deviceclasses: deviceclasses is forbidden for you; an admin can let you, with the ClusterRole dra-operator-viewer\n"
    );
}

#[test]
fn a_list_is_read_to_its_last_page() {
    let directory = tempfile::tempdir().unwrap();
    let address = server(|request| {
        let class = |name: &str| serde_json::json!({"metadata": {"name": name}, "spec": {}});
        let (items, token) = match request {
            one if one.contains("continue=more") => (vec![class("second")], ""),
            one if one.contains("deviceclasses") => (vec![class("first")], "more"),
            _ => (vec![], ""),
        };
        (200, serde_json::json!({"apiVersion": "resource.k8s.io/v1", "kind": "List", "metadata": {"continue": token}, "items": items}).to_string())
    });
    let output = menu(&["-o", "json", "--kubeconfig", kubeconfig(&directory, &address).to_str().unwrap()]);
    let menu: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let names: Vec<_> = menu["classes"].as_array().unwrap().iter().map(|class| class["name"].clone()).collect();
    assert_eq!(names, ["first", "second"]);
}

#[test]
fn where_there_is_no_kubeconfig_that_is_said_once() {
    let home = tempfile::tempdir().unwrap();
    let mut command = Command::cargo_bin("dra-operator").unwrap();
    // -n is kubectl's, and taken.
    let command = command.args(["menu", "-n", "shop"]).env("HOME", home.path());
    let output = command.env_remove("KUBECONFIG").env_remove("KUBERNETES_SERVICE_HOST").output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.starts_with("error: cannot find the cluster: ") && said.contains("set KUBECONFIG"), "{said}");
    assert!(said.contains(".kube/config") && said.matches("config: ").count() == 0, "{said}");
    assert_eq!(said.matches("No such file").count(), 1, "{said}");
}
