//! Decides what each container should have, and which containers must be changed. Pure.
//!
//! - A container with a claim has its grant, regardless of what else the runtime is asked to give it.
//! - A container without a claim is restricted to the CPUs that no claim holds. Its previous cpuset is remembered and
//!   restored when the last claim is gone; after that the container is left alone.
//! - A container without a claim that something else restricts to fewer CPUs (such as the kubelet's static CPU manager)
//!   is never widened. It gets the CPUs that are in both sets, or keeps what it had if there are none.
//! - A container whose claim is refused is not created. If such a container is found running (its author forged the
//!   mark while the plugin was away, or the claim was unprepared), it is treated like one without a claim.
//!
//! This file tracks the containers; `changes` decides what to ask the runtime for.

use std::{
    borrow::Cow,
    collections::{HashMap, HashSet, VecDeque},
    sync::Arc,
};

mod changes;
mod known;

pub(super) use known::{Change, Observed, Remembered, Use};

use self::known::{Attempts, Known, Start};
use super::cpuset::{Cpuset, cpus_without_claim};
use crate::cpuset::CpuSet;

/// All containers of the runtime.
#[derive(Debug, Default)]
pub(super) struct Containers {
    by_id: HashMap<String, Known>,
    /// The CPUs that containers without a claim are restricted to. `None` lifts the restriction.
    share: Option<Cpuset>,
    /// The CPUs that are online.
    online: CpuSet,
    /// Containers that have something they must not have. May include some that have been corrected since.
    urgent: VecDeque<String>,
    /// Containers that only get more than they have, which can wait.
    widening: VecDeque<String>,
    /// Whether what must survive a restart may have changed.
    unsaved: bool,
}

impl Containers {
    /// Starts from the containers that exist, discarding earlier knowledge.
    pub fn synchronize(
        observed: impl IntoIterator<Item = Observed>,
        remembered: &HashMap<String, Remembered>,
        share: Option<CpuSet>,
        online: CpuSet,
    ) -> Self {
        let mut containers = Self { share: share.map(Cpuset::of_cpus), online, unsaved: true, ..Self::default() };

        // Most containers have the same placement, so share one copy.
        let mut last = Arc::new(Cpuset::default());
        for Observed { id, usage, placement, is_running } in observed {
            let placement = usage.own(placement);
            if *last != placement {
                last = Arc::new(placement);
            }
            let known = existing(usage, Arc::clone(&last), is_running, remembered.get(&id));
            containers.by_id.insert(id, known);
        }

        containers.requeue();
        containers
    }

    /// Changes what containers without a claim are restricted to. `None` gives back what they had. Returns false if
    /// nothing changes.
    pub fn keep_others_to(&mut self, share: Option<CpuSet>, online: CpuSet) -> bool {
        let share = share.map(Cpuset::of_cpus);
        if (&share, &online) == (&self.share, &self.online) {
            return false;
        }
        (self.share, self.online) = (share, online);
        self.retry();
        true
    }

    /// Whether the container is known.
    pub fn knows(&self, id: &str) -> bool {
        self.by_id.contains_key(id)
    }

    /// A container exists that is in neither the synchronisation nor a CreateContainer call: its creation began before the runtime admitted
    /// this plugin, and ended afterwards.
    pub fn adopt(&mut self, observed: Observed, remembered: &HashMap<String, Remembered>) {
        let Observed { id, usage, placement, is_running } = observed;
        let has = Arc::new(usage.own(placement));
        let known = existing(usage, has, is_running, remembered.get(&id));
        self.by_id.insert(id.clone(), known);
        self.unsaved = true;
        self.enqueue(&id);
    }

