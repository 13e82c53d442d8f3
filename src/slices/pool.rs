//! Groups ResourceSlices into pools that are complete, incomplete or invalid, and finds obsolete slices. Pure.
//!
//! The rules are the scheduler's (k8s.io/dynamic-resource-allocation `structured`, `GatherPools`, 1.37): only the highest
//! generation of a pool counts, and nothing is allocated from a pool that is incomplete or invalid. Nothing is copied:
//! a pool borrows the slices it is made of.

use std::{
    borrow::Borrow,
    collections::{BTreeMap, BTreeSet, HashSet},
};

use k8s_openapi::api::resource::v1::{Device, ResourceSlice};

/// Identifies a pool. Pools of different drivers may have the same name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PoolId<'a> {
    /// The driver name.
    pub driver: &'a str,
    /// The pool name.
    pub pool: &'a str,
}

/// The highest generation of a pool.
#[derive(Clone, Debug)]
pub struct Pool<'a> {
    /// The pool's identity.
    pub id: PoolId<'a>,
    /// The highest generation.
    pub generation: i64,
    /// Whether devices can be allocated from the pool.
    pub state: PoolState,
    /// The slices of the highest generation.
    pub slices: Vec<&'a ResourceSlice>,
    /// Slices of lower generations, which consumers ignore.
    pub obsolete: Vec<&'a ResourceSlice>,
}

/// Whether devices can be allocated from a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PoolState {
    /// All slices exist and agree.
    Complete,
    /// Slices are missing (or there are too many, while some are being replaced).
    Incomplete {
        /// How many there are.
        have: usize,
        /// How many there should be.
        want: i64,
    },
    /// The slices contradict each other.
    Invalid {
        /// The contradiction.
        reason: String,
    },
}

impl<'a> Pool<'a> {
    /// Whether devices can be allocated from the pool.
    pub fn is_complete(&self) -> bool {
        self.state == PoolState::Complete
    }

    /// The devices of the highest generation, even if the pool is not complete.
    pub fn devices(&self) -> impl Iterator<Item = &'a Device> {
        self.slices.iter().flat_map(|slice| slice.spec.devices.iter().flatten())
    }

    /// The node whose devices these are; `None` for devices that belong to no single node.
    pub fn node(&self) -> Option<&'a str> {
        self.slices.first().and_then(|slice| slice.spec.node_name.as_deref())
    }
}

/// Groups slices, of any drivers and in any order, into pools; sorted by driver and name.
pub fn pools<S: Borrow<ResourceSlice>>(slices: &[S]) -> Vec<Pool<'_>> {
    let mut groups: BTreeMap<PoolId<'_>, Vec<&ResourceSlice>> = BTreeMap::new();
    for slice in slices {
        let slice: &ResourceSlice = slice.borrow();
        let id = PoolId { driver: &slice.spec.driver, pool: &slice.spec.pool.name };
        groups.entry(id).or_default().push(slice);
    }
    groups.into_iter().map(|(id, slices)| pool(id, slices)).collect()
}

fn pool<'a>(id: PoolId<'a>, slices: Vec<&'a ResourceSlice>) -> Pool<'a> {
    let generation = slices.iter().map(|slice| slice.spec.pool.generation).max().unwrap_or_default();
    let (slices, obsolete): (Vec<_>, Vec<_>) =
        slices.into_iter().partition(|slice| slice.spec.pool.generation == generation);
    let state = state(&slices);
    Pool { id, generation, state, slices, obsolete }
}

fn state(slices: &[&ResourceSlice]) -> PoolState {
    let counts: BTreeSet<i64> = slices.iter().map(|slice| slice.spec.pool.resource_slice_count).collect();
    let want = counts.last().copied().unwrap_or_default();
    if let Some(least) = counts.first().filter(|least| **least != want) {
        return PoolState::Invalid {
            reason: format!(
                "its slices disagree on resourceSliceCount ({least} and {want}): the driver must bump the generation when it adds or removes a slice"
            ),
        };
    }
    if i64::try_from(slices.len()) != Ok(want) {
        return PoolState::Incomplete { have: slices.len(), want };
    }
    match contradiction(slices) {
        Some(reason) => PoolState::Invalid { reason },
        None => PoolState::Complete,
    }
}

fn contradiction(slices: &[&ResourceSlice]) -> Option<String> {
    let devices = || slices.iter().flat_map(|slice| slice.spec.devices.iter().flatten());
    let mut names = HashSet::new();
    if let Some(twice) = devices().find(|device| !names.insert(device.name.as_str())) {
        return Some(format!("device {} is listed twice", twice.name));
    }
    let mut sets = BTreeMap::new();
    for set in slices.iter().flat_map(|slice| slice.spec.shared_counters.iter().flatten()) {
        if sets.insert(set.name.as_str(), &set.counters).is_some() {
            return Some(format!("counter set {} is listed twice", set.name));
        }
    }
    devices().find_map(|device| {
        device.consumes_counters.iter().flatten().find_map(|consumption| {
            let set = &consumption.counter_set;
            let Some(counters) = sets.get(set.as_str()) else {
                return Some(format!("device {} consumes from counter set {set}, which is missing", device.name));
            };
            let missing = consumption.counters.keys().find(|counter| !counters.contains_key(*counter))?;
            Some(format!("device {} consumes counter {missing}, which counter set {set} lacks", device.name))
        })
    })
}

