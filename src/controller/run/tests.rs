//! The whole controller against an in-memory API server. Time is paused: it advances only while all tasks wait.

use std::cell::RefCell;

use prometheus_client::{encoding::text, registry::Registry};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::*;
use crate::{
    controller::build::{COMPONENT, CONFIG_LABEL},
    fake_api::FakeApi,
};

const CONFIG: &str = "/apis/dra-operator.dev/v1alpha1/dradriverconfigs/cpu";
const DAEMON_SET: &str = "/apis/apps/v1/namespaces/ns/daemonsets/cpu-node-plugin";
const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/ns/leases/dra-operator";
const POD: &str = "/api/v1/namespaces/ns/pods/me";

/// A running controller.
struct Running {
    api: FakeApi,
    stop: CancellationToken,
    ends: JoinHandle<Result<(), Error>>,
    registry: Registry,
    health: Arc<Health>,
}

impl Running {
    fn start(api: &FakeApi, pod: Option<&str>) -> Self {
        Self::start_with(api.client(), api, pod)
    }

    fn start_with(client: Client, api: &FakeApi, pod: Option<&str>) -> Self {
        let mut registry = Registry::default();
        let health = Arc::new(Health::default());
        let operator = Operator {
            client,
            settings: Settings { namespace: "ns".into(), image: "i".into(), ..Settings::default() },
            pod: pod.map(Into::into),
            metrics: Metrics::new(&mut registry),
            health: Arc::clone(&health),
        };
        let stop = CancellationToken::new();
        let ends = tokio::spawn(operator.run(stop.clone()));
        Self { api: api.clone(), stop, ends, registry, health }
    }

    /// Waits for an effect of the controller, for as long as its slowest timer.
    async fn until(&self, what: &str, holds: impl Fn(&FakeApi) -> bool) {
        let waited = timeout(Duration::from_mins(2), async {
            while !holds(&self.api) {
                sleep(Duration::from_millis(50)).await;
            }
        });
        assert!(waited.await.is_ok(), "{what}; there is {:?}", self.api.paths());
    }

    fn metric(&self, name: &str) -> i64 {
        let mut all = String::new();
        text::encode(&mut all, &self.registry).unwrap();
        all.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok()).unwrap()
    }

    /// What `/readyz` and `/healthz` say.
    fn probes(&self) -> (&'static str, String) {
        (self.health.readyz().1, self.health.healthz(tokio::time::Instant::now()).1)
    }

    async fn stopped(self) -> Result<(), Error> {
        self.stop.cancel();
        self.ends.await.unwrap()
    }
}

fn config() -> Value {
    json!({
        "apiVersion": "dra-operator.dev/v1alpha1", "kind": "DraDriverConfig", "spec": {"driver": {"cpu": {}}},
        "metadata": {"name": "cpu", "uid": "u", "generation": 1, "creationTimestamp": "2026-01-01T00:00:00Z"},
    })
}

fn reason(api: &FakeApi) -> Option<String> {
    let ready = api.get(CONFIG)?["status"]["conditions"].as_array()?.iter().find(|c| c["type"] == "Ready")?.clone();
    Some(ready["reason"].as_str()?.to_owned())
}