    /// A container is about to be created. Returns how its cpuset must differ from the requested one.
    ///
    /// A container without a claim that something else has placed is not changed before it exists: the runtime lets
    /// only one plugin set the CPUs of a new container, and fails its creation if two do.
    pub fn create(&mut self, id: &str, usage: Use, would_have: Cpuset) -> Option<Cpuset> {
        let would_have = usage.own(would_have);
        let mut known = Known::new(usage, Arc::new(would_have));

        let is_placed = known.usage == Use::Free && !known.has.cpus.is_empty();
        let wanted = Some(self.wanted(&known)).filter(|wanted| !is_placed && known.has.lacks(wanted));
        let change = wanted.map(Cow::into_owned);
        // Without claims there is nothing to remember.
        self.unsaved |= self.share.is_some() || known.usage != Use::Free;
        known.answered = change.as_ref().map(|change| Arc::new(known.has.after(Cow::Borrowed(change)).into_owned()));
        self.by_id.insert(id.to_owned(), known);
        change
    }

    /// Another component asks to change a container. Returns what it gets instead, if that must differ.
    pub fn update(&mut self, id: &str, requested: Cpuset) -> Option<Cpuset> {
        let mut known = self.by_id.remove(id)?;
        let requested = known.usage.own(requested);

        // Remember what was requested: a container without a claim gets it back later.
        if known.usage == Use::Free {
            known.before = Arc::new(known.before.after(Cow::Borrowed(&requested)).into_owned());
        }

        // The answer only replaces what was requested. Other deviations are corrected later.
        let wanted = self.wanted(&known).into_owned();
        let instead = |requested: &CpuSet, wanted: CpuSet| if requested.is_empty() { CpuSet::new() } else { wanted };
        let instead = Cpuset {
            cpus: instead(&requested.cpus, wanted.cpus),
            memory_nodes: instead(&requested.memory_nodes, wanted.memory_nodes),
        };

        let asked = known.has.after(Cow::Borrowed(&requested));
        // The runtime may make this update before or after its other changes.
        if let Some(unobserved) = known.answered.take() {
            known.doubt(&unobserved);
        }
        known.answered = Some(Arc::new(asked.after(Cow::Borrowed(&instead)).into_owned()));
        known.is_overtaken = true;
        known.updatable = true;
        self.unsaved = true;
        self.by_id.insert(id.to_owned(), known);
        Some(instead).filter(|instead| requested.lacks(instead))
    }

    /// The runtime reports what a container has after it was created or changed.
    pub fn observe(&mut self, id: &str, placement: Option<Cpuset>) {
        let Some(known) = self.by_id.get_mut(id) else { return };
        let answered = known.answered.take();
        known.is_overtaken = true;
        known.sent_along = None;
        let is_created = !std::mem::replace(&mut known.updatable, true);
        let placement = placement.map(|placement| Arc::new(known.usage.own(placement)));

        // Another NRI plugin has placed the new container. This plugin must not undo that.
        if let Some(placement) = &placement
            && is_created
            && known.usage == Use::Free
            && placement != answered.as_ref().unwrap_or(&known.has)
        {
            known.before = Arc::clone(placement);
        }

        if let Some(has) = placement.or(answered) {
            known.has = has;
        }
        self.enqueue(id);
    }

    /// The runtime reports that a container runs. Repeats a change that was made while it may have been starting.
    pub fn started(&mut self, id: &str) {
        let Some(known) = self.by_id.get_mut(id) else { return };
        // A change in flight may not have reached the process either.
        known.is_overtaken = true;
        known.sent_along = None;
        // The report of its creation was lost, and with it what it has.
        if !std::mem::replace(&mut known.updatable, true)
            && let Some(unobserved) = known.answered.take()
        {
            known.doubt(&unobserved);
        }
        if std::mem::replace(&mut known.start, Start::Reported) != Start::Changed {
            self.enqueue(id);
            return;
        }
        self.unsaved = true;
        known.reassert = true;
        known.attempts = Attempts::WithOthers;
        self.enqueue(id);
    }

    /// A container is gone.
    pub fn forget(&mut self, id: &str) {
        self.by_id.remove(id);
    }

    /// How many containers could not be changed to what they should have.
    pub fn failed(&self) -> usize {
        self.by_id.values().filter(|known| known.attempts == Attempts::Failed).count()
    }

    /// Whether every container has what it should have, except those that failed.
    pub fn settled(&self) -> bool {
        self.by_id.values().all(|known| known.attempts == Attempts::Failed || !self.is_lacking(known))
    }

