//! Where a container may run: its CPUs and its memory nodes. Pure.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use super::messages::{Container, LinuxCpu, LinuxResources};
use crate::{
    cpuset::{CpuSet, CpuSetError},
    drivers::Grant,
};

/// Where a container may run. An empty set in a request means no change; in a report it means what the pod has. NRI
/// cannot express "everything", so a container that gets all CPUs back gets them as a list.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Cpuset {
    /// CPUs.
    #[serde(skip_serializing_if = "CpuSet::is_empty")]
    pub cpus: CpuSet,
    /// NUMA nodes whose memory may be used.
    #[serde(skip_serializing_if = "CpuSet::is_empty")]
    pub memory_nodes: CpuSet,
}

impl Cpuset {
    /// CPUs, and nothing about memory nodes.
    pub(super) fn of_cpus(cpus: CpuSet) -> Self {
        Self { cpus, memory_nodes: CpuSet::new() }
    }

    /// Whether both sets are empty.
    pub fn is_empty(&self) -> bool {
        self.cpus.is_empty() && self.memory_nodes.is_empty()
    }

    /// Whether a container that has `self` must be changed to have `wanted`.
    pub(super) fn lacks(&self, wanted: &Self) -> bool {
        let lacks = |has: &CpuSet, wanted: &CpuSet| !wanted.is_empty() && wanted != has;
        lacks(&self.cpus, &wanted.cpus) || lacks(&self.memory_nodes, &wanted.memory_nodes)
    }

    /// What a container that has `self` has after `change`. Usually this is `change` itself, without a copy.
    pub(super) fn after<'a>(&self, change: Cow<'a, Self>) -> Cow<'a, Self> {
        let stays = |has: &CpuSet, change: &CpuSet| change.is_empty() && !has.is_empty();
        let cpus_stay = stays(&self.cpus, &change.cpus);
        let memory_nodes_stay = stays(&self.memory_nodes, &change.memory_nodes);
        if !cpus_stay && !memory_nodes_stay {
            return change;
        }
        let Self { cpus, memory_nodes } = change.into_owned();
        Cow::Owned(Self {
            cpus: if cpus_stay { self.cpus.clone() } else { cpus },
            memory_nodes: if memory_nodes_stay { self.memory_nodes.clone() } else { memory_nodes },
        })
    }

    /// The cpuset in a message from the runtime. Fails if a list cannot be parsed.
    pub(super) fn of_resources(resources: Option<&LinuxResources>) -> Result<Self, CpuSetError> {
        let Some(cpu) = resources.and_then(|resources| resources.cpu.as_ref()) else { return Ok(Self::default()) };
        Ok(Self { cpus: cpu.cpus.parse()?, memory_nodes: cpu.mems.parse()? })
    }

    /// The cpuset that a container has, as the runtime reports it.
    pub(super) fn of_container(container: &Container) -> Result<Self, CpuSetError> {
        Self::of_resources(container.linux.as_ref().and_then(|linux| linux.resources.as_ref()))
    }

    /// The cpuset as sent to the runtime.
    pub(super) fn resources(&self) -> LinuxResources {
        LinuxResources {
            cpu: Some(LinuxCpu { cpus: self.cpus.to_string(), mems: self.memory_nodes.to_string() }),
            ..LinuxResources::default()
        }
    }
}

impl From<&Grant> for Cpuset {
    fn from(grant: &Grant) -> Self {
        Self { cpus: grant.cpus.clone(), memory_nodes: grant.memory_nodes.clone() }
    }
}

/// The CPUs that a container without a claim should have, out of the `share` that no claim holds. Empty for no change.
/// An empty `share` lifts the restriction.
pub(super) fn cpus_without_claim(before: &CpuSet, share: &CpuSet, is_untouched: bool, online: &CpuSet) -> CpuSet {
    let both = before.intersection(share);
    match (before.is_empty(), share.is_empty()) {
        (true, false) => share.clone(),
        (false, false) if !both.is_empty() => both,
        (false, _) => before.clone(),
        (true, true) if is_untouched => CpuSet::new(),
        (true, true) => online.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(cpus: &str, memory_nodes: &str) -> Cpuset {
        Cpuset { cpus: cpus.parse().unwrap(), memory_nodes: memory_nodes.parse().unwrap() }
    }

    #[test]
    fn a_change_leaves_what_it_does_not_name() {
        for (has, change, expected) in [
            (at("0-1", "0"), at("2", ""), at("2", "0")),
            (at("0-1", "0"), at("", "1"), at("0-1", "1")),
            (at("0-1", "0"), at("", ""), at("0-1", "0")),
            (at("0-1", ""), at("", "1"), at("0-1", "1")),
            (at("", ""), at("", "1"), at("", "1")),
        ] {
            assert_eq!(*has.after(Cow::Borrowed(&change)), expected, "{has:?} after {change:?}");
        }
        let change = at("2", "1");
        assert!(matches!(at("0-1", "0").after(Cow::Borrowed(&change)), Cow::Borrowed(_)), "no copy for nothing");
    }

    #[test]
    fn a_container_without_a_claim_gets_what_it_had_out_of_what_is_left() {
        // What it had before, what is left, whether it is untouched, and what it gets on a host with CPUs 0-7.
        for (before, share, is_untouched, expected) in [
            ("", "2-7", true, "2-7"),
            ("0-3", "2-7", false, "2-3"),
            // Nothing of what it had is left, so it stays there.
            ("0-1", "2-7", false, "0-1"),
            ("0-1", "", false, "0-1"),
            ("", "", false, "0-7"),
            ("", "", true, ""),
        ] {
            let [before, share, online] = [before, share, "0-7"].map(|cpus| cpus.parse().unwrap());
            let gets = cpus_without_claim(&before, &share, is_untouched, &online);
            assert_eq!(gets.to_string(), expected, "before {before}, share {share}, untouched {is_untouched}");
        }
    }
}
