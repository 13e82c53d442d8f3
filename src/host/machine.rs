//! A machine as its kernel shows it, before anybody gives it a meaning. Pure.

use std::collections::BTreeMap;

use super::cpuinfo::{ArmPart, CpuInfo};
use crate::cpuset::CpuSet;

/// What one reading of `/proc` and `/sys` told. What is unknown is `None`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Machine {
    /// The CPUs that are online, by number.
    pub cpus: BTreeMap<u32, Cpu>,
    /// NUMA nodes by number, also those with memory alone.
    pub numa_nodes: BTreeMap<u32, NumaNode>,
    /// `/proc/cpuinfo`.
    pub processor: CpuInfo,
    /// Memory that the kernel manages, in KiB: what is installed, less what firmware and the kernel itself keep.
    pub memory_kib: Option<u64>,
    /// Whether simultaneous multithreading is on.
    pub smt: Option<bool>,
    /// Whether the processor may go over its base frequency.
    pub turbo: Option<bool>,
    /// What could not be read or believed: each names the file.
    pub warnings: Vec<String>,
}

/// One CPU, as the kernel numbers them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cpu {
    /// `physical_package_id`.
    pub package: Option<u32>,
    /// `die_id`.
    pub die: Option<u32>,
    /// `cluster_id`.
    pub cluster: Option<u32>,
    /// `core_id`.
    pub core: Option<u32>,
    /// The online hardware threads of this CPU's core, itself among them; `None` where the kernel does not say.
    pub siblings: Option<CpuSet>,
    /// `id` of the level 3 cache.
    pub l3: Option<u32>,
    /// The NUMA node.
    pub numa_node: Option<u32>,
    /// `cpu_capacity`: how much work it does beside the machine's fastest (1024).
    pub capacity: Option<u32>,
    /// Which half of a hybrid x86 processor.
    pub hybrid: Option<Hybrid>,
    /// Which Arm core.
    pub arm_part: Option<ArmPart>,
    /// Frequency it is built for, without turbo, in MHz.
    pub base_mhz: Option<u32>,
}

/// The halves of a hybrid x86 processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hybrid {
    /// Listed in `/sys/devices/cpu_core/cpus`.
    Performance,
    /// Listed in `/sys/devices/cpu_atom/cpus`.
    Efficiency,
}

/// One NUMA node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NumaNode {
    /// Its CPUs, online or not; none where it has memory alone.
    pub cpus: CpuSet,
    /// Whether it has memory.
    pub has_memory: Option<bool>,
}

impl Machine {
    /// The CPUs that are online.
    pub fn online(&self) -> CpuSet {
        self.cpus.keys().copied().collect()
    }
}
