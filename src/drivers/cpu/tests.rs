//! What a claim gets, and what is left for other containers.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::*;
use crate::host::machine::{Cpu, Machine, NumaNode};

/// Four cores of two threads: CPUs 0–3 and 4–7; cores 0 and 1 on NUMA node 0, 2 and 3 on node 1.
fn machine() -> Machine {
    let cpu = |number: u32| Cpu {
        package: Some(0),
        core: Some(number % 4),
        numa_node: Some(number % 4 / 2),
        siblings: Some([number % 4, number % 4 + 4].into_iter().collect()),
        ..Cpu::default()
    };
    let node = |cpus: &str| NumaNode { cpus: cpus.parse().unwrap(), has_memory: Some(true) };
    Machine {
        cpus: (0..8).map(|number| (number, cpu(number))).collect(),
        numa_nodes: BTreeMap::from([(0, node("0-1,4-5")), (1, node("2-3,6-7"))]),
        ..Machine::default()
    }
}

fn driver() -> CpuDevices {
    CpuDevices::new(&machine(), Granularity::Core, &CpuSet::new())
}

fn allocated(device: &str, parameters: Vec<Value>) -> AllocatedDevice {
    AllocatedDevice {
        request: "fast-cores".into(),
        pool: "node".into(),
        device: device.into(),
        share_id: None,
        admin_access: false,
        consumed_capacity: BTreeMap::new(),
        parameters,
    }
}

fn grant(driver: &CpuDevices, devices: &[&str]) -> Grant {
    let devices: Vec<_> = devices.iter().map(|device| allocated(device, Vec::new())).collect();
    driver.grant(&devices).unwrap()
}

fn set(list: &str) -> CpuSet {
    list.parse().unwrap()
}

#[test]
fn a_request_gets_all_threads_of_its_cores_and_their_memory() {
    let grant = grant(&driver(), &["core-0-0", "core-0-2"]);
    assert_eq!((grant.cpus, grant.memory_nodes), (set("0,2,4,6"), set("0-1")));
    assert_eq!(grant.env, BTreeMap::from([("DRA_CPUS_FAST_CORES".to_owned(), "0,2,4,6".to_owned())]));
}

#[test]
fn memory_nodes_are_not_set_if_a_node_may_have_no_memory() {
    for has_memory in [Some(false), None] {
        let mut machine = machine();
        machine.numa_nodes.insert(1, NumaNode { cpus: set("2-3,6-7"), has_memory });
        let driver = CpuDevices::new(&machine, Granularity::Core, &CpuSet::new());
        assert_eq!(grant(&driver, &["core-0-0"]).memory_nodes, set("0"));
        assert_eq!(grant(&driver, &["core-0-0", "core-0-2"]).memory_nodes, CpuSet::new());
    }
}

#[test]
fn the_error_names_a_device_that_does_not_exist() {
    let error = driver().grant(&[allocated("core-9-9", Vec::new())]).unwrap_err();
    assert_eq!(error, GrantError::UnknownDevice { device: "core-9-9".into() });
}

#[test]
fn unknown_parameters_are_rejected_by_name() {
    assert!(driver().grant(&[allocated("core-0-0", vec![json!({}), json!({})])]).is_ok());
    for (parameters, named) in [
        (json!({"exclusive": true}), "unknown field \"exclusive\""),
        (json!([]), "not an object"),
        (json!("fast"), "not an object"),
        (Value::Null, "null"),
    ] {
        let error = driver().grant(&[allocated("core-0-0", vec![json!({}), parameters])]).unwrap_err().to_string();
        let (first, _) = error.split_once("takes no parameters: write {}").unwrap();
        assert!(first.contains("fast-cores") && first.contains(named), "{error}");
    }
}

#[test]
fn unclaimed_cpus_are_left_for_other_containers() {
    let driver = CpuDevices::new(&machine(), Granularity::Core, &set("3"));
    let (first, second) = (grant(&driver, &["core-0-0"]), grant(&driver, &["core-0-1", "core-0-2"]));
    assert_eq!(driver.remainder(&[]), None);
    assert_eq!(driver.remainder(&[&first]).unwrap().cpus, set("1-3,5-7"));
    // The reserved CPU's core was never offered: both its threads are left.
    assert_eq!(driver.remainder(&[&first, &second]).unwrap().cpus, set("3,7"));
}

#[test]
fn nothing_left_is_distinguished_from_nothing_held() {
    let driver = driver();
    let all = grant(&driver, &["core-0-0", "core-0-1", "core-0-2", "core-0-3"]);
    assert_eq!(driver.remainder(&[&all]), Some(Grant::default()));
}

#[test]
fn a_core_with_a_reserved_cpu_is_not_offered_but_its_other_thread_is() {
    let names = |granularity| {
        let driver = CpuDevices::new(&machine(), granularity, &set("4"));
        driver.inventory().devices.iter().map(|device| device.name.clone()).collect::<Vec<_>>()
    };
    assert_eq!(names(Granularity::Core), ["core-0-1", "core-0-2", "core-0-3"]);
    // In the order of the cores, so that the next two free threads are one core.
    assert_eq!(names(Granularity::Thread), ["cpu-0", "cpu-1", "cpu-5", "cpu-2", "cpu-6", "cpu-3", "cpu-7"]);
}

#[test]
fn reserving_nothing_or_everything_causes_a_warning() {
    let warnings =
        |reserved| CpuDevices::new(&machine(), Granularity::Core, &set(reserved)).inventory().warnings.clone();
    assert_eq!(warnings("0-1"), [""; 0]);
    assert!(warnings("0,99")[0].contains("99 are not online"));
    assert!(warnings("0-7")[0].contains("no devices are offered"));
}
