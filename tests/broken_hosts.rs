//! If files in sysfs are unreadable, empty, invalid or contradictory, discovery finds what it can and warns with the name
//! of the file. No tree makes it panic or block.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::{fs, path::Path, process::Command};

use dra_operator::{api::Granularity, cpuset::CpuSet, drivers::cpu::CpuDevices, host::Host};
use k8s_openapi::api::resource::v1::Device;
use proptest::prelude::*;
use rstest::rstest;

mod devices;
mod machines;

use machines::Machine;

/// What replaces a file.
#[derive(Clone, Debug)]
enum Broken {
    Text(&'static str),
    Large,
    Directory,
    Pipe,
    Missing,
}
use Broken::{Directory, Large, Missing, Pipe, Text};

/// Two sockets of two cores of two threads; NUMA nodes 0 and 1; CPUs 0–3 are first threads, 4–7 second ones.
fn machine() -> Machine {
    Machine { sockets: 2, cores_per_socket: 2, threads_per_core: 2, ..Machine::default() }
}

fn break_file(root: &Path, file: &str, broken: &Broken) {
    let path = root.join(file);
    if path.is_dir() {
        fs::remove_dir_all(&path).unwrap();
    } else if path.exists() {
        fs::remove_file(&path).unwrap();
    }
    match broken {
        Text(text) => {
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        Large => fs::write(path, "0,".repeat(50_000)).unwrap(),
        Directory => fs::create_dir(path).unwrap(),
        Pipe => assert!(Command::new("mkfifo").arg(path).status().unwrap().success()),
        Missing => {}
    }
}

fn discover(root: &Path) -> CpuDevices {
    CpuDevices::new(&Host::at(root).observe_machine(), Granularity::Core, &CpuSet::new())
}

fn names(driver: &CpuDevices) -> Vec<&str> {
    driver.inventory().devices.iter().map(|device| device.name.as_str()).collect()
}

fn first<'d>(driver: &'d CpuDevices, attribute: &str) -> Option<&'d k8s_openapi::api::resource::v1::DeviceAttribute> {
    let device: &Device = driver.inventory().devices.first()?;
    device.attributes.as_ref()?.get(attribute)
}

const ALL: [&str; 4] = ["core-0-0", "core-0-1", "core-1-0", "core-1-1"];
const WITHOUT_FIRST_CORE_ID: [&str; 4] = ["core-cpu0", "core-0-1", "core-1-0", "core-1-1"];

#[rstest]
#[case::invalid("cpu0/topology/core_id", &Text("zero"), "says \"zero\"", &WITHOUT_FIRST_CORE_ID)]
#[case::empty("cpu0/topology/core_id", &Text(""), "is empty", &WITHOUT_FIRST_CORE_ID)]
#[case::unreadable("cpu0/topology/core_id", &Directory, "cannot be read", &WITHOUT_FIRST_CORE_ID)]
#[case::pipe("cpu0/topology/core_id", &Pipe, "is empty", &WITHOUT_FIRST_CORE_ID)]
#[case::large("cpu0/topology/core_cpus_list", &Large, "is larger than", &ALL)]
#[case::siblings_without_itself("cpu0/topology/core_cpus_list", &Text("4\n"), "lacks CPU 0 itself", &ALL)]
#[case::backwards("cpu0/topology/core_cpus_list", &Text("4-0"), "runs backwards", &ALL)]
#[case::package("cpu0/topology/physical_package_id", &Text("\u{fffd}\u{1}"), "not a number", &WITHOUT_FIRST_CORE_ID)]
#[case::topology_is_a_file("cpu0/topology", &Text("x"), "Not a directory", &["core-cpu0", "core-0-0", "core-0-1", "core-1-0", "core-1-1"])]
#[case::online_empty("online", &Text(""), "is empty, although", &ALL)]
#[case::online_invalid("online", &Text("all"), "says \"all\"", &ALL)]
#[case::online_unreadable("online", &Directory, "cannot be read", &ALL)]
#[case::online_unknown("online", &Text("0-7,9"), "CPUs 9, which have no directory", &["core-cpu9", "core-0-0", "core-0-1", "core-1-0", "core-1-1"])]
#[case::cache("cpu0/cache/index3/id", &Text("?"), "not a number", &ALL)]
#[case::frequency("cpu0/cpufreq/base_frequency", &Text("fast"), "not a number", &ALL)]
#[case::turbo("intel_pstate/no_turbo", &Text("maybe"), "not a number", &ALL)]
#[case::smt("smt/active", &Text(""), "is empty", &ALL)]
fn a_broken_cpu_file_costs_only_its_own_information(
    #[case] file: &str,
    #[case] broken: &Broken,
    #[case] warning: &str,
    #[case] expected: &[&str],
) {
    let file = format!("sys/devices/system/cpu/{file}");
    let root = tempfile::tempdir().unwrap();
    machine().write(root.path()).unwrap();
    break_file(root.path(), &file, broken);

    let driver = discover(root.path());
    let online = Host::at(root.path()).observe_machine().online();
    devices::assert_partition(&driver, &online, &file);
    devices::assert_within_limits(driver.inventory(), &file);
    let mut sorted = names(&driver);
    sorted.sort_unstable();
    let mut expected = expected.to_vec();
    expected.sort_unstable();
    assert_eq!(sorted, expected);
    let full = root.path().join(&file).display().to_string();
    let warnings = &driver.inventory().warnings;
    assert!(warnings.iter().any(|text| text.starts_with(&full) && text.contains(warning)), "{warnings:#?}");
}

