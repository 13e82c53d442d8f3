//! An in-memory API server for tests: objects by path, watches, patches, and faults on demand.
//!
//! It implements what callers rely on: increasing resource versions, server-side apply that merges and bumps the
//! generation, JSON patches with tests, deletes with preconditions, finalizers, and the status subresource. It does not
//! validate schemas or add defaults.

use std::{
    collections::{BTreeMap, VecDeque},
    convert::Infallible,
    sync::{Arc, Mutex},
};

use axum::body::{Body, Bytes};
use http::{Method, Request, Response, StatusCode};
use kube::Client;
use serde_json::{Map, Value, json};
use tokio::sync::mpsc;
use tokio_stream::{StreamExt, wrappers::UnboundedReceiverStream};

pub(crate) const SLICES: &str = "/apis/resource.k8s.io/v1/resourceslices";

/// The API path of the Dynamic Resource Allocation kinds.
const DRA: &str = "/apis/resource.k8s.io/";

/// The kinds that it serves, by their plural names in paths.
const KINDS: [(&str, &str); 14] = [
    ("clusterrolebindings", "ClusterRoleBinding"),
    ("clusterroles", "ClusterRole"),
    ("daemonsets", "DaemonSet"),
    ("deviceclasses", "DeviceClass"),
    ("dradriverconfigs", "DraDriverConfig"),
    ("events", "Event"),
    ("leases", "Lease"),
    ("nodes", "Node"),
    ("pods", "Pod"),
    ("resourceclaims", "ResourceClaim"),
    ("resourceslices", "ResourceSlice"),
    ("serviceaccounts", "ServiceAccount"),
    ("validatingadmissionpolicies", "ValidatingAdmissionPolicy"),
    ("validatingadmissionpolicybindings", "ValidatingAdmissionPolicyBinding"),
];

/// Changes a written object, as admission would.
type Admission = fn(&mut Value);

#[derive(Default)]
struct State {
    objects: BTreeMap<String, Value>,
    version: u64,
    /// All changes so far, for watches that start at an older version.
    history: Vec<Change>,
    watches: Vec<Watch>,
    requests: Vec<Sent>,
    faults: VecDeque<(Method, u16)>,
    refusals: Vec<(String, u16, String)>,
    admission: Option<Admission>,
    gates: BTreeMap<String, Gate>,
    /// Whether the Dynamic Resource Allocation API is disabled.
    lacks_dra: bool,
}

#[derive(Clone)]
struct Change {
    version: u64,
    path: String,
    event: Value,
}

struct Watch {
    collection: String,
    label: Option<(String, String)>,
    events: mpsc::UnboundedSender<Value>,
}

impl Watch {
    /// Sends a change in the collection. Returns whether the watch is still open.
    fn tell(&self, change: &Change) -> bool {
        let object = &change.event["object"];
        let labelled = self.label.as_ref().is_none_or(|(key, value)| object["metadata"]["labels"][key] == **value);
        if collection_of(&change.path) == self.collection && labelled {
            return self.events.send(change.event.clone()).is_ok();
        }
        !self.events.is_closed()
    }
}

/// A request that writes.
#[derive(Clone, Debug)]
pub(crate) struct Sent {
    pub(crate) method: Method,
    pub(crate) path: String,
    pub(crate) query: String,
    pub(crate) body: Value,
}

/// Holds requests back.
#[derive(Clone)]
pub(crate) struct Gate(tokio::sync::watch::Sender<(bool, bool)>);

impl Gate {
    /// Whether a request has arrived.
    pub(crate) fn is_reached(&self) -> bool {
        self.0.borrow().0
    }

    /// Lets requests through.
    pub(crate) fn open(&self) {
        self.0.send_modify(|(_, open)| *open = true);
    }

    async fn pass(&self) {
        self.0.send_modify(|(reached, _)| *reached = true);
        self.0.subscribe().wait_for(|(_, open)| *open).await.unwrap();
    }
}

/// The server. Clones share its state.
#[derive(Clone, Default)]
pub(crate) struct FakeApi(Arc<Mutex<State>>);

impl FakeApi {
    /// A client that talks to it.
    pub(crate) fn client(&self) -> Client {
        let api = self.clone();
        let service = tower::service_fn(move |request: Request<kube::client::Body>| {
            let api = api.clone();
            async move { Ok::<_, Infallible>(api.serve(request).await) }
        });
        Client::new(service, "default")
    }

    /// Stores an object, as another client would.
    pub(crate) fn put(&self, path: &str, object: Value) {
        self.0.lock().unwrap().store(path, object);
    }

