//! The controller's metrics. Pure. No label is an object's name: names come and go, but series stay.

use std::time::Instant;

use prometheus_client::{
    encoding::{EncodeLabelSet, EncodeLabelValue},
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::{Registry, Unit},
};

use super::child::ChildKind;

/// The verb of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
#[expect(missing_docs, reason = "the names say it")]
pub enum Verb {
    Apply,
    Delete,
    Status,
    Finalizer,
    Event,
}

/// The reason for an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Failure {
    /// The API server rejected an object, or its name is taken by another owner.
    Refused,
    /// An object could not be written.
    Write,
    /// A reconcile ended early.
    Reconcile,
    /// A watch failed.
    Watch,
    /// A config cannot be parsed.
    InvalidObject,
}

impl Failure {
    const ALL: [Self; 5] = [Self::Refused, Self::Write, Self::Reconcile, Self::Watch, Self::InvalidObject];

    const fn label(self) -> ReasonLabel {
        let reason = match self {
            Self::Refused => "refused",
            Self::Write => "write",
            Self::Reconcile => "reconcile",
            Self::Watch => "watch",
            Self::InvalidObject => "invalid_object",
        };
        ReasonLabel { reason }
    }
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
    /// Nodes with a ready plugin, across all configs.
    pub nodes_ready: Gauge,
    /// Nodes past the deadline, across all configs.
    pub nodes_unhealthy: Gauge,
    /// Devices in complete pools, across all configs.
    pub devices: Gauge,
    /// 1 in the leader.
    pub leader: Gauge,
}

impl Metrics {
    /// Registers the metrics.
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
        // rate() needs a zero to start from, so every series exists from the start.
        for failure in Failure::ALL {
            drop(metrics.errors.get_or_create(&failure.label()));
        }
        for (kind, verb) in writes() {
            drop(metrics.writes.get_or_create(&WriteLabels { kind, verb }));
        }
        let registry = registry.sub_registry_with_prefix("dra_controller");
        registry.register_with_unit(
            "reconcile_duration",
            "How long one reconcile of one DraDriverConfig took",
            Unit::Seconds,
            metrics.duration.clone(),
        );
        registry.register("errors", "Errors, by reason", metrics.errors.clone());
        registry.register("api_writes", "Writes to the API, by kind and verb", metrics.writes.clone());
        registry.register("nodes_ready", "Nodes with a ready plugin", metrics.nodes_ready.clone());
        registry.register(
            "nodes_unhealthy",
            "Nodes past the deadline without a complete pool",
            metrics.nodes_unhealthy.clone(),
        );
        registry.register("devices", "Devices in complete pools", metrics.devices.clone());
        registry.register("leader", "Whether this instance is the leader", metrics.leader.clone());
        metrics
    }

    /// Times one reconcile until the guard is dropped.
    pub fn time(&self) -> Timing<'_> {
        Timing { metrics: self, start: Instant::now() }
    }

    /// Counts one write.
    pub fn wrote(&self, kind: &'static str, verb: Verb) {
        self.writes.get_or_create(&WriteLabels { kind, verb }).inc();
    }

    /// Counts one error.
    pub fn failed(&self, failure: Failure) {
        self.errors.get_or_create(&failure.label()).inc();
    }
}

/// Every kind and verb of write.
fn writes() -> impl Iterator<Item = (&'static str, Verb)> {
    let children = ChildKind::ALL.map(ChildKind::as_str);
    let children = children.into_iter().flat_map(|kind| [Verb::Apply, Verb::Delete].map(|verb| (kind, verb)));
    let others = [
        ("DraDriverConfig", Verb::Status),
        ("DraDriverConfig", Verb::Finalizer),
        ("ResourceSlice", Verb::Delete),
        ("Event", Verb::Event),
    ];
    children.chain(others)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_series_exists_from_the_start_and_counts_from_zero() {
        let mut registry = Registry::default();
        let metrics = Metrics::new(&mut registry);
        let text = || {
            let mut text = String::new();
            prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
            text
        };
        let begun = text();
        for series in [
            r#"dra_controller_errors_total{reason="refused"} 0"#,
            r#"dra_controller_errors_total{reason="invalid_object"} 0"#,
            r#"dra_controller_api_writes_total{kind="DaemonSet",verb="Apply"} 0"#,
            r#"dra_controller_api_writes_total{kind="DraDriverConfig",verb="Status"} 0"#,
            r#"dra_controller_api_writes_total{kind="Event",verb="Event"} 0"#,
        ] {
            assert!(begun.contains(series), "{series} in:\n{begun}");
        }
        for failure in Failure::ALL {
            metrics.failed(failure);
        }
        for (kind, verb) in writes() {
            metrics.wrote(kind, verb);
        }
        assert_eq!(text().lines().count(), begun.lines().count(), "no series came with its first count");
    }
}
