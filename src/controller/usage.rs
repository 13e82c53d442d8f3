//! How many devices there are, which classes they are in, and which of them claims hold. Pure.

use std::collections::{BTreeSet, HashMap, HashSet};

use k8s_openapi::api::resource::v1::{DeviceTaint, ResourceSlice};

use super::observe::ClaimFacts;
use crate::{
    api::{ClassStatus, DeviceCounts},
    slices::pool::Pool,
};

/// Counts for one config.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Over all its devices.
    pub devices: DeviceCounts,
    /// For each class, in the order of the policy.
    pub classes: Vec<ClassStatus>,
}

/// Counts the devices of complete pools. `answers` says which of a slice's devices, in order, are in a class.
pub fn count(
    driver: &str,
    pools: &[&Pool<'_>],
    claims: &[ClaimFacts],
    classes: &[&str],
    mut answers: impl FnMut(&str, &ResourceSlice) -> Vec<bool>,
) -> Usage {
    let held: HashSet<(&str, &str)> = claims
        .iter()
        .flat_map(|claim| &claim.devices)
        .filter(|held| held.driver == driver && !held.admin)
        .map(|held| (held.pool.as_str(), held.device.as_str()))
        .collect();
    let mut usage = Usage::default();
    for pool in pools.iter().filter(|pool| pool.is_complete()) {
        for device in pool.devices() {
            usage.devices.total += 1;
            usage.devices.allocated += i32::from(held.contains(&(pool.id.pool, device.name.as_str())));
            usage.devices.tainted += i32::from(device.taints.iter().flatten().any(matters));
        }
    }
    for &class in classes {
        let mut counted = ClassStatus { name: class.into(), ..ClassStatus::default() };
        let mut nodes = BTreeSet::new();
        for pool in pools.iter().filter(|pool| pool.is_complete()) {
            for slice in &pool.slices {
                let matched = answers(class, slice);
                for (device, _) in slice.spec.devices.iter().flatten().zip(matched).filter(|(_, matched)| *matched) {
                    counted.devices += 1;
                    counted.allocated += i32::from(held.contains(&(pool.id.pool, device.name.as_str())));
                    nodes.insert(pool.node().unwrap_or(pool.id.pool));
                }
            }
        }
        counted.nodes = i32::try_from(nodes.len()).unwrap_or(i32::MAX);
        usage.classes.push(counted);
    }
    usage
}

/// A taint with the effect `None` is a note, and keeps no claim off.
fn matters(taint: &DeviceTaint) -> bool {
    taint.effect != "None"
}

/// Which devices of each slice are in each class, kept while neither changes: a selector costs microseconds, and a large
/// cluster has a million pairs.
#[derive(Debug, Default)]
pub struct MatchCache {
    /// By slice name: its version, and by class and selectors the devices' answers.
    slices: HashMap<String, (String, HashMap<u64, Vec<bool>>)>,
}

impl MatchCache {
    /// The answer for `slice` under the class with the hash `class`, worked out by `work_out` if it is not known.
    pub fn get(&mut self, slice: &ResourceSlice, class: u64, work_out: impl FnOnce() -> Vec<bool>) -> Vec<bool> {
        let version = slice.metadata.resource_version.clone().unwrap_or_default();
        let entry = self.slices.entry(slice.metadata.name.clone().unwrap_or_default()).or_default();
        if entry.0 != version || version.is_empty() {
            *entry = (version, HashMap::new());
        }
        entry.1.entry(class).or_insert_with(work_out).clone()
    }

    /// Forgets slices that are gone.
    pub fn retain(&mut self, slices: &[impl AsRef<ResourceSlice>]) {
        let names: HashSet<_> = slices.iter().filter_map(|slice| slice.as_ref().metadata.name.as_deref()).collect();
        self.slices.retain(|name, _| names.contains(name.as_str()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        controller::{observe::Held, testing::mk_slice},
        slices::pool::pools,
    };

    fn claim(pool: &str, device: &str, admin: bool) -> ClaimFacts {
        let held = Held { driver: "dra.cpu".into(), pool: pool.into(), device: device.into(), admin };
        ClaimFacts { namespace: "ns".into(), name: "c".into(), devices: vec![held] }
    }

    #[test]
    fn devices_are_counted_with_those_that_claims_hold_and_by_class() {
        let mut slices =
            vec![mk_slice("a", 1, 1, &["c0", "c1"]), mk_slice("b", 1, 1, &["c0"]), mk_slice("c", 1, 2, &["c0"])];
        slices[1].spec.devices.as_mut().unwrap()[0].taints =
            serde_json::from_value(serde_json::json!([{"key": "k", "effect": "NoSchedule"}])).unwrap();
        let claims = [claim("a", "c1", false), claim("b", "c0", true), claim("gone", "c0", false)];
        let pools = pools(&slices);
        let usage = count("dra.cpu", &pools.iter().collect::<Vec<_>>(), &claims, &["all", "c1"], |class, slice| {
            slice.spec.devices.iter().flatten().map(|device| class == "all" || device.name == class).collect()
        });
        assert_eq!(usage.devices, DeviceCounts { total: 3, allocated: 1, tainted: 1 });
        let class =
            |name: &str, devices, nodes| ClassStatus { name: name.into(), devices, nodes, allocated: 1, reason: None };
        assert_eq!(usage.classes, [class("all", 3, 2), class("c1", 1, 1)]);
    }

    #[test]
    fn an_answer_is_kept_until_the_slice_or_the_class_changes() {
        let mut cache = MatchCache::default();
        let mut slice = mk_slice("a", 1, 1, &["c0"]);
        slice.metadata.resource_version = Some("1".into());
        assert_eq!(cache.get(&slice, 7, || vec![true]), [true]);
        assert_eq!(cache.get(&slice, 7, || panic!("known")), [true]);
        assert_eq!(cache.get(&slice, 8, || vec![false]), [false]);
        slice.metadata.resource_version = Some("2".into());
        assert_eq!(cache.get(&slice, 7, || vec![false]), [false]);
        cache.retain(&[] as &[std::sync::Arc<ResourceSlice>]);
        assert_eq!(cache.get(&slice, 7, || vec![true]), [true]);
    }
}