    /// Changes an object, as another client or a Kubernetes controller would. The caller must bump the generation if
    /// needed.
    pub(crate) fn edit(&self, path: &str, change: impl FnOnce(&mut Value)) {
        let mut state = self.0.lock().unwrap();
        let mut object = state.objects.get(path).unwrap_or_else(|| panic!("{path} does not exist")).clone();
        change(&mut object);
        state.store(path, object);
    }

    /// Deletes an object, as another client would: one with finalizers stays until they are gone.
    pub(crate) fn delete(&self, path: &str) {
        self.0.lock().unwrap().delete(path);
    }

    /// An object.
    pub(crate) fn get(&self, path: &str) -> Option<Value> {
        self.0.lock().unwrap().objects.get(path).cloned()
    }

    /// The paths of all objects.
    pub(crate) fn paths(&self) -> Vec<String> {
        self.0.lock().unwrap().objects.keys().cloned().collect()
    }

    /// All slices.
    pub(crate) fn slices(&self) -> Vec<(String, Value)> {
        let state = self.0.lock().unwrap();
        let slices = state.objects.iter().filter(|(path, _)| path.starts_with(SLICES));
        slices.map(|(path, object)| (path.clone(), object.clone())).collect()
    }

    /// The next request with this method fails with this status.
    pub(crate) fn fail(&self, method: Method, status: u16) {
        self.0.lock().unwrap().faults.push_back((method, status));
    }

    /// Rejects every write to paths that contain `part`, until [`Self::accept`].
    pub(crate) fn refuse(&self, part: &str, status: u16, message: &str) {
        self.0.lock().unwrap().refusals.push((part.to_owned(), status, message.to_owned()));
    }

    /// Accepts every write again.
    pub(crate) fn accept(&self) {
        self.0.lock().unwrap().refusals.clear();
    }

    /// Enables or disables the Dynamic Resource Allocation API.
    pub(crate) fn serve_dra(&self, serves: bool) {
        self.0.lock().unwrap().lacks_dra = !serves;
    }

    /// Requests for this path wait for the gate to open.
    pub(crate) fn hold(&self, path: &str) -> Gate {
        let gate = Gate(tokio::sync::watch::Sender::new((false, false)));
        self.0.lock().unwrap().gates.insert(path.to_owned(), gate.clone());
        gate
    }

    /// Sets a change to make to each written object.
    pub(crate) fn admit(&self, admission: Admission) {
        self.0.lock().unwrap().admission = Some(admission);
    }

    /// Ends all watches and drops the event history, as a restart of the server would.
    pub(crate) fn expire_watches(&self) {
        let gone = json!({"type": "ERROR", "object": {"status": "Failure", "code": 410, "reason": "Expired", "message": "too old"}});
        let mut state = self.0.lock().unwrap();
        state.history.clear();
        for watch in state.watches.drain(..) {
            watch.events.send(gone.clone()).ok();
        }
    }

    /// Whether a watch is open.
    pub(crate) fn is_watched(&self) -> bool {
        self.0.lock().unwrap().watches.iter().any(|watch| !watch.events.is_closed())
    }

    /// Every write request, with its body.
    pub(crate) fn sent(&self) -> Vec<Sent> {
        self.0.lock().unwrap().requests.clone()
    }

    /// `METHOD path` of each write request.
    pub(crate) fn writes(&self) -> Vec<String> {
        self.sent().into_iter().map(|Sent { method, path, .. }| format!("{method} {path}")).collect()
    }

