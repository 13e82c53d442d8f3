//! Configs reconciled against an in-memory API server: what is written to the cluster, to the object itself, and as
//! Events.

use futures::StreamExt;
use http::Method;
use kube::runtime::{
    events::Reporter,
    reflector::{self, store::Writer as StoreWriter},
    watcher::Event,
};
use prometheus_client::{encoding::text, registry::Registry};
use serde_json::{Value, json};

use super::*;
use crate::{
    controller::{
        apply::{object::FINALIZER, series::Series},
        metrics::Metrics,
        observe::Changes,
        testing::at,
    },
    fake_api::FakeApi,
};

const CONFIG: &str = "/apis/dra-operator.dev/v1alpha1/dradriverconfigs/cpu";
const DAEMON_SET: &str = "/apis/apps/v1/namespaces/ns/daemonsets/cpu-node-plugin";
const CLASS: &str = "/apis/resource.k8s.io/v1/deviceclasses/fast";
const POD: &str = "/api/v1/namespaces/ns/pods/cpu-node-plugin-n";
const SLICE: &str = "/apis/resource.k8s.io/v1/resourceslices/n-1";
const CLAIM: &str = "/apis/resource.k8s.io/v1/resourceclaims/c";

/// A controller with an in-memory API server. Its caches follow the server's watches.
struct Scene {
    api: FakeApi,
    context: Arc<Context>,
    configs: StoreWriter<Guarded>,
    changes: Changes,
    missing_api: watch::Sender<Option<String>>,
    registry: Registry,
    /// How many of the requests have been checked.
    seen: usize,
}

impl Scene {
    fn new() -> Self {
        let api = FakeApi::default();
        let client = api.client();
        let mut registry = Registry::default();
        let (caches, changes) = Caches::new(&client, "ns");
        let (store, configs) = reflector::store();
        let (missing_api, missing_now) = watch::channel(None);
        let context = Context {
            writer: Writer {
                client: client.clone(),
                namespace: "ns".into(),
                metrics: Metrics::new(&mut registry),
                events: Series::new(client, Reporter { controller: "c".into(), instance: None }),
            },
            settings: Settings { namespace: "ns".into(), image: "i".into(), ..Settings::default() },
            caches,
            configs: store,
            pace: Arc::default(),
            missing_api: missing_now,
            remembered: HashMap::new().into(),
        };
        Self { api, context: Arc::new(context), configs, changes, missing_api, registry, seen: 0 }
    }

    /// A scene with a config with this spec and a node.
    fn with_config(spec: &Value) -> Self {
        let scene = Self::new();
        scene.api.put(CONFIG, object(spec));
        scene.api.put("/api/v1/nodes/n", node("n"));
        scene
    }

    /// A scene with a config that serves one device on one node.
    async fn serving(spec: &Value) -> Self {
        let mut scene = Self::with_config(spec);
        scene.reconcile(0).await;
        scene.roll_out();
        scene.reconcile(1).await;
        assert_eq!(scene.condition("Ready"), "True/Serving");
        scene.written();
        scene
    }

    /// Reconciles the config as it is on the server, after the watches have caught up.
    async fn reconcile(&mut self, now: i64) -> Action {
        self.try_reconcile(now).await.unwrap()
    }

    async fn try_reconcile(&mut self, now: i64) -> Result<Action, Error> {
        // With time paused, the sleep ends once all tasks are waiting.
        let moment = Duration::from_millis(1);
        while let Ok(Some(change)) = timeout(moment, self.changes.next()).await {
            change.unwrap();
        }
        let guarded: Guarded = serde_json::from_value(self.config()).unwrap();
        self.configs.apply_watcher_event(&Event::Apply(guarded.clone()));
        reconcile_once(&guarded, &self.context, at(now)).await
    }

    /// Reconciles with lagging watches.
    async fn reconcile_unseeing(&mut self, now: i64) -> Action {
        let guarded: Guarded = serde_json::from_value(self.config()).unwrap();
        reconcile_once(&guarded, &self.context, at(now)).await.unwrap()
    }

    fn config(&self) -> Value {
        self.api.get(CONFIG).unwrap()
    }

    /// Kubernetes rolls the DaemonSet out to the node, and the plugin there publishes a device.
    fn roll_out(&self) {
        self.observe_daemon_set();
        self.api.put(POD, pod("n"));
        self.api.put(SLICE, slice("n", &["core-0-0"]));
    }

