//! A machine as reported by its kernel, without interpretation. Pure.

use std::collections::BTreeMap;

use super::cpuinfo::{ArmPart, CpuInfo};
use crate::cpuset::CpuSet;

/// The result of reading `/proc` and `/sys` once. Unknown values are `None`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Machine {
    /// The CPUs that are online, by number.
    pub cpus: BTreeMap<u32, Cpu>,
    /// NUMA nodes by number, including those that have only memory.
    pub numa_nodes: BTreeMap<u32, NumaNode>,
    /// `/proc/cpuinfo`.
    pub processor: CpuInfo,
    /// Memory that the kernel manages, in KiB: the installed memory minus what firmware and the kernel itself reserve.
    pub memory_kib: Option<u64>,
    /// Whether simultaneous multithreading is on.
    pub smt: Option<bool>,
    /// Whether the processor may exceed its base frequency.
    pub turbo: Option<bool>,
    /// Warnings about unreadable or contradictory files. Each names the file.
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
    /// The online hardware threads of this CPU's core, including this CPU. `None` if the kernel does not report them.
    pub siblings: Option<CpuSet>,
    /// `id` of the level 3 cache.
    pub l3: Option<u32>,
    /// The NUMA node.
    pub numa_node: Option<u32>,
    /// `cpu_capacity`: its performance relative to the machine's fastest CPU (1024).
    pub capacity: Option<u32>,
    /// The kind of core, on a hybrid x86 processor.
    pub hybrid: Option<Hybrid>,
    /// The Arm core.
    pub arm_part: Option<ArmPart>,
    /// Nominal frequency without turbo, in MHz.
    pub base_mhz: Option<u32>,
}

/// The two kinds of core of a hybrid x86 processor.
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
    /// Its CPUs, online or not; empty for a node that has only memory.
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
