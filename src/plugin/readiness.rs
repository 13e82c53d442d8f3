//! Reports over HTTP whether each part of the node plugin works: `/healthz`, `/readyz`, `/metrics`. IO: a TCP port.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    fmt,
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use axum::{Router, extract::State, http::StatusCode, response::IntoResponse, routing::get};
use prometheus_client::registry::Registry;
use tokio::time::sleep;

use crate::http::{self, ServeError, metrics};

/// How often to log why the plugin is not ready. Parts become ready one after the other at startup, so shorter
/// intervals would only add noise.
const PATIENCE: Duration = Duration::from_secs(10);

/// A part that must work for the node plugin to be ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// This instance owns the node's state, or has handed it over and stands by. A standby counts as ready, because the
    /// DaemonSet controller deletes an old pod that is not ready as soon as a new one exists, even if the new one never
    /// becomes ready (`podsShouldBeOnNode`, 1.37).
    Active,
    /// The checkpoint can be read.
    Checkpoint,
    /// The CDI files exist.
    Cdi,
    /// The ResourceSlices are published.
    Slices,
    /// The DRA socket is where the kubelet expects it.
    Service,
    /// The kubelet has registered the plugin.
    Registration,
    /// NRI is connected.
    Nri,
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Active => "active",
            Self::Checkpoint => "checkpoint",
            Self::Cdi => "cdi",
            Self::Slices => "slices",
            Self::Service => "service",
            Self::Registration => "registration",
            Self::Nri => "nri",
        })
    }
}

/// The state of each part that this plugin needs.
#[derive(Debug)]
pub struct Readiness {
    parts: Mutex<BTreeMap<Part, Result<(), String>>>,
    /// Problems of parts that work nevertheless.
    notes: Mutex<BTreeMap<Part, String>>,
}

impl Readiness {
    /// A plugin that needs these parts, none of which works yet.
    pub fn of(parts: &[Part]) -> Self {
        let waiting = parts.iter().map(|part| (*part, Err("not yet".to_owned()))).collect();
        Self { parts: Mutex::new(waiting), notes: Mutex::default() }
    }

    /// Records that a part works, or why it does not. Ignores parts that this plugin does not need.
    pub fn set(&self, part: Part, state: Result<(), String>) {
        let mut parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = parts.get_mut(&part)
            && *known != state
        {
            match &state {
                Ok(()) => tracing::info!(%part, "ready"),
                Err(problem) => tracing::warn!(%part, problem, "not ready"),
            }
            *known = state;
        }
    }

    /// Records a problem of a part that works nevertheless; `None` if there is none.
    pub fn note(&self, part: Part, note: Option<String>) {
        let mut notes = self.notes.lock().unwrap_or_else(PoisonError::into_inner);
        match note {
            Some(note) => notes.insert(part, note),
            None => notes.remove(&part),
        };
    }

    /// Records what a part that does not work yet is waiting for.
    pub fn waits(&self, part: Part, what: String) {
        let mut parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(state @ Err(_)) = parts.get_mut(&part) {
            *state = Err(what);
        }
    }

    /// Logs why the plugin is not ready, whenever that has changed.
    pub async fn complain(&self) -> Infallible {
        let mut said = String::new();
        loop {
            sleep(PATIENCE).await;
            let problems = self.problems();
            if problems != said && !problems.is_empty() {
                tracing::warn!("not ready: {problems}");
            }
            said = problems;
        }
    }

    fn problems(&self) -> String {
        let parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
        let problems = parts.iter().filter_map(|(part, state)| Some(format!("{part}: {}", state.as_ref().err()?)));
        problems.collect::<Vec<_>>().join("; ")
    }

    /// Whether every part works.
    pub fn is_ready(&self) -> bool {
        self.parts.lock().unwrap_or_else(PoisonError::into_inner).values().all(Result::is_ok)
    }

    /// One line per part, with its problem if it has one.
    pub fn report(&self) -> String {
        let parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
        let notes = self.notes.lock().unwrap_or_else(PoisonError::into_inner);
        let line = |(part, state): (&Part, &Result<(), String>)| match (state, notes.get(part)) {
            (Ok(()), None) => format!("[+] {part}: ok\n"),
            (Ok(()), Some(note)) => format!("[+] {part}: ok, but {note}\n"),
            (Err(problem), _) => format!("[-] {part}: {problem}\n"),
        };
        parts.iter().map(line).collect()
    }
}

/// Serves probes and metrics until dropped.
pub async fn serve(
    address: SocketAddr,
    readiness: Arc<Readiness>,
    registry: Registry,
) -> Result<Infallible, ServeError> {
    http::serve(address, router(readiness, Arc::new(registry))).await
}

