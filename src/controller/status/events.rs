//! The Events of a reconcile. Pure.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::runtime::events::{Event, EventType};

use crate::{
    api::{
        ClassReason, ClassStatus, DraDriverConfigStatus,
        conditions::{ConditionType, Reason},
    },
    controller::{
        apply::{Dropped, Report},
        child::ChildKey,
        config::Config,
    },
};

/// An Event for each of our objects that was edited and has been corrected, and a warning for each that the API server
/// accepted but changed. Writing the objects of a new or edited config is routine and gets no Event.
pub fn of_writes(config: &Config, report: &Report) -> Vec<Event> {
    let observed = config.status.as_ref().and_then(|status| status.observed_generation);
    let is_settled = config.metadata.generation == observed;
    let was_kept = |key: &ChildKey| report.dropped.iter().all(|dropped| dropped.key != *key);
    let corrected =
        report.written.iter().filter(|(key, because)| is_settled && because.is_drift() && was_kept(key)).map(
            |(key, because)| event(EventType::Normal, "DriftCorrected", "Apply", format!("corrected {key}: {because}")),
        );

    let changed = report.dropped.iter().map(|Dropped { key, path }| {
        let note = format!(
            "the API server accepted {key} but dropped or changed {path}: check feature gates and mutating webhooks"
        );
        event(EventType::Warning, "NotKept", "Apply", note)
    });
    corrected.chain(changed).collect()
}

/// The Events for a change of status.
pub fn of_status(before: Option<&DraDriverConfigStatus>, after: &DraDriverConfigStatus) -> Vec<Event> {
    let (conditions, classes) =
        before.map(|before| (&before.conditions[..], &before.device_classes[..])).unwrap_or_default();
    let mut events = transitions(conditions, &after.conditions);
    events.extend(aborting(classes, &after.device_classes));
    events
}

/// One Event for each condition that appeared, or changed its status or reason; none if only the message changed.
/// Health gets one only when it is lost and when it returns, because each joining node makes it unknown for a while.
fn transitions(before: &[Condition], after: &[Condition]) -> Vec<Event> {
    let worth_an_event = [
        (ConditionType::Ready, "True", EventType::Normal),
        (ConditionType::Stalled, "True", EventType::Warning),
        (ConditionType::Reconciling, "True", EventType::Normal),
        (ConditionType::ResourcesHealthy, "False", EventType::Warning),
        (ConditionType::ResourcesHealthy, "True", EventType::Normal),
    ];
    worth_an_event
        .into_iter()
        .filter_map(|(type_, status, kind)| {
            let find =
                |all: &[Condition]| all.iter().find(|c| c.type_ == type_.as_str() && c.status == status).cloned();
            let now = find(after)?;
            if find(before).is_some_and(|was| was.reason == now.reason) {
                return None;
            }
            let was = before.iter().find(|c| c.type_ == type_.as_str()).map(|c| c.status.as_str());
            if type_ == ConditionType::ResourcesHealthy && status == "True" && was != Some("False") {
                return None;
            }
            let kind = if now.reason == Reason::RolloutBlocked.as_str() { EventType::Warning } else { kind };
            Some(event(kind, &now.reason, "Reconcile", now.message))
        })
        .collect()
}

/// A warning for each class that started to abort claims. Otherwise only the pending claims would show it.
fn aborting(before: &[ClassStatus], after: &[ClassStatus]) -> Vec<Event> {
    let aborts = |class: &ClassStatus| ClassReason::AbortsClaims.is_of(class);
    let known = |name: &str| before.iter().any(|class| class.name == name && aborts(class));
    let new = after.iter().filter(|class| aborts(class) && !known(&class.name));
    let note = |class: &ClassStatus| {
        format!("DeviceClass {}: {}", class.name, class.message.as_deref().unwrap_or("a selector fails on some device"))
    };
    new.map(|class| event(EventType::Warning, ClassReason::AbortsClaims.as_str(), "Reconcile", note(class))).collect()
}

/// An Event. Its note is cut to the length that the API server accepts.
pub fn event(type_: EventType, reason: &str, action: &str, note: String) -> Event {
    /// `NoteLengthLimit` in k8s.io/kubernetes/pkg/apis/core/validation/events.go, in bytes.
    const LONGEST: usize = 1024;
    let mut note = note;
    if note.len() > LONGEST {
        let end = (0..=LONGEST).rev().find(|&at| note.is_char_boundary(at)).unwrap_or(0);
        note.truncate(end);
    }
    Event { type_, reason: reason.into(), note: Some(note), action: action.into(), secondary: None }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    use super::*;
    use crate::controller::testing::at;

    fn condition(type_: &str, status: &str, reason: &str) -> Condition {
        Condition {
            type_: type_.into(),
            status: status.into(),
            reason: reason.into(),
            message: "m".into(),
            observed_generation: None,
            last_transition_time: Time(at(0)),
        }
    }

    #[test]
    fn each_change_of_a_reason_is_one_event() {
        let rolling = [condition("Ready", "False", "RollingOut"), condition("Reconciling", "True", "RollingOut")];
        let ready = [condition("Ready", "True", "Serving")];
        let reasons = |before: &[Condition], after: &[Condition]| -> Vec<_> {
            transitions(before, after).into_iter().map(|event| event.reason).collect()
        };
        assert_eq!(reasons(&[], &rolling), ["RollingOut"]);
        assert_eq!(reasons(&rolling, &rolling), [""; 0]);
        assert_eq!(reasons(&rolling, &ready), ["Serving"]);
    }

    #[test]
    fn health_is_an_event_only_when_it_is_lost_and_when_it_returns() {
        let health = |status: &str, reason: &str| [condition("ResourcesHealthy", status, reason)];
        let events = |before: &[Condition], after: &[Condition]| transitions(before, after).len();
        assert_eq!(events(&health("Unknown", "Publishing"), &health("True", "Healthy")), 0);
        assert_eq!(events(&health("True", "Healthy"), &health("False", "NodesUnhealthy")), 1);
        assert_eq!(events(&health("False", "NodesUnhealthy"), &health("True", "Healthy")), 1);
    }

    #[test]
    fn a_halted_roll_out_is_a_warning() {
        let events = transitions(&[], &[condition("Reconciling", "True", "RolloutBlocked")]);
        assert_eq!(events[0].type_, EventType::Warning);
    }

    #[test]
    fn a_class_that_starts_to_abort_claims_is_one_warning() {
        let class = |name: &str, reason: Option<&str>| ClassStatus {
            name: name.into(),
            reason: reason.map(Into::into),
            message: Some("no such key".into()),
            ..ClassStatus::default()
        };
        let before = [class("a", None), class("b", Some("AbortsClaims"))];
        let after =
            [class("a", Some("AbortsClaims")), class("b", Some("AbortsClaims")), class("c", Some("MatchesNothing"))];
        let notes: Vec<_> = aborting(&before, &after).into_iter().filter_map(|event| event.note).collect();
        assert_eq!(notes, ["DeviceClass a: no such key"]);
    }

    #[test]
    fn a_long_note_is_cut_between_characters() {
        let note = event(EventType::Normal, "R", "A", "ä".repeat(1000)).note.unwrap();
        assert_eq!(note.len(), 1024);
    }
}
