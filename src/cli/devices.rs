//! Prints the devices of one machine as tables. Pure.

use k8s_openapi::api::resource::v1::Device;

use super::table;
use crate::{drivers::cpu::CpuDevices, slices::device::text};

/// Two tables: first what all devices of the machine have in common (including reserved ones), then the devices on
/// offer.
pub(super) fn table(machine: &CpuDevices, driver: &CpuDevices) -> String {
    let devices = &driver.inventory().devices;
    let rows = devices.iter().map(|device| {
        let of = |name: &str| attribute(device, name);
        let cpus = driver.cpus_of(&device.name).map(ToString::to_string).unwrap_or_default();
        [
            device.name.clone(),
            cpus,
            of("socketID"),
            of("coreID"),
            of("numaNodeID"),
            of("cacheL3ID"),
            of("coreType"),
            of("freqMHz"),
        ]
    });
    let list = table::render(["NAME", "CPUS", "SOCKET", "CORE", "NUMA", "L3", "TYPE", "MHZ"], rows);
    let whole = &machine.inventory().devices;
    let machine =
        ["architecture", "vendor", "family", "generation", "model", "cores", "memoryGB", "turboBoost", "smtEnabled"]
            .map(|name| distinct(whole, name));
    let header = ["ARCHITECTURE", "VENDOR", "FAMILY", "GENERATION", "MODEL", "CORES", "MEMORY-GB", "TURBO", "SMT"];
    format!("{}\n{list}", table::render(header, [machine]))
}

/// The values of an attribute: a single one, unless the machine has several kinds of core.
fn distinct(devices: &[Device], name: &str) -> String {
    let mut values: Vec<String> = Vec::new();
    for value in devices.iter().map(|device| attribute(device, name)).filter(|value| !value.is_empty()) {
        if !values.contains(&value) {
            values.push(value);
        }
    }
    values.join(",")
}

/// An attribute's value as text; empty if the device does not have it.
fn attribute(device: &Device, name: &str) -> String {
    let attribute = device.attributes.as_ref().and_then(|attributes| attributes.get(name));
    attribute.and_then(text).unwrap_or_default()
}
