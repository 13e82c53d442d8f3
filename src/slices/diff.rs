//! Computes the writes that turn the slices in the cluster into the wanted ones. Pure.
//!
//! Consumers only use the highest generation of a pool, and only once all its slices exist. So a change that takes more
//! than one write moves the whole pool to a new generation: a consumer never sees a mix of old and new slices.

use std::{
    borrow::Borrow,
    collections::{BTreeMap, BTreeSet, HashMap},
    hash::{DefaultHasher, Hash, Hasher},
};

use k8s_openapi::api::resource::v1::{Device, ResourceSlice, ResourceSliceSpec};
use kube::api::ObjectMeta;
use serde_json::Value;

use super::same::{same_content, same_taint};

/// One write. Changes must be carried out in order.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// Delete the slice if it has not changed since it was seen.
    Delete {
        /// Its name.
        name: String,
        /// Precondition: it has not been deleted and recreated.
        uid: Option<String>,
        /// Precondition: it has not been changed.
        resource_version: Option<String>,
    },
    /// Replace the slice. `metadata.resourceVersion` is set, so that a concurrent change is a conflict.
    Update(ResourceSlice),
    /// Create the slice.
    Create(ResourceSlice),
}

/// How the API server stored the slices that it was sent, by slice name.
///
/// A server drops fields whose feature gate is off, and a webhook may change others. Both would look like a foreign
/// change that has to be reverted over and over. So the wanted slice and the slice in the API count as equal as long as
/// neither has changed since the last write. Only hashes are stored.
#[derive(Clone, Debug, Default)]
pub struct Accepted(HashMap<String, (u64, u64)>);

impl Accepted {
    /// Records the response to a create or an update. Returns the fields that the server dropped, such as
    /// `devices[].taints`; they are the same for every slice.
    pub fn note(&mut self, sent: &ResourceSlice, kept: &ResourceSlice) -> BTreeSet<String> {
        let Some(name) = kept.metadata.name.clone() else { return BTreeSet::new() };
        if same_content(&sent.spec, &kept.spec) {
            self.0.remove(&name);
            return BTreeSet::new();
        }
        self.0.insert(name, (content_hash(&sent.spec), content_hash(&kept.spec)));
        dropped_fields(&sent.spec, &kept.spec)
    }

    fn as_good_as(&self, wanted: &ResourceSlice, current: &ResourceSlice) -> bool {
        let noted = current.metadata.name.as_ref().and_then(|name| self.0.get(name));
        noted.is_some_and(|noted| *noted == (content_hash(&wanted.spec), content_hash(&current.spec)))
    }
}

/// Computes what to write. `wanted` is a whole pool of one driver and node; `current` are the slices of that driver
/// with that node's name, in any pool and generation, by any author.
pub fn diff<S: Borrow<ResourceSlice>>(wanted: Vec<ResourceSlice>, current: &[S], accepted: &Accepted) -> Vec<Change> {
    let mut by_name: BTreeMap<&str, &ResourceSlice> = BTreeMap::new();
    for slice in current {
        let slice: &ResourceSlice = slice.borrow();
        by_name.insert(slice.metadata.name.as_deref().unwrap_or_default(), slice);
    }
    let found: Vec<Option<&ResourceSlice>> = wanted
        .iter()
        .map(|slice| {
            let found = slice.metadata.name.as_deref().and_then(|name| by_name.get(name).copied());
            // Driver, pool and node cannot be changed by an update, so the slice is deleted and recreated.
            found.filter(|found| same_place(&slice.spec, &found.spec))
        })
        .collect();
    for name in found.iter().flatten().filter_map(|found| found.metadata.name.as_deref()) {
        by_name.remove(name);
    }

    let pool = wanted.first().map(|slice| slice.spec.pool.name.as_str());
    let highest = current
        .iter()
        .map(|slice| &slice.borrow().spec.pool)
        .filter(|current| Some(current.name.as_str()) == pool)
        .map(|pool| pool.generation)
        .max()
        .unwrap_or(0);
    let generation = generation(highest, &wanted, &found, by_name.values().copied(), accepted);

    let deletes = by_name.values().map(|slice| Change::Delete {
        name: slice.metadata.name.clone().unwrap_or_default(),
        uid: slice.metadata.uid.clone(),
        resource_version: slice.metadata.resource_version.clone(),
    });
    let mut updates = Vec::new();
    let mut creates = Vec::new();
    for (mut wanted, found) in wanted.into_iter().zip(found) {
        wanted.spec.pool.generation = generation;
        match found {
            Some(found) if is_current(&wanted, found, generation, accepted) && has_owner(&wanted.metadata, found) => {}
            Some(found) => updates.push(Change::Update(updated(wanted, found))),
            None => creates.push(Change::Create(wanted)),
        }
    }
    deletes.chain(updates).chain(creates).collect()
}

