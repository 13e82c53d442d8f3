//! What the status says: conditions by the kstatus rules, and counts. Pure.
//!
//! Reconciling and Stalled are there only while true. Stalled is for what a person must mend, never for what takes its
//! time: an image that cannot be pulled may be pulled a minute later. The health of devices has a condition of its own and
//! makes nothing else false.

pub mod events;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use crate::{
    api::{
        ClassStatus, DraDriverConfigStatus, NodeCounts,
        conditions::{self, ConditionType, Reason, Stated},
    },
    controller::{
        apply::Failed,
        child::ChildKind,
        config::Config,
        judge::{
            health::SliceHealth,
            rollout::{Progress, Rollout},
            usage::{self, Usage},
        },
        plan::{Block, deletion::Waiting},
        view::{Overlap, placement::SharedNodes},
    },
    policy,
    shorten::more_like_it,
};

/// Enough for what is said of a class; what the API server says may hold all of a long expression.
const LONGEST_CLASS_MESSAGE: usize = 1000;

/// What a status is made from.
#[derive(Clone, Debug)]
pub struct Facts<'a> {
    /// The object, with the status it has.
    pub config: &'a Config,
    /// What the cluster lacks, in words.
    pub lacks: Option<&'a str>,
    /// The older config that it gives way to.
    pub overlap: Option<&'a Overlap>,
    /// What only a person can mend about the children.
    pub blocks: &'a [Block],
    /// Children that somebody deleted and that somebody's finalizers keep, in words.
    pub held: &'a [String],
    /// What could not be written this time.
    pub failures: &'a [Failed],
    /// What the deletion waits for.
    pub deletion: Option<&'a Waiting>,
    /// The roll-out.
    pub rollout: &'a Rollout,
    /// Slice health.
    pub health: &'a SliceHealth,
    /// Counts.
    pub usage: &'a Usage,
    /// Now.
    pub now: Timestamp,
}

/// The status these facts make.
pub fn status(facts: &Facts<'_>) -> DraDriverConfigStatus {
    let generation = facts.config.metadata.generation;
    let before = facts.config.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    let Rollout { desired, ready, .. } = *facts.rollout;
    let mut classes = facts.usage.classes.clone();
    for class in &mut classes {
        let block = facts.blocks.iter().find(|block| {
            let key = block.key();
            key.kind == ChildKind::DeviceClass && key.name == class.name
        });
        if let Some(block) = block {
            class.reason = Some(block_reason(block).as_str().into());
            class.message = Some(block_message(facts, block));
        }
        class.message = class.message.take().map(|message| message.chars().take(LONGEST_CLASS_MESSAGE).collect());
    }
    DraDriverConfigStatus {
        observed_generation: generation,
        conditions: conditions::next(before, stated(facts), generation, facts.now),
        driver_name: Some(facts.config.driver_name.to_string()),
        nodes: Some(NodeCounts {
            desired,
            ready,
            publishing: count(facts.health.publishing),
            unhealthy: count(facts.health.unhealthy),
            summary: format!("{ready}/{desired}"),
        }),
        devices: Some(facts.usage.devices.clone()),
        device_class_count: Some(count(classes.len())),
        device_classes: classes,
        problems: (facts.health.unhealthy > 0).then(|| facts.health.problems.clone()),
    }
}

fn stated(facts: &Facts<'_>) -> Vec<Stated> {
    let stalled = stalled(facts);
    let reconciling = reconciling(facts);
    let ready = match (&stalled, &reconciling) {
        (Some((reason, message)), _) | (None, Some((reason, message))) => (Some(false), *reason, message.clone()),
        (None, None) if facts.rollout.desired == 0 => (
            Some(true),
            Reason::NoNodes,
            "no node is selected: see spec.nodePlugin.nodeSelector and the labels of the nodes".to_owned(),
        ),
        (None, None) => (Some(true), Reason::Serving, serving(facts)),
    };
    let mut all = vec![state(ConditionType::Ready, ready)];
    all.extend(reconciling.map(|(reason, message)| state(ConditionType::Reconciling, (Some(true), reason, message))));
    all.extend(stalled.map(|(reason, message)| state(ConditionType::Stalled, (Some(true), reason, message))));
    all.push(state(ConditionType::ResourcesHealthy, healthy(facts)));
    all.push(state(
        ConditionType::PreflightPassed,
        match facts.lacks {
            Some(lacks) => (Some(false), Reason::DraApiMissing, lacks.to_owned()),
            None => (Some(true), Reason::Passed, "the cluster serves resource.k8s.io/v1".into()),
        },
    ));
    all
}

