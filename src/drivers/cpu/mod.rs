//! CPUs as devices. IO: sysfs and procfs, through `host`.
//!
//! `Core` (`core-<socket>-<core>`): a physical core with all its threads. `Thread` (`cpu-<n>`): one CPU as the kernel
//! numbers them. Every online CPU is in exactly one device, except the reserved ones; a core with a reserved CPU is not
//! offered.

mod arm;
mod attributes;
mod cores;
mod devices;
mod identity;
mod kind;
mod memory;
mod online;
mod parameters;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use futures::{FutureExt as _, future::BoxFuture};
use tokio::sync::watch;

pub use self::devices::CpuDevices;
use super::{AllocatedDevice, Conflict, Driver, Grant, GrantError, Inventory, cpuset_fields::CpusetFields};
use crate::{api::Granularity, cpuset::CpuSet, host::Host};

/// The CPUs of this node: the [`CpuDevices`] of the machine, and which CPUs are online now.
pub struct CpuDriver {
    host: Host,
    /// The CPUs that were online when the machine was read.
    online: Option<CpuSet>,
    devices: CpuDevices,
    inventory: watch::Sender<Arc<Inventory>>,
}

impl CpuDriver {
    /// Reads the machine. `reserved` CPUs are never offered.
    pub fn observe(host: Host, granularity: Granularity, reserved: &CpuSet) -> Self {
        // Read the online CPUs first, so that a change while reading the machine is noticed.
        let online = host.observe_online();
        let devices = CpuDevices::new(&host.observe_machine(), granularity, reserved);
        let inventory = watch::Sender::new(Arc::clone(devices.inventory()));
        Self { host, online, devices, inventory }
    }
}

impl Driver for CpuDriver {
    /// Never changes: the plugin rebuilds the driver when [`Driver::changed`] resolves.
    fn inventory(&self) -> watch::Receiver<Arc<Inventory>> {
        self.inventory.subscribe()
    }

    fn grant(&self, devices: &[AllocatedDevice]) -> Result<Grant, GrantError> {
        self.devices.grant(devices)
    }

    fn conflict(&self, wanted: &Grant, held: &[&Grant]) -> Option<Conflict> {
        devices::conflict(wanted, held)
    }

    /// A CPU may have gone offline since the machine was read.
    fn check(&self, grant: &Grant) -> Result<(), GrantError> {
        match self.host.observe_online() {
            Some(online) if !grant.cpus.is_subset(&online) => Err(GrantError::Unusable {
                what: format!("CPUs {} are offline on this node", grant.cpus.difference(&online)),
                remedy: "bring them online".to_owned(),
            }),
            _ => Ok(()),
        }
    }

    fn remainder(&self, held: &[&Grant]) -> Option<Grant> {
        self.devices.remainder(held)
    }

    fn overlapping(&self, held: &[&Grant]) -> Vec<String> {
        self.devices.overlapping(held)
    }

    fn cpuset_fields(&self) -> CpusetFields {
        CpusetFields::Cpus
    }

    fn changed(&self) -> BoxFuture<'_, String> {
        let online = online::changed(&self.host, self.online.clone());
        online.map(|now| format!("online CPUs changed to {now}")).boxed()
    }
}
