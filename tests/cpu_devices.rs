//! CPUs of machines of every shape as devices, read from `/proc` and `/sys` as a node plugin reads them.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::{collections::BTreeMap, fs};

use dra_operator::{api::Granularity, cpuset::CpuSet, drivers::cpu::CpuDevices, host::Host};
use proptest::prelude::*;

mod devices;
mod machines;

use machines::{
    Machine,
    servers::{KINDS, server},
};

fn driver(machine: &Machine, granularity: Granularity, reserved: &CpuSet) -> CpuDevices {
    let root = tempfile::tempdir().unwrap();
    machine.write(root.path()).unwrap();
    CpuDevices::new(&Host::at(root.path()).observe_machine(), granularity, reserved)
}

/// The CPUs of each device, by name.
fn cpus_by_name(driver: &CpuDevices) -> BTreeMap<String, CpuSet> {
    let devices = &driver.inventory().devices;
    devices.iter().map(|device| (device.name.clone(), driver.cpus_of(&device.name).unwrap().clone())).collect()
}

prop_compose! {
    fn any_machine()(
        sockets in 1u32..=2,
        half_cores in 1u32..=3,
        threads in 1u32..=4,
        dies in 1u32..=2,
        nodes in 1u32..=2,
        l3 in 0u32..=4,
        offline in proptest::collection::vec(1u32..16, 0..3),
    ) -> Machine {
        Machine {
            sockets,
            cores_per_socket: half_cores * 2,
            threads_per_core: threads,
            dies_per_socket: dies,
            numa_nodes_per_socket: nodes,
            cores_per_l3: l3,
            offline,
            ..Machine::default()
        }
    }
}

