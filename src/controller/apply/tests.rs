//! Writes against a scripted API server: what is sent, and how each response is handled.

use http::{Request, Response};
use kube::{client::Body, runtime::events::Reporter};
use prometheus_client::registry::Registry;
use serde_json::json;

use super::*;
use crate::{
    controller::{
        build::{self, Settings},
        child::ChildKind,
        plan::Difference,
        testing::{at, mk_config, mk_live},
    },
    fake_api::{FakeApi, SLICES},
};

/// One expected request, and its response.
struct Exchange {
    method: &'static str,
    path: &'static str,
    status: u16,
    answer: Value,
}

fn expect(method: &'static str, path: &'static str, status: u16, answer: Value) -> Exchange {
    Exchange { method, path, status, answer }
}

fn failure(code: u16, message: &str) -> Value {
    let reason = if code == 404 { "NotFound" } else { "" };
    json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason, "message": message})
}

/// Carries out `actions` against a server that expects exactly these exchanges. Returns the report and the request
/// bodies.
async fn carried_out(actions: Vec<Action>, memory: &mut Memory, script: Vec<Exchange>) -> (Report, Vec<Value>) {
    let (service, mut server) = tower_test::mock::pair::<Request<Body>, Response<Body>>();
    let server = tokio::spawn(async move {
        let mut bodies = Vec::new();
        for Exchange { method, path, status, answer } in script {
            let (request, send) = server.next_request().await.expect("one more request");
            let uri = request.uri().to_string();
            assert!(
                request.method() == method && uri.contains(path),
                "{} {uri}: not {method} {path}",
                request.method()
            );
            let body = request.into_body().collect_bytes().await.unwrap();
            bodies.push(serde_json::from_slice(&body).unwrap_or_default());
            let answer = serde_json::to_vec(&answer).unwrap();
            send.send_response(Response::builder().status(status).body(Body::from(answer)).unwrap());
        }
        assert!(server.next_request().await.is_none(), "no request more");
        bodies
    });
    let client = Client::new(service, "ns");
    let events = Series::new(client.clone(), Reporter { controller: "c".into(), instance: None });
    let writer = Writer { client, namespace: "ns".into(), metrics: Metrics::new(&mut Registry::default()), events };
    let report = writer.carry_out(&config(), actions, &[], memory, at(0)).await;
    drop(writer);
    (report, server.await.unwrap())
}

fn config() -> Config {
    mk_config("cpu", &json!({}))
}

fn child(kind: ChildKind) -> Child {
    let desired =
        build::children(&config(), &Settings { namespace: "ns".into(), image: "img".into(), ..Settings::default() });
    desired.children.into_iter().find(|child| child.key.kind == kind).unwrap()
}

const SETS: &str = "/apis/apps/v1/namespaces/ns/daemonsets/cpu-node-plugin";
const ACCOUNTS: &str = "/api/v1/namespaces/ns/serviceaccounts/cpu-node-plugin";

#[tokio::test]
async fn an_object_is_looked_up_before_it_is_created_and_applied_without_force() {
    let wanted = child(ChildKind::DaemonSet);
    let script = vec![
        expect("GET", SETS, 404, failure(404, "not found")),
        expect("PATCH", "cpu-node-plugin?&fieldManager=dra-operator", 200, wanted.object.clone()),
    ];
    let mut memory = Memory::default();
    let (report, bodies) = carried_out(vec![Action::Create(wanted.clone())], &mut memory, script).await;
    assert_eq!(report.written[0].0, wanted.key);
    assert_eq!(bodies[1], wanted.object);
    assert!(memory.lags(), "until the watch brings it back");
}

#[tokio::test]
async fn an_object_that_another_client_created_in_the_meantime_is_not_written() {
    let foreign = json!({"metadata": {"name": "cpu-node-plugin", "uid": "x", "labels": {"app.kubernetes.io/managed-by": "Helm"}}});
    let script = vec![expect("GET", SETS, 200, foreign)];
    let (report, _) =
        carried_out(vec![Action::Create(child(ChildKind::DaemonSet))], &mut Memory::default(), script).await;
    assert!(matches!(&report.blocks[..], [Block::NameTaken { owner, .. }] if owner.starts_with("Helm")), "{report:?}");
}

#[tokio::test]
async fn only_our_own_object_is_corrected_by_force() {
    let wanted = child(ChildKind::DaemonSet);
    let uid = mk_live(&config(), &wanted).uid;
    let script = vec![expect("PATCH", "force=true", 200, wanted.object.clone())];
    let action = Action::Correct { child: wanted, uid: uid.clone(), difference: Difference::Changed(".spec".into()) };
    let (report, bodies) = carried_out(vec![action], &mut Memory::default(), script).await;
    assert_eq!(bodies[0]["metadata"]["uid"], uid);
    assert_eq!(report.written.len(), 1);
}

#[tokio::test]
async fn a_rejected_write_waits_for_minutes_and_a_failed_one_for_seconds() {
    for (code, refused) in [(422, true), (400, true), (409, false), (500, false), (403, false), (429, false)] {
        let script = vec![
            expect("GET", ACCOUNTS, 404, failure(404, "not found")),
            expect("PATCH", ACCOUNTS, code, failure(code, "because")),
        ];
        let mut memory = Memory::default();
        let action = Action::Create(child(ChildKind::ServiceAccount));
        let (report, _) = carried_out(vec![action.clone()], &mut memory, script).await;
        assert_eq!((report.blocks.len() == 1, report.failures.len() == 1), (refused, !refused), "{code}: {report:?}");
        assert_eq!(memory.next_try(at(0)), (!refused).then_some(at(1)), "{code}");
        if !refused {
            let (again, _) = carried_out(vec![action.clone()], &mut memory, vec![]).await;
            assert_eq!(again.failures, report.failures, "reported again and not sent again");
            memory.fail(action.attempt(), "because".into(), at(1));
            assert_eq!(memory.next_try(at(1)), Some(at(3)), "each time later");
            assert_eq!(memory.failing(&action.attempt(), at(3)), None);
            assert_eq!(memory.failing(&Action::Create(child(ChildKind::DaemonSet)).attempt(), at(2)), None);
        }
        let said = format!("{report:?}");
        assert!(said.contains("because"), "{said}");
    }
}