    async fn serve(&self, request: Request<kube::client::Body>) -> Response<Body> {
        let (parts, body) = request.into_parts();
        let body = body.collect_bytes().await.unwrap();
        let (method, path) = (parts.method, parts.uri.path().to_owned());
        let query = parts.uri.query().unwrap_or_default().to_owned();
        let gate = self.0.lock().unwrap().gates.get(&path).cloned();
        if let Some(gate) = gate {
            gate.pass().await;
        }

        let mut state = self.0.lock().unwrap();
        let sent: Value = serde_json::from_slice(&body).unwrap_or_default();
        if method != Method::GET {
            let sent = Sent { method: method.clone(), path: path.clone(), query: query.clone(), body: sent.clone() };
            state.requests.push(sent);
        }
        if let Some(at) = state.faults.iter().position(|(faulty, _)| *faulty == method)
            && let Some((_, status)) = state.faults.remove(at)
        {
            return failure(status, "Faulty", "Faulty");
        }
        if method != Method::GET
            && let Some((_, status, message)) = state.refusals.iter().find(|(part, ..)| path.contains(part.as_str()))
        {
            return failure(*status, "Refused", message);
        }

        let content_type = parts.headers.get(http::header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
        match (method, content_type) {
            (Method::GET, _) if query.contains("watch=true") => state.watch(&path, &query),
            (Method::GET, _) if path == "/apis" => groups(state.lacks_dra),
            _ if state.lacks_dra && path.starts_with(DRA) => not_found(),
            (Method::GET, _) if is_collection(&path) => state.list(&path, &query),
            (Method::GET, _) => state.objects.get(&path).map_or_else(not_found, answer),
            (Method::POST, _) => state.post(&path, sent),
            (Method::PUT, _) => match state.objects.get(&path) {
                None => not_found(),
                Some(old) if old["metadata"]["resourceVersion"] != sent["metadata"]["resourceVersion"] => {
                    failure(409, "Conflict", "the object has been modified")
                }
                Some(_) => state.write(&path, sent),
            },
            (Method::PATCH, Some("application/json-patch+json")) => state.json_patch(&path, &sent),
            (Method::PATCH, Some("application/apply-patch+yaml")) => state.apply(&path, &query, &sent),
            (Method::PATCH, Some("application/merge-patch+json")) => state.merge(&path, &sent),
            (Method::DELETE, _) => match (state.objects.get(&path), sent["preconditions"]["uid"].as_str()) {
                (None, _) => not_found(),
                (Some(object), Some(uid)) if object["metadata"]["uid"] != uid => {
                    failure(409, "Conflict", "the UID in the precondition does not match")
                }
                (Some(object), _) => {
                    let object = object.clone();
                    state.delete(&path);
                    answer(&object)
                }
            },
            (method, _) => panic!("unexpected {method} {path}"),
        }
    }
}

impl State {
    fn write(&mut self, path: &str, mut object: Value) -> Response<Body> {
        if let Some(admission) = self.admission {
            admission(&mut object);
        }
        answer(&self.store(path, object))
    }

    fn store(&mut self, path: &str, mut object: Value) -> Value {
        self.version += 1;
        let uid = self.objects.get(path).map(|old| old["metadata"]["uid"].clone());
        let given = object["metadata"].get("uid").cloned();
        object["metadata"]["uid"] = uid.or(given).unwrap_or_else(|| json!(format!("uid-{}", self.version)));
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        let kind = if self.objects.contains_key(path) { "MODIFIED" } else { "ADDED" };
        self.objects.insert(path.to_owned(), object.clone());

        // Only the last finalizer kept it.
        let is_going = !object["metadata"]["deletionTimestamp"].is_null();
        if is_going && object["metadata"]["finalizers"].as_array().is_none_or(Vec::is_empty) {
            self.objects.remove(path);
            self.tell(path, "DELETED", &object);
        } else {
            self.tell(path, kind, &object);
        }
        object
    }

    fn delete(&mut self, path: &str) {
        let Some(mut object) = self.objects.get(path).cloned() else { return };
        object["metadata"]["deletionTimestamp"] = json!("2026-06-01T00:00:00Z");
        self.store(path, object);
    }

    fn post(&mut self, collection: &str, object: Value) -> Response<Body> {
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        let path = format!("{collection}/{name}");
        if self.objects.contains_key(&path) {
            return failure(409, "AlreadyExists", "the object already exists");
        }
        self.write(&path, object)
    }

    /// Server-side apply with a single applier: the sent object is merged into the existing one.
    fn apply(&mut self, path: &str, query: &str, sent: &Value) -> Response<Body> {
        let before = self.objects.get(path).cloned();
        let uid = before.as_ref().map(|before| &before["metadata"]["uid"]);
        if sent["metadata"].get("uid").is_some() && sent["metadata"].get("uid") != uid {
            return failure(409, "Conflict", "the UID in the precondition does not match");
        }
        if before.is_some() && !query.contains("force=true") {
            return failure(409, "Conflict", "conflict with another field manager");
        }

        let mut object = before.clone().unwrap_or_else(|| json!({"metadata": {}}));
        merge(&mut object, sent);
        if let Some(admission) = self.admission {
            admission(&mut object);
        }
        object["metadata"]["managedFields"] = json!([{"manager": "dra-operator", "operation": "Apply"}]);
        let spec_changed = before.as_ref().is_none_or(|before| before["spec"] != object["spec"]);
        let generation = object["metadata"]["generation"].as_i64().unwrap_or(0) + i64::from(spec_changed);
        object["metadata"]["generation"] = json!(generation);
        answer(&self.store(path, object))
    }

    fn merge(&mut self, path: &str, sent: &Value) -> Response<Body> {
        let Some(mut object) = self.objects.get(path).cloned() else { return not_found() };
        merge(&mut object, sent);
        answer(&self.store(path, object))
    }

