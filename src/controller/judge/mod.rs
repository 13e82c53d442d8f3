//! What is true of a config's plugin and devices now. Pure.

pub mod health;
pub mod rollout;
pub mod unready;
pub mod usage;

use std::{
    collections::{HashMap, hash_map::DefaultHasher},
    hash::{Hash, Hasher},
    sync::Arc,
};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::resource::v1::DeviceClassSpec;

use self::{
    health::{Before, Podless, SliceHealth, Unwell},
    rollout::{Patience, Rollout},
    usage::{ABORTS_CLAIMS, MATCHES_NOTHING, NOT_COUNTED, NOT_MADE, Usage},
};
use super::{
    build,
    child::ChildKind,
    config::Config,
    observe::{ClaimFacts, Live},
    view::View,
};
use crate::{
    policy::preview::{MatchError, Matcher, why_nothing},
    slices::pool::Pool,
};

/// What is true of the config's plugin and devices now.
pub(super) struct Judged {
    pub(super) rollout: Rollout,
    pub(super) health: SliceHealth,
    pub(super) usage: Usage,
}

impl Judged {
    /// When a node or a pod that is waited for will have taken too long.
    pub(super) fn next_deadline(&self) -> Option<Timestamp> {
        self.health.next_deadline.into_iter().chain(self.rollout.next_deadline).min()
    }
}

/// The plugin's DaemonSet among `children`.
pub(super) fn daemon_set<'a>(config: &Config, children: &'a [Live]) -> Option<&'a Live> {
    let name = build::plugin_name(config);
    let is_it = |live: &&Live| live.key.kind == ChildKind::DaemonSet && live.key.name == name && live.is_of(config);
    children.iter().find(is_it)
}

/// What is remembered between two judgements of one config; lost with the process.
#[derive(Debug, Default)]
pub struct Memory {
    /// Since when each node that is not well is so; none before the first judgement.
    unwell: Option<Unwell>,
    /// The classes' matchers by their specs' hashes: they remember their answers.
    matchers: HashMap<u64, Arc<Matcher>>,
}

/// What is judged.
#[derive(Clone, Copy)]
pub(super) struct Seen<'a> {
    /// The children as they are live.
    pub(super) children: &'a [Live],
    /// Every claim.
    pub(super) claims: &'a [ClaimFacts],
    /// The config's part of the cluster.
    pub(super) view: &'a View<'a>,
    /// What the API server said to an attempt to make a pod.
    pub(super) refusal: Option<&'a str>,
}

/// Judges the children, the pods, the pools and the claims.
pub(super) fn judge(config: &Config, seen: Seen<'_>, memory: &mut Memory, now: Timestamp) -> Judged {
    let Seen { children, claims, view, refusal } = seen;
    let daemon_set = daemon_set(config, children);
    let missing = rollout::missing(daemon_set, &view.pods);
    let podless = Podless { nodes: &view.bare[..missing.min(view.bare.len())], why: refusal };
    let pools = view.pools();
    let pools: Vec<_> = pools.iter().filter(|pool| is_served(pool, view)).collect();
    let problems = config.status.as_ref().and_then(|status| status.problems.as_ref()).map(|problems| &problems.first);
    let before = Before { unwell: memory.unwell.as_ref(), problems: problems.map(Vec::as_slice).unwrap_or_default() };
    let deadline = config.publish_deadline;
    let seen =
        health::Seen { pods: &view.pods, podless, nodes: &view.nodes, pools: &pools, kind: config.kind.as_ref() };
    let health = health::judge(&seen, before, deadline, now);
    let patience = Patience {
        deadline: SignedDuration::try_from(deadline).unwrap_or(SignedDuration::MAX),
        podless: podless.nodes.iter().filter_map(|node| Some((*node, *health.unwell.get(*node)?))).collect(),
        now,
    };
    let rollout = rollout::judge(daemon_set, &view.pods, &view.nodes, refusal, &patience);
    let matchers = matchers(config, children, &mut memory.matchers);
    let names: Vec<_> = config.device_classes.iter().map(|class| class.name.as_str()).collect();
    let driver: &str = &config.driver_name;
    let mut usage = usage::count(driver, &pools, claims, &names, |class, device| {
        let Some(matcher) = matchers.get(class) else {
            return Err((NOT_MADE, "the cluster has no such DeviceClass yet".into()));
        };
        matcher.matches(driver, device).map_err(|error| {
            let reason = match error {
                MatchError::Unknown(_) => NOT_COUNTED,
                MatchError::Aborts(_) => ABORTS_CLAIMS,
            };
            (reason, format!("{error} (device {})", device.name))
        })
    });
    let devices: Vec<_> = pools.iter().filter(|pool| pool.is_complete()).flat_map(|pool| pool.devices()).collect();
    for (class, policy) in usage.classes.iter_mut().zip(&config.device_classes) {
        if class.devices == 0 && class.reason.is_none() && !devices.is_empty() {
            class.reason = Some(MATCHES_NOTHING.into());
            class.message = Some(why_nothing(policy, driver, &devices));
        }
    }
    if config.kind.when_all_held().is_none() {
        usage.full.clear();
    }
    usage.full.retain(|node| view.pods.iter().any(|pod| pod.node == *node));
    memory.unwell = Some(health.unwell.clone());
    Judged { rollout, health, usage }
}