fn state(type_: ConditionType, (status, reason, message): (Option<bool>, Reason, String)) -> Stated {
    Stated { type_, status, reason, message }
}

fn serving(facts: &Facts<'_>) -> String {
    let Rollout { desired, ready, progress, .. } = facts.rollout;
    let nodes = match progress {
        Progress::Joining(words) => words.clone(),
        _ => format!("{ready} of {desired} nodes run the plugin"),
    };
    // The other classes and the plugin serve: it is said, and makes nothing false.
    let aborts = |class: &&ClassStatus| class.reason.as_deref() == Some(usage::ABORTS_CLAIMS);
    let aborting: Vec<_> = facts.usage.classes.iter().filter(aborts).map(|class| class.name.as_str()).collect();
    match aborting[..] {
        [] => nodes,
        _ => format!(
            "{nodes}; claims of these classes are not allocated, see status.deviceClasses: {}",
            aborting.join(", ")
        ),
    }
}

/// Whether the object is Ready and no fewer nodes serve than did: a node that merely joins changes nothing for those that
/// use the others, until it has taken too long.
fn serves_on(facts: &Facts<'_>) -> bool {
    let Some(before) = &facts.config.status else { return false };
    let was_ready = before.conditions.iter().any(|condition| {
        condition.type_ == ConditionType::Ready.as_str()
            && condition.status == "True"
            && condition.reason == Reason::Serving.as_str()
    });
    was_ready
        && before.observed_generation == facts.config.metadata.generation
        && before.nodes.as_ref().is_some_and(|nodes| nodes.ready <= facts.rollout.ready)
}

/// What a person must mend; the gravest first.
fn stalled(facts: &Facts<'_>) -> Option<(Reason, String)> {
    if let Some(lacks) = facts.lacks {
        return Some((Reason::DraApiMissing, lacks.to_owned()));
    }
    if let Some(overlap) = facts.overlap {
        return Some((Reason::NodeSelectorOverlap, overlap_message(overlap)));
    }
    if let Some(first) = facts.blocks.first() {
        let more = more_like_it(facts.blocks.len());
        return Some((block_reason(first), format!("{}{more}", block_message(facts, first))));
    }
    match &facts.rollout.progress {
        Progress::Halted { needs_person: true, message } => Some((Reason::InvalidImage, message.clone())),
        _ => None,
    }
}

fn block_reason(block: &Block) -> Reason {
    match block {
        Block::NameTaken { .. } => Reason::NameTaken,
        Block::Refused { .. } => Reason::Refused,
        Block::Unbuildable { .. } => Reason::InvalidPolicy,
    }
}

fn block_message(facts: &Facts<'_>, block: &Block) -> String {
    match block {
        Block::NameTaken { key, owner } => {
            format!("{key} is there and belongs to {owner}: rename one of the two, or delete it")
        }
        Block::Refused { key, message } if key.kind == ChildKind::DeviceClass => {
            let config = facts.config;
            let message = policy::in_terms_of_policy(&config.device_classes, &config.driver_name, &key.name, message);
            format!("the API server refuses {key}: {message}")
        }
        Block::Refused { key, message } => format!("the API server refuses {key}: {message}"),
        Block::Unbuildable { key, message } => format!("{key} cannot be made: {message}"),
    }
}

/// What goes on.
fn reconciling(facts: &Facts<'_>) -> Option<(Reason, String)> {
    match facts.deletion {
        Some(Waiting::Claims(words)) => return Some((Reason::WaitingForClaims, words.clone())),
        Some(Waiting::Children(words)) => return Some((Reason::Deleting, words.clone())),
        None if facts.config.metadata.deletion_timestamp.is_some() => {
            return Some((Reason::Deleting, "what was made for it is being deleted".into()));
        }
        None => {}
    }
    if facts.lacks.is_some() || facts.overlap.is_some() {
        return None;
    }
    if let Some(Failed { key, message }) = facts.failures.first() {
        return Some((Reason::Retrying, format!("{key} could not be written, it is tried again: {message}")));
    }
    if let Some(held) = facts.held.first() {
        return Some((Reason::Retrying, format!("{held}; it is made anew once it is gone")));
    }
    match &facts.rollout.progress {
        // The DaemonSet itself may be what is blocked: then nothing goes on.
        Progress::Unobserved if facts.blocks.iter().any(|block| block.key().kind <= ChildKind::DaemonSet) => None,
        Progress::Unobserved => Some((Reason::RollingOut, "the plugin's DaemonSet was just written".into())),
        Progress::Joining(_) if serves_on(facts) => None,
        Progress::Underway(words) | Progress::Joining(words) => Some((Reason::RollingOut, words.clone())),
        Progress::Halted { needs_person: false, message } => Some((Reason::RolloutBlocked, message.clone())),
        Progress::Halted { needs_person: true, .. } | Progress::Done => None,
    }
}

