//! Builds the status: conditions according to the kstatus rules, and counts. Pure.
//!
//! Reconciling and Stalled exist only while true. Stalled means that someone has to fix something, never that something
//! only takes time: an image that cannot be pulled now may be pulled a minute later. The health of devices has its own
//! condition and makes no other condition false.

pub mod events;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use crate::{
    api::{
        ClassReason, ClassStatus, DraDriverConfigStatus, NodeCounts,
        conditions::{self, Cause, ConditionStatus, ConditionType, Reason, Stated},
    },
    controller::{
        apply::Failed,
        child::ChildKind,
        config::Config,
        judge::{
            health::SliceHealth,
            rollout::{Progress, Rollout},
            usage::Usage,
        },
        plan::{Block, deletion::Waiting},
        view::{Overlap, placement::SharedNodes},
    },
    policy,
    shorten::more_like_it,
};

/// Maximum length of a message about a class. The API server's messages may quote a long expression in full.
const LONGEST_CLASS_MESSAGE: usize = 1000;

/// What a status is computed from.
#[derive(Clone, Debug)]
pub struct Inputs<'a> {
    /// The object, with its current status.
    pub config: &'a Config,
    /// What the cluster lacks, as a message.
    pub missing_api: Option<&'a str>,
    /// The older config that it gives way to.
    pub overlap: Option<&'a Overlap>,
    /// What someone has to fix about the children.
    pub blocks: &'a [Block],
    /// Messages about deleted children that finalizers keep.
    pub held: &'a [String],
    /// The writes that failed.
    pub failures: &'a [Failed],
    /// What the deletion waits for.
    pub deletion: Option<&'a Waiting>,
    /// The rollout.
    pub rollout: &'a Rollout,
    /// Slice health.
    pub health: &'a SliceHealth,
    /// Counts.
    pub usage: &'a Usage,
    /// Now.
    pub now: Timestamp,
}

/// The status for these inputs.
pub fn status(inputs: &Inputs<'_>) -> DraDriverConfigStatus {
    let generation = inputs.config.metadata.generation;
    let before = inputs.config.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    let Rollout { desired, ready, .. } = *inputs.rollout;
    let classes = classes(inputs);

    DraDriverConfigStatus {
        observed_generation: generation,
        conditions: conditions::next(before, stated(inputs), generation, inputs.now),
        driver_name: Some(inputs.config.driver_name.to_string()),
        nodes: Some(NodeCounts {
            desired,
            ready,
            publishing: count(inputs.health.publishing),
            unhealthy: count(inputs.health.unhealthy),
            summary: format!("{ready}/{desired}"),
        }),
        devices: Some(inputs.usage.devices.clone()),
        device_class_count: Some(count(classes.len())),
        device_classes: classes,
        problems: (inputs.health.unhealthy > 0).then(|| inputs.health.problems.clone()),
    }
}

/// The classes with their counts. A block is more important than what the class matches.
fn classes(inputs: &Inputs<'_>) -> Vec<ClassStatus> {
    let mut classes = inputs.usage.classes.clone();
    for class in &mut classes {
        let is_of_class = |block: &&Block| {
            let key = block.key();
            key.kind == ChildKind::DeviceClass && key.name == class.name
        };
        if let Some(block) = inputs.blocks.iter().find(is_of_class) {
            let Cause { reason, message } = blocked(inputs, block);
            class.reason = Some(reason.as_str().into());
            class.message = Some(message);
        }
        class.message = class.message.take().map(|message| message.chars().take(LONGEST_CLASS_MESSAGE).collect());
    }
    classes
}

fn stated(inputs: &Inputs<'_>) -> Vec<Stated> {
    let stalled = stalled(inputs);
    let reconciling = reconciling(inputs);

    // If not true, Ready gives the most serious reason.
    let (is_ready, cause) = match (&stalled, &reconciling) {
        (Some(cause), _) | (None, Some(cause)) => (ConditionStatus::False, cause.clone()),
        (None, None) => (ConditionStatus::True, serving(inputs)),
    };
    let mut all = vec![Stated { type_: ConditionType::Ready, status: is_ready, cause }];

    // By the kstatus rules, these two exist only while true.
    for (type_, cause) in [(ConditionType::Reconciling, reconciling), (ConditionType::Stalled, stalled)] {
        all.extend(cause.map(|cause| Stated { type_, status: ConditionStatus::True, cause }));
    }

    all.push(healthy(inputs));
    all.push(preflight(inputs.missing_api));
    all
}