    /// The DaemonSet controller observes the current DaemonSet, and finds all pods up to date.
    fn observe_daemon_set(&self) {
        self.api.edit(DAEMON_SET, |object| {
            object["status"] = json!({
                "observedGeneration": object["metadata"]["generation"], "desiredNumberScheduled": 1,
                "updatedNumberScheduled": 1, "numberAvailable": 1, "numberReady": 1,
            });
        });
    }

    /// `status/reason` of one of the config's conditions.
    fn condition(&self, type_: &str) -> String {
        self.find(type_).map_or_else(String::new, |condition| {
            format!("{}/{}", condition["status"].as_str().unwrap(), condition["reason"].as_str().unwrap())
        })
    }

    fn message(&self, type_: &str) -> String {
        self.find(type_).unwrap()["message"].as_str().unwrap().to_owned()
    }

    fn find(&self, type_: &str) -> Option<Value> {
        let conditions = self.config()["status"]["conditions"].as_array().cloned().unwrap_or_default();
        conditions.into_iter().find(|condition| condition["type"] == type_)
    }

    /// What was written since the last call, as `METHOD last-part-of-the-path`, or `type reason: note` for an Event.
    fn written(&mut self) -> Vec<String> {
        let sent = self.api.sent();
        let new = sent[self.seen..].iter().map(|sent| {
            let part = |field: &str| sent.body[field].as_str().unwrap_or_default().to_owned();
            if sent.path.contains("/events") {
                return format!("{} {}: {}", part("type"), part("reason"), part("note"));
            }
            format!("{} {}", sent.method, sent.path.rsplit('/').next().unwrap_or_default())
        });
        let new = new.collect();
        self.seen = sent.len();
        new
    }

    fn metric(&self, name: &str) -> i64 {
        let mut all = String::new();
        text::encode(&mut all, &self.registry).unwrap();
        all.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok()).unwrap()
    }

    fn remembered(&self) -> usize {
        self.context.remembered.lock().unwrap().len()
    }
}

fn object(spec: &Value) -> Value {
    json!({
        "apiVersion": "dra-operator.dev/v1alpha1", "kind": "DraDriverConfig", "spec": spec,
        "metadata": {"name": "cpu", "uid": "u", "generation": 1, "creationTimestamp": "1970-01-01T00:00:00Z"},
    })
}

fn spec() -> Value {
    json!({"driver": {"cpu": {}}})
}

fn with_class() -> Value {
    json!({"driver": {"cpu": {}}, "deviceClasses": [{"name": "fast", "selectors": ["true"]}]})
}

fn node(name: &str) -> Value {
    json!({
        "metadata": {"name": name, "labels": {"kubernetes.io/os": "linux"}},
        "status": {"conditions": [{"type": "Ready", "status": "True"}]},
    })
}

/// A plugin pod of the config's DaemonSet that is ready.
fn pod(node: &str) -> Value {
    json!({
        "metadata": {
            "name": format!("cpu-node-plugin-{node}"), "creationTimestamp": "1970-01-01T00:00:00Z",
            "labels": {build::COMPONENT.0: build::COMPONENT.1, build::CONFIG_LABEL: "cpu"},
            "ownerReferences": [
                {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "cpu-node-plugin", "uid": "d", "controller": true},
            ],
        },
        "spec": {"nodeName": node, "containers": []},
        "status": {"conditions": [{"type": "Ready", "status": "True"}]},
    })
}

fn slice(node: &str, devices: &[&str]) -> Value {
    let devices: Vec<_> = devices.iter().map(|name| json!({"name": name})).collect();
    json!({
        "metadata": {"name": format!("{node}-1")},
        "spec": {
            "driver": "dra.cpu", "nodeName": node, "devices": devices,
            "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
        },
    })
}

/// A claim that holds the node's device.
fn claim() -> Value {
    json!({
        "metadata": {"name": "c", "namespace": "shop"}, "spec": {},
        "status": {"allocation": {"devices": {"results": [
            {"request": "r", "driver": "dra.cpu", "pool": "n", "device": "core-0-0"},
        ]}}},
    })
}

fn after(seconds: u64) -> Action {
    Action::requeue(Duration::from_secs(seconds))
}

