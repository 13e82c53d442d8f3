//! The menu as text. Pure.

use super::offer::{Class, Machines, Menu};
use crate::cli::table;

/// Node names shown per row.
const NODES: usize = 3;
/// Maximum number of notes about broken pools.
const POOLS: usize = 10;

const NARROW: [&str; 9] =
    ["CLASS", "NODES", "DEVICES", "FREE", "FAMILY", "GENERATION", "CORES", "MEMORY-GB", "ARCHITECTURE"];
const WIDE: [&str; 6] = ["VENDOR", "MODEL", "DRIVER", "TAINTED", "EXTENDED-RESOURCE", "NODE-NAMES"];

/// The table: a row for each class and type of machine.
pub(super) fn table(menu: &Menu) -> String {
    if menu.classes.is_empty() {
        return String::new();
    }
    table::render(NARROW, rows(menu).map(|(class, machines)| narrow(class, machines)))
}

/// The table with every column.
pub(super) fn wide(menu: &Menu) -> String {
    if menu.classes.is_empty() {
        return String::new();
    }
    let rows = rows(menu).map(|(class, machines)| joined(narrow(class, machines), more(class, machines)));
    table::render(joined(NARROW, WIDE), rows)
}

/// Notes, one line each.
pub(super) fn notes(menu: &Menu) -> Vec<String> {
    let mut notes = Vec::new();
    if menu.classes.is_empty() {
        notes.push("No DeviceClasses found: create a DraDriverConfig with spec.deviceClasses.".to_owned());
    }
    let unknown =
        |class: &Class| Some(format!("note: class {} may have more devices: {}", class.name, class.unknown.as_ref()?));
    notes.extend(menu.classes.iter().filter_map(unknown));
    let broken = menu.broken_pools.iter().take(POOLS);
    notes.extend(broken.map(|one| {
        format!("note: Kubernetes allocates nothing from pool {} of driver {}: {}", one.pool, one.driver, one.reason)
    }));
    if menu.broken_pools.len() > POOLS {
        notes.push(format!("note: the same applies to {} more pools", menu.broken_pools.len() - POOLS));
    }
    notes
}

/// A class without machines gets a row too.
fn rows(menu: &Menu) -> impl Iterator<Item = (&Class, Option<&Machines>)> {
    menu.classes.iter().flat_map(|class| {
        let machines = class.machines.iter().map(Some);
        let none = class.machines.is_empty().then_some(None);
        machines.chain(none).map(move |machines| (class, machines))
    })
}

fn narrow(class: &Class, machines: Option<&Machines>) -> [String; 9] {
    let Some(Machines { machine_type, devices, nodes, .. }) = machines else {
        let count = if class.unknown.is_some() { "<unknown>" } else { "0" };
        let mut row = std::array::from_fn(|_| String::new());
        row[0].clone_from(&class.name);
        row[1..4].fill(count.to_owned());
        return row;
    };
    [
        class.name.clone(),
        nodes.len().to_string(),
        devices.total.to_string(),
        devices.free.to_string(),
        machine_type.family.clone().unwrap_or_default(),
        number(machine_type.generation),
        number(machine_type.cores),
        number(machine_type.memory_gb),
        machine_type.architecture.clone().unwrap_or_default(),
    ]
}

fn more(class: &Class, machines: Option<&Machines>) -> [String; 6] {
    let resource = class.extended_resource_name.clone().unwrap_or_default();
    let Some(Machines { driver, machine_type, devices, nodes }) = machines else {
        let mut row = std::array::from_fn(|_| String::new());
        row[4] = resource;
        return row;
    };
    let more = nodes.len().checked_sub(NODES).filter(|more| *more > 0).map(|more| format!("… {more} more"));
    let names: Vec<&str> = nodes.iter().take(NODES).map(String::as_str).chain(more.as_deref()).collect();
    [
        machine_type.vendor.clone().unwrap_or_default(),
        machine_type.model.clone().unwrap_or_default(),
        driver.clone(),
        devices.tainted.to_string(),
        resource,
        names.join(","),
    ]
}

fn number(value: Option<i64>) -> String {
    value.map(|value| value.to_string()).unwrap_or_default()
}

fn joined<T: Clone + Default>(a: [T; 9], b: [T; 6]) -> [T; 15] {
    let mut cells = a.into_iter().chain(b);
    std::array::from_fn(|_| cells.next().unwrap_or_default())
}

#[cfg(test)]
mod tests;