    fn json_patch(&mut self, path: &str, operations: &Value) -> Response<Body> {
        let (path, is_status) = path.strip_suffix("/status").map_or((path, false), |object| (object, true));
        let Some(before) = self.objects.get(path).cloned() else { return not_found() };
        // The API server treats absent fields as null.
        let mut operations = operations.as_array().cloned().unwrap_or_default();
        operations.retain(|operation| {
            let is_absent = operation["path"].as_str().is_some_and(|path| before.pointer(path).is_none());
            !(is_absent && operation["op"] == "test" && operation["value"].is_null())
        });
        let operations: json_patch::Patch = serde_json::from_value(operations.into()).unwrap();
        let mut object = before.clone();
        if let Err(error) = json_patch::patch(&mut object, &operations) {
            return failure(422, "Invalid", &error.to_string());
        }

        // The status is written only through its own path, and nothing else is written through it.
        let mut kept = if is_status { before.clone() } else { object.clone() };
        kept["status"] = if is_status { object["status"].clone() } else { before["status"].clone() };
        answer(&self.store(path, kept))
    }

    fn tell(&mut self, path: &str, kind: &str, object: &Value) {
        let mut object = object.clone();
        let (version, plural) = collection_of(path).rsplit_once('/').unwrap_or_default();
        let version = version.split("/namespaces/").next().unwrap_or_default();
        let version = version.strip_prefix("/apis/").or(version.strip_prefix("/api/")).unwrap_or_default();
        object["apiVersion"] = json!(version);
        object["kind"] = json!(kind_of(plural));
        let change =
            Change { version: self.version, path: path.to_owned(), event: json!({"type": kind, "object": object}) };
        self.watches.retain(|watch| watch.tell(&change));
        self.history.push(change);
    }

    fn list(&self, collection: &str, query: &str) -> Response<Body> {
        let label = label(query);
        let is_asked_for = |path: &str, object: &Value| {
            collection_of(path) == collection
                && label.as_ref().is_none_or(|(key, value)| object["metadata"]["labels"][key] == **value)
        };
        let items: Vec<_> =
            self.objects.iter().filter(|(path, object)| is_asked_for(path, object)).map(|(_, object)| object).collect();
        let (_, plural) = collection.rsplit_once('/').unwrap_or_default();
        answer(&json!({
            "apiVersion": "v1", "kind": format!("{}List", kind_of(plural)),
            "metadata": {"resourceVersion": self.version.to_string()}, "items": items,
        }))
    }

    fn watch(&mut self, collection: &str, query: &str) -> Response<Body> {
        let (events, receiver) = mpsc::unbounded_channel();
        let watch = Watch { collection: collection.to_owned(), label: label(query), events };
        let since: u64 = parameter(query, "resourceVersion").and_then(|version| version.parse().ok()).unwrap_or(0);
        for change in self.history.iter().filter(|change| change.version > since) {
            watch.tell(change);
        }
        self.watches.push(watch);
        let lines =
            UnboundedReceiverStream::new(receiver).map(|event| Ok::<_, Infallible>(Bytes::from(format!("{event}\n"))));
        Response::new(Body::from_stream(lines))
    }
}

fn kind_of(plural: &str) -> &'static str {
    KINDS.iter().find(|(known, _)| *known == plural).map_or("Unknown", |(_, kind)| kind)
}

fn is_collection(path: &str) -> bool {
    path.rsplit('/').next().is_some_and(|last| kind_of(last) != "Unknown")
}

fn collection_of(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(collection, _)| collection)
}

fn parameter<'a>(query: &'a str, name: &str) -> Option<&'a str> {
    query.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='))
}

/// The label in a selector of the form `key=value`.
fn label(query: &str) -> Option<(String, String)> {
    let selector = parameter(query, "labelSelector")?.replace("%2F", "/").replace("%3D", "=");
    let (key, value) = selector.split_once('=')?;
    Some((key.to_owned(), value.to_owned()))
}

/// Maps are merged; lists and values are replaced.
fn merge(object: &mut Value, sent: &Value) {
    match sent {
        Value::Object(sent) => {
            if !object.is_object() {
                *object = Value::Object(Map::new());
            }
            for (key, value) in sent {
                merge(&mut object[key], value);
            }
        }
        value => *object = value.clone(),
    }
}

/// The list of API groups.
fn groups(lacks_dra: bool) -> Response<Body> {
    let version = json!({"groupVersion": "resource.k8s.io/v1", "version": "v1"});
    let dra = json!({"name": "resource.k8s.io", "versions": [version], "preferredVersion": version});
    let groups = if lacks_dra { vec![] } else { vec![dra] };
    answer(&json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}))
}

fn answer(object: &Value) -> Response<Body> {
    Response::new(Body::from(object.to_string()))
}

fn not_found() -> Response<Body> {
    failure(404, "NotFound", "not found")
}

fn failure(code: u16, reason: &str, message: &str) -> Response<Body> {
    let status = json!({
        "apiVersion": "v1", "kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": message,
    });
    let mut response = answer(&status);
    *response.status_mut() = StatusCode::from_u16(code).unwrap();
    response
}
