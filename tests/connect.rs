//! The verbs that connect to a cluster, above all their errors when they cannot.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    io::{BufRead as _, BufReader, Write as _},
    net::{TcpListener, TcpStream},
    path::PathBuf,
    process::Output,
    sync::mpsc,
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
fn a_missing_kubeconfig_is_named() {
    let said = complaint(&["--kubeconfig", "/nowhere/kubeconfig"]);
    assert!(said.starts_with("error: cannot read kubeconfig /nowhere/kubeconfig: "), "{said}");
}

#[test]
fn an_unknown_context_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let file = kubeconfig(&directory, "http://127.0.0.1:1");
    let said = complaint(&["--kubeconfig", file.to_str().unwrap(), "--context", "gone"]);
    assert_eq!(said, "error: the kubeconfig has no context gone\n");
    let said = complaint(&["--kubeconfig", file.to_str().unwrap(), "--context", "cc"]);
    assert_eq!(said, "error: the kubeconfig has no context cc; did you mean c?\n");
}

#[test]
fn an_unreachable_cluster_is_named_once_with_the_cause() {
    let directory = tempfile::tempdir().unwrap();
    // A port that was free a moment ago: nothing listens on it.
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let address = format!("http://127.0.0.1:{port}");
    let said = complaint(&["--kubeconfig", kubeconfig(&directory, &address).to_str().unwrap()]);
    assert!(said.starts_with(&format!("error: cannot list deviceclasses in the cluster at {address}/: ")), "{said}");
    assert_eq!(said.matches("refused").count(), 1, "{said}");
}

#[test]
fn the_error_for_a_cluster_without_the_api_names_the_version_it_needs() {
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
fn a_missing_permission_is_named_with_the_role_that_grants_it() {
    let directory = tempfile::tempdir().unwrap();
    let address = server(|_| status(403, "deviceclasses is forbidden for you"));
    let said = complaint(&["--kubeconfig", kubeconfig(&directory, &address).to_str().unwrap()]);
    assert_eq!(
        said,
        "error: you are not allowed to list deviceclasses: deviceclasses is forbidden for you; ask an admin to bind the ClusterRole dra-operator-viewer to you\n"
    );
}

/// A proxy that answers for every server itself; returns its address, and the connections that it was asked for.
fn proxy() -> (String, mpsc::Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let (asked, connections) = mpsc::channel();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut lines = BufReader::new(&stream).lines();
            let request = lines.next().unwrap().unwrap();
            while lines.next().is_some_and(|line| !line.unwrap().is_empty()) {}
            asked.send(request).unwrap();
            stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").unwrap();
            let _ = serve(&stream, &|_| status(401, "this is the proxy"));
        }
    });
    (address, connections)
}

#[test]
fn a_proxy_is_used_as_by_kubectl() {
    let directory = tempfile::tempdir().unwrap();
    let (proxy, connections) = proxy();
    let file = kubeconfig(&directory, "http://cluster.example:8080");
    let through = |variables: &[(&str, &str)]| {
        let mut command = Command::cargo_bin("dra-operator").unwrap();
        for variable in ["HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy"] {
            command.env_remove(variable);
        }
        let command = command.arg("menu").env("KUBECONFIG", &file).envs(variables.iter().copied());
        String::from_utf8(command.output().unwrap().stderr).unwrap()
    };
    let said = through(&[("HTTP_PROXY", &proxy), ("NO_PROXY", "127.0.0.1")]);
    assert!(said.contains("this is the proxy"), "{said}");
    assert!(connections.recv().unwrap().starts_with("CONNECT cluster.example:8080 "));

    // Not the proxy for another scheme, nor for what NO_PROXY names. The host does not exist.
    for variables in [&[("HTTPS_PROXY", &*proxy)][..], &[("HTTP_PROXY", &*proxy), ("NO_PROXY", "cluster.example")]] {
        let said = through(variables);
        assert!(!said.contains("this is the proxy"), "{variables:?}: {said}");
    }

    // Nor for this machine.
    let direct = server(|_| status(401, "this is the server"));
    kubeconfig(&directory, &direct);
    let said = through(&[("HTTP_PROXY", &proxy)]);
    assert!(said.contains("this is the server"), "{said}");

    // The kubeconfig's own comes first.
    let text = std::fs::read_to_string(&file).unwrap().replace("server:", &format!("proxy-url: \"{proxy}\", server:"));
    std::fs::write(&file, text).unwrap();
    let said = through(&[("NO_PROXY", "127.0.0.1")]);
    assert!(said.contains("this is the proxy"), "{said}");
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
fn a_missing_default_kubeconfig_is_reported_once() {
    let home = tempfile::tempdir().unwrap();
    let mut command = Command::cargo_bin("dra-operator").unwrap();
    // kubectl's -n is accepted.
    let command = command.args(["menu", "-n", "shop"]).env("HOME", home.path());
    let output = command.env_remove("KUBECONFIG").env_remove("KUBERNETES_SERVICE_HOST").output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.starts_with("error: cannot find the cluster: ") && said.contains("set KUBECONFIG"), "{said}");
    assert_eq!(said.matches(".kube/config").count(), 1, "{said}");
}

#[test]
fn a_missing_file_in_the_list_of_kubeconfigs_is_skipped_and_the_others_are_merged() {
    let directory = tempfile::tempdir().unwrap();
    let found = kubeconfig(&directory, "http://127.0.0.1:1");
    let more = directory.path().join("more");
    std::fs::write(&more, "contexts: [{name: d, context: {cluster: c, user: u}}]\n").unwrap();
    for context in ["c", "d"] {
        let list = std::env::join_paths([PathBuf::from("/nowhere/kubeconfig"), more.clone(), found.clone()]).unwrap();
        let mut command = Command::cargo_bin("dra-operator").unwrap();
        let output = command.args(["menu", "--context", context]).env("KUBECONFIG", list).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.starts_with("error: cannot list deviceclasses in the cluster at http://127.0.0.1:1/"), "{said}");
    }
    let mut command = Command::cargo_bin("dra-operator").unwrap();
    let command = command.arg("menu").env("KUBECONFIG", "/nowhere/a:/nowhere/b");
    let output = command.env_remove("KUBERNETES_SERVICE_HOST").output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("there is no kubeconfig at /nowhere/a or /nowhere/b;"), "{said}");
}

#[test]
fn a_controller_without_a_cluster_prints_the_cause_once() {
    let home = tempfile::tempdir().unwrap();
    let mut command = Command::cargo_bin("dra-operator").unwrap();
    let command = command.args(["controller", "--leader-elect=false"]).env("HOME", home.path());
    let output = command.env_remove("KUBECONFIG").env_remove("KUBERNETES_SERVICE_HOST").output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.starts_with("error: cannot find the cluster (run in a pod, or set KUBECONFIG): "), "{said}");
    assert_eq!(said.matches("No such file").count(), 1, "{said}");
}

#[test]
fn a_controller_that_cannot_reach_its_cluster_prints_the_cause_once() {
    let directory = tempfile::tempdir().unwrap();
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let file = kubeconfig(&directory, &format!("http://127.0.0.1:{port}"));
    let mut command = Command::cargo_bin("dra-operator").unwrap();
    let command = command.args(["controller", "--pod-name", "operator-0"]).env("KUBECONFIG", file);
    let output = command.output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.starts_with("error: cannot read this pod, dra-operator/operator-0 "), "{said}");
    assert_eq!((said.matches("(Connect)").count(), said.matches("refused").count()), (1, 1), "{said}");
}
