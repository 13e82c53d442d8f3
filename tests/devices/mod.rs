//! What must be true of the devices of any machine. Pure.

#![allow(dead_code, reason = "each test uses a part of it")]

use std::collections::BTreeSet;

use dra_operator::{
    cpuset::CpuSet,
    drivers::{Inventory, cpu::CpuDevices},
};
use k8s_openapi::api::resource::v1::DeviceAttribute;

/// Each of `cpus` is in exactly one device, and no device has any other CPU.
pub fn assert_partition(driver: &CpuDevices, cpus: &CpuSet, of: &str) {
    let mut seen = CpuSet::new();
    let devices = &driver.inventory().devices;
    assert!(!devices.is_empty() || cpus.is_empty(), "{of}: no device");
    for device in devices {
        let own = driver.cpus_of(&device.name).unwrap_or_else(|| panic!("{of}: {} has no CPUs", device.name));
        assert!(!own.is_empty(), "{of}: {} has no CPUs", device.name);
        assert!(own.is_disjoint(&seen), "{of}: CPUs {} of {} are in two devices", own.intersection(&seen), device.name);
        seen = seen.union(own);
    }
    assert_eq!(seen.to_string(), cpus.to_string(), "{of}: CPUs in devices");
}

/// The limits of the resource.k8s.io API: names, attributes and values.
pub fn assert_within_limits(inventory: &Inventory, of: &str) {
    let mut names = BTreeSet::new();
    for device in &inventory.devices {
        let name = &device.name;
        assert!(is_label(name), "{of}: {name:?} is not a DNS label");
        assert!(names.insert(name), "{of}: {name} is used twice");
        let attributes = device.attributes.as_ref().unwrap_or_else(|| panic!("{of}: {name} has no attributes"));
        let capacities = device.capacity.as_ref().map_or(0, std::collections::BTreeMap::len);
        assert!(attributes.len() + capacities <= 32, "{of}: {name} has {} attributes", attributes.len());
        for (attribute, value) in attributes {
            let (domain, id) = attribute.split_once('/').unwrap_or(("", attribute));
            assert!(is_c_identifier(id), "{of}: {attribute}");
            assert!(domain.is_empty() || (domain.len() <= 63 && domain.split('.').all(is_label)), "{of}: {attribute}");
            assert_known(value, &format!("{of}: {name}: {attribute}"));
        }
    }
}

/// Exactly one value, and not one that stands for "unknown".
fn assert_known(value: &DeviceAttribute, of: &str) {
    match value {
        DeviceAttribute { int: Some(int), bool: None, string: None, version: None, .. } => {
            assert!(*int >= 0, "{of} is {int}");
        }
        DeviceAttribute { string: Some(string), int: None, bool: None, version: None, .. } => {
            assert!(!string.is_empty() && string.len() <= 64, "{of} is {string:?}");
        }
        DeviceAttribute { bool: Some(_), int: None, string: None, version: None, .. } => {}
        other => panic!("{of} is {other:?}"),
    }
}

fn is_label(text: &str) -> bool {
    (1..=63).contains(&text.len())
        && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
        && !text.starts_with('-')
        && !text.ends_with('-')
}

fn is_c_identifier(text: &str) -> bool {
    (1..=32).contains(&text.len())
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
        && !text.starts_with(|first: char| first.is_ascii_digit())
}
