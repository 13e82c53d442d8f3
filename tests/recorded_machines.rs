//! Every recorded machine of `../shared/machines` through `discover`: never a panic, never nothing, each online CPU in
//! exactly one device; and the counts beside an independent reading (hwloc's), with a reason for each difference.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use dra_operator::{
    api::Granularity,
    cpuset::CpuSet,
    drivers::cpu::CpuDevices,
    host::{Host, machine::Machine},
};
use k8s_openapi::{List, api::resource::v1::ResourceSlice};

mod devices;

const NO_NODES: &str =
    "the kernel shows no NUMA node; hwloc counts the whole machine as one, we say that it is unknown";
const NO_PACKAGES: &str =
    "physical_package_id is -1 everywhere; hwloc counts each core as a package, we count one unknown";
const MULTIPLE: &str = "two CPUs have one package id, no core_id and are not siblings: hwloc takes each for a package";
const MODULES: &str = "the kernel names the two cores of a Bulldozer module siblings; they share a floating point unit and are \
     given away together, while hwloc goes by core_id";
const OVERLAP: &str = "several nodes claim the same CPUs: hwloc drops such nodes, we know them but no CPU's node";

/// Where our count differs from hwloc's: machine, count, ours, why.
const DIFFERENCES: [(&str, &str, usize, &str); 20] = [
    ("hwloc-16ia64-8n2s", "packages", 8, MULTIPLE),
    ("hwloc-20s390-2g6s4c", "numa_nodes", 0, NO_NODES),
    ("hwloc-20s390-2g6s4c", "packages", 1, NO_PACKAGES),
    ("hwloc-256ppc-8n8s4t", "packages", 1, NO_PACKAGES),
    ("hwloc-2arm-2c", "numa_nodes", 0, NO_NODES),
    ("hwloc-2i386-2t-hugepagesizecount", "numa_nodes", 0, NO_NODES),
    ("hwloc-2ps3-2t", "numa_nodes", 0, NO_NODES),
    ("hwloc-64amd64-4s2n4ca2co", "cores", 32, MODULES),
    ("hwloc-8em64t-2s2ca2c-buggynuma", "numa_nodes", 8, OVERLAP),
    ("hwloc-fakeheterocpunuma", "numa_nodes", 6, OVERLAP),
    ("lscpu-arm-A510-A710-A715-X3", "numa_nodes", 0, NO_NODES),
    ("lscpu-ppc-qemu", "numa_nodes", 0, NO_NODES),
    ("lscpu-ppc64-POWER7", "packages", 1, NO_PACKAGES),
    ("lscpu-rv64-linux", "numa_nodes", 0, NO_NODES),
    ("lscpu-s390-kvm", "numa_nodes", 0, NO_NODES),
    ("lscpu-s390-kvm", "packages", 1, NO_PACKAGES),
    ("lscpu-s390-lpar", "numa_nodes", 0, NO_NODES),
    ("lscpu-s390-lpar", "packages", 1, NO_PACKAGES),
    ("lscpu-sparc64", "numa_nodes", 0, NO_NODES),
    ("lscpu-sparc64", "packages", 1, NO_PACKAGES),
];

/// One line of machines.tsv.
struct Recorded {
    name: String,
    online: String,
    cpus: usize,
    counts: BTreeMap<&'static str, Option<usize>>,
}

fn recorded(folder: &Path) -> Vec<Recorded> {
    let text = fs::read_to_string(folder.join("machines.tsv")).unwrap();
    text.lines()
        .skip(1)
        .map(|line| {
            let cells: Vec<&str> = line.split('\t').collect();
            let number = |index: usize| cells.get(index).and_then(|cell| cell.parse().ok());
            Recorded {
                name: cells[0].to_owned(),
                online: cells[1].to_owned(),
                cpus: number(2).unwrap(),
                counts: BTreeMap::from([("cores", number(3)), ("packages", number(4)), ("numa_nodes", number(5))]),
            }
        })
        .collect()
}

