//! Counts devices, by class, and how many of them claims hold. Pure.

use std::collections::BTreeSet;

use k8s_openapi::api::resource::v1::Device;

use crate::{
    api::{ClassReason, ClassStatus, DeviceCounts},
    controller::observe::ClaimFacts,
    slices::{
        device::{is_tainted, taken},
        pool::{Pool, PoolId},
    },
};

/// Counts for one config.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// All its devices.
    pub devices: DeviceCounts,
    /// Each class, in the order of the spec.
    pub classes: Vec<ClassStatus>,
    /// Nodes on which claims hold every device.
    pub full: Vec<String>,
}

/// Why it is unknown whether a device is in a class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Uncounted {
    /// The reason.
    pub reason: ClassReason,
    /// The message.
    pub message: String,
}

/// Counts the devices of complete pools. `is_in` says whether a device is in a class.
pub fn count(
    driver: &str,
    pools: &[&Pool<'_>],
    claims: &[ClaimFacts],
    classes: &[&str],
    mut is_in: impl FnMut(&str, &Device) -> Result<bool, Uncounted>,
) -> Usage {
    // Nothing is allocated from an incomplete pool, so its devices do not count.
    let pools: Vec<_> = pools.iter().filter(|pool| pool.is_complete()).collect();
    let held = claims.iter().flat_map(|claim| &claim.devices).filter(|held| held.driver == driver);
    let taken = taken(held.map(|held| (PoolId { driver, pool: &held.pool }, held.device.as_str(), held.hold)));
    let is_taken = |pool: &Pool<'_>, device: &Device| taken.contains(&(pool.id, device.name.as_str()));

    // All devices, and the nodes that have none left.
    let mut usage = Usage::default();
    for pool in &pools {
        let before = usage.devices.clone();
        for device in pool.devices() {
            usage.devices.total += 1;
            usage.devices.allocated += i32::from(is_taken(pool, device));
            usage.devices.tainted += i32::from(is_tainted(device));
        }
        let all = usage.devices.total - before.total;
        if all > 0 && all == usage.devices.allocated - before.allocated {
            usage.full.extend(pool.node().map(Into::into));
        }
    }

    // The devices of each class. If a class cannot be evaluated for a device, the others are still counted.
    for &class in classes {
        let mut counted = ClassStatus { name: class.into(), ..ClassStatus::default() };
        let mut nodes = BTreeSet::new();
        for (pool, device) in pools.iter().flat_map(|pool| pool.devices().map(move |device| (pool, device))) {
            match is_in(class, device) {
                Ok(false) => {}
                Ok(true) => {
                    counted.devices += 1;
                    counted.allocated += i32::from(is_taken(pool, device));
                    nodes.insert(pool.node().unwrap_or(pool.id.pool));
                }
                Err(Uncounted { reason, message }) => {
                    counted.reason = Some(reason.as_str().into());
                    counted.message.get_or_insert(message);
                }
            }
        }
        counted.nodes = i32::try_from(nodes.len()).unwrap_or(i32::MAX);
        usage.classes.push(counted);
    }
    usage
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        controller::{observe::Held, testing::mk_slice},
        slices::{device::Hold, pool::pools},
    };

    fn claim(pool: &str, device: &str, hold: Hold) -> ClaimFacts {
        let device = Held { driver: "dra.cpu".into(), pool: pool.into(), device: device.into(), hold };
        ClaimFacts { namespace: "ns".into(), name: "c".into(), node: None, devices: vec![device] }
    }

    #[test]
    fn devices_are_counted_in_total_by_claim_and_by_class() {
        let mut slices =
            vec![mk_slice("a", 1, 1, &["c0", "c1"]), mk_slice("b", 1, 1, &["c0"]), mk_slice("c", 1, 2, &["c0"])];
        slices.extend([mk_slice("d", 1, 1, &["c0"]), mk_slice("e", 1, 1, &[])]);
        let taint = |effect: &str| serde_json::from_value(serde_json::json!([{"key": "k", "effect": effect}])).unwrap();
        slices[1].spec.devices.as_mut().unwrap()[0].taints = taint("NoSchedule");
        // A taint with the effect None is only informational.
        slices[0].spec.devices.as_mut().unwrap()[0].taints = taint("None");
        let claims =
            [("a", "c1", Hold::Whole), ("b", "c0", Hold::Admin), ("gone", "c0", Hold::Whole), ("d", "c0", Hold::Whole)]
                .map(|(pool, device, hold)| claim(pool, device, hold));
        let pools = pools(&slices);
        let pools: Vec<_> = pools.iter().collect();
        let usage = count("dra.cpu", &pools, &claims, &["all", "c1", "broken"], |class, device| match class {
            "broken" => Err(Uncounted { reason: ClassReason::AbortsClaims, message: format!("at {}", device.name) }),
            _ => Ok(class == "all" || device.name == class),
        });
        assert_eq!(usage.devices, DeviceCounts { total: 4, allocated: 2, tainted: 1 });
        assert_eq!(usage.full, ["d"], "admin access takes no device from others, and an empty pool is not full");
        let class = |name: &str, devices, nodes, allocated| ClassStatus {
            name: name.into(),
            devices,
            nodes,
            allocated,
            ..ClassStatus::default()
        };
        assert_eq!(usage.classes[..2], [class("all", 4, 3, 2), class("c1", 1, 1, 1)]);
        assert_eq!((usage.classes[2].devices, usage.classes[2].reason.as_deref()), (0, Some("AbortsClaims")));
        assert_eq!(usage.classes[2].message.as_deref(), Some("at c0"), "the first");
    }
}