/// Reduces a slice to what counting and matching need, so that a whole cluster's slices fit in a cache.
pub fn prune(slice: &mut ResourceSlice) {
    let metadata = &mut slice.metadata;
    metadata.managed_fields = None;
    metadata.annotations = None;
    metadata.labels = None;
    metadata.finalizers = None;
    metadata.generate_name = None;
    slice.spec.node_selector = None;
    for device in slice.spec.devices.iter_mut().flatten() {
        device.binding_conditions = None;
        device.binding_failure_conditions = None;
        device.node_allocatable_resources = None;
        device.node_selector = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::resource::v1::{
        Counter, CounterSet, DeviceCounterConsumption, ResourcePool, ResourceSliceSpec,
    };

    fn mk_slice(driver: &str, pool: &str, generation: i64, count: i64, devices: &[&str]) -> ResourceSlice {
        ResourceSlice {
            spec: ResourceSliceSpec {
                driver: driver.into(),
                node_name: Some(pool.into()),
                pool: ResourcePool { name: pool.into(), generation, resource_slice_count: count },
                devices: Some(
                    devices.iter().map(|name| Device { name: (*name).into(), ..Device::default() }).collect(),
                ),
                ..ResourceSliceSpec::default()
            },
            ..ResourceSlice::default()
        }
    }

    fn counters(names: &[&str]) -> BTreeMap<String, Counter> {
        names.iter().map(|name| ((*name).to_owned(), Counter::default())).collect()
    }

    fn consumer(set: &str, names: &[&str]) -> ResourceSlice {
        let mut slice = mk_slice("gpu", "n", 1, 2, &["mig-0"]);
        slice.spec.devices.as_mut().unwrap()[0].consumes_counters = Some(vec![DeviceCounterConsumption {
            counter_set: set.into(),
            counters: counters(names),
            ..DeviceCounterConsumption::default()
        }]);
        slice
    }

    fn counter_slice(sets: &[&str]) -> ResourceSlice {
        let mut slice = mk_slice("gpu", "n", 1, 2, &[]);
        let set = |name: &&str| CounterSet { name: (*name).into(), counters: counters(&["memory"]) };
        slice.spec.shared_counters = Some(sets.iter().map(set).collect());
        slice
    }

    fn the_reason(slices: &[ResourceSlice]) -> String {
        match &pools(slices)[0].state {
            PoolState::Invalid { reason } => reason.clone(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_pool_with_all_its_slices_is_complete_and_older_slices_are_obsolete() {
        let slices = [
            mk_slice("dra.cpu", "n1", 2, 2, &["a"]),
            mk_slice("dra.cpu", "n1", 1, 1, &["old"]),
            mk_slice("dra.cpu", "n1", 2, 2, &["b"]),
        ];
        let [pool] = &pools(&slices)[..] else { panic!("one pool") };
        assert!(pool.is_complete());
        assert_eq!((pool.generation, pool.node()), (2, Some("n1")));
        assert_eq!(pool.devices().map(|device| device.name.as_str()).collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(pool.obsolete.len(), 1);
    }

    #[test]
    fn pools_of_two_drivers_with_one_name_stay_apart() {
        let slices = [mk_slice("dra.cpu", "n1", 1, 1, &["a"]), mk_slice("dra.net", "n1", 7, 1, &["a"])];
        let pools = pools(&slices);
        assert_eq!(pools.iter().map(|pool| pool.id.driver).collect::<Vec<_>>(), ["dra.cpu", "dra.net"]);
        assert!(pools.iter().all(Pool::is_complete));
    }

    #[test]
    fn a_missing_slice_makes_a_pool_incomplete_even_if_the_older_generation_was_complete() {
        let slices = [mk_slice("dra.cpu", "n1", 2, 2, &["a"]), mk_slice("dra.cpu", "n1", 1, 1, &["a", "b"])];
        assert_eq!(pools(&slices)[0].state, PoolState::Incomplete { have: 1, want: 2 });
    }

    #[test]
    fn one_slice_too_many_is_not_complete() {
        let slices = [mk_slice("dra.cpu", "n1", 2, 1, &["a"]), mk_slice("dra.cpu", "n1", 2, 1, &["b"])];
        assert_eq!(pools(&slices)[0].state, PoolState::Incomplete { have: 2, want: 1 });
    }

    #[test]
    fn an_invalid_pool_names_the_contradiction() {
        let twice = [mk_slice("dra.cpu", "n1", 1, 2, &["a"]), mk_slice("dra.cpu", "n1", 1, 2, &["b", "a"])];
        assert_eq!(the_reason(&twice), "device a is listed twice");
        let counts = [mk_slice("dra.cpu", "n1", 1, 1, &["a"]), mk_slice("dra.cpu", "n1", 1, 2, &["b"])];
        assert!(the_reason(&counts).starts_with("its slices disagree on resourceSliceCount (1 and 2)"));
        assert_eq!(
            the_reason(&[consumer("gone", &["memory"]), counter_slice(&["set"])]),
            "device mig-0 consumes from counter set gone, which is missing"
        );
        assert_eq!(
            the_reason(&[consumer("set", &["power"]), counter_slice(&["set"])]),
            "device mig-0 consumes counter power, which counter set set lacks"
        );
        assert_eq!(
            the_reason(&[consumer("set", &["memory"]), counter_slice(&["set", "set"])]),
            "counter set set is listed twice"
        );
        assert!(pools(&[consumer("set", &["memory"]), counter_slice(&["set"])])[0].is_complete());
    }

    #[test]
    fn an_empty_slice_is_a_complete_pool_without_devices() {
        let slices = [mk_slice("dra.cpu", "n1", 1, 1, &[])];
        let pools = pools(&slices);
        assert!(pools[0].is_complete());
        assert_eq!(pools[0].devices().count(), 0);
    }
}
