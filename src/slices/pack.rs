//! Packs the devices of a node into the ResourceSlices of its pool. Pure.
//!
//! The pool is named after the node. Slice names are derived from driver, node and index instead of generated: the same
//! devices give the same slices, and the API server rejects a second create of a slice instead of storing a duplicate.

use k8s_openapi::{
    api::resource::v1::{Device, DeviceAttribute, ResourcePool, ResourceSlice, ResourceSliceSpec},
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference},
};

use crate::{digest::short_sha256, dns::MAX_SUBDOMAIN};

/// Maximum number of devices in a slice (`ResourceSliceMaxDevices` in the resource.k8s.io API).
pub const MAX_DEVICES: usize = 128;
/// The maximum if any device has taints, counters or list attributes (`ResourceSliceMaxDevicesWithAdvancedFeatures`).
pub const MAX_DEVICES_ADVANCED: usize = 64;
/// Every slice's name begins with at most this much of `<node>-<driver>-`. The prefix is cut to leave room for the hash
/// and the index, and then shortened further so that no label ends in a '-' (a label has at most 63 characters).
pub const MIN_KEPT: usize = 150;

/// The driver and node whose devices are packed.
#[derive(Clone, Debug, PartialEq)]
pub struct NodePool {
    /// The driver name.
    pub driver: String,
    /// The name of the node, and thus of the pool.
    pub node: String,
    /// The Node object, so that its slices are garbage-collected with it; `None` without a cluster.
    pub owner: Option<OwnerReference>,
}

/// The part of a slice's name between the node name and the hash.
pub fn name_after_node(driver: &str) -> String {
    format!("-{driver}-")
}

/// The owner of a node's slices.
pub fn node_owner(name: &str, uid: &str) -> OwnerReference {
    OwnerReference {
        api_version: "v1".into(),
        kind: "Node".into(),
        name: name.into(),
        uid: uid.into(),
        controller: Some(true),
        block_owner_deletion: None,
    }
}

impl NodePool {
    /// The whole pool, in the order of the devices, as generation 1 (`diff` sets the real one). Without devices it is
    /// one empty slice, which tells a node without devices from a plugin that has not published yet.
    pub fn pack(&self, devices: &[Device]) -> Vec<ResourceSlice> {
        let most = if devices.iter().any(is_advanced) { MAX_DEVICES_ADVANCED } else { MAX_DEVICES };
        let count = devices.len().div_ceil(most).max(1);
        let mut chunks = devices.chunks(most);
        (0..count).map(|index| self.slice(index, count, chunks.next().unwrap_or_default())).collect()
    }

    fn slice(&self, index: usize, count: usize, devices: &[Device]) -> ResourceSlice {
        ResourceSlice {
            metadata: ObjectMeta {
                name: Some(self.slice_name(index)),
                owner_references: self.owner.clone().map(|owner| vec![owner]),
                ..ObjectMeta::default()
            },
            spec: ResourceSliceSpec {
                driver: self.driver.clone(),
                node_name: Some(self.node.clone()),
                pool: ResourcePool {
                    name: self.node.clone(),
                    generation: 1,
                    resource_slice_count: i64::try_from(count).unwrap_or(i64::MAX),
                },
                // Always a list: an empty one is shown as `devices: []`, which is clearer than no field.
                devices: Some(devices.to_vec()),
                ..ResourceSliceSpec::default()
            },
        }
    }

    /// `<node>-<driver>-<hash>-<index>`. Node "a-b" with driver "c" and node "a" with driver "b-c" would look the same,
    /// so a short hash of both distinguishes them, even if a long name had to be cut.
    fn slice_name(&self, index: usize) -> String {
        let tail = format!("-{}-{index}", short_sha256(format!("{}/{}", self.node, self.driver), 8));
        let mut head = format!("{}{}", self.node, name_after_node(&self.driver));
        // Node and driver names are ASCII, but a cut inside a character must not panic either.
        let mut end = head.len().min(MAX_SUBDOMAIN - tail.len());
        while !head.is_char_boundary(end) {
            end -= 1;
        }
        head.truncate(end);
        let head = head.trim_end_matches(['-', '.']);
        format!("{head}{tail}")
    }
}