/// Whether a pool counts for the config: where it gives way to an older one, only with a plugin of its own on the node.
fn is_served(pool: &Pool<'_>, view: &View<'_>) -> bool {
    view.overlap.is_none() || view.pods.iter().any(|pod| pool.node() == Some(&pod.node))
}

/// A matcher for each class that is there, kept while the class stays as it is: it remembers its answers. What a class
/// wants to be may be what the API server refuses, for one because it takes too long to evaluate.
fn matchers(
    config: &Config,
    children: &[Live],
    kept: &mut HashMap<u64, Arc<Matcher>>,
) -> HashMap<String, Arc<Matcher>> {
    let mut current = HashMap::new();
    let mut by_name = HashMap::new();
    for live in children.iter().filter(|live| live.key.kind == ChildKind::DeviceClass && live.is_of(config)) {
        let spec = live.object.get("spec").cloned().unwrap_or_default();
        let mut hasher = DefaultHasher::new();
        spec.to_string().hash(&mut hasher);
        let Ok(class) = serde_json::from_value::<DeviceClassSpec>(spec) else { continue };
        let hash = hasher.finish();
        let matcher = kept.get(&hash).cloned().unwrap_or_else(|| Arc::new(Matcher::new(&class)));
        current.insert(hash, Arc::clone(&matcher));
        by_name.insert(live.key.name.clone(), matcher);
    }
    *kept = current;
    by_name
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use serde_json::json;

    use super::*;
    use crate::{
        controller::{
            build::Settings,
            observe::{Held, PluginPod},
            testing::{at, mk_config, mk_live, mk_node, mk_pod, mk_slice},
            view::Snapshot,
        },
        slices::device::Hold,
    };

    fn live(config: &Config) -> Vec<Live> {
        let settings = Settings { namespace: "ns".into(), image: "i".into(), ..Settings::default() };
        build::children(config, &settings).children.iter().map(|child| mk_live(config, child)).collect()
    }

    #[test]
    fn a_class_is_counted_as_it_is_in_the_cluster_and_not_before_it_is_there() {
        let classes = |cores: &str| {
            mk_config(
                "cpu",
                &json!({"deviceClasses": [{"name": "a", "selectors": [cores]}, {"name": "b", "selectors": ["true"]}]}),
            )
        };
        let snapshot = Snapshot { slices: vec![Arc::new(mk_slice("n", 1, 1, &["d"]))], ..Snapshot::default() };
        let mut there = live(&classes("true"));
        // Refused as it is wanted: what it was before is still there. The other could not be made at all.
        there.retain(|live| live.key.name != "b");
        let wanted = classes("false");
        let view = View::new(&wanted, &snapshot);
        let seen = Seen { children: &there, claims: &[], view: &view, refusal: None };
        let usage = judge(&wanted, seen, &mut Memory::default(), at(0)).usage;
        let counted: Vec<_> = usage.classes.iter().map(|class| (class.devices, class.reason.as_deref())).collect();
        assert_eq!(counted, [(1, None), (0, Some("NotMade"))]);
    }

    #[test]
    fn a_class_that_matches_nothing_or_aborts_claims_says_what_of_it_does() {
        let config = mk_config(
            "cpu",
            &json!({"deviceClasses": [
                {"name": "a", "matchAttributes": [{"key": "coers", "operator": "Exists"}]},
                {"name": "b", "selectors": ["device.attributes[\"dra.cpu\"].coers > 3"]},
            ]}),
        );
        let snapshot = Snapshot { slices: vec![Arc::new(mk_slice("n", 1, 1, &["d"]))], ..Snapshot::default() };
        let there = live(&config);
        let view = View::new(&config, &snapshot);
        let seen = Seen { children: &there, claims: &[], view: &view, refusal: None };
        let usage = judge(&config, seen, &mut Memory::default(), at(0)).usage;
        let reasons: Vec<_> = usage.classes.iter().map(|class| class.reason.as_deref()).collect();
        assert_eq!(reasons, [Some("MatchesNothing"), Some("AbortsClaims")]);
        let said = |class: usize| usage.classes[class].message.as_deref().unwrap();
        assert_eq!(said(0), "matchAttributes[0]: no device has the attribute dra.cpu/coers");
        assert!(said(1).contains("coers") && said(1).contains("device d"), "{}", said(1));
    }

    #[test]
    fn a_node_whose_every_cpu_is_claimed_is_known_where_nothing_is_reserved() {
        let claims = ["n", "sim"].map(|node| ClaimFacts {
            namespace: "ns".into(),
            name: "c".into(),
            node: Some(node.into()),
            devices: vec![Held { driver: "dra.cpu".into(), pool: node.into(), device: "d".into(), hold: Hold::Whole }],
        });
        let full = |cpu: &serde_json::Value| {
            let config = mk_config("cpu", &json!({"driver": {"cpu": cpu}}));
            let snapshot = Snapshot {
                slices: ["n", "sim"].map(|node| Arc::new(mk_slice(node, 1, 1, &["d"]))).into(),
                pods: vec![mk_pod("n", true)],
                nodes: vec![mk_node("n"), mk_node("sim")],
                ..Snapshot::default()
            };
            let view = View::new(&config, &snapshot);
            let seen = Seen { children: &[], claims: &claims, view: &view, refusal: None };
            judge(&config, seen, &mut Memory::default(), at(0)).usage.full
        };
        assert_eq!(full(&json!({})), ["n"], "where no plugin runs nothing is pinned");
        assert_eq!(full(&json!({"reservedCPUs": "0"})), [""; 0]);
        assert_eq!(full(&json!({"pinning": "None"})), [""; 0]);
    }

    #[test]
    fn a_config_that_gives_way_counts_what_its_own_plugin_serves() {
        let (old, young) = (mk_config("a", &json!({})), mk_config("b", &json!({})));
        let snapshot = Snapshot {
            configs: vec![Arc::new(old), Arc::new(young.clone())],
            nodes: vec![mk_node("n"), mk_node("m")],
            pods: vec![PluginPod { config: "b".into(), ..mk_pod("n", true) }],
            slices: ["n", "m"].map(|node| Arc::new(mk_slice(node, 1, 1, &["core-0-0"]))).into(),
            ..Snapshot::default()
        };
        let view = View::new(&young, &snapshot);
        let seen = Seen { children: &[], claims: &[], view: &view, refusal: None };
        assert_eq!(judge(&young, seen, &mut Memory::default(), at(0)).usage.devices.total, 1);
    }

    #[test]
    fn devices_that_an_older_config_serves_are_counted_there_alone() {
        let (old, young) = (mk_config("a", &json!({})), mk_config("b", &json!({})));
        let snapshot = Snapshot {
            configs: vec![Arc::new(old.clone()), Arc::new(young.clone())],
            nodes: vec![mk_node("n")],
            slices: vec![Arc::new(mk_slice("n", 1, 1, &["core-0-0"]))],
            ..Snapshot::default()
        };
        let counted = |config: &Config| {
            let view = View::new(config, &snapshot);
            let seen = Seen { children: &[], claims: &[], view: &view, refusal: None };
            judge(config, seen, &mut Memory::default(), at(0)).usage.devices.total
        };
        assert_eq!((counted(&old), counted(&young)), (1, 0));
    }

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
        let mut memory = Memory::default();
        let children = live(&config);
        let start = Instant::now();
        let view = View::new(&config, &snapshot);
        let seen = Seen { children: &children, claims: &[], view: &view, refusal: None };
        let judged = judge(&config, seen, &mut memory, at(0));
        assert_eq!((judged.health.publishing, judged.usage.devices.total), (1000, 64_000));
        // An unoptimised build on a busy machine; an optimised one takes a tenth.
        assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
    }
}
