//! Which devices must not be offered because of what claims hold. Pure.

use std::collections::BTreeSet;

use k8s_openapi::api::resource::v1::Device;

use super::{Claims, Phase, prepared::PreparedDevice};
use crate::drivers::Grant;

impl Claims {
    /// Which of these devices must not be offered, by name. All of them while the checkpoint cannot be read: no claim
    /// could be prepared. Otherwise those that overlap with a device that a claim holds and that does not exist any
    /// more, as after a change of granularity: the scheduler only knows the old device to be taken.
    pub fn withheld(&self, devices: &[Device]) -> BTreeSet<String> {
        let known: BTreeSet<&str> = devices.iter().map(|device| device.name.as_str()).collect();
        if self.phase.try_read().is_ok_and(|phase| matches!(*phase, Phase::Broken(_))) {
            return known.into_iter().map(str::to_owned).collect();
        }

        // Most often every device that is held exists.
        let gone = |device: &PreparedDevice| !known.contains(device.device.as_str());
        let prepared = self.lock();
        let requests = || prepared.iter().flat_map(|claim| &claim.requests).filter(|request| !request.admin());
        let held: Vec<&Grant> =
            requests().filter(|request| request.devices.iter().any(gone)).map(|request| &request.grant).collect();
        if held.is_empty() {
            return BTreeSet::new();
        }

        // A device that is held whole by its own name is known to be taken, and stays published.
        let whole = requests().filter(|request| request.exclusive()).flat_map(|request| &request.devices);
        let named: BTreeSet<&str> = whole.map(|device| device.device.as_str()).collect();
        let overlapping = self.driver.overlapping(&held).into_iter();
        overlapping.filter(|name| !named.contains(name.as_str())).collect()
    }
}
