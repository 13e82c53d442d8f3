//! Judges the state of a config's plugin and devices. Pure.

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
    rollout::{DaemonSet, Patience, Rollout},
    usage::{Uncounted, Usage},
};
use super::{
    build,
    child::ChildKind,
    config::Config,
    observe::{ClaimFacts, Live},
    view::View,
};
use crate::{
    api::ClassReason,
    policy::preview::{MatchError, Matcher, why_nothing},
    slices::pool::Pool,
};

/// The state of the config's plugin and devices.
pub(super) struct Judged {
    pub(super) rollout: Rollout,
    pub(super) health: SliceHealth,
    pub(super) usage: Usage,
}

impl Judged {
    /// When the next node or pod passes its deadline.
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

/// What is remembered between judgements of one config; lost when the process ends.
#[derive(Debug, Default)]
pub struct Memory {
    /// When each unhealthy node became unhealthy; `None` before the first judgement.
    unwell: Option<Unwell>,
    /// The classes' matchers, which cache their answers, by the hash of the class spec.
    matchers: HashMap<u64, Arc<Matcher>>,
}

/// The input of a judgement.
#[derive(Clone, Copy)]
pub(super) struct Seen<'a> {
    /// The live children.
    pub(super) children: &'a [Live],
    /// Every claim.
    pub(super) claims: &'a [ClaimFacts],
    /// The config's view of the cluster.
    pub(super) view: &'a View<'a>,
    /// Why the API server rejected an attempt to create a pod.
    pub(super) refusal: Option<&'a str>,
}

/// Judges the children, the pods, the pools and the claims.
pub(super) fn judge(config: &Config, seen: Seen<'_>, memory: &mut Memory, now: Timestamp) -> Judged {
    let Seen { children, claims, view, refusal } = seen;
    let pools = view.pools();
    let pools: Vec<_> = pools.iter().filter(|pool| is_served(pool, view)).collect();

    // The DaemonSet only counts the nodes that lack a pod. Guess which ones they are, starting with those without
    // taints.
    let daemon_set = DaemonSet::of(daemon_set(config, children));
    let missing = daemon_set.missing(&view.pods);
    let podless = Podless { nodes: &view.bare[..missing.min(view.bare.len())], why: refusal };

    // Health continues from the last judgement or, after a restart, from the status.
    let problems = config.status.as_ref().and_then(|status| status.problems.as_ref()).map(|problems| &problems.first);
    let before = Before { unwell: memory.unwell.as_ref(), problems: problems.map(Vec::as_slice).unwrap_or_default() };
    let deadline = config.publish_deadline;
    let seen =
        health::Seen { pods: &view.pods, podless, nodes: &view.nodes, pools: &pools, kind: config.kind.as_ref() };
    let health = health::judge(&seen, before, deadline, now);
    memory.unwell = Some(health.unwell.clone());

    // The rollout. Health knows how long a node has been without a pod.
    let patience = Patience {
        deadline: SignedDuration::try_from(deadline).unwrap_or(SignedDuration::MAX),
        podless: podless.nodes.iter().filter_map(|node| Some((*node, *health.unwell.get(*node)?))).collect(),
        now,
    };
    let seen = rollout::Seen { daemon_set: &daemon_set, missing, pods: &view.pods, nodes: &view.nodes, refusal };
    let rollout = rollout::judge(&seen, &patience);

    // Usage.
    let matchers = matchers(config, children, &mut memory.matchers);
    let mut usage = count(config, &pools, claims, &matchers);
    explain_empty_classes(config, &pools, &mut usage);

    // A full node matters only if its plugin pins claims, which takes CPUs away from containers without one.
    let is_pinned = |node: &String| view.pods.iter().any(|pod| pod.node == *node);
    usage.full.retain(|node| config.kind.when_all_held().is_some() && is_pinned(node));

    Judged { rollout, health, usage }
}

