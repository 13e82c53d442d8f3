//! Containers in a runtime that answers, fails and starts things at any time, while claims come and go and the plugin
//! restarts: a random model. At rest, no container is on another's CPUs and none is confined without cause.
//!
//! The model follows containerd. It handles one hook or one call at a time, together with the changes to other containers
//! that the hook's answer asks for; which of them failed it does not say. What the answer says of the hook's own container
//! takes effect later. A change that comes while a container starts may not reach its process.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

/// CPUs of the machine.
const CPUS: std::ops::Range<u32> = 0..8;

fn all() -> CpuSet {
    CPUS.collect()
}

/// A container as it really is.
#[derive(Debug)]
struct Real {
    claim: Option<CpuSet>,
    /// Where the kubelet wants it; empty for anywhere.
    placed: CpuSet,
    /// Where its configuration says that it runs; empty for anywhere.
    configured: CpuSet,
    /// Where it runs, once its process exists.
    runs: Option<CpuSet>,
    /// Whether the runtime has reported its start.
    is_started: bool,
}

impl Real {
    fn change(&mut self, cpus: &CpuSet) {
        if cpus.is_empty() {
            return;
        }
        self.configured = cpus.clone();
        // While it starts, the process may be created from the configuration as it was before.
        if self.is_started {
            self.runs = Some(cpus.clone());
        }
    }
}

/// A call of the plugin that it has no answer to.
#[derive(Debug)]
struct Call {
    changes: Vec<Change>,
    /// Whether it succeeded, once the runtime has handled it.
    succeeded: Option<bool>,
}

#[derive(Debug)]
struct World {
    plugin: Containers,
    /// The plugin's file.
    remembered: HashMap<String, Remembered>,
    /// What the plugin read from it when it started.
    loaded: HashMap<String, Remembered>,
    claims: BTreeMap<u32, CpuSet>,
    real: BTreeMap<String, Real>,
    /// A container whose creation the plugin has answered.
    creating: Option<(String, Real)>,
    /// An update by the kubelet that the plugin has answered: the container, and what it gets.
    updating: Option<(String, CpuSet)>,
    call: Option<Call>,
    created: u32,
}

/// One step, with two random choices.
type Step = (u8, u32, u32);

impl World {
    fn new(found: u32) -> Self {
        let real = (0..found).map(|n| {
            (format!("found{n}"), Real { is_started: true, runs: Some(CpuSet::new()), ..free(CpuSet::new()) })
        });
        let mut world = Self {
            plugin: Containers::default(),
            remembered: HashMap::new(),
            loaded: HashMap::new(),
            claims: BTreeMap::new(),
            real: real.collect(),
            creating: None,
            updating: None,
            call: None,
            created: 0,
        };
        world.connect();
        world
    }

    /// A plugin starts and is synchronised.
    fn connect(&mut self) {
        let observed: Vec<_> = self.real.iter().map(|(id, real)| observed(id, real)).collect();
        self.loaded = self.remembered.clone();
        self.plugin = Containers::synchronize(observed, &self.loaded, self.share(), all());
        self.save();
    }

    fn save(&mut self) {
        self.remembered = self.plugin.to_remember().map(|(id, remembered)| (id.to_owned(), remembered)).collect();
    }

    fn claimed(&self) -> CpuSet {
        self.claims.values().fold(CpuSet::new(), |all, cpus| all.union(cpus))
    }

    /// What containers without a claim are restricted to.
    fn share(&self) -> Option<CpuSet> {
        (!self.claims.is_empty()).then(|| all().difference(&self.claimed()))
    }

    fn pick(&self, choice: u32, is_wanted: impl Fn(&Real) -> bool) -> Option<String> {
        let wanted: Vec<_> = self.real.iter().filter(|(_, real)| is_wanted(real)).collect();
        let index = choice as usize % wanted.len().max(1);
        wanted.get(index).map(|(id, _)| (*id).clone())
    }

