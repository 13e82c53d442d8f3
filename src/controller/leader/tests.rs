//! Elections against a scripted API server, and resignations against an in-memory one.

use http::{Request, Response};
use kube::client::Body;
use serde_json::{Value, json};

use super::*;
use crate::fake_api::FakeApi;

fn failure(code: u16) -> Value {
    let reason = if code == 404 { "NotFound" } else { "AlreadyExists" };
    json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason, "message": "x"})
}

fn lease(pod: &str, uid: &str) -> Value {
    json!({
        "metadata": {"name": LEASE, "uid": "lease", "resourceVersion": "7", "ownerReferences":
            [{"apiVersion": "v1", "kind": "Pod", "name": pod, "uid": uid}]},
        "spec": {"holderIdentity": pod},
    })
}

fn pod(uid: &str, phase: &str, deleted: bool) -> Value {
    let deleted = deleted.then_some("2026-01-01T00:00:00Z");
    json!({
        "metadata": {"name": "old", "uid": uid, "deletionTimestamp": deleted},
        "spec": {"containers": [], "nodeName": "n"}, "status": {"phase": phase},
    })
}

fn node(ready: &str) -> Value {
    json!({"metadata": {"name": "n"}, "status": {"conditions": [{"type": "Ready", "status": ready}]}})
}

/// Runs for leader as pod `new` against a server that gives these responses in order. Returns the requests, and whether
/// it won.
async fn elected(answers: Vec<(u16, Value)>) -> (Vec<String>, bool) {
    let (service, mut server) = tower_test::mock::pair::<Request<Body>, Response<Body>>();
    let client = Client::new(service, "ns");
    let server = tokio::spawn(async move {
        let mut seen = Vec::new();
        for (status, answer) in answers {
            let Some((request, send)) = server.next_request().await else { break };
            let path = request.uri().path().rsplit('/').next().unwrap_or_default().to_owned();
            seen.push(format!("{} {path}", request.method()));
            let body = Body::from(serde_json::to_vec(&answer).unwrap());
            send.send_response(Response::builder().status(status).body(body).unwrap());
        }
        seen
    });
    let led = {
        let candidate = Candidate::new(&client, "ns", "new").await.unwrap();
        // At the end of the script, a candidate without a response is waiting.
        tokio::time::timeout(Duration::from_millis(300), candidate.lead(|| {})).await.is_ok_and(|led| led.is_ok())
    };
    drop(client);
    (server.await.unwrap(), led)
}

fn own() -> (u16, Value) {
    (200, json!({"metadata": {"name": "new", "uid": "me"}, "spec": {"containers": []}}))
}

#[tokio::test]
async fn the_instance_that_creates_the_lease_leads() {
    let (seen, led) = elected(vec![own(), (201, lease("new", "me"))]).await;
    assert_eq!((seen, led), (vec!["GET new".into(), "POST leases".into()], true));
}

#[tokio::test]
async fn a_container_that_restarts_in_the_same_pod_still_leads() {
    assert!(elected(vec![own(), (409, failure(409)), (200, lease("new", "me"))]).await.1);
}

#[tokio::test]
async fn the_lease_of_a_leader_that_has_ended_is_deleted() {
    let over = [
        vec![(404, failure(404))],
        vec![(200, pod("another", "Running", false))],
        vec![(200, pod("old-uid", "Failed", false))],
        vec![(200, pod("old-uid", "Running", true)), (200, node("Unknown"))],
    ];
    for looks in over {
        let mut answers = vec![own(), (409, failure(409)), (200, lease("old", "old-uid"))];
        answers.extend(looks.clone());
        answers.extend([
            (200, json!({"kind": "Status", "apiVersion": "v1", "status": "Success"})),
            (201, lease("new", "me")),
        ]);
        let (seen, led) = elected(answers).await;
        assert!(led && seen.contains(&"DELETE dra-operator".to_owned()), "{looks:?}: {seen:?}");
    }
}

#[tokio::test]
async fn a_lease_without_a_holder_is_deleted() {
    for holder in [json!(""), json!(null)] {
        let mut unheld = lease("old", "old-uid");
        unheld["spec"]["holderIdentity"] = holder;
        let gone = json!({"kind": "Status", "apiVersion": "v1", "status": "Success"});
        let answers = vec![own(), (409, failure(409)), (200, unheld), (200, gone), (201, lease("new", "me"))];
        let (seen, led) = elected(answers).await;
        assert!(led && seen.contains(&"DELETE dra-operator".to_owned()), "{seen:?}");
    }
}

#[tokio::test]
async fn a_leader_that_lives_keeps_its_lease() {
    let alive = [
        vec![(200, pod("old-uid", "Running", false))],
        // Being deleted, but its node reports, so it may still be writing.
        vec![(200, pod("old-uid", "Running", true)), (200, node("True"))],
        // Unknown.
        vec![(500, failure(500))],
    ];
    for looks in alive {
        let mut answers = vec![own(), (409, failure(409)), (200, lease("old", "old-uid"))];
        answers.extend(looks.clone());
        let (seen, led) = elected(answers).await;
        assert!(!led && !seen.contains(&"DELETE dra-operator".to_owned()), "{looks:?}: {seen:?}");
    }
}

const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/ns/leases/dra-operator";

/// A candidate in pod `new` with the id `me`, and an API server that has this Lease.
async fn candidate(lease: Value) -> (FakeApi, Candidate) {
    let api = FakeApi::default();
    api.put("/api/v1/namespaces/ns/pods/new", own().1);
    api.put(LEASES, lease);
    let candidate = Candidate::new(&api.client(), "ns", "new").await.unwrap();
    (api, candidate)
}

#[tokio::test]
async fn an_instance_that_resigns_deletes_only_its_own_lease() {
    let (api, ours) = candidate(lease("new", "me")).await;
    ours.resign().await;
    assert_eq!(api.get(LEASES), None);

    let (api, lost) = candidate(lease("old", "old-uid")).await;
    lost.resign().await;
    assert!(api.get(LEASES).is_some() && api.writes().is_empty(), "{:?}", api.writes());
}

#[tokio::test(start_paused = true)]
async fn leadership_is_lost_with_the_lease_or_with_its_owner() {
    let (api, candidate) = candidate(lease("new", "me")).await;
    let mut lost = std::pin::pin!(candidate.lost());
    let moment = Duration::from_secs(1);
    assert!(timeout(moment, &mut lost).await.is_err(), "it is ours");
    api.edit(LEASES, |lease| lease["spec"]["acquireTime"] = json!("2026-01-01T00:00:00.000000Z"));
    assert!(timeout(moment, &mut lost).await.is_err(), "and still is");
    api.edit(LEASES, |lease| lease["metadata"]["ownerReferences"][0]["uid"] = json!("other"));
    assert!(timeout(moment, &mut lost).await.is_ok());

    api.delete(LEASES);
    assert!(timeout(moment, candidate.lost()).await.is_ok());
}