/// Counts devices, with the classes as they are in the cluster.
fn count(
    config: &Config,
    pools: &[&Pool<'_>],
    claims: &[ClaimFacts],
    matchers: &HashMap<String, Arc<Matcher>>,
) -> Usage {
    let driver: &str = &config.driver_name;
    let names: Vec<_> = config.device_classes.iter().map(|class| class.name.as_str()).collect();
    usage::count(driver, pools, claims, &names, |class, device| {
        let Some(matcher) = matchers.get(class) else {
            let message = "the DeviceClass does not exist in the cluster yet".into();
            return Err(Uncounted { reason: ClassReason::NotMade, message });
        };
        matcher.matches(driver, device).map_err(|error| Uncounted {
            reason: match error {
                MatchError::Unknown(_) => ClassReason::NotCounted,
                MatchError::Aborts(_) => ClassReason::AbortsClaims,
            },
            message: format!("{error} (device {})", device.name),
        })
    })
}

/// Explains for each class without devices which part of its policy rules them all out. Before any device is published
/// there is nothing to explain.
fn explain_empty_classes(config: &Config, pools: &[&Pool<'_>], usage: &mut Usage) {
    let devices: Vec<_> = pools.iter().filter(|pool| pool.is_complete()).flat_map(|pool| pool.devices()).collect();
    for (class, policy) in usage.classes.iter_mut().zip(&config.device_classes) {
        if class.devices == 0 && class.reason.is_none() && !devices.is_empty() {
            class.reason = Some(ClassReason::MatchesNothing.as_str().into());
            class.message = Some(why_nothing(policy, &config.driver_name, &devices));
        }
    }
}

/// Whether a pool counts for the config. If the config gives way to an older one, its own plugin must run on the node.
fn is_served(pool: &Pool<'_>, view: &View<'_>) -> bool {
    view.overlap.is_none() || view.pods.iter().any(|pod| pool.node() == Some(&pod.node))
}

/// A matcher for each class in the cluster. It caches answers, so it is kept while the class stays the same. The wanted
/// class is not used, because the API server may reject it, for example because it is too costly to evaluate.
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
    fn a_class_is_counted_as_it_is_in_the_cluster_and_not_before_it_exists() {
        let classes = |cores: &str| {
            mk_config(
                "cpu",
                &json!({"deviceClasses": [{"name": "a", "selectors": [cores]}, {"name": "b", "selectors": ["true"]}]}),
            )
        };
        let snapshot = Snapshot { slices: vec![Arc::new(mk_slice("n", 1, 1, &["d"]))], ..Snapshot::default() };
        let mut there = live(&classes("true"));
        // The API server rejected the new version of a, so the old one is still there. It never accepted b.
        there.retain(|live| live.key.name != "b");
        let wanted = classes("false");
        let view = View::new(&wanted, &snapshot);
        let seen = Seen { children: &there, claims: &[], view: &view, refusal: None };
        let usage = judge(&wanted, seen, &mut Memory::default(), at(0)).usage;
        let counted: Vec<_> = usage.classes.iter().map(|class| (class.devices, class.reason.as_deref())).collect();
        assert_eq!(counted, [(1, None), (0, Some("NotMade"))]);
    }

    #[test]
    fn a_class_that_matches_nothing_or_aborts_claims_says_which_part_of_it_does() {
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
    fn a_node_whose_cpus_are_all_claimed_is_reported_if_none_are_reserved() {
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
        assert_eq!(full(&json!({})), ["n"], "without a plugin nothing is pinned");
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
    fn devices_that_an_older_config_serves_are_counted_only_there() {
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
    fn an_unchanged_class_keeps_its_matcher_and_its_cached_answers() {
        let class = |name: &str, cores: i64| json!({"name": name, "matchAttributes": [{"key": "cores", "operator": "Gte", "value": cores}]});
        let config = mk_config("cpu", &json!({"deviceClasses": [class("a", 4), class("b", 8)]}));
        let snapshot = Snapshot { slices: vec![Arc::new(mk_slice("n", 1, 1, &["d"]))], ..Snapshot::default() };
        let view = View::new(&config, &snapshot);
        let mut memory = Memory::default();
        let mut judged_with = |children: &[Live]| {
            judge(&config, Seen { children, claims: &[], view: &view, refusal: None }, &mut memory, at(0));
            memory.matchers.clone()
        };

        let before = judged_with(&live(&config));
        let changed = mk_config("cpu", &json!({"deviceClasses": [class("a", 4), class("b", 16)]}));
        let after = judged_with(&live(&changed));
        let kept: Vec<_> = after.iter().filter(|(hash, _)| before.contains_key(hash)).collect();
        assert_eq!((before.len(), after.len(), kept.len()), (2, 2, 1), "one is new, and the old one is forgotten");
        assert!(kept.iter().all(|(hash, matcher)| Arc::ptr_eq(matcher, &before[hash])));
    }
}