/// The generation to publish: the current one if at most one slice is written, otherwise the next.
fn generation<'a>(
    highest: i64,
    wanted: &[ResourceSlice],
    found: &[Option<&ResourceSlice>],
    mut leftover: impl Iterator<Item = &'a ResourceSlice>,
    accepted: &Accepted,
) -> i64 {
    let changed = wanted
        .iter()
        .zip(found)
        .filter(|(wanted, found)| found.is_none_or(|found| !is_current(wanted, found, highest, accepted)))
        .count();
    let added = found.iter().any(Option::is_none);
    let shrinks = changed > 0 && leftover.any(|slice| slice.spec.pool.generation == highest);
    if added || changed > 1 || shrinks {
        // After the last possible generation (which only a foreign slice can have) start again at 1: all other slices
        // are deleted.
        highest.checked_add(1).unwrap_or(1)
    } else {
        highest
    }
}

fn is_current(wanted: &ResourceSlice, found: &ResourceSlice, generation: i64, accepted: &Accepted) -> bool {
    found.spec.pool.generation == generation
        && (same_content(&wanted.spec, &found.spec) || accepted.as_good_as(wanted, found))
}

fn same_place(a: &ResourceSliceSpec, b: &ResourceSliceSpec) -> bool {
    a.driver == b.driver && a.pool.name == b.pool.name && a.node_name == b.node_name
}

fn has_owner(wanted: &ObjectMeta, found: &ResourceSlice) -> bool {
    let owners = found.metadata.owner_references.as_deref().unwrap_or_default();
    wanted.owner_references.iter().flatten().all(|owner| owners.iter().any(|other| other.uid == owner.uid))
}

fn updated(wanted: ResourceSlice, found: &ResourceSlice) -> ResourceSlice {
    let mut slice = ResourceSlice {
        // Labels and annotations belong to whoever set them.
        metadata: ObjectMeta { managed_fields: None, ..found.metadata.clone() },
        spec: wanted.spec,
    };
    if !has_owner(&wanted.metadata, found) {
        // A recreated Node has another UID; with the old owner reference the slice would be garbage-collected.
        slice.metadata.owner_references = wanted.metadata.owner_references;
    }
    keep_times(
        slice.spec.devices.as_deref_mut().unwrap_or_default(),
        found.spec.devices.as_deref().unwrap_or_default(),
    );
    slice
}

/// A taint that stays keeps the time at which it was added, because tolerations count from it.
fn keep_times(devices: &mut [Device], before: &[Device]) {
    for device in devices.iter_mut().filter(|device| device.taints.is_some()) {
        let Some(before) = before.iter().find(|before| before.name == device.name) else { continue };
        for taint in device.taints.iter_mut().flatten().filter(|taint| taint.time_added.is_none()) {
            let old = before.taints.iter().flatten().find(|old| same_taint(taint, old));
            taint.time_added = old.and_then(|old| old.time_added.clone());
        }
    }
}

/// A hash of everything except the pool's generation and the times of taints (which the server fills in).
fn content_hash(spec: &ResourceSliceSpec) -> u64 {
    let mut spec = spec.clone();
    spec.pool.generation = 0;
    for taint in spec.devices.iter_mut().flatten().flat_map(|device| device.taints.iter_mut().flatten()) {
        taint.time_added = None;
    }
    let mut hasher = DefaultHasher::new();
    // Serializing these types cannot fail; if it did, equal inputs would still hash equal.
    serde_json::to_vec(&spec).unwrap_or_default().hash(&mut hasher);
    hasher.finish()
}

/// The fields, without indices and map keys, that were sent with a value and are missing from the response.
fn dropped_fields(sent: &ResourceSliceSpec, kept: &ResourceSliceSpec) -> BTreeSet<String> {
    let mut dropped = BTreeSet::new();
    if let (Ok(sent), Ok(kept)) = (serde_json::to_value(sent), serde_json::to_value(kept)) {
        find_dropped(&sent, &kept, "", &mut dropped);
    }
    dropped
}

fn find_dropped(sent: &Value, kept: &Value, path: &str, dropped: &mut BTreeSet<String>) {
    let is_map =
        ["attributes", "capacity", "counters", "nodeAllocatableResources"].iter().any(|map| path.ends_with(map));
    match (sent, kept) {
        (Value::Object(sent), Value::Object(kept)) => {
            for (key, value) in sent {
                let step = if is_map { "[]" } else { key };
                let dot = if path.is_empty() || is_map { "" } else { "." };
                let path = format!("{path}{dot}{step}");
                match kept.get(key) {
                    Some(kept) => find_dropped(value, kept, &path, dropped),
                    None if is_empty(value) => {}
                    None => {
                        dropped.insert(path);
                    }
                }
            }
        }
        (Value::Array(sent), Value::Array(kept)) => {
            let path = format!("{path}[]");
            sent.iter().zip(kept).for_each(|(sent, kept)| find_dropped(sent, kept, &path, dropped));
        }
        _ => {}
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
        _ => false,
    }
}

#[cfg(test)]
mod tests;