#[tokio::test(start_paused = true)]
async fn a_new_config_is_served_and_a_deleted_daemon_set_is_recreated() {
    let api = FakeApi::default();
    let running = Running::start(&api, None);
    sleep(Duration::from_secs(1)).await;
    assert_eq!(running.probes(), ("ok: leading\n", "ok\n".to_owned()));
    api.put(CONFIG, config());
    running.until("the DaemonSet is created", |api| api.get(DAEMON_SET).is_some()).await;
    running.until("the status is written", |api| reason(api).as_deref() == Some("RollingOut")).await;
    assert_eq!(running.metric("dra_controller_leader"), 1);

    let uid = api.get(DAEMON_SET).unwrap()["metadata"]["uid"].clone();
    api.delete(DAEMON_SET);
    running.until("another is created", |api| api.get(DAEMON_SET).is_some_and(|it| it["metadata"]["uid"] != uid)).await;
    sleep(Duration::from_mins(10)).await;
    assert_eq!(running.probes().1, "ok\n", "the loop turns while nothing happens");
    assert!(running.stopped().await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_config_that_vanishes_is_no_longer_counted() {
    let api = FakeApi::default();
    api.put(CONFIG, config());
    api.put("/api/v1/nodes/n", json!({"metadata": {"name": "n"}}));
    api.put("/api/v1/namespaces/ns/pods/p", json!({
        "metadata": {
            "name": "p", "labels": {COMPONENT.0: COMPONENT.1, CONFIG_LABEL: "cpu"},
            "ownerReferences": [
                {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "cpu-node-plugin", "uid": "d", "controller": true},
            ],
        },
        "spec": {"nodeName": "n", "containers": []}, "status": {"conditions": [{"type": "Ready", "status": "True"}]},
    }));
    let running = Running::start(&api, None);
    running.until("it is counted", |_| running.metric("dra_controller_nodes_ready") == 1).await;

    // Without a finalizer, no reconcile sees the deletion.
    api.edit(CONFIG, |config| config["metadata"]["finalizers"] = json!([]));
    api.delete(CONFIG);
    running.until("it is not", |_| running.metric("dra_controller_nodes_ready") == 0).await;
}

#[tokio::test(start_paused = true)]
async fn a_config_that_gave_way_is_served_when_the_older_one_is_gone() {
    let api = FakeApi::default();
    let mut older = config();
    older["metadata"] = json!({"name": "old", "uid": "o", "creationTimestamp": "2020-01-01T00:00:00Z"});
    let old = CONFIG.replace("cpu", "old");
    api.put(&old, older);
    api.put(CONFIG, config());
    let running = Running::start(&api, None);
    running.until("it gives way", |api| reason(api).as_deref() == Some("NodeSelectorOverlap")).await;

    api.edit(&old, |old| old["metadata"]["finalizers"] = json!([]));
    api.delete(&old);
    running.until("it is served", |api| reason(api).as_deref() == Some("RollingOut")).await;
}

#[tokio::test(start_paused = true)]
async fn a_cluster_without_the_api_is_reported_and_checked_again() {
    let api = FakeApi::default();
    api.serve_dra(false);
    api.put(CONFIG, config());
    let running = Running::start(&api, None);
    running.until("it is reported", |api| reason(api).as_deref() == Some("DraApiMissing")).await;
    assert_eq!(running.probes().0, "ok: leading\n", "caches that cannot fill are not waited for");
    api.serve_dra(true);
    running.until("it is served", |api| reason(api).as_deref() == Some("RollingOut")).await;
}

#[tokio::test(start_paused = true)]
async fn a_leader_releases_the_lease_when_stopped_and_ends_when_it_is_lost() {
    let api = FakeApi::default();
    api.put(POD, json!({"metadata": {"name": "me", "uid": "me"}, "spec": {"containers": []}}));
    let running = Running::start(&api, Some("me"));
    running.until("it leads", |api| api.get(LEASE).is_some()).await;
    assert!(running.stopped().await.is_ok());
    assert_eq!(api.get(LEASE), None);

    let running = Running::start(&api, Some("me"));
    running.until("it leads", |api| api.get(LEASE).is_some()).await;
    sleep(Duration::from_secs(1)).await;
    api.delete(LEASE);
    let lost = running.ends.await.unwrap().unwrap_err();
    assert_eq!(lost.to_string(), "lost the Lease dra-operator: another instance may be leading; restarting");
}

#[tokio::test(start_paused = true)]
async fn a_controller_whose_api_server_does_not_answer_can_be_stopped() {
    for pod in [None, Some("me")] {
        let silent = tower::service_fn(|_: http::Request<kube::client::Body>| {
            std::future::pending::<Result<http::Response<kube::client::Body>, std::convert::Infallible>>()
        });
        let running = Running::start_with(Client::new(silent, "ns"), &FakeApi::default(), pod);
        sleep(Duration::from_mins(1)).await;
        let stopped = timeout(END + Duration::from_secs(1), running.stopped()).await;
        assert!(stopped.expect("it ends in time").is_ok(), "{pod:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_leader_whose_api_server_stops_answering_can_be_stopped() {
    let api = FakeApi::default();
    api.put(POD, json!({"metadata": {"name": "me", "uid": "me"}, "spec": {"containers": []}}));
    let (client, silent) = (api.client(), CancellationToken::new());
    let server = tower::service_fn({
        let silent = silent.clone();
        move |request: http::Request<kube::client::Body>| {
            let (client, silent) = (client.clone(), silent.clone());
            async move {
                if silent.is_cancelled() {
                    std::future::pending::<()>().await;
                }
                client.send(request).await
            }
        }
    });
    let running = Running::start_with(Client::new(server, "ns"), &api, Some("me"));
    running.until("it leads", |api| api.get(LEASE).is_some()).await;
    silent.cancel();
    let stopped = timeout(Duration::from_secs(30), running.stopped()).await;
    assert!(stopped.expect("it ends before it is killed").is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_standby_does_nothing_and_can_be_stopped() {
    let api = FakeApi::default();
    api.put(CONFIG, config());
    api.put(POD, json!({"metadata": {"name": "me", "uid": "me"}, "spec": {"containers": []}}));
    api.put(
        "/api/v1/namespaces/ns/pods/other",
        json!({"metadata": {"name": "other", "uid": "o"}, "spec": {"containers": []}}),
    );
    let owner = json!({"apiVersion": "v1", "kind": "Pod", "name": "other", "uid": "o"});
    api.put(
        LEASE,
        json!({
            "metadata": {"name": "dra-operator", "ownerReferences": [owner]}, "spec": {"holderIdentity": "other"},
        }),
    );
    let running = Running::start(&api, Some("me"));
    sleep(Duration::from_mins(10)).await;
    assert_eq!(running.probes(), ("ok: another instance leads\n", "ok\n".to_owned()));
    assert!(api.get(DAEMON_SET).is_none() && api.get(LEASE).is_some());
    assert_eq!(running.metric("dra_controller_leader"), 0);
    assert!(running.stopped().await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn simultaneous_changes_become_one_item_and_wait_longer_if_reconciling_is_slow() {
    let (news, pace) = (Arc::new(Notify::new()), Arc::new(Pace::default()));
    let mut items = std::pin::pin!(coalesced(Arc::clone(&news), Arc::clone(&pace)));
    for (cost, pause) in [(0, 100), (12, 100), (50, 400)] {
        pace.note(Duration::from_millis(cost));
        news.notify_one();
        news.notify_one();
        let start = tokio::time::Instant::now();
        items.next().await;
        assert_eq!(start.elapsed().as_millis(), pause, "a reconcile took {cost} ms");
    }
    assert!(timeout(Duration::from_mins(1), items.next()).await.is_err(), "nothing is new");
}

#[tokio::test]
async fn only_a_beat_on_which_the_configs_differ_is_a_change() {
    let looks = RefCell::new(vec![1, 1, 2, 2, 3].into_iter());
    let beats = futures::stream::iter([(); 5]);
    assert_eq!(differing(beats, || looks.borrow_mut().next()).count().await, 3);
}