#[tokio::test(start_paused = true)]
async fn a_new_config_gets_its_finalizer_then_its_children_and_serves_once_its_plugin_does() {
    let mut scene = Scene::with_config(&spec());
    scene.reconcile(0).await;
    assert_eq!(
        scene.written(),
        [
            "PATCH cpu",
            "PATCH cpu-node-plugin",
            "PATCH dra-operator:cpu:node-plugin",
            "PATCH dra-operator:cpu:node-plugin",
            "PATCH dra-operator-cpu-node-plugin",
            "PATCH dra-operator-cpu-node-plugin",
            "PATCH cpu-node-plugin",
            "PATCH status",
            "Normal RollingOut: waiting for Kubernetes to act on the DaemonSet just applied",
        ]
    );
    assert_eq!(scene.config()["metadata"]["finalizers"], json!([FINALIZER]));
    assert_eq!((scene.condition("Ready"), scene.condition("Stalled")), ("False/RollingOut".into(), String::new()));

    scene.roll_out();
    assert_eq!(scene.reconcile(1).await, Action::await_change());
    assert_eq!(scene.written(), ["PATCH status", "Normal Serving: 1 of 1 nodes run the plugin"]);
    assert_eq!(
        (scene.condition("Ready"), scene.condition("ResourcesHealthy")),
        ("True/Serving".into(), "True/Healthy".into())
    );
    let status = scene.config()["status"].clone();
    assert_eq!((&status["nodes"]["ready"], &status["devices"]["total"]), (&json!(1), &json!(1)));
    assert_eq!((scene.metric("dra_controller_nodes_ready"), scene.metric("dra_controller_devices")), (1, 1));

    assert_eq!(scene.reconcile(2).await, Action::await_change());
    assert_eq!(scene.written(), [""; 0], "a steady state writes nothing");
}

#[tokio::test(start_paused = true)]
async fn an_edited_child_is_corrected_and_reported_once() {
    let mut scene = Scene::serving(&spec()).await;
    let image = "/spec/template/spec/containers/0/image";
    scene.api.edit(DAEMON_SET, |object| *object.pointer_mut(image).unwrap() = json!("edited"));
    scene.reconcile(20).await;
    let path = ".spec.template.spec.containers[name=\"node-plugin\"].image";
    assert_eq!(
        scene.written(),
        [
            "PATCH cpu-node-plugin".to_owned(),
            "PATCH status".into(),
            format!("Normal DriftCorrected: corrected DaemonSet cpu-node-plugin: {path} had changed"),
            "Normal RollingOut: waiting for Kubernetes to act on the DaemonSet just applied".into(),
        ]
    );
    assert_eq!(scene.api.get(DAEMON_SET).unwrap().pointer(image), Some(&json!("i")));

    scene.observe_daemon_set();
    scene.reconcile(21).await;
    assert_eq!(scene.written(), ["PATCH status", "Normal Serving: 1 of 1 nodes run the plugin"]);
}

#[tokio::test(start_paused = true)]
async fn a_change_of_the_config_is_not_drift() {
    let mut scene = Scene::serving(&spec()).await;
    scene.api.edit(CONFIG, |config| {
        config["spec"]["nodePlugin"] = json!({"image": "new"});
        config["metadata"]["generation"] = json!(2);
    });
    scene.reconcile(20).await;
    assert!(!scene.written().iter().any(|write| write.contains("DriftCorrected")));
    scene.observe_daemon_set();
    scene.reconcile(21).await;
    scene.written();

    // Neither is what another version of the operator builds from the same config, because the hash changes.
    let hash = build::APPLIED_HASH;
    scene.api.edit(DAEMON_SET, |object| object["metadata"]["annotations"][hash] = json!("of another version"));
    scene.reconcile(40).await;
    let written = scene.written();
    assert!(written.contains(&"PATCH cpu-node-plugin".into()), "{written:?}");
    assert!(!written.iter().any(|write| write.contains("DriftCorrected")), "{written:?}");
}