fn preflight(missing_api: Option<&str>) -> Stated {
    let (status, cause) = match missing_api {
        Some(missing) => (ConditionStatus::False, Cause::new(Reason::DraApiMissing, missing)),
        None => (ConditionStatus::True, Cause::new(Reason::Passed, "the cluster serves resource.k8s.io/v1")),
    };
    Stated { type_: ConditionType::PreflightPassed, status, cause }
}

/// Why the object is ready.
fn serving(inputs: &Inputs<'_>) -> Cause {
    let Rollout { desired, ready, progress, .. } = inputs.rollout;
    if *desired == 0 {
        let message = "no node is selected: check spec.nodePlugin.nodeSelector and affinity against the nodes' labels";
        return Cause::new(Reason::NoNodes, message);
    }
    let nodes = match progress {
        Progress::Joining(words) => words.clone(),
        _ => format!("{ready} of {desired} nodes run the plugin"),
    };

    // The other classes and the plugin work, so this makes no condition false.
    let aborting = inputs.usage.classes.iter().filter(|class| ClassReason::AbortsClaims.is_of(class));
    let aborting: Vec<_> = aborting.map(|class| class.name.as_str()).collect();
    let message = match aborting[..] {
        [] => nodes,
        _ => format!(
            "{nodes}; claims for these classes cannot be allocated (see status.deviceClasses): {}",
            aborting.join(", ")
        ),
    };
    Cause::new(Reason::Serving, message)
}

/// Whether the object is Ready and no fewer nodes serve than before. A joining node does not affect users of the other
/// nodes, until it exceeds its deadline.
fn serves_on(inputs: &Inputs<'_>) -> bool {
    let Some(before) = &inputs.config.status else { return false };
    let was_ready = before.conditions.iter().any(|condition| {
        condition.type_ == ConditionType::Ready.as_str()
            && condition.status == "True"
            && condition.reason == Reason::Serving.as_str()
    });
    was_ready
        && before.observed_generation == inputs.config.metadata.generation
        && before.nodes.as_ref().is_some_and(|nodes| nodes.ready <= inputs.rollout.ready)
}

/// What someone has to fix, most serious first.
fn stalled(inputs: &Inputs<'_>) -> Option<Cause> {
    if let Some(missing) = inputs.missing_api {
        return Some(Cause::new(Reason::DraApiMissing, missing));
    }
    if let Some(overlap) = inputs.overlap {
        return Some(Cause::new(Reason::NodeSelectorOverlap, overlap_message(overlap)));
    }
    if let Some(first) = inputs.blocks.first() {
        let Cause { reason, message } = blocked(inputs, first);
        return Some(Cause::new(reason, message + &more_like_it(inputs.blocks.len())));
    }
    match &inputs.rollout.progress {
        Progress::Halted { needs_person: true, message } => Some(Cause::new(Reason::InvalidImage, message)),
        _ => None,
    }
}

/// What blocks a child, and how to fix it.
fn blocked(inputs: &Inputs<'_>, block: &Block) -> Cause {
    match block {
        Block::NameTaken { key, owner } => Cause::new(
            Reason::NameTaken,
            format!("{key} already exists and belongs to {owner}: rename or delete one of them"),
        ),
        Block::Refused { key, message } => {
            let config = inputs.config;
            let message = match key.kind {
                // The admin knows the policy, not the class that was built from it.
                ChildKind::DeviceClass => {
                    policy::in_terms_of_policy(&config.device_classes, &config.driver_name, &key.name, message)
                }
                _ => message.clone(),
            };
            Cause::new(Reason::Refused, format!("the API server rejected {key}: {message}"))
        }
        Block::Unbuildable { key, message } => {
            Cause::new(Reason::InvalidPolicy, format!("cannot build {key}: {message}"))
        }
    }
}

/// The work that is in progress.
fn reconciling(inputs: &Inputs<'_>) -> Option<Cause> {
    // A deletion comes before everything else.
    match inputs.deletion {
        Some(Waiting::Claims(words)) => return Some(Cause::new(Reason::WaitingForClaims, words)),
        Some(Waiting::Children(words)) => return Some(Cause::new(Reason::Deleting, words)),
        None if inputs.config.metadata.deletion_timestamp.is_some() => {
            return Some(Cause::new(Reason::Deleting, "its objects are being deleted"));
        }
        None => {}
    }

    // Nothing is rolled out if the API is missing or an older config has the nodes.
    if inputs.missing_api.is_some() || inputs.overlap.is_some() {
        return None;
    }

    // Writes that have to be retried.
    if let Some(Failed { key, message }) = inputs.failures.first() {
        return Some(Cause::new(Reason::Retrying, format!("writing {key} failed, retrying: {message}")));
    }
    if let Some(held) = inputs.held.first() {
        return Some(Cause::new(Reason::Retrying, format!("{held}; it will be recreated once it is gone")));
    }

    // The rollout.
    match &inputs.rollout.progress {
        // If the DaemonSet itself is blocked, nothing is in progress.
        Progress::Unobserved if inputs.blocks.iter().any(|block| block.key().kind <= ChildKind::DaemonSet) => None,
        Progress::Unobserved => {
            Some(Cause::new(Reason::RollingOut, "waiting for Kubernetes to act on the DaemonSet just applied"))
        }
        Progress::Joining(_) if serves_on(inputs) => None,
        Progress::Underway(words) | Progress::Joining(words) => Some(Cause::new(Reason::RollingOut, words)),
        Progress::Halted { needs_person: false, message } => Some(Cause::new(Reason::RolloutBlocked, message)),
        Progress::Halted { needs_person: true, .. } | Progress::Done => None,
    }
}

