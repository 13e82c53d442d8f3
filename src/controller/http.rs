//! `/healthz`, `/readyz` and `/metrics`. IO: a TCP port.
//!
//! The controller is healthy while its loop is running: the heartbeat is part of the stream that feeds the loop. It is
//! ready when it leads with all caches filled, or when it is a standby.

use std::{
    convert::Infallible,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use axum::{Router, extract::State, http::StatusCode, routing::get};
use prometheus_client::registry::Registry;
use tokio::time::Instant;

use crate::http::{self, ServeError, metrics};

/// Interval between heartbeats.
pub const BEAT: Duration = Duration::from_secs(5);
/// A loop without a heartbeat for this long is considered hung. Longer than the client waits for a response.
const SILENCE: Duration = Duration::from_mins(3);

/// The health of the process.
#[derive(Debug)]
pub struct Health {
    start: Instant,
    /// Seconds since the start.
    last_beat: AtomicU64,
    phase: AtomicU64,
}

/// The phase of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Starting.
    Starting = 0,
    /// Standing by while another instance leads.
    StandingBy = 1,
    /// Leading, and filling the caches.
    Filling = 2,
    /// Leading, and reconciling.
    Leading = 3,
}

impl Default for Health {
    fn default() -> Self {
        Self { start: Instant::now(), last_beat: AtomicU64::new(0), phase: AtomicU64::new(Phase::Starting as u64) }
    }
}

impl Health {
    /// Records a heartbeat.
    pub fn beat(&self) {
        self.beat_at(Instant::now());
    }

    fn beat_at(&self, now: Instant) {
        self.last_beat.store(now.duration_since(self.start).as_secs(), Ordering::Relaxed);
    }

    /// Records the phase.
    pub fn enter(&self, phase: Phase) {
        self.phase.store(phase as u64, Ordering::Relaxed);
    }

    pub(super) fn healthz(&self, now: Instant) -> (StatusCode, String) {
        let last = Duration::from_secs(self.last_beat.load(Ordering::Relaxed));
        let silence = now.duration_since(self.start).saturating_sub(last);
        if silence < SILENCE {
            (StatusCode::OK, "ok\n".into())
        } else {
            (
                StatusCode::SERVICE_UNAVAILABLE,
                format!("no heartbeat from the reconcile loop for {} s\n", silence.as_secs()),
            )
        }
    }

    pub(super) fn readyz(&self) -> (StatusCode, &'static str) {
        match self.phase.load(Ordering::Relaxed) {
            1 => (StatusCode::OK, "ok: another instance leads\n"),
            2 => (StatusCode::SERVICE_UNAVAILABLE, "filling the caches\n"),
            3 => (StatusCode::OK, "ok: leading\n"),
            _ => (StatusCode::SERVICE_UNAVAILABLE, "starting\n"),
        }
    }
}

/// Serves until dropped.
pub async fn serve(address: SocketAddr, health: Arc<Health>, registry: Registry) -> Result<Infallible, ServeError> {
    let router = Router::new()
        .route("/healthz", get(async |State(health): State<Arc<Health>>| health.healthz(Instant::now())))
        .route("/readyz", get(async |State(health): State<Arc<Health>>| health.readyz()))
        .with_state(health)
        .route("/metrics", get(metrics).with_state(Arc::new(registry)));
    http::serve(address, router).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_leader_with_filled_caches_is_ready_and_so_is_a_standby() {
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
    fn a_loop_without_a_heartbeat_for_three_minutes_is_unhealthy() {
        let health = Health::default();
        let after = |seconds| health.start + Duration::from_secs(seconds);
        assert_eq!(health.healthz(after(179)).0, StatusCode::OK);
        let hangs = (StatusCode::SERVICE_UNAVAILABLE, "no heartbeat from the reconcile loop for 180 s\n".to_owned());
        assert_eq!(health.healthz(after(180)), hangs);

        health.beat_at(after(185));
        assert_eq!(health.healthz(after(185)), (StatusCode::OK, "ok\n".to_owned()));
        assert_eq!(health.healthz(after(365)), hangs);
    }
}
