//! What every container should have, and which must be changed for it. Pure.
//!
//! A container with a claim has its grant, whatever else is asked for. A container without one is kept to the share that
//! is left, and what it had before is remembered: that is what it is given back when nothing is claimed any more, and then
//! it is left alone. A container that somebody else keeps to fewer CPUs (the kubelet's static CPU manager) is never
//! widened: it gets what is in both sets, and if that is nothing, it keeps what it had.
//!
//! A container whose claim is refused is not created. One that is found running with such a mark (made up while the plugin
//! was away, or its claim was unprepared) is as one without a claim: a mark that is worth nothing earns nothing.

use std::{
    borrow::Cow,
    collections::{HashMap, VecDeque},
    sync::Arc,
};

mod known;

pub(super) use known::{Change, Observed, Remembered, Use};

use self::known::{Attempts, Known, Start};
use super::cpuset::{Cpuset, without_claim};
use crate::cpuset::CpuSet;

/// All containers of the runtime.
#[derive(Debug, Default)]
pub(super) struct Containers {
    known: HashMap<String, Known>,
    /// What those without a claim are kept to; `None` lifts it.
    share: Option<Cpuset>,
    /// All there is on the host.
    everything: Cpuset,
    /// Those that are where they must not be. May name some that are not any more.
    queue: VecDeque<String>,
    /// Those that may only have more than they have: for them it can wait.
    later: VecDeque<String>,
}

impl Containers {
    /// The containers that exist, in place of all that was known.
    pub fn synchronize(
        observed: impl IntoIterator<Item = Observed>,
        remembered: &HashMap<String, Remembered>,
        share: Option<Cpuset>,
        everything: Cpuset,
    ) -> Self {
        // Most containers have the same placement: it is kept once.
        let mut last = Arc::new(Cpuset::default());
        let mut known = HashMap::new();
        for Observed { id, usage, placement } in observed {
            if *last != placement {
                last = Arc::new(placement);
            }
            let has = Arc::clone(&last);
            let before = match remembered.get(&id) {
                Some(remembered) if usage == Use::Free && remembered.given.contains(&has) => {
                    Arc::new(remembered.before.clone())
                }
                _ => Arc::clone(&has),
            };
            let reassert = matches!(usage, Use::Claim(_));
            let attempts = Attempts::WithOthers;
            let start = Start::Unsaid;
            known.insert(id, Known { usage, before, has, asked: None, updatable: true, start, reassert, attempts });
        }
        let mut containers = Self { known, share, everything, ..Self::default() };
        containers.requeue();
        containers
    }

    /// What those without a claim are kept to from now on. `None` gives all back. False if that is nothing new.
    pub fn keep_others_to(&mut self, share: Option<Cpuset>, everything: Cpuset) -> bool {
        if (&share, &everything) == (&self.share, &self.everything) {
            return false;
        }
        (self.share, self.everything) = (share, everything);
        for known in self.known.values_mut() {
            known.attempts = Attempts::WithOthers;
        }
        self.requeue();
        true
    }

    /// A container is about to be created: what must be different from what it would have.
    pub fn create(&mut self, id: &str, usage: Use, would_have: Cpuset) -> Option<Cpuset> {
        let mut known = Known {
            usage,
            before: Arc::new(would_have.clone()),
            has: Arc::new(would_have),
            asked: None,
            updatable: false,
            start: Start::Unsaid,
            reassert: false,
            attempts: Attempts::WithOthers,
        };
        let change = Some(self.wanted(&known)).filter(|wanted| known.has.lacks(wanted)).map(Cow::into_owned);
        known.asked = change.as_ref().map(|change| Arc::new(known.has.after(Cow::Borrowed(change)).into_owned()));
        self.known.insert(id.to_owned(), known);
        change
    }

    /// Something else asks for a container to be changed: what it gets instead, if that must be different.
    pub fn update(&mut self, id: &str, requested: &Cpuset) -> Option<Cpuset> {
        let mut known = self.known.remove(id)?;
        if known.usage == Use::Free {
            known.before = Arc::new(known.before.after(Cow::Borrowed(requested)).into_owned());
        }
        let wanted = self.wanted(&known).into_owned();
        // What is not asked for stays as it is, and that is brought in order elsewhere.
        let instead = |requested: &CpuSet, wanted: CpuSet| if requested.is_empty() { CpuSet::new() } else { wanted };
        let instead = Cpuset {
            cpus: instead(&requested.cpus, wanted.cpus),
            memory_nodes: instead(&requested.memory_nodes, wanted.memory_nodes),
        };
        let asked = known.has.after(Cow::Borrowed(requested));
        known.asked = Some(Arc::new(asked.after(Cow::Borrowed(&instead)).into_owned()));
        self.known.insert(id.to_owned(), known);
        Some(instead).filter(|instead| requested.lacks(instead))
    }

