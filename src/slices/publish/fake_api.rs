//! An API server in memory, for tests: objects by path, one kind watched, faults on demand.

use std::{
    collections::{BTreeMap, VecDeque},
    convert::Infallible,
    sync::{Arc, Mutex},
};

use axum::body::{Body, Bytes};
use http::{Method, Request, Response, StatusCode};
use kube::Client;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio_stream::{StreamExt, wrappers::UnboundedReceiverStream};

pub(crate) const SLICES: &str = "/apis/resource.k8s.io/v1/resourceslices";

/// Changes a written object as admission would.
type Admission = fn(&mut Value);

#[derive(Default)]
struct State {
    objects: BTreeMap<String, Value>,
    version: u64,
    watches: Vec<mpsc::UnboundedSender<Value>>,
    requests: Vec<String>,
    faults: VecDeque<(Method, u16)>,
    admission: Option<Admission>,
    gates: BTreeMap<String, Gate>,
}

/// Holds requests back.
#[derive(Clone)]
pub(crate) struct Gate(tokio::sync::watch::Sender<(bool, bool)>);

impl Gate {
    /// Whether a request has come to it.
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

/// The server; clones are the same one.
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

    /// Puts an object there, as somebody else would.
    pub(crate) fn put(&self, path: &str, object: Value) {
        let mut state = self.0.lock().unwrap();
        let kind = if state.objects.contains_key(path) { "MODIFIED" } else { "ADDED" };
        state.store(path, object, kind);
    }

    /// Deletes an object, as somebody else would.
    pub(crate) fn delete(&self, path: &str) {
        self.0.lock().unwrap().remove(path);
    }

    /// The slices that are there.
    pub(crate) fn slices(&self) -> Vec<(String, Value)> {
        let state = self.0.lock().unwrap();
        let slices = state.objects.iter().filter(|(path, _)| path.starts_with(SLICES));
        slices.map(|(path, object)| (path.clone(), object.clone())).collect()
    }

    /// The next request with this method fails with this status.
    pub(crate) fn fail(&self, method: Method, status: u16) {
        self.0.lock().unwrap().faults.push_back((method, status));
    }

    /// Requests for this path wait for the gate to open.
    pub(crate) fn hold(&self, path: &str) -> Gate {
        let gate = Gate(tokio::sync::watch::Sender::new((false, false)));
        self.0.lock().unwrap().gates.insert(path.to_owned(), gate.clone());
        gate
    }

    /// What is done to each slice that is written.
    pub(crate) fn admit(&self, admission: Admission) {
        self.0.lock().unwrap().admission = Some(admission);
    }

    /// Ends all watches, and says that what they missed is forgotten, as a server does after a restart.
    pub(crate) fn expire_watches(&self) {
        let gone = json!({"type": "ERROR", "object": {"status": "Failure", "code": 410, "reason": "Expired", "message": "too old"}});
        for watch in self.0.lock().unwrap().watches.drain(..) {
            watch.send(gone.clone()).ok();
        }
    }

    /// Whether somebody watches.
    pub(crate) fn is_watched(&self) -> bool {
        self.0.lock().unwrap().watches.iter().any(|watch| !watch.is_closed())
    }

    /// `METHOD path` of each request that writes.
    pub(crate) fn writes(&self) -> Vec<String> {
        let state = self.0.lock().unwrap();
        state.requests.iter().filter(|request| !request.starts_with("GET")).cloned().collect()
    }

    async fn serve(&self, request: Request<kube::client::Body>) -> Response<Body> {
        let (parts, body) = request.into_parts();
        let body = body.collect_bytes().await.unwrap();
        let (method, path) = (parts.method, parts.uri.path().to_owned());
        let watches = parts.uri.query().is_some_and(|query| query.contains("watch=true"));
        let gate = self.0.lock().unwrap().gates.get(&path).cloned();
        if let Some(gate) = gate {
            gate.pass().await;
        }
        let mut state = self.0.lock().unwrap();
        state.requests.push(format!("{method} {path}"));
        if let Some(at) = state.faults.iter().position(|(faulty, _)| *faulty == method)
            && let Some((_, status)) = state.faults.remove(at)
        {
            return failure(status, "Faulty");
        }
        let sent: Option<Value> = serde_json::from_slice(&body).ok();
        match (method, sent) {
            (Method::GET, _) if watches => state.watch(),
            (Method::GET, _) if path == SLICES => state.list(),
            (Method::GET, _) => state.objects.get(&path).map_or_else(|| failure(404, "NotFound"), answer),
            (Method::POST, Some(object)) => {
                let path = format!("{path}/{}", object["metadata"]["name"].as_str().unwrap());
                if state.objects.contains_key(&path) {
                    return failure(409, "AlreadyExists");
                }
                state.write(&path, object, "ADDED")
            }
            (Method::PUT, Some(object)) => match state.objects.get(&path) {
                None => failure(404, "NotFound"),
                Some(old) if old["metadata"]["resourceVersion"] != object["metadata"]["resourceVersion"] => {
                    failure(409, "Conflict")
                }
                Some(_) => state.write(&path, object, "MODIFIED"),
            },
            (Method::DELETE, _) => match state.remove(&path) {
                Some(object) => answer(&object),
                None => failure(404, "NotFound"),
            },
            (method, _) => panic!("unexpected {method} {path}"),
        }
    }
}

impl State {
    fn write(&mut self, path: &str, mut object: Value, kind: &str) -> Response<Body> {
        if let Some(admission) = self.admission {
            admission(&mut object);
        }
        answer(&self.store(path, object, kind))
    }

    fn store(&mut self, path: &str, mut object: Value, kind: &str) -> Value {
        self.version += 1;
        let uid = self.objects.get(path).map(|old| old["metadata"]["uid"].clone());
        let given = object["metadata"].get("uid").cloned();
        object["metadata"]["uid"] = uid.or(given).unwrap_or_else(|| json!(format!("uid-{}", self.version)));
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        self.objects.insert(path.to_owned(), object.clone());
        self.tell(path, kind, &object);
        object
    }

    fn remove(&mut self, path: &str) -> Option<Value> {
        let mut object = self.objects.remove(path)?;
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        self.tell(path, "DELETED", &object);
        Some(object)
    }

    fn tell(&mut self, path: &str, kind: &str, object: &Value) {
        if path.starts_with(SLICES) {
            let mut object = object.clone();
            object["apiVersion"] = json!("resource.k8s.io/v1");
            object["kind"] = json!("ResourceSlice");
            self.watches.retain(|watch| watch.send(json!({"type": kind, "object": object.clone()})).is_ok());
        }
    }

    fn list(&self) -> Response<Body> {
        let items: Vec<_> =
            self.objects.iter().filter(|(path, _)| path.starts_with(SLICES)).map(|(_, object)| object).collect();
        answer(&json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSliceList",
            "metadata": {"resourceVersion": self.version.to_string()}, "items": items,
        }))
    }

    fn watch(&mut self) -> Response<Body> {
        let (sender, receiver) = mpsc::unbounded_channel();
        self.watches.push(sender);
        let lines =
            UnboundedReceiverStream::new(receiver).map(|event| Ok::<_, Infallible>(Bytes::from(format!("{event}\n"))));
        Response::new(Body::from_stream(lines))
    }
}

fn answer(object: &Value) -> Response<Body> {
    Response::new(Body::from(object.to_string()))
}

fn failure(code: u16, reason: &str) -> Response<Body> {
    let status = json!({
        "apiVersion": "v1", "kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": reason,
    });
    let mut response = answer(&status);
    *response.status_mut() = StatusCode::from_u16(code).unwrap();
    response
}