fn is_advanced(device: &Device) -> bool {
    fn filled<T>(list: Option<&Vec<T>>) -> bool {
        list.is_some_and(|list| !list.is_empty())
    }
    let has_list = |attribute: &DeviceAttribute| {
        filled(attribute.ints.as_ref())
            || filled(attribute.bools.as_ref())
            || filled(attribute.strings.as_ref())
            || filled(attribute.versions.as_ref())
    };
    filled(device.taints.as_ref())
        || filled(device.consumes_counters.as_ref())
        || device.attributes.iter().flatten().any(|(_, attribute)| has_list(attribute))
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::resource::v1::DeviceTaint;
    use proptest::prelude::*;

    fn pool(node: &str, driver: &str) -> NodePool {
        NodePool { driver: driver.into(), node: node.into(), owner: Some(node_owner(node, "uid-1")) }
    }

    fn devices(count: usize) -> Vec<Device> {
        (0..count).map(|n| Device { name: format!("cpu-{n}"), ..Device::default() }).collect()
    }

    #[test]
    fn a_node_without_devices_has_one_empty_slice() {
        let slices = pool("node-1", "dra.cpu").pack(&[]);
        assert_eq!(slices.len(), 1);
        assert_eq!(slices[0].spec.devices, Some(vec![]));
        assert_eq!(slices[0].spec.pool.resource_slice_count, 1);
        assert_eq!(slices[0].spec.pool.name, "node-1");
        assert_eq!(slices[0].spec.node_name.as_deref(), Some("node-1"));
        assert_eq!(slices[0].metadata.owner_references.as_ref().unwrap()[0].uid, "uid-1");
    }

    #[test]
    fn one_device_over_the_limit_makes_a_second_slice() {
        let sizes = |slices: Vec<ResourceSlice>| -> Vec<usize> {
            slices.iter().map(|slice| slice.spec.devices.as_ref().unwrap().len()).collect()
        };
        let pool = pool("node-1", "dra.cpu");
        assert_eq!(sizes(pool.pack(&devices(128))), [128]);
        assert_eq!(sizes(pool.pack(&devices(129))), [128, 1]);
        let mut tainted = devices(65);
        tainted[3].taints = Some(vec![DeviceTaint::default()]);
        assert_eq!(sizes(pool.pack(&tainted)), [64, 1]);
        let mut listed = devices(65);
        let ints = DeviceAttribute { ints: Some(vec![1]), ..DeviceAttribute::default() };
        listed[64].attributes = Some([("numa".to_owned(), ints)].into());
        assert_eq!(sizes(pool.pack(&listed)), [64, 1]);
    }

    #[test]
    fn ambiguous_names_get_different_slices() {
        let name = |node, driver| pool(node, driver).pack(&[])[0].metadata.name.clone().unwrap();
        assert_ne!(name("a-b", "c"), name("a", "b-c"));
        let long = "n".repeat(253);
        assert_ne!(name(&long, "dra.cpu"), name(&long, "dra.net"));
    }

    proptest! {
        #[test]
        fn every_device_is_in_one_slice_in_order_under_a_valid_name(
            count in 0_usize..600,
            tainted in any::<Option<prop::sample::Index>>(),
            node in "[a-z0-9]([-a-z0-9]{0,60}[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]{0,60}[a-z0-9])?){0,3}",
            driver in "[a-z]([-a-z0-9]{0,28}[a-z0-9])?(\\.[a-z0-9]{1,30})?",
        ) {
            let mut devices = devices(count);
            if let Some(index) = tainted.filter(|_| count > 0) {
                devices[index.index(count)].taints = Some(vec![DeviceTaint::default()]);
            }
            let slices = pool(&node, &driver).pack(&devices);
            let packed: Vec<Device> = slices.iter().flat_map(|slice| slice.spec.devices.clone().unwrap()).collect();
            prop_assert_eq!(&packed, &devices);
            let mut names: Vec<_> = slices.iter().map(|slice| slice.metadata.name.clone().unwrap()).collect();
            for (slice, name) in slices.iter().zip(&names) {
                prop_assert_eq!(slice.spec.pool.resource_slice_count, i64::try_from(slices.len()).unwrap());
                let most = if tainted.is_some() { 64 } else { 128 };
                prop_assert!(slice.spec.devices.as_ref().unwrap().len() <= most);
                prop_assert!(name.len() <= 253);
                let label = |label: &str| !label.is_empty() && !label.starts_with('-') && !label.ends_with('-');
                prop_assert!(name.split('.').all(label), "{name}");
            }
            names.sort();
            names.dedup();
            prop_assert_eq!(names.len(), slices.len());
        }
    }
}