    /// The runtime says what a container has, after it was created or changed.
    pub fn observe(&mut self, id: &str, placement: Option<Cpuset>) {
        let Some(known) = self.known.get_mut(id) else { return };
        let asked = known.asked.take();
        let is_created = !std::mem::replace(&mut known.updatable, true);
        let placement = placement.map(Arc::new);
        if let Some(placement) = &placement
            && is_created
            && known.usage == Use::Free
            && placement != asked.as_ref().unwrap_or(&known.has)
        {
            // Another plugin of the runtime has placed it: that is not this one's to take back.
            known.before = Arc::clone(placement);
        }
        if let Some(has) = placement.or(asked) {
            known.has = has;
        }
        self.enqueue(id);
    }

    /// The runtime says that a container runs: what was changed while it may have been starting is changed again.
    pub fn started(&mut self, id: &str) {
        let Some(known) = self.known.get_mut(id) else { return };
        if std::mem::replace(&mut known.start, Start::Said) == Start::Doubtful {
            known.reassert = true;
            if known.usage == Use::Free && self.share.is_none() {
                // It was given back while it started, and may still be kept to what it had.
                known.has = Arc::new(known.has.after(Cow::Borrowed(&self.everything)).into_owned());
            }
            known.attempts = Attempts::WithOthers;
            self.enqueue(id);
        }
    }

    /// A container is no more.
    pub fn forget(&mut self, id: &str) {
        self.known.remove(id);
    }

    /// The next changes to ask the runtime for, at most `limit`. Those of claims come first, and those that only give
    /// more come last, and only if it is time to `widen`.
    pub fn next_changes(&mut self, limit: usize, widen: bool) -> Vec<Change> {
        let mut changes: Vec<Change> = Vec::new();
        while changes.len() < limit {
            let later = || widen.then(|| self.later.pop_front()).flatten();
            let Some(id) = self.queue.pop_front().or_else(later) else { break };
            if !self.is_due(&id) || changes.iter().any(|change| change.id == id) {
                continue;
            }
            let Some(known) = self.known.get(&id) else { continue };
            let alone = known.attempts == Attempts::Alone;
            if alone && !changes.is_empty() {
                self.queue.push_front(id);
                break;
            }
            let placement = self.target(known, changes.last());
            if let Some(known) = self.known.get_mut(&id) {
                known.asked = Some(Arc::clone(&placement));
            }
            changes.push(Change { id, placement });
            if alone {
                break;
            }
        }
        changes
    }

    /// All changes that take something away and that the runtime has not confirmed, of containers other than `except`.
    pub fn outstanding(&self, except: &str) -> Vec<Change> {
        let mut changes: Vec<Change> = Vec::new();
        for (id, known) in &self.known {
            if known.updatable && id != except && known.has.lacks(&self.wanted(known)) && !self.only_widens(known) {
                let placement = self.target(known, changes.last());
                changes.push(Change { id: id.clone(), placement });
            }
        }
        changes
    }

    /// The runtime made these changes.
    pub fn confirm(&mut self, changes: &[Change]) {
        for Change { id, placement } in changes {
            let Some(known) = self.known.get_mut(id) else { continue };
            if known.asked.take_if(|asked| Arc::ptr_eq(asked, placement)).is_none() {
                continue;
            }
            known.has = Arc::clone(placement);
            known.reassert = false;
            if known.start == Start::Unsaid {
                known.start = Start::Doubtful;
            }
            known.attempts = Attempts::WithOthers;
            if self.is_due(id) {
                self.enqueue(id);
            } else if self.share.is_none() {
                // Given back. From here on it is as if it had never been touched.
                self.release(id);
            }
        }
    }

    fn release(&mut self, id: &str) {
        if let Some(known) = self.known.get_mut(id).filter(|known| known.usage == Use::Free) {
            known.has = Arc::clone(&known.before);
        }
    }

    /// The runtime failed to make some of these changes; it does not say which. True when that is known now: it was one.
    pub fn fail(&mut self, changes: &[Change]) -> bool {
        let alone = changes.len() == 1;
        for Change { id, .. } in changes {
            let Some(known) = self.known.get_mut(id) else { continue };
            known.attempts = if alone { Attempts::Failed } else { Attempts::Alone };
            if !alone {
                self.queue.push_front(id.clone());
            }
        }
        alone
    }

    /// Tries again what failed.
    pub fn retry(&mut self) {
        for known in self.known.values_mut() {
            known.attempts = Attempts::WithOthers;
        }
        self.requeue();
    }

    /// Containers that could not be brought to what they should have.
    pub fn failed(&self) -> usize {
        self.known.values().filter(|known| known.attempts == Attempts::Failed).count()
    }

    /// Whether every container has what it should, save those that failed.
    pub fn settled(&self) -> bool {
        self.known.values().all(|known| known.attempts == Attempts::Failed || !self.is_lacking(known))
    }

