//! What slices mean together, compared with the scheduler.

use std::collections::BTreeSet;

use dra_operator::slices::pool::{Pool, pools};
use k8s_openapi::api::resource::v1::ResourceSlice;
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::{oracle::ask, samples::sample};

/// A slice of one of two pools. Few values, so that slices often conflict.
fn any_slice() -> impl Strategy<Value = ResourceSlice> {
    let devices = prop::collection::btree_map("[a-e]", prop::option::weighted(0.2, ("[sx]", "[mx]")), 0..3);
    let sets = prop::option::weighted(0.2, prop::collection::btree_set("[st]", 1..2));
    (prop::bool::weighted(0.2), 1_i64..3, 1_i64..4, devices, sets).prop_map(|(other, generation, count, devices, sets)| {
        let device = |(name, consumes): (String, Option<(String, String)>)| {
            let consumes = consumes.map(|(set, counter)| json!([{"counterSet": set, "counters": {counter: {"value": "1"}}}]));
            json!({"name": name, "consumesCounters": consumes})
        };
        let set = |name: String| json!({"name": name, "counters": {"m": {"value": "100"}}});
        let sets: Option<Vec<Value>> = sets.map(|sets| sets.into_iter().map(set).collect());
        // A slice has devices or counters, not both.
        let devices: Vec<Value> = if sets.is_some() { vec![] } else { devices.into_iter().map(device).collect() };
        let pool = json!({"name": if other { "other" } else { "node" }, "generation": generation, "resourceSliceCount": count});
        let spec = json!({"driver": "dra.cpu", "nodeName": "node", "pool": pool, "devices": devices, "sharedCounters": sets});
        serde_json::from_value(json!({"metadata": {"name": "slice"}, "spec": spec})).unwrap()
    })
}

/// Slices that disagree on their count are invalid here, while the scheduler goes by the first.
fn disagree(pool: &Pool<'_>) -> bool {
    let counts: BTreeSet<i64> = pool.slices.iter().map(|slice| slice.spec.pool.resource_slice_count).collect();
    counts.len() > 1
}

#[test]
fn the_scheduler_allocates_all_devices_of_complete_pools_and_none_of_others() {
    let fleets = sample(&prop::collection::vec(any_slice(), 1..5), 3000, 6);
    let (mut given, mut refused) = (0, 0);
    let questions: Vec<Value> =
        fleets.iter().map(|slices| json!({"fleet": {"node": "node", "driver": "dra.cpu", "slices": slices}})).collect();
    for (slices, answer) in fleets.iter().zip(ask(&questions)) {
        let pools = pools(slices);
        if pools.iter().any(disagree) {
            continue;
        }
        // A claim for all devices is refused, with the pool's name, while any pool is not complete.
        let complete = pools.iter().all(Pool::is_complete);
        assert_eq!(
            answer.error.contains("asks for all devices, but resource pool"),
            !complete,
            "{answer:?} {pools:#?}"
        );
        let mut expected: Vec<String> = if complete {
            let names =
                |pool: &Pool<'_>| pool.devices().map(|device| format!("{}/{}", pool.id.pool, device.name)).collect();
            pools.iter().flat_map(|pool| -> Vec<String> { names(pool) }).collect()
        } else {
            refused += 1;
            Vec::new()
        };
        expected.sort();
        given += usize::from(!expected.is_empty());
        assert_eq!(answer.devices, expected, "{pools:#?}");
    }
    assert!(given > 100 && refused > 100, "both happen: {given} given, {refused} refused");
}
