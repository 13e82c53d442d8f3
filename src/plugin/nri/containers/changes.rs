//! Decides what to ask the runtime to change and in which order, and interprets its answers. Pure.

use std::sync::Arc;

use super::{
    Containers,
    known::{Attempts, Change, Known, Start, Use},
};
use crate::plugin::nri::cpuset::Cpuset;

impl Containers {
    /// The next changes to ask the runtime for, at most `limit`. Containers with claims come first. Changes that only
    /// give a container more come last, and only if `widen` is set.
    pub fn next_changes(&mut self, limit: usize, widen: bool) -> Vec<Change> {
        let mut changes: Vec<Change> = Vec::new();
        while changes.len() < limit {
            let widening = || widen.then(|| self.widening.pop_front()).flatten();
            let Some(id) = self.urgent.pop_front().or_else(widening) else { break };
            if !self.is_due(&id) || changes.iter().any(|change| change.id == id) {
                continue;
            }
            let Some(known) = self.by_id.get(&id) else { continue };

            // A change that failed together with others is sent alone, in the next call if this one already has
            // changes.
            let alone = known.attempts == Attempts::Alone;
            if alone && !changes.is_empty() {
                self.urgent.push_front(id);
                break;
            }

            let placement = self.target(known, changes.last());
            if let Some(known) = self.by_id.get_mut(&id) {
                known.in_flight = Some(Arc::clone(&placement));
                known.is_overtaken = false;
            }
            changes.push(Change { id, placement });
            if alone {
                break;
            }
        }
        changes
    }

    /// All unconfirmed changes that take something away from containers other than `except`. The runtime makes them with
    /// the creation of `except`, and does not say whether each succeeded, so they are asked for again afterwards.
    pub fn outstanding(&mut self, except: &str) -> Vec<Change> {
        let mut changes: Vec<Change> = Vec::new();
        for (id, known) in &self.by_id {
            let is_lacking = known.reassert || known.has.lacks(&self.wanted(known)) || self.may_exceed(known);
            if known.updatable && id != except && is_lacking && !self.only_widens(known) {
                let placement = self.target(known, changes.last());
                // An earlier answer has it already.
                if known.sent_along.as_ref() != Some(&placement) {
                    changes.push(Change { id: id.clone(), placement });
                }
            }
        }
        for Change { id, placement } in &changes {
            if let Some(known) = self.by_id.get_mut(id) {
                known.send_along(placement);
            }
        }
        changes
    }

    /// The runtime made these changes.
    pub fn confirm(&mut self, changes: &[Change]) {
        for Change { id, placement } in changes {
            let Some(known) = self.by_id.get_mut(id) else { continue };
            if known.take_answer(placement) {
                known.settle(placement);
            } else {
                // The runtime may have made the other change before or after this one.
                known.doubt(placement);
            }
            if known.start == Start::Unreported {
                known.start = Start::Changed;
            }

            if self.is_due(id) {
                self.enqueue(id);
            } else if self.share.is_none() {
                // It has its previous placement back and is treated as untouched from now on.
                self.release(id);
            }
        }
    }

    /// The runtime failed to make some of these changes, but does not say which. Returns true if the failed one is
    /// known, because it was the only one.
    pub fn fail(&mut self, changes: &[Change]) -> bool {
        let alone = changes.len() == 1;
        for Change { id, placement } in changes {
            let Some(known) = self.by_id.get_mut(id) else { continue };
            // The runtime may have applied this change anyway.
            known.take_answer(placement);
            known.doubt(placement);
            known.attempts = if alone { Attempts::Failed } else { Attempts::Alone };
            if !alone {
                self.urgent.push_front(id.clone());
            }
        }
        alone
    }

    /// Forgets which changes failed, so that they are retried.
    pub fn retry(&mut self) {
        for known in self.by_id.values_mut() {
            known.attempts = Attempts::WithOthers;
        }
        self.requeue();
    }

    /// Whether some containers are only waiting to get more.
    pub fn widens_later(&self) -> bool {
        !self.widening.is_empty()
    }

    /// Queues all containers that must be changed, those with claims first.
    pub(super) fn requeue(&mut self) {
        let due = self.by_id.iter().filter(|(_, known)| known.updatable && self.is_lacking(known));
        let (widening, urgent): (Vec<_>, Vec<_>) = due.partition(|(_, known)| self.only_widens(known));
        let (claims, free): (Vec<_>, Vec<_>) = urgent.into_iter().partition(|(_, known)| known.usage != Use::Free);

        let urgent = claims.into_iter().chain(free).map(|(id, _)| id.clone()).collect();
        self.widening = widening.into_iter().map(|(id, _)| id.clone()).collect();
        self.urgent = urgent;
    }

    /// Queues one container if it must be changed.
    pub(super) fn enqueue(&mut self, id: &str) {
        if self.is_due(id) {
            let widens = self.by_id.get(id).is_some_and(|known| self.only_widens(known));
            let queue = if widens { &mut self.widening } else { &mut self.urgent };
            queue.push_back(id.to_owned());
        }
    }

    fn release(&mut self, id: &str) {
        if let Some(known) = self.by_id.get_mut(id).filter(|known| known.usage == Use::Free) {
            known.has = Arc::clone(&known.before);
        }
    }

    /// Whether a container has nothing that it should not have, and cannot get it by a change that is not confirmed.
    fn only_widens(&self, known: &Known) -> bool {
        let (has, wanted) = (&known.has.cpus, &self.wanted(known).cpus);
        known.usage == Use::Free
            && (wanted.is_empty() || (!has.is_empty() && has.is_subset(wanted) && !self.may_exceed(known)))
    }

    /// Whether a change that is not confirmed may give a container CPUs that it should not have.
    fn may_exceed(&self, known: &Known) -> bool {
        let wanted = &self.wanted(known).cpus;
        known.usage == Use::Free
            && !wanted.is_empty()
            && known.unconfirmed().any(|placement| !placement.cpus.is_subset(wanted))
    }

    /// Whether a container must be changed now.
    fn is_due(&self, id: &str) -> bool {
        let due = |known: &Known| known.updatable && known.attempts != Attempts::Failed && self.is_lacking(known);
        self.by_id.get(id).is_some_and(due)
    }

    /// What a container has once it is correct. Shares the copy in `last` if that is the same.
    fn target(&self, known: &Known, last: Option<&Change>) -> Arc<Cpuset> {
        let target = known.has.after(self.wanted(known));
        match last {
            Some(Change { placement, .. }) if **placement == *target => Arc::clone(placement),
            _ => Arc::new(target.into_owned()),
        }
    }
}
