//! Which devices must not be offered because of what claims hold. Pure.

use std::collections::BTreeSet;

use k8s_openapi::api::resource::v1::Device;

use super::{Claims, Phase, prepared::PreparedDevice};
use crate::drivers::Grant;

impl Claims {
    /// The names of the devices that must not be offered. While the checkpoint cannot be read, these are all devices,
    /// because no claim could be prepared. Otherwise they are those that overlap with a claimed device that no longer
    /// exists, for example after a change of granularity: the scheduler knows only that the old device is taken.
    pub fn withheld(&self, devices: &[Device]) -> BTreeSet<String> {
        let known: BTreeSet<&str> = devices.iter().map(|device| device.name.as_str()).collect();
        if self.phase.try_read().is_ok_and(|phase| matches!(*phase, Phase::Broken(_))) {
            return known.into_iter().map(str::to_owned).collect();
        }

        // Usually every held device exists.
        let gone = |device: &PreparedDevice| !known.contains(device.device.as_str());
        let prepared = self.lock();
        let requests = || prepared.iter().flat_map(|claim| &claim.requests).filter(|request| !request.admin());
        let held: Vec<&Grant> =
            requests().filter(|request| request.devices.iter().any(gone)).map(|request| &request.grant).collect();
        if held.is_empty() {
            return BTreeSet::new();
        }

        // The scheduler knows that a device held exclusively under its own name is taken, so it stays published.
        let whole = requests().filter(|request| request.exclusive()).flat_map(|request| &request.devices);
        let named: BTreeSet<&str> = whole.map(|device| device.device.as_str()).collect();
        let overlapping = self.driver.overlapping(&held).into_iter();
        overlapping.filter(|name| !named.contains(name.as_str())).collect()
    }
}