    /// How many containers without a claim stay on claimed CPUs because another component put them there.
    pub fn overlapping(&self) -> usize {
        let Some(share) = self.share.as_ref().filter(|share| !share.cpus.is_empty()) else { return 0 };
        let outside = |known: &&Known| {
            known.usage == Use::Free
                && !self.is_lacking(known)
                && !known.has.cpus.is_empty()
                && !known.has.cpus.is_subset(&share.cpus)
        };
        self.by_id.values().filter(outside).count()
    }

    /// Whether what must survive a restart may have changed since the last call.
    pub fn take_unsaved(&mut self) -> bool {
        std::mem::take(&mut self.unsaved)
    }

    /// What must survive a restart: the containers whose placement this plugin has changed or may be changing.
    pub fn to_remember(&self) -> impl Iterator<Item = (&str, Remembered)> {
        self.by_id.iter().filter(|(_, known)| known.usage == Use::Free).filter_map(|(id, known)| {
            let before = &*known.before;
            let target = known.has.after(self.wanted(known));
            let mut given: Vec<&Cpuset> = vec![&known.has, &target];
            given.extend(known.unconfirmed().map(|given| &**given));
            given.retain(|given| *given != before);
            let mut seen = HashSet::new();
            given.retain(|given| seen.insert(*given));
            let given: Vec<Cpuset> = given.into_iter().cloned().collect();
            let is_starting = known.start == Start::Changed;
            let is_asked = known.answered.is_some() || known.in_flight.is_some();
            let changing = is_starting || is_asked || self.is_lacking(known);
            let is_remembered = is_starting || !given.is_empty();
            is_remembered.then(|| (id.as_str(), Remembered { before: before.clone(), given, changing }))
        })
    }

    fn is_lacking(&self, known: &Known) -> bool {
        // A container that is being created will have what was requested for it.
        let has = known.answered.as_ref().filter(|_| !known.updatable).unwrap_or(&known.has);
        known.reassert || has.lacks(&self.wanted(known))
    }

    /// What a container should have. Copies nothing for containers that get exactly the share, as most do.
    fn wanted<'a>(&'a self, known: &'a Known) -> Cow<'a, Cpuset> {
        let before = &known.before.cpus;
        match (&known.usage, &self.share) {
            (Use::Claim(placement), _) => Cow::Borrowed(placement),
            (Use::Free, Some(share)) if before.is_empty() && !share.cpus.is_empty() => Cow::Borrowed(share),
            (Use::Free, share) => {
                let none = CpuSet::new();
                let share = share.as_ref().map_or(&none, |share| &share.cpus);
                let is_untouched = known.has.cpus.is_empty() && !known.reassert;
                Cow::Owned(Cpuset::of_cpus(cpus_without_claim(before, share, is_untouched, &self.online)))
            }
        }
    }
}

/// A container that exists already.
fn existing(usage: Use, has: Arc<Cpuset>, is_running: bool, remembered: Option<&Remembered>) -> Known {
    let remembered = remembered.filter(|_| usage == Use::Free);
    // If it does not have what this plugin gave it, something else has placed it since.
    let given = remembered.filter(|remembered| remembered.given.iter().any(|given| given.cpus == has.cpus));
    let before = given.map(|given| Arc::new(usage.own(given.before.clone())));
    // This plugin never sets an empty set, so a container that has one was never changed.
    let is_back = |remembered: &&Remembered| !has.cpus.is_empty() && remembered.before.cpus == has.cpus;
    let returned = remembered.filter(is_back);

    // What was changed while it started may not have reached its process.
    let start = match remembered {
        _ if is_running => Start::Reported,
        Some(_) => Start::Changed,
        None => Start::Unreported,
    };
    let reassert = matches!(usage, Use::Claim(_)) || given.or(returned).is_some_and(|remembered| remembered.changing);
    let mut known = Known { updatable: true, start, reassert, ..Known::new(usage, has) };
    known.before = before.unwrap_or(known.before);
    known
}

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;
