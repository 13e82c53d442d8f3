//! Machines read from `/proc` and `/sys`, compared with independent readings: the counts with hwloc's, with a reason for
//! each difference; the place and the memory of each device with the files themselves, read by the test.
//!
//! The recordings are not part of the project. Without their folder the test over them is reported as ignored; the
//! machines described in tests/machines are always compared.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
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
mod machines;
mod placement;

use machines::servers::{KINDS, server};

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

/// The types of core of machines that have several; all other machines have one.
const CORE_TYPES: [(&str, &[(&str, usize)]); 6] = [
    // Core i7-1370P has six performance and eight efficient cores, but the recording lacks `sys/devices/cpu_core`, and
    // nothing else that we read tells them apart.
    ("hwloc-20em64t-hybrid-1p6c2t_2ca4co1t", &[("standard", 14)]),
    // GB10: ten Cortex-X925 and ten Cortex-A725.
    ("hwloc-nvidia-dgx-gb10", &[("e-core", 10), ("p-core", 10)]),
    // One Cortex-X3, two Cortex-A715 and two Cortex-A710; three Cortex-A510.
    ("lscpu-arm-A510-A710-A715-X3", &[("e-core", 3), ("p-core", 5)]),
    // `cpu_capacity` is 234 for 12 of the 24 CPUs, and two CPUs are a core.
    ("hwloc-fakeheterocpunuma", &[("e-core", 6), ("p-core", 6)]),
    // `cpu_atom/cpus` lists 16 CPUs, and two CPUs are a core.
    ("nri-alloc", &[("e-core", 8), ("p-core", 32)]),
    // `cpu_atom/cpus` lists eight CPUs, each a core; two of the CPUs in `cpu_core/cpus` are a core.
    ("nri-s1", &[("e-core", 8), ("p-core", 4)]),
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
                counts: BTreeMap::from([
                    ("cores", number(3)),
                    ("packages", number(4)),
                    ("numa_nodes", number(5)),
                    ("l3", number(6)),
                    ("dies", number(7)),
                ]),
            }
        })
        .collect()
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
    let caches: BTreeSet<_> = machine.cpus.values().filter_map(|cpu| cpu.l3).collect();
    let dies: BTreeSet<_> = machine.cpus.values().filter_map(|cpu| Some((cpu.package, cpu.die?))).collect();
    BTreeMap::from([
        ("cores", cores),
        ("packages", packages.len()),
        ("numa_nodes", machine.numa_nodes.len()),
        ("l3", caches.len()),
        ("dies", dies.len()),
    ])
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

/// Whether any level 3 cache has the file `id`, without which the caches cannot be told apart yet.
fn has_l3_ids(root: &Path, machine: &Machine) -> bool {
    machine.cpus.keys().any(|cpu| placement::l3(root, *cpu).is_some())
}

/// What differs from the independent reading without an explanation.
fn differences(root: &Path, recorded: &Recorded, explained: &mut usize) -> Vec<String> {
    let name = &recorded.name;
    let machine = Host::at(root).observe_machine();
    let mut wrong = Vec::new();
    if machine.cpus.len() != recorded.cpus {
        wrong.push(format!("{} CPUs are online, hwloc has {}", machine.cpus.len(), recorded.cpus));
    }
    let online = machine.online().to_string();
    if !recorded.online.is_empty() && online != recorded.online {
        wrong.push(format!("CPUs {online} are online, hwloc has {}", recorded.online));
    }

    let ours = counts(&machine);
    for (what, hwloc) in &recorded.counts {
        let ours = ours[what];
        match DIFFERENCES.iter().find(|(machine, count, ..)| machine == name && count == what) {
            Some((_, _, count, why)) => {
                *explained += 1;
                if ours != *count || Some(ours) == *hwloc {
                    wrong.push(format!("{what}: ours {ours}, hwloc's {hwloc:?}, though {count} is explained: {why}"));
                }
            }
            None if *what == "l3" && !has_l3_ids(root, &machine) => {
                if ours != 0 {
                    wrong.push(format!("l3: {ours} caches without an id"));
                }
            }
            None => {
                if hwloc.is_some_and(|hwloc| hwloc != ours) {
                    wrong.push(format!("{what}: ours {ours}, hwloc's {hwloc:?}"));
                }
            }
        }
    }

    let driver = CpuDevices::new(&machine, Granularity::Core, &CpuSet::new());
    wrong.extend(placement::differences(root, &driver));
    let types = placement::core_types(&driver);
    let expected = CORE_TYPES.iter().find(|(machine, _)| machine == name).map(|(_, types)| *types);
    let matches = match expected {
        Some(expected) => {
            types.iter().map(|(core_type, count)| (core_type.as_str(), *count)).eq(expected.iter().copied())
        }
        None => types.len() <= 1,
    };
    if !matches {
        wrong.push(format!("core types {types:?}, expected {expected:?}"));
    }
    wrong
}

#[test]
#[cfg_attr(not(recorded_machines), ignore = "nothing was compared: there is no folder ../shared/machines")]
fn every_recorded_machine_is_read_as_the_independent_reading_has_it() {
    let folder = Path::new(env!("RECORDED_MACHINES"));
    let machines = recorded(folder);
    assert_eq!(machines.len(), 42);
    let (mut explained, mut wrong) = (0, Vec::new());
    for machine in &machines {
        let name = &machine.name;
        let directory = extract(folder, name);
        let found = differences(directory.path(), machine, &mut explained);
        println!("{name}: {}", if found.is_empty() { "as expected".to_owned() } else { found.join("; ") });
        wrong.extend(found.into_iter().map(|what| format!("{name}: {what}")));

        let observed = Host::at(directory.path()).observe_machine();
        for granularity in [Granularity::Core, Granularity::Thread] {
            let driver = CpuDevices::new(&observed, granularity, &CpuSet::new());
            devices::assert_partition(&driver, &observed.online(), name);
            devices::assert_within_limits(driver.inventory(), name);
        }
        for granularity in ["Core", "Thread"] {
            assert_discover_shows_devices(directory.path(), granularity, name);
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(explained, DIFFERENCES.len(), "a difference is explained for a machine that does not exist");
}

/// Runs in every checkout: the machines that are described in tests/machines.
#[test]
fn the_demos_servers_are_read_as_they_are_described() {
    for (kind, _) in KINDS {
        let described = server(kind).unwrap();
        let root = tempfile::tempdir().unwrap();
        described.write(root.path()).unwrap();
        let machine = Host::at(root.path()).observe_machine();

        let cores = (described.sockets * described.cores_per_socket) as usize;
        let expected = BTreeMap::from([
            ("cores", cores),
            ("packages", described.sockets as usize),
            ("numa_nodes", (described.sockets * described.numa_nodes_per_socket) as usize),
            ("l3", cores.checked_div(described.cores_per_l3 as usize).unwrap_or(0)),
            ("dies", (described.sockets * described.dies_per_socket) as usize),
        ]);
        assert_eq!(counts(&machine), expected, "{kind}");

        let driver = CpuDevices::new(&machine, Granularity::Core, &CpuSet::new());
        assert_eq!(placement::differences(root.path(), &driver), [""; 0], "{kind}");
        assert_eq!(placement::core_types(&driver), BTreeMap::from([("standard".to_owned(), cores)]), "{kind}");
    }
}
