//! Looks at a config against a scripted API server: what is written to the object itself.

use http::{Request, Response};
use kube::{
    Client,
    client::Body,
    runtime::{
        events::Reporter,
        reflector::{self, store::Writer as StoreWriter},
        watcher::Event,
    },
};
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use tokio::{sync::mpsc, task::JoinHandle};

use super::*;
use crate::controller::{
    apply::{object::FINALIZER, series::Series},
    metrics::Metrics,
};

/// A context over an API server that answers every write to a config with `answer`.
struct Scene {
    context: Arc<Context>,
    configs: StoreWriter<Guarded>,
    sent: mpsc::UnboundedReceiver<(String, Value)>,
    server: JoinHandle<()>,
}

impl Scene {
    /// Nothing is watched: what the cluster lacks is known, and stands in the way of everything but the object itself.
    fn new(answer: &Value) -> Self {
        let (service, mut server) = tower_test::mock::pair::<Request<Body>, Response<Body>>();
        let (note, sent) = mpsc::unbounded_channel();
        let answer = answer.to_string();
        let server = tokio::spawn(async move {
            while let Some((request, reply)) = server.next_request().await {
                let what = format!("{} {}", request.method(), request.uri().path());
                let body = request.into_body().collect_bytes().await.unwrap();
                note.send((what, serde_json::from_slice(&body).unwrap_or_default())).unwrap();
                reply.send_response(Response::new(Body::from(answer.clone().into_bytes())));
            }
        });
        let client = Client::new(service, "ns");
        let (store, configs) = reflector::store();
        let context = Context {
            writer: Writer {
                client: client.clone(),
                namespace: "ns".into(),
                metrics: Metrics::new(&mut Registry::default()),
                events: Series::new(client.clone(), Reporter { controller: "c".into(), instance: None }),
            },
            settings: Settings { namespace: "ns".into(), image: "i".into(), ..Settings::default() },
            caches: Caches::new(&client, "ns").0,
            configs: store,
            pace: Arc::default(),
            lacks: watch::channel(Some("no API".to_owned())).1,
            remembered: HashMap::new().into(),
        };
        Self { context: Arc::new(context), configs, sent, server }
    }

    /// Looks at `object`; what was written but Events.
    async fn look(&mut self, object: &Value) -> Vec<(String, Value)> {
        let guarded: Guarded = serde_json::from_value(object.clone()).unwrap();
        self.configs.apply_watcher_event(&Event::Apply(guarded.clone()));
        reconcile(Arc::new(guarded), Arc::clone(&self.context)).await.unwrap();
        let mut written = Vec::new();
        while let Ok(one) = self.sent.try_recv() {
            written.push(one);
        }
        written.retain(|(what, _)| !what.ends_with("/events"));
        written
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        self.server.abort();
    }
}

fn object(spec: &Value) -> Value {
    json!({
        "apiVersion": "dra-operator.dev/v1alpha1", "kind": "DraDriverConfig",
        "metadata": {"name": "cpu", "uid": "u", "generation": 1, "resourceVersion": "5"}, "spec": spec,
    })
}

const PATH: &str = "/apis/dra-operator.dev/v1alpha1/dradriverconfigs/cpu";

#[tokio::test]
async fn the_status_is_written_whole_so_that_nothing_of_anybody_elses_stays_and_then_no_more() {
    let mut config = object(&json!({"driver": {"cpu": {}}}));
    let foreign = json!({
        "type": "Ready", "status": "True", "reason": "Restored", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z",
    });
    let mut other = foreign.clone();
    other["type"] = json!("Audited");
    config["status"] = json!({"conditions": [foreign, other], "problems": {"first": [], "more": 3}});
    let mut scene = Scene::new(&config);
    let written = scene.look(&config).await;
    let [(what, patch)] = &written[..] else { panic!("{written:?}") };
    assert_eq!(*what, format!("PATCH {PATH}/status"));
    assert_eq!(patch[0], json!({"op": "test", "path": "/metadata/uid", "value": "u"}));
    assert_eq!((patch[1]["op"].as_str(), patch[1]["path"].as_str()), (Some("add"), Some("/status")));
    let types: Vec<_> = patch[1]["value"]["conditions"].as_array().unwrap().iter().map(|c| c["type"].clone()).collect();
    assert_eq!(types, ["Ready", "Stalled", "ResourcesHealthy", "PreflightPassed"]);
    config["status"] = patch[1]["value"].clone();
    assert_eq!(scene.look(&config).await, []);
}

#[tokio::test]
async fn an_object_that_cannot_be_read_is_told_so_once_and_goes_when_it_is_deleted() {
    let mut config = object(&json!({"driver": {"cpu": "all"}}));
    let mut scene = Scene::new(&config);
    let written = scene.look(&config).await;
    let [(_, patch)] = &written[..] else { panic!("{written:?}") };
    assert!(patch.to_string().contains("InvalidObject"), "{patch}");
    config["status"] = patch[1]["value"].clone();
    assert_eq!(scene.look(&config).await, []);
    config["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    config["metadata"]["finalizers"] = json!(["other", FINALIZER]);
    let written = scene.look(&config).await;
    let [(what, patch)] = &written[..] else { panic!("{written:?}") };
    assert_eq!(*what, format!("PATCH {PATH}"));
    assert_eq!(patch[1], json!({"op": "remove", "path": "/metadata/finalizers/1"}));
}

#[tokio::test]
async fn a_config_that_went_without_a_word_is_forgotten() {
    let config = object(&json!({"driver": {"cpu": {}}}));
    let mut scene = Scene::new(&config);
    scene.look(&config).await;
    let remembered = |scene: &Scene| scene.context.remembered.lock().unwrap().len();
    assert_eq!((remembered(&scene), scene.context.generations().len()), (1, 1));
    scene.configs.apply_watcher_event(&Event::Delete(serde_json::from_value(config).unwrap()));
    scene.context.forget();
    assert_eq!((remembered(&scene), scene.context.generations().len()), (0, 0));
}