fn router(readiness: Arc<Readiness>, registry: Arc<Registry>) -> Router {
    Router::new()
        .route("/healthz", get(async || "ok\n"))
        .route("/readyz", get(ready).with_state(readiness))
        .route("/metrics", get(metrics).with_state(registry))
}

async fn ready(State(readiness): State<Arc<Readiness>>) -> impl IntoResponse {
    let status = if readiness.is_ready() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, readiness.report())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_plugin_is_ready_only_with_every_part_and_the_report_says_which_is_missing() {
        let readiness = Readiness::of(&[Part::Active, Part::Slices]);
        assert!(!readiness.is_ready());
        readiness.set(Part::Active, Ok(()));
        readiness.set(Part::Slices, Err("the API server rejected a slice".to_owned()));
        assert!(!readiness.is_ready());
        assert_eq!(readiness.report(), "[+] active: ok\n[-] slices: the API server rejected a slice\n");
        readiness.set(Part::Slices, Ok(()));
        assert!(readiness.is_ready());
    }

    #[test]
    fn a_note_is_in_the_report_and_does_not_keep_the_plugin_from_being_ready() {
        let readiness = Readiness::of(&[Part::Nri]);
        readiness.note(Part::Nri, Some("1 container cannot be moved".to_owned()));
        assert_eq!(readiness.report(), "[-] nri: not yet\n");
        readiness.set(Part::Nri, Ok(()));
        assert!(readiness.is_ready());
        assert_eq!(readiness.report(), "[+] nri: ok, but 1 container cannot be moved\n");
        readiness.note(Part::Nri, None);
        assert_eq!(readiness.report(), "[+] nri: ok\n");
    }

    #[test]
    fn a_part_that_is_not_needed_does_not_keep_the_plugin_from_being_ready() {
        let readiness = Readiness::of(&[Part::Slices]);
        readiness.set(Part::Slices, Ok(()));
        readiness.set(Part::Nri, Err("no socket".to_owned()));
        assert!(readiness.is_ready());
    }

    #[test]
    fn what_a_part_waits_for_is_reported_until_it_works() {
        let readiness = Readiness::of(&[Part::Active, Part::Registration]);
        readiness.set(Part::Active, Ok(()));
        readiness.waits(Part::Active, "another instance".to_owned());
        readiness.waits(Part::Registration, "the kubelet".to_owned());
        assert_eq!(readiness.problems(), "registration: the kubelet");
        readiness.set(Part::Registration, Ok(()));
        assert_eq!(readiness.problems(), "");
    }

    async fn get(router: &Router, path: &str) -> (StatusCode, String) {
        let request = axum::http::Request::get(path).body(axum::body::Body::empty()).unwrap();
        let response = tower::ServiceExt::oneshot(router.clone(), request).await.unwrap();
        let status = response.status();
        let body = axum::body::to_bytes(response.into_body(), 1 << 20).await.unwrap();
        (status, String::from_utf8(body.to_vec()).unwrap())
    }

    #[tokio::test]
    async fn readyz_names_the_part_that_is_missing_and_healthz_only_shows_that_the_process_serves() {
        let readiness = Arc::new(Readiness::of(&[Part::Registration]));
        let router = router(Arc::clone(&readiness), Arc::new(Registry::default()));
        assert_eq!(get(&router, "/healthz").await.0, StatusCode::OK);
        let (status, body) = get(&router, "/readyz").await;
        assert_eq!((status, body.as_str()), (StatusCode::SERVICE_UNAVAILABLE, "[-] registration: not yet\n"));
        readiness.set(Part::Registration, Ok(()));
        assert_eq!(get(&router, "/readyz").await.0, StatusCode::OK);
    }

    #[tokio::test]
    async fn metrics_count_calls_and_errors() {
        let mut registry = Registry::default();
        let metrics = crate::plugin::metrics::PluginMetrics::new(&mut registry);
        let took = std::time::Duration::from_millis(3);
        metrics.ended(crate::plugin::metrics::Call::Prepare, took, false, 7);
        let router = router(Arc::new(Readiness::of(&[])), Arc::new(registry));
        let (status, body) = get(&router, "/metrics").await;
        assert_eq!(status, StatusCode::OK);
        for line in [
            "dra_node_plugin_claim_call_duration_seconds_count{call=\"Prepare\"} 1",
            "dra_node_plugin_claim_call_errors_total{call=\"Prepare\"} 1",
            "dra_node_plugin_prepared_claims 7",
        ] {
            assert!(body.contains(line), "{line} in {body}");
        }
    }
}