#[tokio::test(start_paused = true)]
async fn a_change_by_the_api_server_is_a_warning_and_is_not_fought() {
    let mut scene = Scene::serving(&spec()).await;
    scene.api.admit(|object| {
        if let Some(spec) = object.pointer_mut("/spec/template/spec") {
            spec["priorityClassName"] = json!("other");
        }
    });
    scene.api.edit(DAEMON_SET, |object| object["spec"]["template"]["spec"]["priorityClassName"] = json!("edited"));
    scene.reconcile(20).await;
    let written = scene.written();
    let note = "the API server accepted DaemonSet cpu-node-plugin but dropped or changed .spec.template.spec.priorityClassName: check feature gates and mutating webhooks";
    assert!(written.contains(&format!("Warning NotKept: {note}")), "{written:?}");
    assert!(!written.iter().any(|write| write.contains("DriftCorrected")), "it was not corrected: {written:?}");

    scene.observe_daemon_set();
    assert_eq!(scene.reconcile(21).await, after(3599));
    assert!(!scene.written().contains(&"PATCH cpu-node-plugin".into()));
}

#[tokio::test(start_paused = true)]
async fn a_rejected_child_stalls_the_config_and_is_retried_after_ten_minutes() {
    let mut scene = Scene::serving(&spec()).await;
    scene.api.edit(CONFIG, |config| {
        config["spec"] = with_class();
        config["metadata"]["generation"] = json!(2);
    });
    scene.api.refuse("deviceclasses", 422, "the expression is too costly");
    assert_eq!(scene.reconcile(20).await, after(60), "others' objects and webhooks may change without an event");
    let refused = "the API server rejected DeviceClass fast: the expression is too costly";
    assert_eq!((scene.condition("Stalled"), scene.condition("Ready")), ("True/Refused".into(), "False/Refused".into()));
    assert_eq!(scene.message("Stalled"), refused);
    assert_eq!(
        scene.written(),
        ["PATCH fast".to_owned(), "PATCH status".into(), format!("Warning Refused: {refused}")]
    );

    scene.reconcile(619).await;
    assert_eq!((scene.written(), scene.condition("Stalled")), (vec![], "True/Refused".into()));
    scene.api.accept();
    scene.reconcile(620).await;
    assert_eq!((scene.condition("Stalled"), scene.condition("Ready")), (String::new(), "True/Serving".into()));
    assert!(scene.api.get(CLASS).is_some());
    assert_eq!(scene.config()["status"]["deviceClasses"][0]["devices"], 1);
}

#[tokio::test(start_paused = true)]
async fn a_taken_name_is_checked_again_until_it_is_free() {
    let mut scene = Scene::with_config(&with_class());
    scene.api.put(
        CLASS,
        json!({"metadata": {"name": "fast", "labels": {"app.kubernetes.io/managed-by": "Helm"}}, "spec": {}}),
    );
    scene.reconcile(0).await;
    scene.roll_out();
    assert_eq!(scene.reconcile(10).await, after(60));
    assert_eq!(scene.condition("Stalled"), "True/NameTaken");
    assert!(scene.message("Stalled").contains("Helm"), "{}", scene.message("Stalled"));
    assert!(scene.api.get(CLASS).unwrap()["metadata"]["ownerReferences"].is_null(), "it is left alone");

    scene.api.delete(CLASS);
    assert_eq!(scene.reconcile(70).await, after(5), "until the watch shows the class");
    assert_eq!(scene.condition("Ready"), "True/Serving");
    assert_eq!(scene.api.get(CLASS).unwrap()["metadata"]["ownerReferences"][0]["name"], "cpu");
}

#[tokio::test(start_paused = true)]
async fn a_class_that_cannot_be_built_waits_for_a_change_of_its_config() {
    let policy = json!({"driver": {"cpu": {}}, "deviceClasses": [{"name": "fast", "matchAttributes": [
        {"key": "cores", "operator": "In"}]}]});
    let mut scene = Scene::serving(&spec()).await;
    scene.api.edit(CONFIG, |config| config["spec"] = policy);
    let action = scene.reconcile(20).await;
    assert_eq!((scene.condition("Stalled"), action), ("True/InvalidPolicy".into(), Action::await_change()));
}

#[tokio::test(start_paused = true)]
async fn a_failed_write_is_retried_with_growing_pauses_even_if_other_things_change() {
    let mut scene = Scene::with_config(&spec());
    scene.api.refuse("serviceaccounts", 500, "etcd is away");
    assert_eq!(scene.reconcile(0).await, after(1));
    assert_eq!((scene.condition("Reconciling"), scene.condition("Stalled")), ("True/Retrying".into(), String::new()));
    assert!(scene.message("Reconciling").contains("etcd is away"));
    assert_eq!(scene.api.get(DAEMON_SET), None, "no plugin starts without its rights");
    scene.written();

    assert_eq!(scene.reconcile(0).await, after(1));
    assert_eq!(scene.written(), [""; 0]);
    assert_eq!(scene.reconcile(1).await, after(2));
    scene.api.accept();
    scene.reconcile(3).await;
    assert_eq!(scene.condition("Reconciling"), "True/RollingOut");
    assert!(scene.api.get(DAEMON_SET).is_some());
}

