//! Reads the amount of memory. IO: procfs and sysfs.

use super::file::Files;

/// `MemTotal` of the machine, in KiB, from `/proc/meminfo` or else as the sum over its nodes.
pub(super) fn observe_total(files: &mut Files<'_>, nodes: impl Iterator<Item = u32>) -> Option<u64> {
    let total = observe_line(files, "proc/meminfo", "MemTotal:").filter(|&kib| kib > 0);
    total.or_else(|| {
        let nodes: Option<Vec<u64>> = nodes.map(|node| observe_node(files, node)).collect();
        Some(nodes?.into_iter().fold(0, u64::saturating_add)).filter(|&kib| kib > 0)
    })
}

/// `MemTotal` of one NUMA node, in KiB.
pub(super) fn observe_node(files: &mut Files<'_>, node: u32) -> Option<u64> {
    let file = format!("sys/devices/system/node/node{node}/meminfo");
    observe_line(files, &file, &format!("Node {node} MemTotal:"))
}

/// The number of KiB after `name`.
fn observe_line(files: &mut Files<'_>, file: &str, name: &str) -> Option<u64> {
    let mut found = None;
    let readable = files.lines(file, |line| {
        found =
            line.trim_start().strip_prefix(name).map(|value| value.trim_start().trim_end_matches(" kB").parse::<u64>());
        found.is_none()
    });
    match found {
        Some(Ok(kib)) => Some(kib),
        _ if !readable => None,
        _ => {
            files.contradiction(file, format!("has no line {name:?} with a number of kB"));
            None
        }
    }
}
