//! How many devices there are, which classes they are in, and which of them claims hold. Pure.

use std::collections::BTreeSet;

use k8s_openapi::api::resource::v1::Device;

use crate::{
    api::{ClassStatus, DeviceCounts},
    controller::observe::ClaimFacts,
    slices::{
        device::{is_tainted, taken},
        pool::{Pool, PoolId},
    },
};

/// The class is not in the cluster.
pub const NOT_MADE: &str = "NotMade";
/// Only Kubernetes can evaluate its selectors.
pub const NOT_COUNTED: &str = "NotCounted";
/// A selector is an error for some device, and a claim that gets to the device is not allocated.
pub const ABORTS_CLAIMS: &str = "AbortsClaims";
/// No device is in it.
pub const MATCHES_NOTHING: &str = "MatchesNothing";

/// Counts for one config.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Over all its devices.
    pub devices: DeviceCounts,
    /// For each class, in the order of the policy.
    pub classes: Vec<ClassStatus>,
    /// Nodes on which claims hold every device.
    pub full: Vec<String>,
}

/// Why it is not known whether a device is in a class: one CamelCase word, and the same in words.
pub type Uncounted = (&'static str, String);

/// Counts the devices of complete pools. `is_in` says whether a device is in a class.
pub fn count(
    driver: &str,
    pools: &[&Pool<'_>],
    claims: &[ClaimFacts],
    classes: &[&str],
    mut is_in: impl FnMut(&str, &Device) -> Result<bool, Uncounted>,
) -> Usage {
    let held = claims.iter().flat_map(|claim| &claim.devices).filter(|held| held.driver == driver);
    let taken = taken(held.map(|held| (PoolId { driver, pool: &held.pool }, held.device.as_str(), held.hold)));
    let mut usage = Usage::default();
    for pool in pools.iter().filter(|pool| pool.is_complete()) {
        let before = usage.devices.clone();
        for device in pool.devices() {
            usage.devices.total += 1;
            usage.devices.allocated += i32::from(taken.contains(&(pool.id, device.name.as_str())));
            usage.devices.tainted += i32::from(is_tainted(device));
        }
        let all = usage.devices.total - before.total;
        if all > 0 && all == usage.devices.allocated - before.allocated {
            usage.full.extend(pool.node().map(Into::into));
        }
    }
    for &class in classes {
        let mut counted = ClassStatus { name: class.into(), ..ClassStatus::default() };
        let mut nodes = BTreeSet::new();
        for pool in pools.iter().filter(|pool| pool.is_complete()) {
            for device in pool.devices() {
                match is_in(class, device) {
                    Ok(false) => {}
                    Ok(true) => {
                        counted.devices += 1;
                        counted.allocated += i32::from(taken.contains(&(pool.id, device.name.as_str())));
                        nodes.insert(pool.node().unwrap_or(pool.id.pool));
                    }
                    Err((reason, message)) => {
                        counted.reason = Some(reason.into());
                        counted.message.get_or_insert(message);
                    }
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
    fn devices_are_counted_with_those_that_claims_hold_and_by_class() {
        let mut slices =
            vec![mk_slice("a", 1, 1, &["c0", "c1"]), mk_slice("b", 1, 1, &["c0"]), mk_slice("c", 1, 2, &["c0"])];
        slices.extend([mk_slice("d", 1, 1, &["c0"]), mk_slice("e", 1, 1, &[])]);
        slices[1].spec.devices.as_mut().unwrap()[0].taints =
            serde_json::from_value(serde_json::json!([{"key": "k", "effect": "NoSchedule"}])).unwrap();
        let claims =
            [("a", "c1", Hold::Whole), ("b", "c0", Hold::Admin), ("gone", "c0", Hold::Whole), ("d", "c0", Hold::Whole)]
                .map(|(pool, device, hold)| claim(pool, device, hold));
        let pools = pools(&slices);
        let pools: Vec<_> = pools.iter().collect();
        let usage = count("dra.cpu", &pools, &claims, &["all", "c1", "broken"], |class, device| match class {
            "broken" => Err(("AbortsClaims", format!("at {}", device.name))),
            _ => Ok(class == "all" || device.name == class),
        });
        assert_eq!(usage.devices, DeviceCounts { total: 4, allocated: 2, tainted: 1 });
        assert_eq!(usage.full, ["d"], "nobody holds what an admin looks at, and an empty pool is not full");
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
