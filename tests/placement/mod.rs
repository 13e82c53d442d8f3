//! Reads straight from `/proc` and `/sys` where each CPU is, and compares the devices with it. IO: reads files.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use dra_operator::{cpuset::CpuSet, drivers::cpu::CpuDevices};
use k8s_openapi::api::resource::v1::Device;

const CPUS: &str = "sys/devices/system/cpu";

fn text(root: &Path, file: &str) -> Option<String> {
    Some(fs::read_to_string(root.join(file)).ok()?.trim().to_owned())
}

/// A number; none where the kernel writes -1 for "unknown".
fn number(root: &Path, file: &str) -> Option<i64> {
    text(root, file)?.parse().ok().filter(|number| *number >= 0)
}

/// The id of a CPU's level 3 cache.
pub fn l3(root: &Path, cpu: u32) -> Option<i64> {
    let cache = |index: u32| format!("{CPUS}/cpu{cpu}/cache/index{index}");
    let index = (0..8).find(|index| number(root, &format!("{}/level", cache(*index))) == Some(3))?;
    number(root, &format!("{}/id", cache(index)))
}

/// The NUMA nodes that list each CPU.
fn numa_nodes(root: &Path) -> BTreeMap<u32, Vec<i64>> {
    let mut nodes: BTreeMap<u32, Vec<i64>> = BTreeMap::new();
    for entry in fs::read_dir(root.join("sys/devices/system/node")).into_iter().flatten() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let Some(node) = name.strip_prefix("node").and_then(|number| number.parse().ok()) else { continue };
        let list = text(root, &format!("sys/devices/system/node/{name}/cpulist"));
        // One recording has a list that does not parse.
        let list = list.and_then(|list| Some(list.parse::<CpuSet>().ok()?.iter().collect()));
        let map = text(root, &format!("sys/devices/system/node/{name}/cpumap"));
        for cpu in list.or_else(|| Some(bits(&map?))).unwrap_or_default() {
            nodes.entry(cpu).or_default().push(node);
        }
    }
    nodes
}

/// The CPUs of a mask such as `00000001,ffff0000`.
fn bits(mask: &str) -> Vec<u32> {
    let digits = mask.chars().rev().filter_map(|digit| digit.to_digit(16));
    let cpus =
        (0..).step_by(4).zip(digits).flat_map(|(first, digit)| (0..4).map(move |bit| (first + bit, digit >> bit)));
    cpus.filter(|(_, bit)| bit & 1 == 1).map(|(cpu, _)| cpu).collect()
}

fn int(device: &Device, name: &str) -> Option<i64> {
    device.attributes.as_ref()?.get(name)?.int
}

/// How the devices differ from the files. An attribute must be what the files say of one of the device's CPUs, and be
/// left out only if they say it of none.
pub fn differences(root: &Path, driver: &CpuDevices) -> Vec<String> {
    let nodes = numa_nodes(root);
    // A CPU in several nodes, as on a kernel with faulty firmware, is in none for certain.
    let node = |cpu: u32| nodes.get(&cpu).filter(|nodes| nodes.len() == 1).map(|nodes| nodes[0]);
    let topology = |cpu: u32, file: &str| number(root, &format!("{CPUS}/cpu{cpu}/topology/{file}"));
    let mut wrong = Vec::new();
    for device in &driver.inventory().devices {
        let cpus = driver.cpus_of(&device.name).unwrap();
        let mut compare = |name: &str, of_cpu: &dyn Fn(u32) -> Option<i64>| {
            let files: BTreeSet<i64> = cpus.iter().filter_map(of_cpu).collect();
            let published = int(device, name);
            if !published.map_or(files.is_empty(), |value| files.contains(&value)) {
                wrong.push(format!("{} has {name} {published:?}, the files say {files:?}", device.name));
            }
        };
        compare("socketID", &|cpu| topology(cpu, "physical_package_id"));
        compare("coreID", &|cpu| topology(cpu, "core_id"));
        compare("cacheL3ID", &|cpu| l3(root, cpu));
        compare("numaNodeID", &node);
        wrong.extend(memory(root, device));
    }
    wrong
}

/// What is sold is at most a twentieth more than the kernel manages, and rounding to whole GB adds at most one.
fn memory(root: &Path, device: &Device) -> Option<String> {
    let meminfo = text(root, "proc/meminfo")?;
    let kib: i64 =
        meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:")?.split_whitespace().next()?.parse().ok())?;
    let published = int(device, "memoryGB").unwrap_or(0) << 20;
    let bounds = kib - (1 << 19)..=kib + kib / 20 + (1 << 19);
    (!bounds.contains(&published))
        .then(|| format!("{} has memoryGB {}, MemTotal is {kib} kB", device.name, published >> 20))
}

/// How many devices there are of each type of core.
pub fn core_types(driver: &CpuDevices) -> BTreeMap<String, usize> {
    let mut types = BTreeMap::new();
    for device in &driver.inventory().devices {
        let core_type = device.attributes.as_ref().and_then(|all| all.get("coreType")?.string.clone());
        *types.entry(core_type.unwrap_or_else(|| "unknown".to_owned())).or_default() += 1;
    }
    types
}
