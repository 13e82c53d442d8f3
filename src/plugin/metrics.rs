//! The node plugin's metrics. Pure. Object names are never labels: names come and go, but series stay.

use std::{fmt, time::Duration};

use prometheus_client::{
    encoding::{EncodeLabelSet, EncodeLabelValue},
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::{Registry, Unit},
};

/// The method that the kubelet called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
pub enum Call {
    /// `NodePrepareResources`.
    Prepare,
    /// `NodeUnprepareResources`.
    Unprepare,
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Prepare => "prepare",
            Self::Unprepare => "unprepare",
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CallLabel {
    call: Call,
}

/// The metrics of the kubelet's side.
#[derive(Clone)]
pub struct PluginMetrics {
    durations: Family<CallLabel, Histogram, fn() -> Histogram>,
    errors: Family<CallLabel, Counter>,
    prepared: Gauge,
    /// Writes of ResourceSlices.
    pub slice_writes: Counter,
    /// Failed requests for ResourceSlices.
    pub slice_errors: Counter,
    /// Connections to NRI after the first.
    pub nri_reconnects: Gauge,
    /// 1 while connected to NRI.
    pub nri_connected: Gauge,
    /// 1 in the instance that owns the node's state.
    pub active: Gauge,
}

impl PluginMetrics {
    /// Registers the metrics.
    pub fn new(registry: &mut Registry) -> Self {
        let metrics = Self {
            durations: Family::new_with_constructor(|| {
                Histogram::new([0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0])
            }),
            errors: Family::default(),
            prepared: Gauge::default(),
            slice_writes: Counter::default(),
            slice_errors: Counter::default(),
            nri_reconnects: Gauge::default(),
            nri_connected: Gauge::default(),
            active: Gauge::default(),
        };
        // Create the series at the start, so that an alert sees the first error as an increase.
        for call in [Call::Prepare, Call::Unprepare] {
            drop(metrics.durations.get_or_create(&CallLabel { call }));
            drop(metrics.errors.get_or_create(&CallLabel { call }));
        }
        let registry = registry.sub_registry_with_prefix("dra_node_plugin");
        registry.register_with_unit(
            "claim_call_duration",
            "Time to prepare or unprepare one claim",
            Unit::Seconds,
            metrics.durations.clone(),
        );
        registry.register(
            "claim_call_errors",
            "Claims that could not be prepared or unprepared",
            metrics.errors.clone(),
        );
        registry.register("prepared_claims", "Claims that are prepared now", metrics.prepared.clone());
        registry.register("slice_writes", "Writes of ResourceSlices", metrics.slice_writes.clone());
        registry.register("slice_errors", "Failed ResourceSlice requests", metrics.slice_errors.clone());
        registry.register("nri_reconnects", "Connections to NRI after the first", metrics.nri_reconnects.clone());
        registry.register("nri_connected", "Whether the plugin is connected to NRI", metrics.nri_connected.clone());
        registry.register("active", "Whether this instance owns the node's state", metrics.active.clone());
        metrics
    }

    /// Records the end of a call for one claim.
    pub fn ended(&self, call: Call, took: Duration, well: bool, prepared: usize) {
        self.durations.get_or_create(&CallLabel { call }).observe(took.as_secs_f64());
        if !well {
            self.errors.get_or_create(&CallLabel { call }).inc();
        }
        self.has_prepared(prepared);
    }

    /// Records how many claims are prepared.
    pub fn has_prepared(&self, claims: usize) {
        self.prepared.set(i64::try_from(claims).unwrap_or(i64::MAX));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_series_counts_from_zero() {
        let mut registry = Registry::default();
        PluginMetrics::new(&mut registry).ended(Call::Prepare, Duration::ZERO, false, 1);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        assert!(text.contains("claim_call_errors_total{call=\"Prepare\"} 1"), "{text}");
        assert!(text.contains("claim_call_errors_total{call=\"Unprepare\"} 0"), "{text}");
    }
}
