//! Makes devices from a machine's CPUs, and decides what their claims get. Pure.

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::api::resource::v1::Device;

use super::{
    attributes::{self, OfMachine, put},
    cores::{self, Core},
    parameters,
};
use crate::{
    api::Granularity,
    cpuset::CpuSet,
    drivers::{AllocatedDevice, Conflict, Grant, GrantError, Inventory},
    host::machine::Machine,
};

/// The CPUs of one machine as devices.
#[derive(Clone, Debug)]
pub struct CpuDevices {
    inventory: Arc<Inventory>,
    offered: BTreeMap<String, Offer>,
    online: CpuSet,
}

/// The hardware behind a device.
#[derive(Clone, Debug)]
struct Offer {
    cpus: CpuSet,
    /// Its NUMA node, if that certainly has memory.
    memory_node: Option<u32>,
}

impl CpuDevices {
    /// Turns a machine into devices. `reserved` CPUs are never offered.
    pub fn new(machine: &Machine, granularity: Granularity, reserved: &CpuSet) -> Self {
        let (cores, contradictions) = cores::cores(machine);
        let widest = cores.iter().map(|core| core.cpus.len()).max().unwrap_or(0);
        let of_machine = OfMachine::new(machine, cores.len(), widest);
        let mut driver = Self {
            inventory: Arc::new(Inventory { devices: Vec::new(), warnings: machine.warnings.clone() }),
            offered: BTreeMap::new(),
            online: machine.online(),
        };
        driver.inventory_mut().warnings.extend(contradictions);
        driver.warn_of_reservation(reserved);
        match granularity {
            Granularity::Core => driver.offer_cores(machine, &of_machine, &cores, reserved),
            Granularity::Thread => driver.offer_threads(machine, &of_machine, &cores, reserved),
        }
        driver
    }

    /// The CPUs of a device.
    pub fn cpus_of(&self, device: &str) -> Option<&CpuSet> {
        self.offered.get(device).map(|offer| &offer.cpus)
    }

    /// The devices, and what could not be read.
    pub fn inventory(&self) -> &Arc<Inventory> {
        &self.inventory
    }

    /// The inventory is not shared before it is complete, so this copies nothing.
    fn inventory_mut(&mut self) -> &mut Inventory {
        Arc::make_mut(&mut self.inventory)
    }

    /// The CPUs of all `devices`, also listed in `DRA_CPUS_<REQUEST>`, and their NUMA nodes if each certainly has
    /// memory.
    pub(super) fn grant(&self, devices: &[AllocatedDevice]) -> Result<Grant, GrantError> {
        let mut grant = Grant::default();
        let mut memory_nodes = Some(CpuSet::new());
        for AllocatedDevice { request, device, parameters, .. } in devices {
            let offer = self.offered.get(device).ok_or_else(|| GrantError::UnknownDevice { device: device.clone() })?;
            for parameters in parameters {
                parameters::check(parameters)
                    .map_err(|message| GrantError::Parameters { request: request.clone(), message })?;
            }

            grant.cpus.extend(offer.cpus.iter());
            // If the memory of one device is unknown, the container may use all memory.
            match (&mut memory_nodes, offer.memory_node) {
                (Some(nodes), Some(node)) => nodes.insert(node),
                _ => memory_nodes = None,
            }
        }
        grant.memory_nodes = memory_nodes.unwrap_or_default();
        if let Some(AllocatedDevice { request, .. }) = devices.first() {
            grant.env.insert(variable(request), grant.cpus.to_string());
        }
        Ok(grant)
    }

    /// Online CPUs that no claim holds, including reserved ones.
    pub(super) fn remainder(&self, held: &[&Grant]) -> Option<Grant> {
        let held = held.iter().fold(CpuSet::new(), |all, grant| all.union(&grant.cpus));
        if held.is_empty() {
            return None;
        }
        Some(Grant { cpus: self.online.difference(&held), ..Grant::default() })
    }

    /// The devices that have a CPU among the `held` ones.
    pub(super) fn overlapping(&self, held: &[&Grant]) -> Vec<String> {
        let overlaps = |offer: &Offer| held.iter().any(|grant| !offer.cpus.is_disjoint(&grant.cpus));
        self.offered.iter().filter(|(_, offer)| overlaps(offer)).map(|(name, _)| name.clone()).collect()
    }

    fn offer_cores(&mut self, machine: &Machine, of_machine: &OfMachine<'_>, cores: &[Core<'_>], reserved: &CpuSet) {
        for Core { name, cpus, cpu, .. } in cores.iter().filter(|core| core.cpus.is_disjoint(reserved)) {
            let attributes = of_machine.device(cpu, cpus);
            self.offer(machine, name.clone(), cpus.clone(), cpu.numa_node, attributes);
        }
    }

    /// In the order of the cores, so that a claim for the next free threads gets whole cores.
    fn offer_threads(&mut self, machine: &Machine, of_machine: &OfMachine<'_>, cores: &[Core<'_>], reserved: &CpuSet) {
        for number in cores.iter().flat_map(|core| core.cpus.iter()).filter(|number| !reserved.contains(*number)) {
            let Some(cpu) = machine.cpus.get(&number) else { continue };
            let cpus = CpuSet::from_iter([number]);
            let mut attributes = of_machine.device(cpu, &cpus);
            attributes.remove("cpuIDs");
            put(&mut attributes, "cpuID", Some(number));
            self.offer(machine, format!("cpu-{number}"), cpus, cpu.numa_node, attributes);
        }
    }

    fn offer(
        &mut self,
        machine: &Machine,
        name: String,
        cpus: CpuSet,
        numa_node: Option<u32>,
        attributes: attributes::Attributes,
    ) {
        let has_memory = |node: &u32| machine.numa_nodes.get(node).and_then(|node| node.has_memory) == Some(true);
        let memory_node = numa_node.filter(has_memory);
        self.inventory_mut().devices.push(Device {
            name: name.clone(),
            attributes: Some(attributes),
            ..Device::default()
        });
        self.offered.insert(name, Offer { cpus, memory_node });
    }

    fn warn_of_reservation(&mut self, reserved: &CpuSet) {
        let elsewhere = reserved.difference(&self.online);
        if !elsewhere.is_empty() {
            let warning = format!("reserved CPUs {elsewhere} are not online on this node and are ignored");
            self.inventory_mut().warnings.push(warning);
        }
        if !self.online.is_empty() && self.online.is_subset(reserved) {
            let warning = format!("every online CPU ({}) is reserved: no devices are offered", self.online);
            self.inventory_mut().warnings.push(warning);
        }
    }
}

/// The environment variable that lists the CPUs of a request: `fast-cores` → `DRA_CPUS_FAST_CORES`.
fn variable(request: &str) -> String {
    let upper = request.chars().map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' });
    format!("DRA_CPUS_{}", upper.collect::<String>())
}

/// A CPU runs the containers of a single claim only.
pub(super) fn conflict(wanted: &Grant, held: &[&Grant]) -> Option<Conflict> {
    held.iter().enumerate().find_map(|(with, held)| {
        let both = wanted.cpus.intersection(&held.cpus);
        (!both.is_empty()).then(|| Conflict { what: format!("CPUs {both}"), with })
    })
}