/// The folder of recordings; `None`, and a word about it, where this checkout has none.
fn folder() -> Option<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/machines");
    if !folder.is_dir() {
        println!("skipped: no recorded machines at {}", folder.display());
        return None;
    }
    Some(folder)
}

/// Most of a recording is other devices, which no reading of ours opens: they are not unpacked.
const LEFT_OUT: [&str; 22] = [
    "proc/device-tree",
    "sys/devices/pci*",
    "sys/devices/LNX*",
    "sys/devices/virtual",
    "sys/bus",
    "sys/class",
    "sys/block",
    "sys/kernel",
    "sys/firmware",
    "cpuidle",
    "power",
    "uevent",
    "type",
    "size",
    "hugepages",
    "shared_cpu_*",
    "core_siblings*",
    "package_cpus*",
    "ways_of_associativity",
    "number_of_sets",
    "coherency_line_size",
    "node*/memory*",
];

fn extract(folder: &Path, name: &str) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    let status = Command::new("tar")
        .arg("xJf")
        .arg(folder.join(format!("{name}.tar.xz")))
        .args(LEFT_OUT.map(|pattern| format!("--exclude={pattern}")))
        .arg("-C")
        .arg(directory.path())
        .status()
        .unwrap();
    assert!(status.success(), "tar cannot extract {name}");
    directory
}

fn counts(machine: &Machine) -> BTreeMap<&'static str, usize> {
    let cores = CpuDevices::new(machine, Granularity::Core, &CpuSet::new()).inventory().devices.len();
    let packages: BTreeSet<_> = machine.cpus.values().map(|cpu| cpu.package).collect();
    BTreeMap::from([("cores", cores), ("packages", packages.len()), ("numa_nodes", machine.numa_nodes.len())])
}

/// The verb itself, in its machine-readable form.
fn assert_discover_shows_devices(root: &Path, granularity: &str, name: &str) {
    let mut discover = assert_cmd::Command::new(env!("CARGO_BIN_EXE_dra-operator"));
    let output = discover
        .args(["discover", "--granularity", granularity, "-o", "json", "--host-root"])
        .arg(root)
        .assert()
        .success();
    let list: List<ResourceSlice> = serde_json::from_slice(&output.get_output().stdout).unwrap();
    let devices = list.items.iter().flat_map(|slice| slice.spec.devices.iter().flatten()).count();
    assert!(devices > 0, "{name}: discover shows no {granularity}");
}

#[test]
fn every_recorded_machine_gives_each_online_cpu_in_exactly_one_device() {
    let Some(folder) = folder() else { return };
    let machines = recorded(&folder);
    assert_eq!(machines.len(), 42);
    let mut unexplained = DIFFERENCES.len();
    for Recorded { name, online, cpus, counts: hwloc } in machines {
        let directory = extract(&folder, &name);
        let machine = Host::at(directory.path()).observe_machine();
        assert_eq!(machine.cpus.len(), cpus, "{name}: online CPUs");
        if !online.is_empty() {
            assert_eq!(machine.online().to_string(), online, "{name}");
        }
        for granularity in [Granularity::Core, Granularity::Thread] {
            let driver = CpuDevices::new(&machine, granularity, &CpuSet::new());
            devices::assert_partition(&driver, &machine.online(), &name);
            devices::assert_within_limits(driver.inventory(), &name);
        }
        for granularity in ["Core", "Thread"] {
            assert_discover_shows_devices(directory.path(), granularity, &name);
        }
        let ours = counts(&machine);
        for (what, hwloc) in hwloc {
            let explained = DIFFERENCES.iter().find(|(machine, count, ..)| *machine == name && *count == what);
            match (hwloc, explained) {
                (None, None) => {}
                (Some(hwloc), None) => assert_eq!(ours[what], hwloc, "{name}: {what}: ours and hwloc's"),
                (hwloc, Some((_, _, count, why))) => {
                    assert_eq!(ours[what], *count, "{name}: {what}: {why}");
                    assert_ne!(Some(*count), hwloc, "{name}: {what} is explained though it does not differ");
                    unexplained -= 1;
                }
            }
        }
    }
    assert_eq!(unexplained, 0, "a difference is explained for a machine that is not there");
}
