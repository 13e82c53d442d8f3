//! NUMA nodes, their CPUs, and whether they have memory. IO: sysfs.

use std::collections::BTreeMap;

use super::{
    file::Files,
    machine::{Cpu, NumaNode},
};
use crate::cpuset::CpuSet;

const NODES: &str = "sys/devices/system/node";

/// Reads the nodes, and sets the node of each CPU. A CPU that two nodes list gets none.
pub(super) fn observe_nodes(files: &mut Files<'_>, cpus: &mut BTreeMap<u32, Cpu>) -> BTreeMap<u32, NumaNode> {
    let numbers = files.numbered(NODES, "node").unwrap_or_default();
    let with_memory = ["has_memory", "has_normal_memory"]
        .into_iter()
        .find_map(|name| files.list(&format!("{NODES}/{name}")).filter(|nodes| !nodes.is_empty()));
    let mut nodes = BTreeMap::new();
    for number in numbers {
        let directory = format!("{NODES}/node{number}");
        let listed = files.list(&format!("{directory}/cpulist")).or_else(|| files.mask(&format!("{directory}/cpumap")));
        let has_memory = match &with_memory {
            Some(nodes) => Some(nodes.contains(number)),
            None => super::memory::observe_node(files, number).map(|kib| kib > 0),
        };
        nodes.insert(number, NumaNode { cpus: listed.unwrap_or_default(), has_memory });
    }
    let mut claimed_once = CpuSet::new();
    let mut claimed_twice = CpuSet::new();
    for (number, node) in &nodes {
        let again = node.cpus.intersection(&claimed_once);
        if !again.is_empty() {
            files.contradiction(
                &format!("{NODES}/node{number}/cpulist"),
                format!("lists CPUs {again}, and so does another node: their node is unknown"),
            );
            claimed_twice.extend(again.iter());
        }
        claimed_once.extend(node.cpus.iter());
        for cpu in node.cpus.iter() {
            if let Some(cpu) = cpus.get_mut(&cpu) {
                cpu.numa_node = Some(*number);
            }
        }
    }
    for cpu in claimed_twice.iter() {
        if let Some(cpu) = cpus.get_mut(&cpu) {
            cpu.numa_node = None;
        }
    }
    from_cpus(files, cpus, &claimed_twice);
    nodes
}

/// For CPUs that no node lists, reads the link `cpuN/nodeM`, which is all that some kernels and recordings have.
fn from_cpus(files: &mut Files<'_>, cpus: &mut BTreeMap<u32, Cpu>, claimed_twice: &CpuSet) {
    for (number, cpu) in
        cpus.iter_mut().filter(|(number, cpu)| cpu.numa_node.is_none() && !claimed_twice.contains(**number))
    {
        let nodes = files.numbered(&format!("sys/devices/system/cpu/cpu{number}"), "node").unwrap_or_default();
        cpu.numa_node = nodes.first().copied().filter(|_| nodes.len() == 1);
    }
}