    /// Containers without a claim that stay outside of what is left, because somebody else keeps them there.
    pub fn overlapping(&self) -> usize {
        let Some(share) = &self.share else { return 0 };
        let outside = |has: &CpuSet, share: &CpuSet| !share.is_empty() && !has.is_empty() && !has.is_subset(share);
        let outside = |known: &&Known| {
            known.usage == Use::Free
                && !self.is_lacking(known)
                && (outside(&known.has.cpus, &share.cpus) || outside(&known.has.memory_nodes, &share.memory_nodes))
        };
        self.known.values().filter(outside).count()
    }

    /// What must survive a restart: the containers that have, or may soon have, something else than before.
    pub fn to_remember(&self) -> impl Iterator<Item = (&str, Remembered)> {
        self.known.iter().filter(|(_, known)| known.usage == Use::Free).filter_map(|(id, known)| {
            let before = &*known.before;
            let target = known.has.after(self.wanted(known));
            let mut given: Vec<&Cpuset> = vec![&known.has, &target];
            given.extend(known.asked.as_deref());
            given.retain(|given| *given != before);
            given.dedup();
            let given: Vec<Cpuset> = given.into_iter().cloned().collect();
            (!given.is_empty()).then(|| (id.as_str(), Remembered { before: before.clone(), given }))
        })
    }

    /// Whether some only wait to be given more.
    pub fn widens_later(&self) -> bool {
        !self.later.is_empty()
    }

    /// All that lack something, with claims first.
    fn requeue(&mut self) {
        let due = self.known.iter().filter(|(_, known)| known.updatable && self.is_lacking(known));
        let (later, now): (Vec<_>, Vec<_>) = due.partition(|(_, known)| self.only_widens(known));
        let (claims, free): (Vec<_>, Vec<_>) = now.into_iter().partition(|(_, known)| known.usage != Use::Free);
        let queue = claims.into_iter().chain(free).map(|(id, _)| id.clone()).collect();
        self.later = later.into_iter().map(|(id, _)| id.clone()).collect();
        self.queue = queue;
    }

    fn enqueue(&mut self, id: &str) {
        if self.is_due(id) {
            let later = self.known.get(id).is_some_and(|known| self.only_widens(known));
            let queue = if later { &mut self.later } else { &mut self.queue };
            queue.push_back(id.to_owned());
        }
    }

    /// Whether a container has nothing that it should not have.
    fn only_widens(&self, known: &Known) -> bool {
        let wanted = self.wanted(known);
        let widens = |has: &CpuSet, wanted: &CpuSet| wanted.is_empty() || (!has.is_empty() && has.is_subset(wanted));
        known.usage == Use::Free
            && widens(&known.has.cpus, &wanted.cpus)
            && widens(&known.has.memory_nodes, &wanted.memory_nodes)
    }

    /// Whether a container is to be changed now.
    fn is_due(&self, id: &str) -> bool {
        self.known
            .get(id)
            .is_some_and(|known| known.updatable && known.attempts != Attempts::Failed && self.is_lacking(known))
    }

    fn is_lacking(&self, known: &Known) -> bool {
        // One that is being created will have what was asked for it.
        let has = known.asked.as_ref().filter(|_| !known.updatable).unwrap_or(&known.has);
        known.reassert || has.lacks(&self.wanted(known))
    }

    /// What a container has once it has what it should. Most have the same as the one before: that is kept once.
    fn target(&self, known: &Known, last: Option<&Change>) -> Arc<Cpuset> {
        let target = known.has.after(self.wanted(known));
        match last {
            Some(Change { placement, .. }) if **placement == *target => Arc::clone(placement),
            _ => Arc::new(target.into_owned()),
        }
    }

    /// What a container should have. Copies nothing where there are many of a kind.
    fn wanted<'a>(&'a self, known: &'a Known) -> Cow<'a, Cpuset> {
        match &known.usage {
            Use::Claim(placement) => Cow::Borrowed(placement),
            Use::Free => {
                let nothing = Cpuset::default();
                let share = self.share.as_ref().unwrap_or(&nothing);
                let (before, has, everything) = (&known.before, &known.has, &self.everything);
                let lifted = |share: &CpuSet, has: &CpuSet| share.is_empty() && !has.is_empty();
                if let Some(share) = &self.share
                    && before.is_empty()
                    && !lifted(&share.cpus, &has.cpus)
                    && !lifted(&share.memory_nodes, &has.memory_nodes)
                {
                    return Cow::Borrowed(share);
                }
                Cow::Owned(Cpuset {
                    cpus: without_claim(&before.cpus, &share.cpus, &has.cpus, &everything.cpus),
                    memory_nodes: without_claim(
                        &before.memory_nodes,
                        &share.memory_nodes,
                        &has.memory_nodes,
                        &everything.memory_nodes,
                    ),
                })
            }
        }
    }
}

#[cfg(test)]
mod tests;