#[tokio::test]
async fn no_plugin_starts_without_its_rights() {
    let script = vec![
        expect("GET", ACCOUNTS, 404, failure(404, "not found")),
        expect("PATCH", ACCOUNTS, 500, failure(500, "etcd is away")),
    ];
    let actions = [ChildKind::ServiceAccount, ChildKind::DaemonSet].map(|kind| Action::Create(child(kind)));
    let (report, _) = carried_out(actions.into(), &mut Memory::default(), script).await;
    assert_eq!((report.failures.len(), report.written.len()), (1, 0));
}

#[tokio::test]
async fn deleting_an_object_that_is_already_gone_succeeds() {
    for code in [404, 409] {
        let key = child(ChildKind::DaemonSet).key;
        let script = vec![expect("DELETE", SETS, code, failure(code, "x"))];
        let action = Action::Delete { key, uid: "u".into() };
        let (report, bodies) = carried_out(vec![action], &mut Memory::default(), script).await;
        assert!(report.failures.is_empty() && report.written.is_empty(), "{report:?}");
        assert_eq!(bodies[0]["preconditions"]["uid"], "u");
    }
}

#[tokio::test]
async fn our_own_object_that_the_watch_does_not_show_yet_is_corrected() {
    let wanted = child(ChildKind::ServiceAccount);
    let mut ours = wanted.object.clone();
    ours["metadata"]["uid"] = json!("there");
    let script = vec![expect("GET", ACCOUNTS, 200, ours.clone()), expect("PATCH", "force=true", 200, ours)];
    let (report, bodies) = carried_out(vec![Action::Create(wanted)], &mut Memory::default(), script).await;
    assert_eq!((report.written.len(), &bodies[1]["metadata"]["uid"]), (1, &json!("there")));
}

#[tokio::test]
async fn a_delete_is_reported_and_one_that_fails_is_retried_later() {
    let key = child(ChildKind::DaemonSet).key;
    let delete = Action::Delete { key: key.clone(), uid: "u".into() };
    let mut memory = Memory::default();
    let script = vec![expect("DELETE", SETS, 500, failure(500, "etcd is away"))];
    let (report, _) = carried_out(vec![delete.clone()], &mut memory, script).await;
    let failed = Failed { key: key.clone(), message: "etcd is away".into() };
    assert_eq!((report.written, report.failures), (vec![], vec![failed.clone()]));
    let (report, _) = carried_out(vec![delete.clone()], &mut memory, vec![]).await;
    assert_eq!(report.failures, [failed], "a moment later it is not sent again");

    for action in [delete, Action::Recreate { key, uid: "u".into(), difference: Difference::Added(".spec".into()) }] {
        let because = action.because();
        let script = vec![expect("DELETE", SETS, 200, child(ChildKind::DaemonSet).object)];
        let (report, _) = carried_out(vec![action], &mut Memory::default(), script).await;
        assert_eq!(report.written.iter().map(|(_, because)| because).collect::<Vec<_>>(), [&because]);
    }
}

#[tokio::test]
async fn deleting_a_slice_that_is_already_gone_succeeds_and_a_failure_names_the_slice() {
    let api = FakeApi::default();
    let client = api.client();
    let events = Series::new(client.clone(), Reporter { controller: "c".into(), instance: None });
    let metrics = Metrics::new(&mut Registry::default());
    let writer = Writer { client, namespace: "ns".into(), metrics, events };
    assert!(writer.delete_slice("gone", "u").await.is_ok());
    api.put(&format!("{SLICES}/s"), json!({"metadata": {"name": "s", "uid": "u"}, "spec": {}}));
    api.refuse("resourceslices", 500, "etcd is away");
    let error = writer.delete_slice("s", "u").await.unwrap_err().to_string();
    assert!(error.contains("delete ResourceSlice s") && error.contains("etcd is away"), "{error}");
    api.accept();
    assert!(writer.delete_slice("s", "another's").await.is_ok() && !api.slices().is_empty());
    assert!(writer.delete_slice("s", "u").await.is_ok() && api.slices().is_empty());
}

#[tokio::test]
async fn no_plugin_starts_while_one_of_its_rights_is_known_to_be_blocked() {
    let api = FakeApi::default();
    let client = api.client();
    let events = Series::new(client.clone(), Reporter { controller: "c".into(), instance: None });
    let metrics = Metrics::new(&mut Registry::default());
    let writer = Writer { client, namespace: "ns".into(), metrics, events };
    let taken = |kind| Block::NameTaken { key: child(kind).key, owner: "Helm release x".into() };
    for (kind, writes) in [(ChildKind::ClusterRole, 0), (ChildKind::DaemonSet, 1)] {
        let actions = vec![Action::Create(child(ChildKind::DaemonSet))];
        writer.carry_out(&config(), actions, &[taken(kind)], &mut Memory::default(), at(0)).await;
        assert_eq!(api.writes().len(), writes, "{kind} is blocked");
    }
}