#[tokio::test(start_paused = true)]
async fn a_status_in_which_only_counts_changed_is_held_back_briefly() {
    let mut scene = Scene::serving(&spec()).await;
    scene.api.put(CLAIM, claim());
    assert_eq!(scene.reconcile(2).await, after(4), "the last status was written at 1");
    assert_eq!((scene.written(), scene.config()["status"]["devices"]["allocated"].clone()), (vec![], json!(0)));
    assert_eq!(scene.reconcile(6).await, Action::await_change());
    assert_eq!(scene.config()["status"]["devices"]["allocated"], 1);
}

#[tokio::test(start_paused = true)]
async fn a_failed_status_write_does_not_lose_the_event_of_a_correction() {
    let mut scene = Scene::serving(&spec()).await;
    scene.api.edit(DAEMON_SET, |object| object["spec"]["template"]["spec"]["containers"][0]["image"] = json!("edited"));
    scene.api.refuse("/status", 500, "etcd is away");
    for seconds in [1, 2] {
        assert_eq!(scene.reconcile(20).await, after(seconds), "each failure doubles the pause");
    }
    let written = scene.written();
    assert_eq!(written.iter().filter(|write| write.contains("DriftCorrected")).count(), 1, "{written:?}");
    assert!(!written.iter().any(|write| write.contains("RollingOut")), "no status says so: {written:?}");
    scene.api.accept();
    scene.reconcile(21).await;
    scene.api.refuse("/status", 500, "etcd is away");
    scene.observe_daemon_set();
    assert_eq!(scene.reconcile(22).await, after(1), "a success ends the row of failures");
}

#[tokio::test(start_paused = true)]
async fn pods_that_cannot_be_created_are_explained_and_checked_every_few_seconds() {
    let patient = json!({"driver": {"cpu": {}}, "health": {"publishDeadline": "10m"}});
    let mut scene = Scene::with_config(&patient);
    scene.reconcile(0).await;
    scene.api.edit(DAEMON_SET, |object| {
        object["status"] = json!({"observedGeneration": object["metadata"]["generation"], "desiredNumberScheduled": 1});
    });
    assert_eq!(scene.reconcile(10).await, after(5), "the reason comes late");
    assert_eq!(scene.condition("Reconciling"), "True/RollingOut");

    let refusal = json!({
        "metadata": {"name": "e"}, "involvedObject": {}, "reason": "FailedCreate", "lastTimestamp": at(10).to_string(),
        "message": "Error creating: pods \"cpu-node-plugin-x\" is forbidden: exceeded quota",
    });
    scene.api.put("/api/v1/namespaces/ns/events/e", refusal);
    scene.reconcile(14).await;
    assert_eq!(scene.condition("Reconciling"), "True/RollingOut", "asked 4 s ago");
    assert_eq!(scene.reconcile(15).await, after(60));
    assert_eq!(scene.condition("Reconciling"), "True/RolloutBlocked");
    assert!(scene.message("Reconciling").contains("exceeded quota"));
}

#[tokio::test(start_paused = true)]
async fn events_are_read_only_while_pods_are_missing() {
    let mut scene = Scene::serving(&spec()).await;
    let events = scene.api.hold("/api/v1/namespaces/ns/events");
    scene.reconcile(20).await;
    assert!(!events.is_reached());
}

