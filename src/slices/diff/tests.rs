//! The diff against a small fake API server: preconditions, defaulted times, quantities in another form, dropped
//! fields.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::resource::v1::{DeviceAttribute, DeviceCapacity, DeviceTaint},
    apimachinery::pkg::{api::resource::Quantity, apis::meta::v1::Time},
    jiff::Timestamp,
};
use proptest::prelude::*;

use super::*;
use crate::slices::{
    pack::{NodePool, node_owner},
    same::same_device,
};

#[derive(Default)]
struct Server {
    slices: BTreeMap<String, ResourceSlice>,
    version: u64,
    drops_taints: bool,
    writes: usize,
    /// The generations that a consumer saw complete, with their devices.
    complete: Vec<(i64, Vec<Device>)>,
}

impl Server {
    fn store(&mut self, mut slice: ResourceSlice) -> ResourceSlice {
        self.version += 1;
        self.writes += 1;
        slice.metadata.resource_version = Some(self.version.to_string());
        for device in slice.spec.devices.iter_mut().flatten() {
            if self.drops_taints {
                device.taints = None;
            }
            for taint in device.taints.iter_mut().flatten() {
                taint.time_added.get_or_insert(Time(Timestamp::from_second(1_800_000_000).unwrap()));
            }
            for capacity in device.capacity.iter_mut().flatten().map(|(_, capacity)| capacity) {
                if capacity.value.0 == "1024Mi" {
                    capacity.value.0 = "1Gi".into();
                }
            }
        }
        self.slices.insert(slice.metadata.name.clone().unwrap(), slice.clone());
        self.look();
        slice
    }

    fn apply(&mut self, changes: Vec<Change>, accepted: &mut Accepted) -> BTreeSet<String> {
        let mut dropped = BTreeSet::new();
        for change in changes {
            match change {
                Change::Create(mut slice) => {
                    let name = slice.metadata.name.clone().unwrap();
                    assert!(!self.slices.contains_key(&name), "{name} already exists");
                    slice.metadata.uid = Some(format!("uid-{}", self.version));
                    let answer = self.store(slice.clone());
                    dropped.extend(accepted.note(&slice, &answer));
                }
                Change::Update(slice) => {
                    let current = &self.slices[slice.metadata.name.as_ref().unwrap()];
                    assert_eq!(slice.metadata.resource_version, current.metadata.resource_version, "conflict");
                    assert!(same_place(&slice.spec, &current.spec), "immutable fields");
                    let answer = self.store(slice.clone());
                    dropped.extend(accepted.note(&slice, &answer));
                }
                Change::Delete { name, uid, resource_version } => {
                    let gone = self.slices.remove(&name).expect("there");
                    assert_eq!((uid, resource_version), (gone.metadata.uid, gone.metadata.resource_version));
                    self.writes += 1;
                    self.look();
                }
            }
        }
        dropped
    }

    /// What the scheduler sees: the slices of the highest generation, if all of them exist.
    fn look(&mut self) {
        let Some(highest) = self.slices.values().map(|slice| slice.spec.pool.generation).max() else { return };
        let slices: Vec<_> = self.slices.values().filter(|slice| slice.spec.pool.generation == highest).collect();
        if slices.iter().all(|slice| slice.spec.pool.resource_slice_count == i64::try_from(slices.len()).unwrap()) {
            let devices = slices.iter().flat_map(|slice| slice.spec.devices.clone().unwrap_or_default()).collect();
            self.complete.push((highest, devices));
        }
    }

    fn list(&self) -> Vec<ResourceSlice> {
        self.slices.values().cloned().collect()
    }

    fn publish(&mut self, wanted: &[ResourceSlice], accepted: &mut Accepted) -> BTreeSet<String> {
        let changes = diff(wanted.to_vec(), &self.list(), accepted);
        self.apply(changes, accepted)
    }
}

