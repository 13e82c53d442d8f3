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
