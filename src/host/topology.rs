//! Reads which CPUs are online, and the place of each: package, die, cluster, core, threads, level 3 cache. IO: sysfs.
//!
//! Sources: the kernel's Documentation/admin-guide/cputopology.rst and ABI/testing/sysfs-devices-system-cpu.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    cpuinfo::{CpuInfo, Parser},
    file::Files,
    machine::{Cpu, Hybrid},
};
use crate::cpuset::CpuSet;

const CPUS: &str = "sys/devices/system/cpu";

/// The number of caches to look at: level 1 instruction and data, 2, 3 and 4, with room to spare.
const MAX_CACHES: u32 = 8;

pub(super) fn observe_cpuinfo(files: &mut Files<'_>) -> CpuInfo {
    let mut parser = Parser::default();
    let found = files.lines("proc/cpuinfo", |line| parser.line(line));
    let info = parser.finish();
    match (found, info.architecture) {
        (false, _) => files.absent("proc/cpuinfo", "does not exist: architecture, vendor and model are unknown"),
        (true, None) => files.contradiction("proc/cpuinfo", "does not have the format of any known architecture"),
        (true, Some(_)) => {}
    }
    info
}

pub(super) fn observe_cpus(files: &mut Files<'_>, info: &CpuInfo) -> BTreeMap<u32, Cpu> {
    let directories = files.numbered(CPUS, "cpu").unwrap_or_default();
    let online = observe_online(files, &directories);
    let hybrid = HybridCpus::observe(files);
    let cpus = online.iter().map(|number| {
        let known = directories.contains(&number);
        let mut cpu = if known { observe_cpu(files, number, &online) } else { Cpu::default() };
        cpu.hybrid = hybrid.of(number);
        cpu.arm_part = info.arm_part(number);
        (number, cpu)
    });
    cpus.collect()
}

/// Whether the kernel says that SMT is in use.
pub(super) fn observe_smt(files: &mut Files<'_>) -> Option<bool> {
    files.number(&format!("{CPUS}/smt/active")).map(|active| active != 0)
}

/// Reads `online`. If it is missing or wrong, uses the directories of CPUs that are not known to be offline. If there
/// are none, uses `/proc/stat`.
fn observe_online(files: &mut Files<'_>, directories: &BTreeSet<u32>) -> CpuSet {
    let file = format!("{CPUS}/online");
    let listed = files.list(&file);
    if listed.as_ref().is_some_and(CpuSet::is_empty) {
        files.contradiction(&file, "is empty, although this machine is running");
    }
    if let Some(online) = listed.filter(|online| !online.is_empty()) {
        let missing = online.difference(&directories.iter().copied().collect());
        if !missing.is_empty() {
            files.contradiction(
                &file,
                format!("lists CPUs {missing}, which have no directory: their topology is unknown"),
            );
        }
        return online;
    }
    let topology: BTreeSet<u32> =
        directories.iter().copied().filter(|cpu| files.path(&format!("{CPUS}/cpu{cpu}/topology")).is_dir()).collect();
    // Only an online CPU has a topology directory, but older kernels have none at all.
    let candidates = if topology.is_empty() { directories } else { &topology };
    let online: CpuSet =
        candidates.iter().copied().filter(|cpu| files.number(&format!("{CPUS}/cpu{cpu}/online")) != Some(0)).collect();
    if !online.is_empty() {
        return online;
    }
    let mut running = CpuSet::new();
    files.lines("proc/stat", |line| {
        let cpu = line.strip_prefix("cpu").and_then(|rest| rest.split(' ').next()?.parse().ok());
        running.extend(cpu);
        line.starts_with("cpu")
    });
    let told = if running.is_empty() { "no CPU was found" } else { "using only the CPUs in proc/stat" };
    files.absent(&file, format!("does not exist, and neither does the directory of any CPU: {told}"));
    running
}

fn observe_cpu(files: &mut Files<'_>, number: u32, online: &CpuSet) -> Cpu {
    let topology = format!("{CPUS}/cpu{number}/topology");
    let mut id = |name: &str| files.number(&format!("{topology}/{name}"));
    let (package, die) = (id("physical_package_id"), id("die_id"));
    let (cluster, core) = (id("cluster_id"), id("core_id"));
    Cpu {
        package,
        die,
        cluster,
        core,
        siblings: observe_siblings(files, &topology, number, online),
        l3: observe_l3(files, number),
        capacity: files.number(&format!("{CPUS}/cpu{number}/cpu_capacity")),
        ..Cpu::default()
    }
}

/// The threads of a core: from the current file name, the one before 5.3, or the mask before 2.6.26.
fn observe_siblings(files: &mut Files<'_>, topology: &str, number: u32, online: &CpuSet) -> Option<CpuSet> {
    for name in ["core_cpus_list", "thread_siblings_list", "core_cpus", "thread_siblings"] {
        let file = format!("{topology}/{name}");
        let listed = if name.ends_with("_list") { files.list(&file) } else { files.mask(&file) };
        match listed {
            Some(siblings) if siblings.contains(number) => return Some(siblings.intersection(online)),
            Some(siblings) => {
                files.contradiction(&file, format!("says {:?}, which lacks CPU {number} itself", siblings.to_string()));
            }
            None => {}
        }
    }
    None
}

/// Level 3 is nearly always `index3`, but not on Itanium and some unusual kernels.
fn observe_l3(files: &mut Files<'_>, number: u32) -> Option<u32> {
    let caches = format!("{CPUS}/cpu{number}/cache");
    let is_l3 = |files: &mut Files<'_>, index: u32| files.number(&format!("{caches}/index{index}/level")) == Some(3);
    let index =
        [3].into_iter().chain((0..MAX_CACHES).filter(|&index| index != 3)).find(|&index| is_l3(files, index))?;
    files.number(&format!("{caches}/index{index}/id"))
}

/// The CPUs of each core type of a hybrid x86 processor, from its performance counter devices.
struct HybridCpus {
    performance: CpuSet,
    efficiency: CpuSet,
}

impl HybridCpus {
    fn observe(files: &mut Files<'_>) -> Self {
        let performance = files.list("sys/devices/cpu_core/cpus").unwrap_or_default();
        let mut efficiency = files.list("sys/devices/cpu_atom/cpus").unwrap_or_default();
        // The low-power island of mobile processors, since kernel 6.15.
        efficiency = efficiency.union(&files.list("sys/devices/cpu_lowpower/cpus").unwrap_or_default());
        let both = performance.intersection(&efficiency);
        if !both.is_empty() {
            files.contradiction(
                "sys/devices/cpu_atom/cpus",
                format!("lists CPUs {both}, and so does sys/devices/cpu_core/cpus: their core type is unknown"),
            );
        }
        Self { performance: performance.difference(&both), efficiency: efficiency.difference(&both) }
    }

    fn of(&self, cpu: u32) -> Option<Hybrid> {
        match (self.performance.contains(cpu), self.efficiency.contains(cpu)) {
            (true, _) => Some(Hybrid::Performance),
            (_, true) => Some(Hybrid::Efficiency),
            _ => None,
        }
    }
}