#[test]
fn one_sided_siblings_are_warned_about_and_every_cpu_is_still_in_one_device() {
    let root = tempfile::tempdir().unwrap();
    machine().write(root.path()).unwrap();
    for name in ["core_cpus_list", "thread_siblings_list"] {
        break_file(root.path(), &format!("sys/devices/system/cpu/cpu0/topology/{name}"), &Text("0"));
    }
    let driver = discover(root.path());
    devices::assert_partition(&driver, &"0-7".parse().unwrap(), "one-sided siblings");
    let warnings = &driver.inventory().warnings;
    assert!(warnings.iter().any(|text| text.contains("cpu4/topology") && text.contains("do not name each other")));
}

#[rstest]
#[case::empty(&Text(""))]
#[case::invalid(&Text("MemTotal: much kB\n"))]
#[case::unreadable(&Directory)]
#[case::missing(&Missing)]
fn without_meminfo_the_memory_is_the_sum_of_the_nodes(#[case] broken: &Broken) {
    let root = tempfile::tempdir().unwrap();
    machine().write(root.path()).unwrap();
    break_file(root.path(), "proc/meminfo", broken);
    let driver = discover(root.path());
    assert_eq!(first(&driver, "memoryGB").and_then(|attribute| attribute.int), Some(16));
    let warned = driver.inventory().warnings.iter().any(|text| text.contains("proc/meminfo"));
    assert_eq!(warned, !matches!(broken, Missing));
}

#[rstest]
#[case::empty(&Text(""), "does not have the format of any known architecture")]
#[case::invalid(&Text("\u{0}\u{1}:::\n:\n\n"), "does not have the format of any known architecture")]
#[case::unreadable(&Directory, "cannot be read")]
#[case::missing(&Missing, "does not exist")]
fn without_cpuinfo_vendor_and_model_are_left_out(#[case] broken: &Broken, #[case] warning: &str) {
    let root = tempfile::tempdir().unwrap();
    machine().write(root.path()).unwrap();
    break_file(root.path(), "proc/cpuinfo", broken);
    let driver = discover(root.path());
    assert_eq!(names(&driver), ALL);
    for attribute in ["architecture", "vendor", "family", "generation", "model", "avx2", "cpu.intel.com/cores"] {
        assert_eq!(first(&driver, attribute), None, "{attribute}");
    }
    assert!(driver.inventory().warnings.iter().any(|text| text.contains("proc/cpuinfo") && text.contains(warning)));
}

#[test]
fn a_cpu_that_two_numa_nodes_list_is_on_neither() {
    let root = tempfile::tempdir().unwrap();
    machine().write(root.path()).unwrap();
    break_file(root.path(), "sys/devices/system/node/node1/cpulist", &Text("0,2-3,6-7"));
    let driver = discover(root.path());
    let known = |cpu: usize| driver.inventory().devices[cpu].attributes.as_ref().unwrap().contains_key("numaNodeID");
    assert_eq!(driver.inventory().devices.len(), 4);
    let of_core_0 = names(&driver).iter().position(|name| *name == "core-0-0").unwrap();
    assert!((0..4).all(|core| known(core) == (core != of_core_0)));
    let warnings = &driver.inventory().warnings;
    assert!(
        warnings.iter().any(|text| text.contains("node1/cpulist lists CPUs 0, and so does another node")),
        "{warnings:?}"
    );
}

