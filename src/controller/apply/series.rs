//! Writes Events. A repetition of a recent Event only increments its count. IO: the Kubernetes API.
//!
//! kube's Recorder merges Events with the same reason and keeps the first note: nine nodes would be reported as "1 of 1
//! nodes" with a growing count. The note of an existing Event cannot be changed, so a different note becomes a new
//! Event.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use k8s_openapi::api::core::v1::ObjectReference;
use kube::{
    Client,
    runtime::events::{Event, Recorder, Reporter},
};

/// How long kube's Recorder merges repetitions.
const JOINED: Duration = Duration::from_mins(6);

/// Writes Events.
pub struct Series {
    client: Client,
    reporter: Reporter,
    /// When each Event was last published, and the recorder that merges its repetitions.
    published: Mutex<HashMap<Key, (Instant, Recorder)>>,
}

/// The object's UID, the reason and the note.
type Key = (Option<String>, String, Option<String>);

impl Series {
    /// A series without Events.
    pub fn new(client: Client, reporter: Reporter) -> Self {
        Self { client, reporter, published: Mutex::default() }
    }

    /// Writes an Event about an object.
    pub async fn publish(&self, event: &Event, about: &ObjectReference) -> Result<(), kube::Error> {
        self.recorder(event, about).publish(event, about).await
    }

    fn recorder(&self, event: &Event, about: &ObjectReference) -> Recorder {
        let now = Instant::now();
        let mut published = self.published.lock().unwrap_or_else(PoisonError::into_inner);
        published.retain(|_, (at, _)| now.duration_since(*at) < JOINED);
        let key = (about.uid.clone(), event.reason.clone(), event.note.clone());
        let new = || (now, Recorder::new(self.client.clone(), self.reporter.clone()));
        let (last, recorder) = published.entry(key).or_insert_with(new);
        *last = now;
        recorder.clone()
    }
}

#[cfg(test)]
mod tests {
    use http::{Request, Response};
    use kube::{client::Body, runtime::events::EventType};
    use serde_json::{Value, json};

    use super::*;
    use crate::controller::status::events::event;

    #[tokio::test]
    async fn a_different_note_is_a_new_event_and_the_same_note_counts_up() {
        let (service, mut server) = tower_test::mock::pair::<Request<Body>, Response<Body>>();
        let written = tokio::spawn(async move {
            let mut written = Vec::new();
            while let Some((request, reply)) = server.next_request().await {
                let method = request.method().to_string();
                let body = request.into_body().collect_bytes().await.unwrap();
                let body: Value = serde_json::from_slice(&body).unwrap();
                let count = body["series"]["count"].as_i64();
                written.push((method, body["note"].as_str().unwrap().to_owned(), count));
                let answer = json!({"metadata": {"name": "e"}, "eventTime": null});
                reply.send_response(Response::new(Body::from(answer.to_string().into_bytes())));
            }
            written
        });
        let series = Series::new(Client::new(service, "ns"), Reporter { controller: "c".into(), instance: None });
        let about = ObjectReference { uid: Some("u".into()), name: Some("cpu".into()), ..ObjectReference::default() };
        for words in ["1 of 1", "9 of 9", "1 of 1"] {
            let event = event(EventType::Normal, "Serving", "Reconcile", words.into());
            series.publish(&event, &about).await.unwrap();
        }
        drop(series);
        let wrote = |method: &str, note: &str, count| (method.to_owned(), note.to_owned(), count);
        assert_eq!(
            written.await.unwrap(),
            [wrote("POST", "1 of 1", None), wrote("POST", "9 of 9", None), wrote("PATCH", "1 of 1", Some(2))]
        );
    }
}
