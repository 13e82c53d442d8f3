//! Elections against a scripted API server.

use http::{Request, Response};
use kube::client::Body;
use serde_json::{Value, json};

use super::*;

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

/// Seeks leadership as pod `new` against a server that answers so, in order; the requests, and whether it came to lead.
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
        // What is left unanswered at the end of the script is a candidate that waits.
        tokio::time::timeout(Duration::from_millis(300), candidate.lead(|| {})).await.is_ok_and(|led| led.is_ok())
    };
    drop(client);
    (server.await.unwrap(), led)
}

fn own() -> (u16, Value) {
    (200, json!({"metadata": {"name": "new", "uid": "me"}, "spec": {"containers": []}}))
}

#[tokio::test]
async fn who_makes_the_lease_leads() {
    let (seen, led) = elected(vec![own(), (201, lease("new", "me"))]).await;
    assert_eq!((seen, led), (vec!["GET new".into(), "POST leases".into()], true));
}

#[tokio::test]
async fn a_container_started_again_in_the_same_pod_leads_on() {
    assert!(elected(vec![own(), (409, failure(409)), (200, lease("new", "me"))]).await.1);
}

#[tokio::test]
async fn the_lease_of_a_leader_that_is_over_is_taken_away() {
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
async fn a_lease_that_names_nobody_is_taken_away() {
    for holder in [json!(""), json!(null)] {
        let mut nobodys = lease("old", "old-uid");
        nobodys["spec"]["holderIdentity"] = holder;
        let gone = json!({"kind": "Status", "apiVersion": "v1", "status": "Success"});
        let answers = vec![own(), (409, failure(409)), (200, nobodys), (200, gone), (201, lease("new", "me"))];
        let (seen, led) = elected(answers).await;
        assert!(led && seen.contains(&"DELETE dra-operator".to_owned()), "{seen:?}");
    }
}

#[tokio::test]
async fn a_leader_that_lives_is_left_its_lease() {
    let alive = [
        vec![(200, pod("old-uid", "Running", false))],
        // Being deleted, and still writing perhaps: its node reports.
        vec![(200, pod("old-uid", "Running", true)), (200, node("True"))],
        // It cannot be told.
        vec![(500, failure(500))],
    ];
    for looks in alive {
        let mut answers = vec![own(), (409, failure(409)), (200, lease("old", "old-uid"))];
        answers.extend(looks.clone());
        let (seen, led) = elected(answers).await;
        assert!(!led && !seen.contains(&"DELETE dra-operator".to_owned()), "{looks:?}: {seen:?}");
    }
}