fn any_granularity() -> impl Strategy<Value = Granularity> {
    prop_oneof![Just(Granularity::Core), Just(Granularity::Thread)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn every_online_cpu_is_in_exactly_one_device(machine in any_machine(), granularity in any_granularity()) {
        let driver = driver(&machine, granularity, &CpuSet::new());
        devices::assert_partition(&driver, &machine.online().into_iter().collect(), &format!("{machine:?}"));
        devices::assert_within_limits(driver.inventory(), &format!("{machine:?}"));
        prop_assert_eq!(&driver.inventory().warnings, &Vec::<String>::new());
    }

    #[test]
    fn reserved_cpus_remove_their_devices_and_change_no_other(
        machine in any_machine(),
        granularity in any_granularity(),
        reserved in proptest::collection::vec(0u32..32, 0..6),
    ) {
        let reserved: CpuSet = reserved.into_iter().collect();
        let all = driver(&machine, granularity, &CpuSet::new());
        let fewer = driver(&machine, granularity, &reserved);
        let expected: BTreeMap<_, _> =
            cpus_by_name(&all).into_iter().filter(|(_, cpus)| cpus.is_disjoint(&reserved)).collect();
        prop_assert_eq!(cpus_by_name(&fewer), expected);
        // Nor does anything else about them change, such as `cores`, which counts those of the machine.
        for device in &fewer.inventory().devices {
            prop_assert!(all.inventory().devices.contains(device), "{} changed", device.name);
        }
    }

    #[test]
    fn an_offline_cpu_does_not_rename_a_core(
        machine in any_machine(),
        granularity in any_granularity(),
        offline in 1u32..16,
    ) {
        let mut less = machine.clone();
        less.offline.push(offline);
        // The exception: if every core with a repeated ID is offline, nothing shows that IDs repeat.
        if machine.dies_per_socket > 1 {
            (less.cores_per_socket, less.offline) = (8, vec![offline]);
        }
        let before = Machine { offline: less.offline.iter().skip(1).copied().collect(), ..less.clone() };
        let before = cpus_by_name(&driver(&before, granularity, &CpuSet::new()));
        for (name, cpus) in cpus_by_name(&driver(&less, granularity, &CpuSet::new())) {
            let was = before.get(&name);
            prop_assert!(was.is_some_and(|was| cpus.is_subset(was)), "{name} is {cpus}, and was {was:?}");
        }
    }

    #[test]
    fn reading_a_machine_twice_gives_the_same_devices(machine in any_machine(), granularity in any_granularity()) {
        let read = || driver(&machine, granularity, &CpuSet::new()).inventory().clone();
        prop_assert_eq!(read(), read());
    }
}

#[test]
fn the_demos_servers_have_these_devices() {
    let mut shown = BTreeMap::new();
    for (kind, _) in KINDS {
        let machine = server(kind).unwrap();
        let driver = driver(&machine, Granularity::Core, &CpuSet::new());
        devices::assert_partition(&driver, &machine.online().into_iter().collect(), kind);
        devices::assert_within_limits(driver.inventory(), kind);
        assert_eq!(driver.inventory().warnings, [""; 0]);
        let last = driver.inventory().devices.last().unwrap().clone();
        shown.insert(kind, serde_json::to_value(last).unwrap());
    }
    insta::assert_yaml_snapshot!(shown);
}

#[test]
fn every_attribute_is_in_the_reference() {
    let reference = include_str!("../docs/reference/cpu-attributes.md");
    for (kind, _) in KINDS {
        for granularity in [Granularity::Core, Granularity::Thread] {
            let driver = driver(&server(kind).unwrap(), granularity, &CpuSet::new());
            for name in driver.inventory().devices[0].attributes.as_ref().unwrap().keys() {
                let name = name.rsplit_once(".com/").map_or(name.as_str(), |(_, name)| name);
                assert!(reference.contains(&format!("`{name}`")), "{name} is not in docs/reference/cpu-attributes.md");
            }
        }
    }
}

#[test]
fn the_core_types_of_a_hybrid_processor_are_known() {
    let root = tempfile::tempdir().unwrap();
    let machine = Machine { cores_per_socket: 6, ..Machine::default() };
    machine.write(root.path()).unwrap();
    machines::put(root.path(), "sys/devices/cpu_core/cpus", "0-1").unwrap();
    machines::put(root.path(), "sys/devices/cpu_atom/cpus", "2-4").unwrap();
    assert_eq!(core_types(root.path()), ["p-core", "p-core", "e-core", "e-core", "e-core", ""]);
}

#[test]
fn the_core_types_of_an_arm_machine_are_known_from_their_capacity() {
    let root = tempfile::tempdir().unwrap();
    server("arm").map(|machine| Machine { cores_per_socket: 4, ..machine }).unwrap().write(root.path()).unwrap();
    for (cpu, capacity) in ["280", "731", "855", "1024"].into_iter().enumerate() {
        machines::put(root.path(), &format!("sys/devices/system/cpu/cpu{cpu}/cpu_capacity"), capacity).unwrap();
    }
    assert_eq!(core_types(root.path()), ["e-core", "e-core", "p-core", "p-core"]);
}

fn core_types(root: &std::path::Path) -> Vec<String> {
    let driver = CpuDevices::new(&Host::at(root).observe_machine(), Granularity::Thread, &CpuSet::new());
    let kind =
        |device: &k8s_openapi::api::resource::v1::Device| device.attributes.as_ref()?.get("coreType")?.string.clone();
    driver.inventory().devices.iter().map(|device| kind(device).unwrap_or_default()).collect()
}

#[test]
fn a_level_3_cache_that_is_not_index3_is_found() {
    let root = tempfile::tempdir().unwrap();
    Machine { cores_per_l3: 0, ..Machine::default() }.write(root.path()).unwrap();
    let caches = "sys/devices/system/cpu/cpu1/cache";
    for (index, level, id) in [(0, "1", "7"), (1, "2", "8"), (2, "3", "9")] {
        machines::put(root.path(), &format!("{caches}/index{index}/level"), level).unwrap();
        machines::put(root.path(), &format!("{caches}/index{index}/id"), id).unwrap();
    }
    let machine = Host::at(root.path()).observe_machine();
    assert_eq!(machine.cpus.values().map(|cpu| cpu.l3).collect::<Vec<_>>(), [None, Some(9), None, None]);
}

#[test]
fn without_the_list_of_online_cpus_each_cpus_directory_is_read() {
    let root = tempfile::tempdir().unwrap();
    let machine = Machine { offline: vec![2], ..Machine::default() };
    machine.write(root.path()).unwrap();
    fs::remove_file(root.path().join("sys/devices/system/cpu/online")).unwrap();
    assert_eq!(Host::at(root.path()).observe_machine().online().to_string(), "0-1,3");
}

#[test]
fn without_sysfs_the_cpus_are_read_from_proc_stat() {
    let root = tempfile::tempdir().unwrap();
    Machine::default().write(root.path()).unwrap();
    fs::remove_dir_all(root.path().join("sys")).unwrap();
    let driver = CpuDevices::new(&Host::at(root.path()).observe_machine(), Granularity::Core, &CpuSet::new());
    devices::assert_partition(&driver, &"0-3".parse().unwrap(), "no sysfs");
    assert!(driver.inventory().warnings.iter().any(|warning| warning.contains("sys/devices/system/cpu/online")));
}