    fn step(&mut self, (step, a, b): Step) {
        match step {
            0 | 1 => self.claim_or_release(a % 3, b),
            2 => self.create(a, b),
            3 => self.finish_creation(a % 4 != 0),
            4 => self.begin_start(a),
            5 => self.finish_start(a),
            6 | 7 => self.ask(1 + a as usize % 4, b % 2 == 0),
            8 | 9 => self.handle_call(a % 4 != 0, b as usize),
            10 | 11 => self.answer_call(),
            12 => self.update(a, b),
            13 => self.finish_update(),
            14 => self.end(a),
            _ => self.restart(),
        }
        self.check_claims();
    }

    fn claim_or_release(&mut self, name: u32, choice: u32) {
        if let Some(held) = self.claims.get(&name) {
            let uses = |real: &Real| real.claim.as_ref() == Some(held);
            if !self.real.values().chain(self.creating.iter().map(|(_, real)| real)).any(uses) {
                self.claims.remove(&name);
            }
        } else {
            let wanted: CpuSet = (choice % 8..=(choice % 8 + choice / 8 % 3).min(7)).collect();
            if wanted.is_disjoint(&self.claimed()) {
                self.claims.insert(name, wanted);
            }
        }
        self.plugin.keep_others_to(self.share(), all());
        self.save();
    }

    fn create(&mut self, a: u32, b: u32) {
        if self.creating.is_some() {
            return;
        }
        let id = format!("c{}", self.created);
        self.created += 1;
        let claim = self.claims.values().nth(a as usize % 4).cloned();
        // The kubelet's static CPU manager may have placed a container without a claim.
        let placed = if claim.is_none() && b.is_multiple_of(4) { (0..4).collect() } else { CpuSet::new() };
        let change = self.plugin.create(&id, usage(claim.as_ref()), Cpuset::of_cpus(placed.clone()));
        let configured = change.map_or_else(|| placed.clone(), |change| change.cpus);
        let others = if claim.is_some() { self.plugin.outstanding(&id) } else { Vec::new() };
        self.save();
        for (n, Change { id, placement }) in (0..).zip(&others) {
            // The runtime ignores a change that fails.
            if let Some(real) = self.real.get_mut(id).filter(|_| b & 1 << n == 0) {
                real.change(&placement.cpus);
            }
        }
        self.creating = Some((id, Real { claim, configured, ..free(placed) }));
    }

    /// The container exists. The report of that may be lost, because another plugin failed.
    fn finish_creation(&mut self, is_reported: bool) {
        let Some((id, real)) = self.creating.take() else { return };
        if !self.plugin.knows(&id) {
            self.plugin.adopt(observed(&id, &real), &self.loaded);
            self.save();
        } else if is_reported {
            self.plugin.observe(&id, Some(Cpuset::of_cpus(real.configured.clone())));
        }
        self.real.insert(id, real);
    }

    /// The process is created from the configuration.
    fn begin_start(&mut self, choice: u32) {
        let Some(id) = self.pick(choice, |real| real.runs.is_none()) else { return };
        if let Some(real) = self.real.get_mut(&id) {
            real.runs = Some(real.configured.clone());
        }
    }

    fn finish_start(&mut self, choice: u32) {
        let Some(id) = self.pick(choice, |real| real.runs.is_some() && !real.is_started) else { return };
        if let Some(real) = self.real.get_mut(&id) {
            real.is_started = true;
            self.plugin.started(&id);
            self.save();
        }
    }

    fn ask(&mut self, limit: usize, widen: bool) {
        if self.call.is_none() {
            let changes = self.plugin.next_changes(limit, widen);
            self.call = (!changes.is_empty()).then_some(Call { changes, succeeded: None });
        }
    }

    /// The runtime handles the call. One that fails has done a part of it.
    fn handle_call(&mut self, succeeds: bool, part: usize) {
        let Some(call) = self.call.as_mut().filter(|call| call.succeeded.is_none()) else { return };
        let succeeds = succeeds && call.changes.iter().all(|change| self.real.contains_key(&change.id));
        let done = if succeeds { call.changes.len() } else { part % (call.changes.len() + 1) };
        for Change { id, placement } in &call.changes[..done] {
            if let Some(real) = self.real.get_mut(id) {
                real.change(&placement.cpus);
            }
        }
        call.succeeded = Some(succeeds);
    }

    fn answer_call(&mut self) {
        let Some(call) = self.call.take_if(|call| call.succeeded.is_some()) else { return };
        if call.succeeded == Some(true) {
            self.plugin.confirm(&call.changes);
        } else {
            self.plugin.fail(&call.changes);
        }
    }

