//! Groups CPUs into physical cores and names each core. Pure.
//!
//! Two guarantees. Every online CPU is in exactly one core, no matter what the files say. A core's name comes from its
//! place, so a restart, a reservation or an offline sibling does not change it, and it never refers to other hardware.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
};

use crate::{
    cpuset::CpuSet,
    host::machine::{Cpu, Machine},
};

/// A physical core.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Core<'m> {
    /// `core-<socket>-<core>`, or another form of [`Scheme`].
    pub(super) name: String,
    /// Its online hardware threads.
    pub(super) cpus: CpuSet,
    /// The first thread, which represents the core.
    pub(super) first: u32,
    /// What is known about the first thread.
    pub(super) cpu: &'m Cpu,
}

/// How cores are named. `core_id` is unique only within a unit that depends on the platform: usually the package, on
/// some platforms the die, the cluster, or the NUMA node inside it. The first scheme without duplicate names is used
/// for the whole machine: renaming only the cores that clash would let a name move to another core when one of the two
/// goes offline. One limitation remains: while every core with a repeated id is offline, nothing shows that ids repeat,
/// and the shorter names are used until these cores are back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scheme {
    /// `core-<socket>-<core>`
    Package,
    /// `core-<socket>-die<die>-<core>`
    Die,
    /// `core-<socket>-cluster<cluster>-<core>`
    Cluster,
    /// `core-<socket>-numa<node>-<core>`
    NumaNode,
    /// `core-cpu<n>` with the lowest online CPU: for s390's books, Itanium and SPARC, which repeat ids within every
    /// unit, and for any single core whose place the kernel does not report.
    LowestCpu,
}

impl Scheme {
    const IN_ORDER: [Self; 4] = [Self::Package, Self::Die, Self::Cluster, Self::NumaNode];

    /// The name of a core whose place is known.
    ///
    /// If the kernel reports no packages (`physical_package_id` is −1, as on POWER), the whole machine is socket 0.
    fn name(self, cpu: &Cpu, packages_known: bool) -> Option<String> {
        let package = if packages_known { cpu.package? } else { 0 };
        let mut name = format!("core-{package}-");
        let (kind, unit) = match self {
            Self::Package => ("", None),
            Self::Die => ("die", Some(cpu.die?)),
            Self::Cluster => ("cluster", Some(cpu.cluster?)),
            Self::NumaNode => ("numa", Some(cpu.numa_node?)),
            Self::LowestCpu => return None,
        };
        if let Some(unit) = unit {
            // Writing to a String cannot fail.
            let _ = write!(name, "{kind}{unit}-");
        }
        let _ = write!(name, "{}", cpu.core?);
        Some(name)
    }
}

/// The machine's cores, and what was contradictory. They are in a stable order by place, so that the next free cores
/// are neighbours.
pub(super) fn cores(machine: &Machine) -> (Vec<Core<'_>>, Vec<String>) {
    let mut warnings = Vec::new();
    let mut cores: Vec<Core<'_>> = group(machine, &mut warnings)
        .into_iter()
        .filter_map(|cpus| {
            let first = cpus.first()?;
            Some(Core { name: String::new(), cpu: machine.cpus.get(&first)?, cpus, first })
        })
        .collect();
    let packages_known = machine.cpus.values().any(|cpu| cpu.package.is_some());
    let scheme = scheme(&cores, packages_known);
    for core in &mut cores {
        core.name = scheme.name(core.cpu, packages_known).unwrap_or_else(|| format!("core-cpu{}", core.first));
    }
    cores.sort_by_key(|core| {
        let Cpu { package, numa_node, die, cluster, core: id, .. } = *core.cpu;
        (package, numa_node, die, cluster, id, core.first)
    });
    (cores, warnings)
}