fn device(name: &str, socket: i64, tainted: bool) -> Device {
    let int = DeviceAttribute { int: Some(socket), ..DeviceAttribute::default() };
    Device {
        name: name.into(),
        attributes: Some([("socketID".to_owned(), int)].into()),
        capacity: Some(
            [("memory".to_owned(), DeviceCapacity { value: Quantity("1024Mi".into()), request_policy: None })].into(),
        ),
        taints: tainted.then(|| {
            vec![DeviceTaint { effect: "NoSchedule".into(), key: "dra.cpu/hot".into(), ..DeviceTaint::default() }]
        }),
        ..Device::default()
    }
}

fn node_pool() -> NodePool {
    NodePool { driver: "dra.cpu".into(), node: "node-1".into(), owner: Some(node_owner("node-1", "node-uid")) }
}

fn pack(devices: &[Device]) -> Vec<ResourceSlice> {
    node_pool().pack(devices)
}

/// 150 devices take two slices. `marks` are the sockets, so that changing them changes slices.
fn many(count: usize, socket: i64) -> Vec<Device> {
    (0..count).map(|n| device(&format!("core-{n}"), socket, false)).collect()
}

#[test]
fn the_first_generation_is_one() {
    let changes = diff(pack(&many(150, 0)), &[] as &[ResourceSlice], &Accepted::default());
    assert_eq!(changes.len(), 2);
    for change in changes {
        assert!(matches!(change, Change::Create(slice) if slice.spec.pool.generation == 1));
    }
}

#[test]
fn a_change_in_one_slice_keeps_the_generation_and_writes_once() {
    let (mut server, mut accepted) = (Server::default(), Accepted::default());
    server.publish(&pack(&many(150, 0)), &mut accepted);
    server.writes = 0;
    let mut devices = many(150, 0);
    devices[149] = device("core-149", 7, false);
    server.publish(&pack(&devices), &mut accepted);
    assert_eq!(server.writes, 1);
    assert!(server.slices.values().all(|slice| slice.spec.pool.generation == 1));
}

#[test]
fn a_change_in_two_slices_moves_the_whole_pool_to_a_new_generation() {
    let (mut server, mut accepted) = (Server::default(), Accepted::default());
    server.publish(&pack(&many(150, 0)), &mut accepted);
    server.publish(&pack(&many(150, 1)), &mut accepted);
    assert!(server.slices.values().all(|slice| slice.spec.pool.generation == 2));
}

#[test]
fn a_deleted_slice_comes_back() {
    let (mut server, mut accepted) = (Server::default(), Accepted::default());
    let wanted = pack(&many(150, 0));
    server.publish(&wanted, &mut accepted);
    server.slices.pop_first();
    server.publish(&wanted, &mut accepted);
    assert_eq!(server.slices.len(), 2);
    assert_eq!(diff(wanted.clone(), &server.list(), &accepted), []);
}

#[test]
fn a_foreign_slice_in_the_pool_is_deleted_and_nothing_else_is_written() {
    let (mut server, mut accepted) = (Server::default(), Accepted::default());
    let wanted = pack(&many(3, 0));
    server.publish(&wanted, &mut accepted);
    let mut stranger = wanted[0].clone();
    stranger.metadata.name = Some("stranger".into());
    server.store(stranger);
    let changes = diff(wanted.clone(), &server.list(), &accepted);
    assert!(matches!(&changes[..], [Change::Delete { name, .. }] if name == "stranger"), "{changes:?}");
}

#[test]
fn a_slice_with_our_name_in_another_pool_is_recreated() {
    let (mut server, mut accepted) = (Server::default(), Accepted::default());
    let wanted = pack(&many(3, 0));
    let mut elsewhere = wanted[0].clone();
    elsewhere.spec.pool.name = "other".into();
    server.store(elsewhere);
    server.publish(&wanted, &mut accepted);
    assert_eq!(server.list()[0].spec.pool.name, "node-1");
    assert_eq!(diff(wanted.clone(), &server.list(), &accepted), []);
}