    /// The kubelet changes a container: its CPUs, or something else.
    fn update(&mut self, a: u32, b: u32) {
        let Some(id) = self.pick(a, |real| real.is_started) else { return };
        if self.updating.is_some() {
            return;
        }
        let requested: CpuSet = if b.is_multiple_of(2) { CpuSet::new() } else { (b % 4..8).collect() };
        let instead = self.plugin.update(&id, Cpuset::of_cpus(requested.clone()));
        self.save();
        let gets = instead.map_or_else(|| requested.clone(), |instead| instead.cpus);
        if let Some(real) = self.real.get_mut(&id).filter(|_| !requested.is_empty()) {
            real.placed = requested;
        }
        self.updating = Some((id, gets));
    }

    fn finish_update(&mut self) {
        let Some((id, gets)) = self.updating.take() else { return };
        if let Some(real) = self.real.get_mut(&id) {
            real.change(&gets);
            self.plugin.observe(&id, Some(Cpuset::of_cpus(real.configured.clone())));
        }
    }

    fn end(&mut self, choice: u32) {
        let Some(id) = self.pick(choice, |_| true) else { return };
        self.real.remove(&id);
        self.plugin.forget(&id);
    }

    /// The plugin dies and a new one starts. Its predecessor's call has been handled or never will be.
    fn restart(&mut self) {
        self.finish_update();
        // A container is not created across two restarts.
        if self.creating.as_ref().is_some_and(|(id, _)| !self.plugin.knows(id)) {
            self.finish_creation(true);
        }
        self.call = None;
        self.connect();
    }

    /// A claim's container that the plugin has created is where it belongs, at any time.
    fn check_claims(&self) {
        for (id, real) in &self.real {
            if let (Some(claim), Some(runs)) = (&real.claim, &real.runs) {
                assert_eq!(runs, claim, "{id} has a claim");
            }
        }
    }

    /// Everything that was begun ends, and nothing new comes.
    fn rest(&mut self) {
        self.finish_creation(true);
        self.finish_update();
        self.handle_call(true, 0);
        self.answer_call();
        while self.pick(0, |real| real.runs.is_none()).is_some() {
            self.begin_start(0);
        }
        while self.pick(0, |real| !real.is_started).is_some() {
            self.finish_start(0);
        }
        for _ in 0..200 {
            if self.plugin.failed() > 0 {
                self.plugin.retry();
            }
            self.ask(16, true);
            if self.call.is_none() {
                break;
            }
            self.handle_call(true, 0);
            self.answer_call();
        }
        assert!(self.plugin.settled(), "{self:#?}");
    }

    fn check_rest(&self) {
        for (id, real) in &self.real {
            let runs = real.runs.clone().filter(|runs| !runs.is_empty()).unwrap_or_else(all);
            let placed = if real.placed.is_empty() { all() } else { real.placed.clone() };
            let left = placed.intersection(&self.share().unwrap_or_else(all));
            let expected = match &real.claim {
                Some(claim) => claim.clone(),
                None if left.is_empty() => placed,
                None => left,
            };
            assert_eq!(runs, expected, "{id} of {self:#?}");
        }
    }
}

/// A container without a claim that does not exist yet.
fn free(placed: CpuSet) -> Real {
    Real { claim: None, configured: placed.clone(), placed, runs: None, is_started: false }
}

fn usage(claim: Option<&CpuSet>) -> Use {
    claim.map_or(Use::Free, |cpus| Use::Claim(Cpuset::of_cpus(cpus.clone())))
}

fn observed(id: &str, real: &Real) -> Observed {
    let placement = Cpuset::of_cpus(real.configured.clone());
    Observed { id: id.to_owned(), usage: usage(real.claim.as_ref()), placement, is_running: real.is_started }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn at_rest_no_container_is_on_anothers_cpus_and_none_is_confined_without_cause(
        found in 0u32..4,
        steps in proptest::collection::vec((0u8..16, 0u32..64, 0u32..64), 0..60),
    ) {
        let mut world = World::new(found);
        for step in steps {
            world.step(step);
        }
        world.rest();
        world.check_rest();
    }
}
