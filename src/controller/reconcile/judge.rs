//! What is true of a config's plugin and devices now. Pure.

use std::{
    collections::{HashMap, hash_map::DefaultHasher},
    hash::{Hash, Hasher},
    sync::Arc,
};

use jiff::Timestamp;
use k8s_openapi::api::resource::v1::DeviceClassSpec;

use super::memory::{Counted, Remembered};
use crate::{
    api::DraDriverConfig,
    controller::{
        build::{self, Desired},
        child::ChildKind,
        health::{self, Before, Health},
        observe::Live,
        rollout::{self, Rollout},
        usage::{self, Usage},
        view::{Snapshot, View},
    },
    policy::preview::{MatchError, Matcher},
};

/// What is true of the config's plugin and devices now.
pub(super) struct Judged {
    pub(super) rollout: Rollout,
    pub(super) health: Health,
    pub(super) usage: Usage,
}

/// Judges `children` as they are live, the pods, the pools and the claims.
pub(super) fn judge(
    config: &DraDriverConfig,
    desired: &Desired,
    children: &[Live],
    snapshot: &Snapshot,
    view: &View<'_>,
    memory: &mut Remembered,
    now: Timestamp,
) -> Judged {
    let daemon_set = children
        .iter()
        .find(|live| live.key.kind == ChildKind::DaemonSet && live.key.name == build::plugin_name(config));
    let rollout = rollout::judge(daemon_set.filter(|live| live.is_of(config)), &view.pods, &view.nodes);
    let pools = view.pools();
    let pools: Vec<_> = pools.iter().collect();
    let problems = config.status.as_ref().and_then(|status| status.problems.as_ref()).map(|problems| &problems.first);
    let before = Before { unwell: memory.unwell.as_ref(), problems: problems.map(Vec::as_slice).unwrap_or_default() };
    let deadline = config.spec.health().publish_deadline();
    let health = health::judge(&view.pods, &view.nodes, &pools, deadline, before, now);
    let matchers = matchers(desired, &mut memory.matchers);
    let names: Vec<_> = config.spec.device_classes.iter().map(|class| class.name.as_str()).collect();
    let driver = config.spec.driver_name();
    let usage = usage::count(driver, &pools, &snapshot.claims, &names, |class, device| {
        let Some(matcher) = matchers.get(class) else { return Ok(false) };
        matcher.matches(driver, device).map_err(|error| match error {
            MatchError::Unknown(_) => "NotCounted",
            MatchError::Aborts(_) => "AbortsClaims",
        })
    });
    memory.counted = Counted {
        ready: rollout.ready.into(),
        unhealthy: i64::try_from(health.unhealthy).unwrap_or(i64::MAX),
        devices: usage.devices.total.into(),
    };
    Judged { rollout, health, usage }
}

/// A matcher for each class, kept while the class stays as it is: it remembers its answers.
fn matchers(desired: &Desired, kept: &mut HashMap<u64, Arc<Matcher>>) -> HashMap<String, Arc<Matcher>> {
    let mut current = HashMap::new();
    let mut by_name = HashMap::new();
    for child in desired.children.iter().filter(|child| child.key.kind == ChildKind::DeviceClass) {
        let spec = child.object.get("spec").cloned().unwrap_or_default();
        let mut hasher = DefaultHasher::new();
        spec.to_string().hash(&mut hasher);
        let Ok(class) = serde_json::from_value::<DeviceClassSpec>(spec) else { continue };
        let hash = hasher.finish();
        let matcher = kept.get(&hash).cloned().unwrap_or_else(|| Arc::new(Matcher::new(&class)));
        current.insert(hash, Arc::clone(&matcher));
        by_name.insert(child.key.name.clone(), matcher);
    }
    *kept = current;
    by_name
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use serde_json::json;

    use super::*;
    use crate::controller::{
        build::Settings,
        testing::{at, mk_config, mk_node, mk_pod, mk_slice},
    };

    #[test]
    fn a_thousand_nodes_are_judged_in_a_moment() {
        let config = mk_config(
            "cpu",
            &json!({"deviceClasses": [
                {"name": "a", "preset": "HighPerformance"}, {"name": "b", "preset": "GeneralPurpose"}, {"name": "c", "preset": "Intel"},
            ]}),
        );
        let names: Vec<_> = (0..1000).map(|n| format!("node-{n}")).collect();
        let devices: Vec<_> = (0..64).map(|n| format!("core-0-{n}")).collect();
        let devices: Vec<_> = devices.iter().map(String::as_str).collect();
        let snapshot = Snapshot {
            slices: names.iter().map(|name| Arc::new(mk_slice(name, 1, 1, &devices))).collect(),
            pods: names.iter().map(|name| mk_pod(name, true)).collect(),
            nodes: names.iter().map(|name| mk_node(name)).collect(),
            ..Snapshot::default()
        };
        let desired = build::children(&config, &Settings { namespace: "ns".into(), image: "i".into() });
        let mut memory = Remembered::default();
        let start = Instant::now();
        let view = View::new(&config, &snapshot);
        let judged = judge(&config, &desired, &[], &snapshot, &view, &mut memory, at(0));
        assert_eq!((judged.health.publishing, judged.usage.devices.total), (1000, 64_000));
        // An unoptimised build on a busy machine; an optimised one takes a tenth.
        assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
    }
}