#[tokio::test(start_paused = true)]
async fn a_config_is_deleted_step_by_step_and_waits_for_claims_then_for_pods() {
    let mut scene = Scene::serving(&with_class()).await;
    scene.api.put(CLAIM, claim());
    scene.api.delete(CONFIG);

    scene.reconcile(20).await;
    assert_eq!(scene.condition("Reconciling"), "True/WaitingForClaims");
    assert!(scene.message("Reconciling").contains("shop/c"), "{}", scene.message("Reconciling"));
    assert_eq!((scene.api.get(CLASS), scene.api.get(DAEMON_SET).is_some()), (None, true));
    let written = scene.written();
    assert_eq!(written[..2], ["DELETE fast", "PATCH status"]);
    assert!(written[2].starts_with("Normal WaitingForClaims: "), "{written:?}");
    scene.reconcile(21).await;
    assert_eq!(scene.written(), ["PATCH status"], "the class is no longer counted");
    assert_eq!(scene.reconcile(22).await, Action::await_change());
    assert_eq!(scene.written(), [""; 0]);

    scene.api.delete(CLAIM);
    scene.reconcile(30).await;
    assert_eq!((scene.condition("Reconciling"), scene.api.get(DAEMON_SET)), ("True/Deleting".into(), None));
    assert!(scene.api.get(SLICE).is_some(), "while its pod runs it would publish the slice again");
    assert_eq!(scene.written()[..2], ["DELETE cpu-node-plugin", "PATCH status"]);

    scene.api.delete(POD);
    assert_eq!(scene.reconcile(40).await, Action::await_change());
    let left: Vec<_> = scene.api.paths().into_iter().filter(|path| !path.contains("/events/")).collect();
    assert_eq!(left, ["/api/v1/nodes/n"]);
    assert_eq!(scene.remembered(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_config_stays_while_one_of_its_objects_could_not_be_deleted() {
    let mut scene = Scene::serving(&spec()).await;
    scene.api.delete(CONFIG);
    scene.api.refuse("daemonsets/", 500, "etcd is away");
    scene.reconcile(19).await;
    assert!(scene.message("Reconciling").starts_with("deleting DaemonSet "), "{}", scene.message("Reconciling"));
    scene.api.accept();
    scene.reconcile(30).await;
    scene.api.delete(POD);
    scene.api.refuse("clusterroles/", 500, "etcd is away");
    assert_eq!(scene.reconcile(31).await, after(1));
    assert_eq!(scene.condition("Reconciling"), "True/Deleting");
    let message = scene.message("Reconciling");
    assert!(message.starts_with("deleting ClusterRole ") && message.contains("etcd is away"), "{message}");
    assert_eq!(scene.config()["metadata"]["finalizers"], json!([FINALIZER]));

    // Nor while a slice is left, because nothing else deletes it.
    scene.api.accept();
    scene.api.put(SLICE, slice("n", &["core-0-0"]));
    scene.api.refuse("resourceslices", 500, "etcd is away");
    assert_eq!(scene.reconcile(41).await, after(1));
    assert_eq!(scene.config()["metadata"]["finalizers"], json!([FINALIZER]));
    scene.api.accept();
    scene.reconcile(43).await;
    assert_eq!(scene.api.get(CONFIG), None);
}

#[tokio::test(start_paused = true)]
async fn a_deleted_config_without_our_finalizer_is_left_alone() {
    let mut scene = Scene::serving(&spec()).await;
    scene.api.edit(CONFIG, |config| {
        config["metadata"]["finalizers"] = json!(["other"]);
        config["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    });
    assert_eq!(scene.reconcile(20).await, Action::await_change());
    assert_eq!((scene.written(), scene.remembered()), (vec![], 0));
}

#[tokio::test(start_paused = true)]
async fn the_younger_of_two_configs_does_not_roll_out() {
    let mut scene = Scene::with_config(&spec());
    let mut older = object(&json!({"driver": {"cpu": {}}, "driverName": "old.cpu"}));
    older["metadata"] = json!({"name": "old", "uid": "o", "creationTimestamp": "1960-01-01T00:00:00Z"});
    scene.configs.apply_watcher_event(&Event::Apply(serde_json::from_value(older).unwrap()));
    scene.reconcile(0).await;
    assert_eq!(scene.condition("Stalled"), "True/NodeSelectorOverlap");
    assert_eq!(scene.config()["metadata"]["finalizers"], json!(null));
    assert_eq!(scene.written()[0], "PATCH status");
}

#[tokio::test(start_paused = true)]
async fn nothing_is_decided_before_every_cache_is_filled() {
    let mut scene = Scene::with_config(&spec());
    let guarded: Guarded = serde_json::from_value(scene.config()).unwrap();
    let early = reconcile_once(&guarded, &scene.context, at(0)).await.unwrap();
    assert_eq!((early, scene.written()), (Action::await_change(), vec![]));
}

#[tokio::test(start_paused = true)]
async fn the_status_is_overwritten_so_that_no_foreign_condition_stays() {
    let mut scene = Scene::with_config(&spec());
    scene.missing_api.send_replace(Some("no API".into()));
    let foreign = json!({
        "type": "Ready", "status": "True", "reason": "Restored", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z",
    });
    let mut other = foreign.clone();
    other["type"] = json!("Audited");
    scene.api.edit(CONFIG, |config| {
        config["status"] = json!({"conditions": [foreign, other], "problems": {"first": [], "more": 3}});
    });
    scene.reconcile(0).await;
    let status = scene.config()["status"].clone();
    let types: Vec<_> = status["conditions"].as_array().unwrap().iter().map(|c| c["type"].clone()).collect();
    assert_eq!(types, ["Ready", "Stalled", "ResourcesHealthy", "PreflightPassed"]);
    assert_eq!(scene.condition("Stalled"), "True/DraApiMissing");
    assert_eq!((&status["problems"], &scene.config()["metadata"]["finalizers"]), (&json!(null), &json!(null)));
    let written = scene.written();
    assert_eq!(written[0], "PATCH status", "the only write but Events: {written:?}");
    scene.reconcile(1).await;
    assert_eq!(scene.written(), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn only_the_object_that_was_read_is_written() {
    let mut scene = Scene::with_config(&spec());
    scene.reconcile(0).await;
    let sent = scene.api.sent();
    let patches: Vec<_> = sent.iter().filter(|sent| sent.path.starts_with(CONFIG)).collect();
    assert_eq!(patches.len(), 2);
    for patch in patches {
        assert_eq!(patch.body[0], json!({"op": "test", "path": "/metadata/uid", "value": "u"}));
        assert!(patch.query.contains("fieldManager=dra-operator"), "{}", patch.query);
    }
}

#[tokio::test(start_paused = true)]
async fn a_finalizer_that_another_client_adds_in_the_meantime_is_not_overwritten() {
    let mut scene = Scene::with_config(&spec());
    let read: Guarded = serde_json::from_value(scene.config()).unwrap();
    scene.api.edit(CONFIG, |config| config["metadata"]["finalizers"] = json!(["other"]));
    let written = scene.context.writer.add_finalizer(&read.config).await;
    assert!(written.is_err_and(|error| error.to_string().contains("write the finalizer of DraDriverConfig cpu")));
    assert_eq!(scene.config()["metadata"]["finalizers"], json!(["other"]));
    scene.reconcile(0).await;
    assert_eq!(scene.config()["metadata"]["finalizers"], json!(["other", FINALIZER]));
}

#[tokio::test(start_paused = true)]
async fn an_object_that_cannot_be_parsed_is_reported_once_keeps_its_children_and_can_be_deleted() {
    let mut scene = Scene::serving(&spec()).await;
    scene.api.edit(CONFIG, |config| config["spec"]["driver"] = json!({"cpu": "all"}));
    assert_eq!(scene.reconcile(20).await, Action::await_change());
    assert_eq!(
        (scene.condition("Stalled"), scene.condition("Ready")),
        ("True/InvalidObject".into(), "False/InvalidObject".into())
    );
    assert!(scene.api.get(DAEMON_SET).is_some());
    assert_eq!(scene.written()[0], "PATCH status");
    assert_eq!(scene.metric("dra_controller_errors_total{reason=\"invalid_object\"}"), 1);
    scene.reconcile(21).await;
    assert_eq!(scene.written(), [""; 0]);
    assert_eq!(scene.metric("dra_controller_errors_total{reason=\"invalid_object\"}"), 1, "it is the same error");

    scene.api.edit(CONFIG, |config| config["metadata"]["finalizers"] = json!(["other", FINALIZER]));
    scene.api.delete(CONFIG);
    scene.reconcile(30).await;
    scene.api.delete(POD);
    scene.reconcile(31).await;
    assert_eq!(scene.config()["metadata"]["finalizers"], json!(["other"]));
}

#[tokio::test(start_paused = true)]
async fn a_config_that_is_gone_without_an_event_is_forgotten_and_no_longer_counted() {
    let mut scene = Scene::serving(&spec()).await;
    assert_eq!((scene.remembered(), scene.context.generations().len()), (1, 1));
    let gone = serde_json::from_value(scene.config()).unwrap();
    scene.configs.apply_watcher_event(&Event::Delete(gone));
    scene.context.forget();
    assert_eq!((scene.remembered(), scene.context.generations().len()), (0, 0));
    assert_eq!(scene.metric("dra_controller_devices"), 0);
}

#[tokio::test(start_paused = true)]
async fn an_api_server_that_does_not_respond_ends_the_reconcile() {
    let scene = Scene::with_config(&spec());
    scene.missing_api.send_replace(Some("no API".into()));
    let _gate = scene.api.hold(&format!("{CONFIG}/status"));
    let guarded: Guarded = serde_json::from_value(scene.config()).unwrap();
    let error = reconcile(Arc::new(guarded.clone()), Arc::clone(&scene.context)).await.unwrap_err();
    assert_eq!(error.to_string(), "reconciling timed out after 60 s");
    assert_eq!(on_error(Arc::new(guarded), &error, Arc::clone(&scene.context)), after(5));
    assert_eq!(scene.metric("dra_controller_errors_total{reason=\"reconcile\"}"), 1);
}

#[tokio::test(start_paused = true)]
async fn an_object_deleted_while_it_is_reconciled_is_not_a_failure() {
    let mut scene = Scene::serving(&spec()).await;
    scene.api.fail(Method::PATCH, 404);
    scene.api.edit(CONFIG, |config| config["metadata"]["generation"] = json!(2));
    assert_eq!(scene.reconcile(20).await, Action::await_change());
}

#[tokio::test(start_paused = true)]
async fn written_objects_are_known_while_the_watches_lag() {
    let mut scene = Scene::with_config(&spec());
    assert_eq!(scene.reconcile(0).await, after(5), "by then the watches have caught up, or it was deleted again");
    scene.written();
    scene.reconcile_unseeing(1).await;
    assert_eq!(scene.written(), [""; 0]);
    assert!(scene.context.pace.last() > Duration::ZERO, "the loop paces itself by what judging costs");
}

#[tokio::test(start_paused = true)]
async fn a_node_that_does_not_publish_in_time_becomes_unhealthy_at_the_deadline() {
    let mut scene = Scene::with_config(&spec());
    scene.reconcile(0).await;
    scene.observe_daemon_set();
    scene.api.put(POD, pod("n"));
    assert_eq!(scene.reconcile(10).await, after(60));
    assert_eq!(scene.condition("ResourcesHealthy"), "Unknown/Publishing");
    scene.written();

    assert_eq!(scene.reconcile(70).await, Action::await_change());
    assert_eq!(
        (scene.condition("ResourcesHealthy"), scene.condition("Ready")),
        ("False/NodesUnhealthy".into(), "True/Serving".into())
    );
    assert!(scene.written().iter().any(|write| write.starts_with("Warning NodesUnhealthy: ")));
    assert_eq!(scene.metric("dra_controller_nodes_unhealthy"), 1);
}

#[tokio::test(start_paused = true)]
async fn a_child_that_a_finalizer_keeps_is_reported_and_recreated_once_it_is_gone() {
    let mut scene = Scene::serving(&spec()).await;
    let account = "/api/v1/namespaces/ns/serviceaccounts/cpu-node-plugin";
    scene.api.edit(account, |object| object["metadata"]["finalizers"] = json!(["example.com/audit"]));
    scene.api.delete(account);
    scene.reconcile(20).await;
    assert_eq!(scene.condition("Reconciling"), "True/Retrying");
    assert!(scene.message("Reconciling").contains("example.com/audit"), "{}", scene.message("Reconciling"));
    assert!(!scene.written().contains(&"PATCH cpu-node-plugin".into()));

    scene.api.edit(account, |object| object["metadata"]["finalizers"] = json!([]));
    scene.reconcile(30).await;
    assert_eq!(scene.written()[0], "PATCH cpu-node-plugin");
    assert_eq!(scene.condition("Ready"), "True/Serving");
}

#[tokio::test(start_paused = true)]
async fn a_config_that_is_deleted_no_longer_gives_way() {
    let mut scene = Scene::serving(&spec()).await;
    let mut older = object(&json!({"driver": {"cpu": {}}, "driverName": "old.cpu"}));
    older["metadata"] = json!({"name": "old", "uid": "o", "creationTimestamp": "1960-01-01T00:00:00Z"});
    scene.configs.apply_watcher_event(&Event::Apply(serde_json::from_value(older).unwrap()));
    scene.api.delete(CONFIG);
    scene.reconcile(20).await;
    assert_eq!((scene.condition("Reconciling"), scene.condition("Stalled")), ("True/Deleting".into(), String::new()));
}