fn healthy(inputs: &Inputs<'_>) -> Stated {
    let SliceHealth { publishing, unhealthy, pending, problems, .. } = inputs.health;
    let (desired, is_done) = (inputs.rollout.desired, inputs.rollout.progress == Progress::Done);

    let (status, reason, message) = if *unhealthy > 0 {
        let first = problems.first.first();
        let first =
            first.map_or_else(String::new, |one| format!(", first {}: {}: {}", one.node, one.reason, one.message));
        (ConditionStatus::False, Reason::NodesUnhealthy, format!("{} unhealthy{first}", nodes(count(*unhealthy))))
    } else if *pending > 0 {
        let message = format!("waiting for {} to publish devices", nodes(count(*pending)));
        (ConditionStatus::Unknown, Reason::Publishing, message)
    } else if desired == 0 && is_done {
        (ConditionStatus::True, Reason::NoNodes, "no node is selected".into())
    } else if desired == 0 {
        (ConditionStatus::Unknown, Reason::Publishing, "the plugin has not been rolled out yet".into())
    } else if count(*publishing) < desired {
        let message = format!("{publishing} of {} have published a complete pool of devices so far", nodes(desired));
        (ConditionStatus::Unknown, Reason::Publishing, message)
    } else {
        let message = format!("{} published a complete pool of devices{}", nodes(count(*publishing)), full(inputs));
        (ConditionStatus::True, Reason::Healthy, message)
    };
    Stated { type_: ConditionType::ResourcesHealthy, status, cause: Cause { reason, message } }
}

/// The consequence for other containers if claims hold every device on some nodes.
fn full(inputs: &Inputs<'_>) -> String {
    let full = &inputs.usage.full;
    let (Some(first), Some(consequence)) = (full.first(), inputs.config.kind.when_all_held()) else {
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

fn without_health_message(mut condition: Condition) -> Condition {
    if condition.type_ == ConditionType::ResourcesHealthy.as_str() && condition.status == "True" {
        condition.message.clear();
    }
    condition
}

/// Whether two statuses differ only in counts.
pub fn only_counts_differ(before: &DraDriverConfigStatus, after: &DraDriverConfigStatus) -> bool {
    let said = |status: &DraDriverConfigStatus| DraDriverConfigStatus {
        nodes: None,
        devices: None,
        // A message about good health contains only counts.
        conditions: status.conditions.iter().cloned().map(without_health_message).collect(),
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

/// Names the older config, and how to fix the overlap. Another driver name would not help, so it is not suggested.
fn overlap_message(Overlap { older, driver, shared }: &Overlap) -> String {
    let shared = match shared {
        SharedNodes::Node(node) => format!("both select node {node}"),
        SharedNodes::EveryNodeOfOne => "one selects every node that the other selects".into(),
    };
    format!(
        "the older DraDriverConfig {older} already serves the same devices as driver {driver}, and {shared}: change spec.nodePlugin.nodeSelector so that they share no node, or delete one of them"
    )
}

/// The status of an object that the API server accepted but that cannot be parsed.
pub fn invalid(
    before: &DraDriverConfigStatus,
    generation: Option<i64>,
    error: &str,
    now: Timestamp,
) -> DraDriverConfigStatus {
    let message = format!("cannot parse the spec: {error}; existing objects are left unchanged until it is fixed");
    let cause = Cause::new(Reason::InvalidObject, message);
    let stated = [(ConditionType::Ready, ConditionStatus::False), (ConditionType::Stalled, ConditionStatus::True)]
        .map(|(type_, status)| Stated { type_, status, cause: cause.clone() });

    DraDriverConfigStatus {
        observed_generation: generation,
        conditions: conditions::next(&before.conditions, stated.into(), generation, now),
        ..before.clone()
    }
}

#[cfg(test)]
mod tests;
