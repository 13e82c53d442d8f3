//! `/healthz`, `/readyz` and `/metrics`. IO: a TCP port.
//!
//! Healthy is a controller whose loop turns: its heart beats in the very stream that brings work to the loop. Ready is one
//! that leads with every cache filled, or stands by.

use std::{
    convert::Infallible,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use axum::{Router, extract::State, http::StatusCode, routing::get};
use prometheus_client::registry::Registry;

use crate::http::{self, ServeError, metrics};

/// Between two beats.
pub const BEAT: Duration = Duration::from_secs(5);
/// Without a beat for so long the loop is taken to hang; longer than the client waits for an answer.
const SILENCE: Duration = Duration::from_mins(3);

/// How the process does.
#[derive(Debug)]
pub struct Health {
    start: Instant,
    last_beat: AtomicU64,
    phase: AtomicU64,
}

/// How far the process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Not yet anything.
    Starting = 0,
    /// Another instance leads.
    StandingBy = 1,
    /// Leads; caches are being filled.
    Filling = 2,
    /// Leads, and reconciles.
    Leading = 3,
}

impl Default for Health {
    fn default() -> Self {
        Self { start: Instant::now(), last_beat: AtomicU64::new(0), phase: AtomicU64::new(Phase::Starting as u64) }
    }
}

impl Health {
    /// The loop turns.
    pub fn beat(&self) {
        self.last_beat.store(self.start.elapsed().as_secs(), Ordering::Relaxed);
    }

    /// The process is so far.
    pub fn enter(&self, phase: Phase) {
        self.phase.store(phase as u64, Ordering::Relaxed);
    }

    fn silence(&self) -> Duration {
        let last = Duration::from_secs(self.last_beat.load(Ordering::Relaxed));
        self.start.elapsed().saturating_sub(last)
    }

    fn healthz(&self) -> (StatusCode, String) {
        let silence = self.silence();
        if silence < SILENCE {
            (StatusCode::OK, "ok\n".into())
        } else {
            (StatusCode::SERVICE_UNAVAILABLE, format!("the loop has not turned for {} s\n", silence.as_secs()))
        }
    }

    fn readyz(&self) -> (StatusCode, &'static str) {
        match self.phase.load(Ordering::Relaxed) {
            1 => (StatusCode::OK, "ok: another instance leads\n"),
            2 => (StatusCode::SERVICE_UNAVAILABLE, "caches are being filled\n"),
            3 => (StatusCode::OK, "ok: leads\n"),
            _ => (StatusCode::SERVICE_UNAVAILABLE, "starting\n"),
        }
    }
}

/// Serves until dropped.
pub async fn serve(address: SocketAddr, health: Arc<Health>, registry: Registry) -> Result<Infallible, ServeError> {
    let router = Router::new()
        .route("/healthz", get(async |State(health): State<Arc<Health>>| health.healthz()))
        .route("/readyz", get(async |State(health): State<Arc<Health>>| health.readyz()))
        .with_state(health)
        .route("/metrics", get(metrics).with_state(Arc::new(registry)));
    http::serve(address, router).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ready_is_who_leads_with_full_caches_or_stands_by() {
        let health = Health::default();
        let ready = |phase| {
            health.enter(phase);
            health.readyz().0 == StatusCode::OK
        };
        assert_eq!(
            [Phase::Starting, Phase::StandingBy, Phase::Filling, Phase::Leading].map(ready),
            [false, true, false, true]
        );
    }

    #[test]
    fn a_loop_that_no_longer_turns_is_not_healthy() {
        let mut health = Health::default();
        assert_eq!(health.healthz().0, StatusCode::OK);
        let Some(earlier) = health.start.checked_sub(SILENCE + BEAT) else { return };
        health.start = earlier;
        assert_eq!(health.healthz().0, StatusCode::SERVICE_UNAVAILABLE);
        health.beat();
        assert_eq!(health.healthz().0, StatusCode::OK);
    }
}