#[test]
fn a_taint_that_stays_keeps_the_time_it_was_added() {
    let (mut server, mut accepted) = (Server::default(), Accepted::default());
    server.publish(&pack(&[device("core-0", 0, true)]), &mut accepted);
    let long_ago = Time(Timestamp::from_second(1_700_000_000).unwrap());
    let slice = server.slices.values_mut().next().unwrap();
    slice.spec.devices.as_mut().unwrap()[0].taints.as_mut().unwrap()[0].time_added = Some(long_ago.clone());
    server.publish(&pack(&[device("core-0", 1, true)]), &mut accepted);
    let slice = server.list().remove(0);
    let taint = slice.spec.devices.unwrap().remove(0).taints.unwrap().remove(0);
    assert_eq!(taint.time_added, Some(long_ago));
}

#[test]
fn a_dropped_field_is_reported_once_and_not_written_again() {
    let (mut server, mut accepted) = (Server { drops_taints: true, ..Server::default() }, Accepted::default());
    let wanted = pack(&[device("core-0", 0, true), device("core-1", 0, true)]);
    let dropped = server.publish(&wanted, &mut accepted);
    assert_eq!(dropped.into_iter().collect::<Vec<_>>(), ["devices[].taints"]);
    assert_eq!(diff(wanted.clone(), &server.list(), &accepted), []);
    // A foreign change to the slice is still corrected.
    server.slices.values_mut().next().unwrap().spec.devices.as_mut().unwrap().pop();
    assert_eq!(diff(wanted.clone(), &server.list(), &accepted).len(), 1);
    // A new wanted state is written too.
    assert_eq!(diff(pack(&[device("core-0", 5, true)]), &server.list(), &accepted).len(), 1);
}

#[test]
fn a_dropped_field_inside_a_map_is_reported_without_its_key() {
    let mut sent = pack(&[device("core-0", 0, false)]).remove(0);
    let capacity = sent.spec.devices.as_mut().unwrap()[0].capacity.as_mut().unwrap();
    capacity.get_mut("memory").unwrap().request_policy = Some(k8s_openapi::api::resource::v1::CapacityRequestPolicy {
        default: Some(Quantity("1".into())),
        ..Default::default()
    });
    let accepted = pack(&[device("core-0", 0, false)]).remove(0);
    let dropped = Accepted::default().note(&sent, &accepted);
    assert_eq!(dropped.into_iter().collect::<Vec<_>>(), ["devices[].capacity[].requestPolicy"]);
}

#[test]
fn a_recreated_node_becomes_the_owner_without_a_new_generation() {
    let (mut server, mut accepted) = (Server::default(), Accepted::default());
    server.publish(&pack(&many(150, 0)), &mut accepted);
    let owner = Some(node_owner("node-1", "new-uid"));
    let wanted = NodePool { owner, ..node_pool() }.pack(&many(150, 0));
    server.publish(&wanted, &mut accepted);
    for slice in server.slices.values() {
        assert_eq!(slice.metadata.owner_references.as_ref().unwrap()[0].uid, "new-uid");
        assert_eq!(slice.spec.pool.generation, 1);
    }
}

#[test]
fn the_generation_after_the_last_is_one() {
    let (mut server, mut accepted) = (Server::default(), Accepted::default());
    let wanted = pack(&many(150, 0));
    let mut stranger = wanted[0].clone();
    stranger.metadata.name = Some("stranger".into());
    stranger.spec.pool.generation = i64::MAX;
    server.store(stranger);
    server.publish(&wanted, &mut accepted);
    assert_eq!(diff(wanted.clone(), &server.list(), &accepted), []);
}

fn any_devices() -> impl Strategy<Value = Vec<Device>> {
    let small = prop::collection::vec((0_i64..3, prop::bool::weighted(0.1)), 0..6);
    let large = (60_usize..300, 0_i64..3).prop_map(|(count, socket)| vec![(socket, false); count]);
    prop_oneof![small, large].prop_map(|marks| {
        marks.iter().enumerate().map(|(n, (socket, tainted))| device(&format!("core-{n}"), *socket, *tainted)).collect()
    })
}

