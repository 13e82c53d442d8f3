//! Compares slices by meaning, regardless of how they are written. Pure.
//!
//! The API server may return a slice in another form than it was sent: empty lists for absent ones, quantities in
//! canonical form, a taint with the second at which it was added. Comparing by value keeps the publisher from rewriting
//! it forever.
//!
//! Each struct is destructured field by field, so that a field added by a later Kubernetes version cannot be forgotten
//! here.

#![expect(
    clippy::ref_option,
    reason = "the API's fields are Option<Vec<_>>; a conversion at each would bury the comparison"
)]

use std::collections::BTreeMap;

use k8s_openapi::api::resource::v1::{
    CapacityRequestPolicy, CapacityRequestPolicyRange, Counter, CounterSet, Device, DeviceAttribute, DeviceCapacity,
    DeviceCounterConsumption, DeviceTaint, ResourceSliceSpec,
};

use super::quantity;

/// Whether two slices are the same except for their pool's generation.
pub fn same_content(a: &ResourceSliceSpec, b: &ResourceSliceSpec) -> bool {
    let ResourceSliceSpec {
        all_nodes,
        devices,
        driver,
        node_name,
        node_selector,
        partition_type_attribute,
        per_device_node_selection,
        pool,
        shared_counters,
        skip_node_operations,
    } = a;
    flag(*all_nodes) == flag(b.all_nodes)
        && *driver == b.driver
        && *node_name == b.node_name
        && *node_selector == b.node_selector
        && *partition_type_attribute == b.partition_type_attribute
        && flag(*per_device_node_selection) == flag(b.per_device_node_selection)
        && pool.name == b.pool.name
        && pool.resource_slice_count == b.pool.resource_slice_count
        && list(skip_node_operations) == list(&b.skip_node_operations)
        && lists(shared_counters, &b.shared_counters, same_counter_set)
        && lists(devices, &b.devices, same_device)
}

/// Whether two devices are the same. A taint without a time is the same as one with a time.
pub fn same_device(a: &Device, b: &Device) -> bool {
    let Device {
        all_nodes,
        allow_multiple_allocations,
        attributes,
        binding_conditions,
        binding_failure_conditions,
        binds_to_node,
        capacity,
        consumes_counters,
        name,
        node_allocatable_resources,
        node_name,
        node_selector,
        taints,
    } = a;
    *name == b.name
        && flag(*all_nodes) == flag(b.all_nodes)
        && flag(*allow_multiple_allocations) == flag(b.allow_multiple_allocations)
        && flag(*binds_to_node) == flag(b.binds_to_node)
        && *node_name == b.node_name
        && *node_selector == b.node_selector
        && list(binding_conditions) == list(&b.binding_conditions)
        && list(binding_failure_conditions) == list(&b.binding_failure_conditions)
        && maps(node_allocatable_resources.as_ref(), b.node_allocatable_resources.as_ref(), PartialEq::eq)
        && maps(attributes.as_ref(), b.attributes.as_ref(), same_attribute)
        && maps(capacity.as_ref(), b.capacity.as_ref(), same_capacity)
        && lists(consumes_counters, &b.consumes_counters, same_consumption)
        && lists(taints, &b.taints, same_taint)
}

/// Whether two taints are the same. Their times count only if both have one.
pub fn same_taint(a: &DeviceTaint, b: &DeviceTaint) -> bool {
    let DeviceTaint { effect, key, time_added, value } = a;
    let same_time = match (time_added, &b.time_added) {
        // The API keeps whole seconds.
        (Some(a), Some(b)) => a.0.as_second() == b.0.as_second(),
        _ => true,
    };
    same_time
        && *effect == b.effect
        && *key == b.key
        && value.as_deref().unwrap_or("") == b.value.as_deref().unwrap_or("")
}

fn same_attribute(a: &DeviceAttribute, b: &DeviceAttribute) -> bool {
    let DeviceAttribute { bool, bools, int, ints, string, strings, version, versions } = a;
    *bool == b.bool
        && *int == b.int
        && *string == b.string
        && *version == b.version
        && list(bools) == list(&b.bools)
        && list(ints) == list(&b.ints)
        && list(strings) == list(&b.strings)
        && list(versions) == list(&b.versions)
}

fn same_capacity(a: &DeviceCapacity, b: &DeviceCapacity) -> bool {
    let DeviceCapacity { request_policy, value } = a;
    quantity::same(value, &b.value) && optional(request_policy, &b.request_policy, same_policy)
}

fn same_policy(a: &CapacityRequestPolicy, b: &CapacityRequestPolicy) -> bool {
    let CapacityRequestPolicy { default, valid_range, valid_values } = a;
    optional(default, &b.default, quantity::same)
        && optional(valid_range, &b.valid_range, same_range)
        && lists(valid_values, &b.valid_values, quantity::same)
}

fn same_range(a: &CapacityRequestPolicyRange, b: &CapacityRequestPolicyRange) -> bool {
    let CapacityRequestPolicyRange { max, min, step } = a;
    quantity::same(min, &b.min) && optional(max, &b.max, quantity::same) && optional(step, &b.step, quantity::same)
}

fn same_counter_set(a: &CounterSet, b: &CounterSet) -> bool {
    let CounterSet { counters, name } = a;
    *name == b.name && maps(Some(counters), Some(&b.counters), same_counter)
}

fn same_consumption(a: &DeviceCounterConsumption, b: &DeviceCounterConsumption) -> bool {
    let DeviceCounterConsumption { compatibility_groups, counter_set, counters } = a;
    *counter_set == b.counter_set
        && list(compatibility_groups) == list(&b.compatibility_groups)
        && maps(Some(counters), Some(&b.counters), same_counter)
}

fn same_counter(a: &Counter, b: &Counter) -> bool {
    let Counter { value } = a;
    quantity::same(value, &b.value)
}

fn flag(value: Option<bool>) -> bool {
    value.unwrap_or(false)
}

fn list<T>(value: &Option<Vec<T>>) -> &[T] {
    value.as_deref().unwrap_or_default()
}

fn lists<T>(a: &Option<Vec<T>>, b: &Option<Vec<T>>, same: impl Fn(&T, &T) -> bool) -> bool {
    let (a, b) = (list(a), list(b));
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b))
}

fn maps<T>(a: Option<&BTreeMap<String, T>>, b: Option<&BTreeMap<String, T>>, same: impl Fn(&T, &T) -> bool) -> bool {
    a.map_or(0, BTreeMap::len) == b.map_or(0, BTreeMap::len)
        && a.into_iter().flatten().zip(b.into_iter().flatten()).all(|(a, b)| a.0 == b.0 && same(a.1, b.1))
}

fn optional<T>(a: &Option<T>, b: &Option<T>, same: impl Fn(&T, &T) -> bool) -> bool {
    match (a, b) {
        (Some(a), Some(b)) => same(a, b),
        (None, None) => true,
        _ => false,
    }
}