/// The first scheme in which no two cores have the same name.
fn scheme(cores: &[Core<'_>], packages_known: bool) -> Scheme {
    let clashes = |scheme: &Scheme| {
        let mut names = BTreeSet::new();
        // A core that a scheme cannot name at all is not a clash, unless the plain scheme can name it.
        cores.iter().any(|core| match scheme.name(core.cpu, packages_known) {
            Some(name) => !names.insert(name),
            None => Scheme::Package.name(core.cpu, packages_known).is_some(),
        })
    };
    Scheme::IN_ORDER.into_iter().find(|scheme| !clashes(scheme)).unwrap_or(Scheme::LowestCpu)
}

/// Online CPUs by core. CPUs belong to the same core if each lists the same siblings, including itself. If the kernel
/// reports no siblings, they do if all their ids are known and equal.
fn group(machine: &Machine, warnings: &mut Vec<String>) -> Vec<CpuSet> {
    let mut by_siblings: BTreeMap<&CpuSet, CpuSet> = BTreeMap::new();
    let mut by_ids: BTreeMap<_, CpuSet> = BTreeMap::new();
    let mut alone = Vec::new();
    for (&number, cpu) in &machine.cpus {
        match (&cpu.siblings, cpu.core) {
            (Some(siblings), _) => by_siblings.entry(siblings).or_default().insert(number),
            (None, Some(core)) => {
                by_ids.entry((cpu.package, cpu.die, cpu.cluster, core)).or_default().insert(number);
            }
            (None, None) => alone.push(CpuSet::from_iter([number])),
        }
    }
    let mut disagree = CpuSet::new();
    for (siblings, cpus) in &by_siblings {
        let packages: BTreeSet<_> =
            cpus.iter().filter_map(|cpu| machine.cpus.get(&cpu)).map(|cpu| cpu.package).collect();
        if *siblings != cpus || packages.len() > 1 {
            disagree.extend(cpus.iter());
        }
    }
    if let Some(first) = disagree.first() {
        warnings.push(format!(
            "sys/devices/system/cpu/cpu{first}/topology: the siblings of CPUs {disagree} do not name each other, or are \
             of another package: CPUs that name the same siblings are taken for one core"
        ));
    }
    by_siblings.into_values().chain(by_ids.into_values()).chain(alone).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A CPU as (package, die, numa node, core, siblings).
    type Place = (Option<u32>, u32, u32, Option<u32>, &'static str);

    fn machine(cpus: &[Place]) -> Machine {
        let cpu = |&(package, die, node, core, siblings): &Place| Cpu {
            package,
            die: Some(die),
            numa_node: Some(node),
            core,
            siblings: Some(siblings.parse().unwrap()).filter(|siblings: &CpuSet| !siblings.is_empty()),
            ..Cpu::default()
        };
        Machine { cpus: (0..).zip(cpus.iter().map(cpu)).collect(), ..Machine::default() }
    }

    fn names(machine: &Machine) -> Vec<(String, String)> {
        cores(machine).0.into_iter().map(|core| (core.name, core.cpus.to_string())).collect()
    }

    fn pairs(expected: &[(&str, &str)]) -> Vec<(String, String)> {
        expected.iter().map(|&(name, cpus)| (name.to_owned(), cpus.to_owned())).collect()
    }

    #[test]
    fn a_core_is_named_by_socket_and_core_id() {
        let plain = machine(&[
            (Some(0), 0, 0, Some(0), "0,2"),
            (Some(1), 0, 1, Some(12), "1,3"),
            (Some(0), 0, 0, Some(0), "0,2"),
            (Some(1), 0, 1, Some(12), "1,3"),
        ]);
        assert_eq!(names(&plain), pairs(&[("core-0-0", "0,2"), ("core-1-12", "1,3")]));
    }

    #[test]
    fn ids_that_repeat_in_each_die_are_distinguished_by_the_die() {
        let dies = machine(&[
            (Some(0), 0, 0, Some(0), "0"),
            (Some(0), 0, 0, Some(1), "1"),
            (Some(0), 1, 0, Some(0), "2"),
            (Some(0), 1, 0, Some(1), "3"),
        ]);
        let expected = [("core-0-die0-0", "0"), ("core-0-die0-1", "1"), ("core-0-die1-0", "2"), ("core-0-die1-1", "3")];
        assert_eq!(names(&dies), pairs(&expected));
    }

    #[test]
    fn ids_that_repeat_in_each_numa_node_are_distinguished_by_the_node() {
        let nodes = machine(&[(Some(0), 0, 0, Some(0), "0"), (Some(0), 0, 1, Some(0), "1")]);
        assert_eq!(names(&nodes), pairs(&[("core-0-numa0-0", "0"), ("core-0-numa1-0", "1")]));
    }

    #[test]
    fn cores_whose_ids_repeat_within_every_unit_are_named_by_their_lowest_cpu() {
        let books = machine(&[(None, 0, 0, Some(1), "0"), (None, 0, 0, Some(1), "1"), (None, 0, 0, Some(2), "2")]);
        assert_eq!(names(&books), pairs(&[("core-cpu0", "0"), ("core-cpu1", "1"), ("core-cpu2", "2")]));
    }

    #[test]
    fn a_machine_without_packages_is_socket_0() {
        let power = machine(&[(None, 0, 0, Some(4), "0-1"), (None, 0, 0, Some(4), "0-1"), (None, 0, 0, Some(8), "2")]);
        assert_eq!(names(&power), pairs(&[("core-0-4", "0-1"), ("core-0-8", "2")]));
    }

    #[test]
    fn a_cpu_of_unknown_place_does_not_rename_others() {
        let odd = machine(&[(Some(0), 0, 0, Some(0), "0"), (None, 0, 0, None, ""), (Some(0), 0, 0, Some(2), "2")]);
        assert_eq!(names(&odd), pairs(&[("core-cpu1", "1"), ("core-0-0", "0"), ("core-0-2", "2")]));
    }

    #[test]
    fn without_siblings_the_ids_group_threads() {
        let old = machine(&[(Some(0), 0, 0, Some(0), ""), (Some(0), 0, 0, Some(0), ""), (Some(0), 0, 0, Some(1), "")]);
        assert_eq!(names(&old), pairs(&[("core-0-0", "0-1"), ("core-0-1", "2")]));
    }

    #[test]
    fn siblings_that_do_not_name_each_other_stay_apart_with_a_warning() {
        let broken = machine(&[(Some(0), 0, 0, Some(0), "0-1"), (Some(0), 0, 0, Some(1), "1")]);
        let (cores, warnings) = cores(&broken);
        assert_eq!(cores.len(), 2);
        let [warning] = warnings.as_slice() else { panic!("{warnings:?}") };
        assert!(warning.contains("cpu0/topology") && warning.contains("do not name each other"), "{warning}");
    }

    #[test]
    fn siblings_in_different_packages_cause_a_warning() {
        let broken = machine(&[(Some(0), 0, 0, Some(0), "0-1"), (Some(1), 0, 0, Some(0), "0-1")]);
        assert_eq!(cores(&broken).1.len(), 1);
    }
}