fn healthy(facts: &Facts<'_>) -> (Option<bool>, Reason, String) {
    let SliceHealth { publishing, unhealthy, pending, problems, .. } = facts.health;
    if *unhealthy > 0 {
        let first = problems.first.first();
        let words = first.map_or_else(String::new, |p| format!(", first {}: {}: {}", p.node, p.reason, p.message));
        return (
            Some(false),
            Reason::NodesUnhealthy,
            format!("{} without a good pool of devices{words}", nodes(count(*unhealthy))),
        );
    }
    if *pending > 0 {
        return (None, Reason::Publishing, format!("{} still to publish devices", nodes(count(*pending))));
    }
    if facts.rollout.desired == 0 {
        return match facts.rollout.progress {
            Progress::Done => (Some(true), Reason::NoNodes, "no node is selected".into()),
            _ => (None, Reason::Publishing, "the plugin has not been rolled out yet".into()),
        };
    }
    if count(*publishing) < facts.rollout.desired {
        let words = format!("{publishing} of {} with a complete pool of devices", nodes(facts.rollout.desired));
        return (None, Reason::Publishing, words);
    }
    let words = format!("{} with a complete pool of devices{}", nodes(count(*publishing)), full(facts));
    (Some(true), Reason::Healthy, words)
}

/// What it means for others that claims hold every device of some nodes.
fn full(facts: &Facts<'_>) -> String {
    let full = &facts.usage.full;
    let (Some(first), Some(consequence)) = (full.first(), facts.config.kind.when_all_held()) else {
        return String::new();
    };
    format!("; claims hold every device on {} (such as {first}): {consequence}", nodes(count(full.len())))
}

fn nodes(count: i32) -> String {
    format!("{count} node{}", if count == 1 { "" } else { "s" })
}

fn count(number: usize) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}

fn without_words_of_health(mut condition: Condition) -> Condition {
    if condition.type_ == ConditionType::ResourcesHealthy.as_str() && condition.status == "True" {
        condition.message.clear();
    }
    condition
}

/// Whether two statuses say the same and only count differently.
pub fn only_counts_differ(before: &DraDriverConfigStatus, after: &DraDriverConfigStatus) -> bool {
    let said = |status: &DraDriverConfigStatus| DraDriverConfigStatus {
        nodes: None,
        devices: None,
        // Its words are about counts too.
        conditions: status.conditions.iter().cloned().map(without_words_of_health).collect(),
        device_classes: status
            .device_classes
            .iter()
            .map(|class| ClassStatus {
                name: class.name.clone(),
                reason: class.reason.clone(),
                message: class.message.clone(),
                ..ClassStatus::default()
            })
            .collect(),
        ..status.clone()
    };
    said(before) == said(after)
}

/// Names the older config, and what to do. Another driver name would not help, so it is not offered.
fn overlap_message(Overlap { older, driver, shared }: &Overlap) -> String {
    let shared = match shared {
        SharedNodes::Node(node) => format!("both select node {node}"),
        SharedNodes::EveryNodeOfOne => "one selects every node that the other selects".into(),
    };
    format!(
        "the older DraDriverConfig {older} gives out the same devices as driver {driver}, and {shared}: give one of them a spec.nodePlugin.nodeSelector that shares no node with the other, or delete one"
    )
}

/// The status of an object that the API server took and that cannot be read all the same.
pub fn invalid(
    before: &DraDriverConfigStatus,
    generation: Option<i64>,
    error: &str,
    now: Timestamp,
) -> DraDriverConfigStatus {
    let message = format!("the object cannot be read: {error}; nothing made for it is changed until it is mended");
    let stated = [(ConditionType::Ready, false), (ConditionType::Stalled, true)]
        .map(|(type_, status)| state(type_, (Some(status), Reason::InvalidObject, message.clone())));
    DraDriverConfigStatus {
        observed_generation: generation,
        conditions: conditions::next(&before.conditions, stated.into(), generation, now),
        ..before.clone()
    }
}

#[cfg(test)]
mod tests;