#[test]
fn a_cpu_that_two_core_types_list_has_neither() {
    let root = tempfile::tempdir().unwrap();
    Machine::default().write(root.path()).unwrap();
    machines::put(root.path(), "sys/devices/cpu_core/cpus", "0-1").unwrap();
    machines::put(root.path(), "sys/devices/cpu_atom/cpus", "0,2-3").unwrap();
    let driver = discover(root.path());
    assert_eq!(first(&driver, "coreType"), None);
    assert!(driver.inventory().warnings.iter().any(|text| text.contains("cpu_atom/cpus lists CPUs 0, and so does")));
}

/// Any file that discovery reads, of a small machine.
fn any_file() -> impl Strategy<Value = String> {
    let of_cpu = prop::sample::select(vec![
        "online",
        "topology/physical_package_id",
        "topology/die_id",
        "topology/cluster_id",
        "topology/core_id",
        "topology/core_cpus_list",
        "topology/core_cpus",
        "topology/thread_siblings_list",
        "topology/thread_siblings",
        "cache/index3/level",
        "cache/index3/id",
        "cache/index2/level",
        "cpu_capacity",
        "cpufreq/base_frequency",
        "cpufreq/cpuinfo_max_freq",
        "acpi_cppc/nominal_freq",
        "node0/x",
        "node1/x",
    ]);
    let of_node = prop::sample::select(vec!["cpulist", "cpumap", "meminfo"]);
    let others = prop::sample::select(vec![
        "proc/cpuinfo",
        "proc/meminfo",
        "proc/stat",
        "proc/sys/kernel/hostname",
        "sys/devices/system/cpu/online",
        "sys/devices/system/cpu/smt/active",
        "sys/devices/system/cpu/intel_pstate/no_turbo",
        "sys/devices/system/cpu/cpufreq/boost",
        "sys/devices/system/node/has_memory",
        "sys/devices/cpu_core/cpus",
        "sys/devices/cpu_atom/cpus",
    ]);
    prop_oneof![
        4 => (0u32..6, of_cpu).prop_map(|(cpu, file)| format!("sys/devices/system/cpu/cpu{cpu}/{file}")),
        1 => (0u32..3, of_node).prop_map(|(node, file)| format!("sys/devices/system/node/node{node}/{file}")),
        2 => others.prop_map(str::to_owned),
    ]
}

/// Valid and invalid contents.
fn any_text() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        4 => (-1i64..8).prop_map(|number| number.to_string().into_bytes()),
        1 => any::<i64>().prop_map(|number| number.to_string().into_bytes()),
        3 => "[0-7](-[0-7])?(,[0-7](-[0-7])?){0,3}".prop_map(String::into_bytes),
        1 => Just(b"0-65535".to_vec()),
        1 => "[0-9a-f]{1,8}(,[0-9a-f]{8}){0,2}".prop_map(String::into_bytes),
        2 => "((processor|vendor_id|cpu family|model|model name|flags|Features|CPU implementer|CPU part|MemTotal|cpu|clock|isa)\
              [ \t]*:[ \t]*[-0-9a-zA-Z@. ]{0,12}\n{1,2}){0,8}".prop_map(String::into_bytes),
        1 => "MemTotal: [0-9]{1,20} kB".prop_map(String::into_bytes),
        1 => proptest::collection::vec(any::<u8>(), 0..64),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn no_tree_makes_discovery_panic_or_lose_a_cpu(
        files in proptest::collection::btree_map(any_file(), any_text(), 0..60),
        whole in any::<bool>(),
        reserved in "[0-7](,[0-7])?",
    ) {
        let root = tempfile::tempdir().unwrap();
        if whole {
            machine().write(root.path()).unwrap();
        }
        for (file, text) in &files {
            // A machine with every possible CPU online takes long and shows nothing more.
            let text = if file.ends_with("cpu/online") && text == b"0-65535" { b"0-300" } else { text.as_slice() };
            let path = root.path().join(file);
            if fs::create_dir_all(path.parent().unwrap()).is_ok() && !path.is_dir() {
                fs::write(path, text).unwrap();
            }
        }
        let host = Host::at(root.path());
        let _ = host.observe_name();
        let machine = host.observe_machine();
        let reserved: CpuSet = reserved.parse().unwrap();
        for granularity in [Granularity::Core, Granularity::Thread] {
            let driver = CpuDevices::new(&machine, granularity, &CpuSet::new());
            devices::assert_partition(&driver, &machine.online(), "garbage");
            devices::assert_within_limits(driver.inventory(), "garbage");
            let fewer = CpuDevices::new(&machine, granularity, &reserved);
            for device in &fewer.inventory().devices {
                prop_assert!(fewer.cpus_of(&device.name).is_some_and(|cpus| cpus.is_disjoint(&reserved)));
            }
        }
    }
}
