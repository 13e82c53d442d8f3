//! What the controller counts and times. Pure. No object's name is a label: names come and go, series stay.

use std::time::Instant;

use prometheus_client::{
    encoding::{EncodeLabelSet, EncodeLabelValue},
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::{Registry, Unit},
};

/// What a write does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
#[expect(missing_docs, reason = "the words say it")]
pub enum Verb {
    Apply,
    Delete,
    Status,
    Finalizer,
    Event,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct WriteLabels {
    kind: &'static str,
    verb: Verb,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabel {
    reason: &'static str,
}

/// The controller's metrics.
#[derive(Clone)]
pub struct Metrics {
    duration: Histogram,
    errors: Family<ReasonLabel, Counter>,
    writes: Family<WriteLabels, Counter>,
    /// Nodes with a ready plugin, over all configs.
    pub nodes_ready: Gauge,
    /// Nodes past the deadline, over all configs.
    pub nodes_unhealthy: Gauge,
    /// Devices in complete pools, over all configs.
    pub devices: Gauge,
    /// 1 in the instance that leads.
    pub leader: Gauge,
}

impl Metrics {
    /// Registers them.
    pub fn new(registry: &mut Registry) -> Self {
        let metrics = Self {
            duration: Histogram::new([0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0]),
            errors: Family::default(),
            writes: Family::default(),
            nodes_ready: Gauge::default(),
            nodes_unhealthy: Gauge::default(),
            devices: Gauge::default(),
            leader: Gauge::default(),
        };
        let registry = registry.sub_registry_with_prefix("dra_controller");
        registry.register_with_unit(
            "reconcile_duration",
            "How long one look at one DraDriverConfig took",
            Unit::Seconds,
            metrics.duration.clone(),
        );
        registry.register("errors", "What went wrong, by reason", metrics.errors.clone());
        registry.register("api_writes", "Writes to the API, by kind and verb", metrics.writes.clone());
        registry.register("nodes_ready", "Nodes with a ready plugin", metrics.nodes_ready.clone());
        registry.register(
            "nodes_unhealthy",
            "Nodes past the deadline without a good pool",
            metrics.nodes_unhealthy.clone(),
        );
        registry.register("devices", "Devices in complete pools", metrics.devices.clone());
        registry.register("leader", "Whether this instance leads", metrics.leader.clone());
        metrics
    }

    /// Times one reconcile until the guard is dropped.
    pub fn time(&self) -> Timing<'_> {
        Timing { metrics: self, start: Instant::now() }
    }

    /// Notes one write.
    pub fn wrote(&self, kind: &'static str, verb: Verb) {
        self.writes.get_or_create(&WriteLabels { kind, verb }).inc();
    }

    /// Notes one error.
    pub fn failed(&self, reason: &'static str) {
        self.errors.get_or_create(&ReasonLabel { reason }).inc();
    }
}

/// Records on drop.
pub struct Timing<'a> {
    metrics: &'a Metrics,
    start: Instant,
}

impl Drop for Timing<'_> {
    fn drop(&mut self) {
        self.metrics.duration.observe(self.start.elapsed().as_secs_f64());
    }
}