/// What another client may do to a slice in between.
#[derive(Clone, Debug)]
enum Meddling {
    Delete(prop::sample::Index),
    Empty(prop::sample::Index),
    Generation(prop::sample::Index, i64),
    Copy(prop::sample::Index, i64),
}

fn any_meddling() -> impl Strategy<Value = Meddling> {
    let index = any::<prop::sample::Index>;
    let generation = || prop_oneof![0_i64..4, Just(i64::MAX)];
    prop_oneof![
        index().prop_map(Meddling::Delete),
        index().prop_map(Meddling::Empty),
        (index(), generation()).prop_map(|(index, generation)| Meddling::Generation(index, generation)),
        (index(), generation()).prop_map(|(index, generation)| Meddling::Copy(index, generation)),
    ]
}

fn meddle(server: &mut Server, meddling: &Meddling) {
    let mut names = server.slices.keys();
    let mut pick = |index: &prop::sample::Index| names.nth(index.index(server.slices.len())).unwrap().clone();
    match meddling {
        _ if server.slices.is_empty() => {}
        Meddling::Delete(index) => {
            let name = pick(index);
            server.slices.remove(&name);
        }
        Meddling::Empty(index) => {
            let name = pick(index);
            server.slices.get_mut(&name).unwrap().spec.devices = None;
        }
        Meddling::Generation(index, generation) => {
            let name = pick(index);
            server.slices.get_mut(&name).unwrap().spec.pool.generation = *generation;
        }
        Meddling::Copy(index, generation) => {
            let mut copy = server.slices[&pick(index)].clone();
            copy.metadata.name = Some("stranger".into());
            copy.spec.pool.generation = *generation;
            server.slices.insert("stranger".into(), copy);
        }
    }
}

fn same_devices(a: &[Device], b: &[Device]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same_device(a, b))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn from_any_state_the_wanted_pool_becomes_complete_and_then_nothing_is_written(
        wishes in prop::collection::vec((any_devices(), prop::option::of(any_meddling())), 1..4),
    ) {
        let (mut server, mut accepted) = (Server::default(), Accepted::default());
        for (devices, meddling) in wishes {
            if let Some(meddling) = meddling {
                meddle(&mut server, &meddling);
            }
            let wanted = pack(&devices);
            server.publish(&wanted, &mut accepted);
            server.look();
            let (_, seen) = server.complete.last().expect("complete");
            prop_assert!(same_devices(seen, &devices));
            prop_assert_eq!(server.slices.len(), wanted.len());
            prop_assert_eq!(diff(wanted.clone(), &server.list(), &accepted), []);
            prop_assert_eq!(diff(wanted.clone(), &server.list(), &Accepted::default()), [], "also by one who did not write it");
        }
    }

    #[test]
    fn no_consumer_sees_a_mix_of_old_and_new_devices(before in any_devices(), after in any_devices()) {
        let (mut server, mut accepted) = (Server::default(), Accepted::default());
        server.publish(&pack(&before), &mut accepted);
        server.publish(&pack(&after), &mut accepted);
        for (generation, seen) in &server.complete {
            let whole = [&before, &after].into_iter().any(|devices| {
                // Slices are listed by name, so devices may come in another order.
                let mut sorted: Vec<&Device> = devices.iter().collect();
                let mut seen: Vec<&Device> = seen.iter().collect();
                sorted.sort_by(|a, b| a.name.cmp(&b.name));
                seen.sort_by(|a, b| a.name.cmp(&b.name));
                sorted.len() == seen.len() && sorted.iter().zip(&seen).all(|(a, b)| same_device(a, b))
            });
            prop_assert!(whole, "generation {generation} was complete with {} devices", seen.len());
        }
    }
}
