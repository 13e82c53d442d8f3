//! Tests the seam for other kinds of device with a kind that exists only in this test: network cards that are attached
//! to the pod's sandbox and whose bandwidth several claims share. They come and go while the plugin runs.

use std::{collections::BTreeMap, future::pending};

use futures::future::BoxFuture;
use k8s_openapi::{
    api::resource::v1::{Device, DeviceCapacity, DeviceTaint},
    apimachinery::pkg::api::resource::Quantity,
};
use serde_json::{Value, json};

use super::{fixture::*, *};
use crate::{
    drivers::{
        AllocatedDevice, Conflict, Grant, GrantError, Inventory,
        attachment::{AttachError, Attachment, Sandbox},
        cpuset_fields::CpusetFields,
        grant::{DeviceNode, NetDevice, Share},
    },
    plugin::{
        kubelet::grpc::dra,
        nri::fake_runtime::{FakePlugin, FakeRuntime, container, pod},
    },
    slices::quantity::Amount,
};

const BANDWIDTH: &str = "bandwidth";

/// `nic-0` and `nic-1`, each with a bandwidth of 10G.
struct Nics {
    inventory: watch::Sender<Arc<Inventory>>,
    attached: Arc<Attached>,
}

/// The network cards attached to pods, as `sandbox: card as name in the pod`.
#[derive(Default)]
struct Attached(std::sync::Mutex<Vec<String>>);

fn nic(name: &str) -> Device {
    let bandwidth = DeviceCapacity { value: Quantity("10G".into()), ..DeviceCapacity::default() };
    Device {
        name: name.into(),
        allow_multiple_allocations: Some(true),
        capacity: Some([(BANDWIDTH.to_owned(), bandwidth)].into()),
        ..Device::default()
    }
}

impl Nics {
    fn new() -> Arc<Self> {
        let inventory = watch::Sender::default();
        let nics = Self { inventory, attached: Arc::default() };
        nics.are(vec![nic("nic-0"), nic("nic-1")]);
        Arc::new(nics)
    }

    /// Replaces the network cards.
    fn are(&self, devices: Vec<Device>) {
        self.inventory.send_replace(Arc::new(Inventory { devices, warnings: vec![] }));
    }
}

/// How much of a card a grant consumes, in nano units.
fn consumed(grant: &Grant, device: &str) -> i128 {
    let shares = grant.shares.iter().filter(|share| share.device == device);
    let bandwidths = shares.filter_map(|share| Amount::parse(&share.consumed.get(BANDWIDTH)?.0));
    bandwidths.map(Amount::nano).sum()
}

impl Driver for Nics {
    fn inventory(&self) -> watch::Receiver<Arc<Inventory>> {
        self.inventory.subscribe()
    }

    fn grant(&self, devices: &[AllocatedDevice]) -> Result<Grant, GrantError> {
        let mut grant = Grant::default();
        for AllocatedDevice { device, consumed_capacity, .. } in devices {
            let path = format!("/dev/{device}");
            grant.device_nodes.push(DeviceNode { host_path: path.clone(), path, permissions: "rw".into() });
            grant.net_devices.push(NetDevice { host_name: device.clone(), pod_name: "net1".into() });
            grant.shares.push(Share { device: device.clone(), consumed: consumed_capacity.clone() });
        }
        Ok(grant)
    }

    fn conflict(&self, wanted: &Grant, held: &[&Grant]) -> Option<Conflict> {
        wanted.shares.iter().find_map(|Share { device, .. }| {
            let holders: Vec<usize> = (0..held.len()).filter(|index| consumed(held[*index], device) > 0).collect();
            let together: i128 = holders.iter().map(|index| consumed(held[*index], device)).sum();
            let too_much = together + consumed(wanted, device) > Amount::parse("10G").unwrap().nano();
            let with = *holders.first()?;
            too_much.then(|| Conflict { what: format!("{BANDWIDTH} of {device}"), with })
        })
    }

    fn check(&self, _: &Grant) -> Result<(), GrantError> {
        Ok(())
    }

    fn remainder(&self, _: &[&Grant]) -> Option<Grant> {
        None
    }

    fn overlapping(&self, _: &[&Grant]) -> Vec<String> {
        vec![]
    }

    fn cpuset_fields(&self) -> CpusetFields {
        CpusetFields::Nothing
    }

    fn changed(&self) -> BoxFuture<'_, String> {
        Box::pin(pending())
    }

    fn attachment(&self) -> Option<Arc<dyn Attachment>> {
        Some(Arc::clone(&self.attached) as _)
    }
}

impl Attached {
    fn now(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }

    fn put(&self, sandbox: &Sandbox, grants: &[Grant]) {
        let mut attached = self.0.lock().unwrap();
        for NetDevice { host_name, pod_name } in grants.iter().flat_map(|grant| &grant.net_devices) {
            attached.push(format!("{}: {host_name} as {pod_name}", sandbox.id));
        }
    }
}

impl Attachment for Attached {
    fn attach<'a>(&'a self, sandbox: &'a Sandbox, grants: &'a [Grant]) -> BoxFuture<'a, Result<(), AttachError>> {
        self.put(sandbox, grants);
        Box::pin(async { Ok(()) })
    }

    fn detach<'a>(&'a self, sandbox: &'a Sandbox, _: &'a [Grant]) -> BoxFuture<'a, Result<(), AttachError>> {
        self.0.lock().unwrap().retain(|attached| !attached.starts_with(&format!("{}: ", sandbox.id)));
        Box::pin(async { Ok(()) })
    }

    fn recover<'a>(&'a self, sandboxes: &'a [(Sandbox, Vec<Grant>)]) -> BoxFuture<'a, Result<(), AttachError>> {
        self.0.lock().unwrap().clear();
        for (sandbox, grants) in sandboxes {
            self.put(sandbox, grants);
        }
        Box::pin(async { Ok(()) })
    }
}

/// A claim of some bandwidth of `nic-0` for a pod, allocated as a share.
fn allocate(machine: &Machine, name: &str, pod: &str, bandwidth: &str) -> dra::Claim {
    let result = json!({
        "driver": "dra.cpu", "pool": "node-1", "device": "nic-0", "request": "main",
        "shareID": format!("share-{name}"), "consumedCapacity": {BANDWIDTH: bandwidth},
    });
    machine.put_claim(name, pod, &[result], &json!([]))
}

/// A plugin for this kind, and the runtime's end of its connection.
async fn start(machine: &Machine, nics: &Arc<Nics>) -> (Running, FakeKubelet, FakePlugin, FakeRuntime) {
    let socket = machine.root.path().join("nri.sock");
    let runtime = FakeRuntime::listen(&socket);
    let settings = NodeSettings { nri_socket: Some(socket), ..machine.settings(None) };
    let running = machine.start_kind(settings, Arc::clone(nics) as _);
    let mut plugin = runtime.plugin().await;
    plugin.synchronize(vec![], vec![], false).await;
    let kubelet = running.ready().await;
    (running, kubelet, plugin, runtime)
}

#[tokio::test]
async fn claims_share_a_device_up_to_its_capacity_and_it_reaches_their_pods() {
    let (machine, nics) = (Machine::new(), Nics::new());
    let (_running, kubelet, mut plugin, _runtime) = start(&machine, &nics).await;
    let (a, b) = (allocate(&machine, "a", "web", "4G"), allocate(&machine, "b", "db", "5G"));
    let c = allocate(&machine, "c", "late", "2G");

    // Prepare: two shares fit, and a third only after one is released.
    let prepared = kubelet.prepare_one(&a).await.unwrap();
    assert_eq!((prepared[0].device_name.as_str(), prepared[0].share_id.as_deref()), ("nic-0", Some("share-a")));
    kubelet.prepare_one(&b).await.unwrap();
    let refused = kubelet.prepare_one(&c).await.unwrap_err();
    assert!(refused.contains("conflicts with claim apps/a (uid-a) over bandwidth of nic-0"), "{refused}");

    // CDI: the device node, and the mark.
    let file = std::fs::read(machine.cdi().join("k8s.dra.cpu-claim_uid-a.json")).unwrap();
    let mut edits = serde_json::from_slice::<Value>(&file).unwrap()["devices"][0]["containerEdits"].take();
    assert_eq!(edits["deviceNodes"], json!([{"path": "/dev/nic-0", "hostPath": "/dev/nic-0", "permissions": "rw"}]));
    let mark = edits["env"][0].take();

    // NRI: the card is attached to the pod before its container is created. The container itself is not changed.
    plugin.sandbox("RunPodSandbox", pod("web", "apps")).await.unwrap();
    assert_eq!(nics.attached.now(), ["web: nic-0 as net1"]);
    let created = plugin.creates(pod("web", "apps"), container("main", "web", mark.as_str().unwrap(), "")).await;
    assert_eq!(created, Ok(String::new()));
    plugin.sandbox("RunPodSandbox", pod("other", "apps")).await.unwrap();
    assert_eq!(nics.attached.now(), ["web: nic-0 as net1"], "it has no claim");
    plugin.sandbox("StopPodSandbox", pod("web", "apps")).await.unwrap();
    assert_eq!(nics.attached.now(), [""; 0]);

    // Unprepare: another claim can use what the claim held.
    kubelet.unprepare(&a).await.unwrap();
    kubelet.prepare_one(&c).await.unwrap();
}

#[tokio::test]
async fn new_taints_and_removed_devices_reach_the_slice_while_the_plugin_runs() {
    let (machine, nics) = (Machine::new(), Nics::new());
    let (running, _kubelet, _plugin, _runtime) = start(&machine, &nics).await;
    let published = || -> BTreeMap<String, Value> {
        let slices = machine.api.slices();
        let devices = slices.iter().flat_map(|(_, slice)| slice["spec"]["devices"].as_array().unwrap());
        devices.map(|device| (device["name"].as_str().unwrap().to_owned(), device["taints"].clone())).collect()
    };
    assert_eq!(published(), [("nic-0".to_owned(), Value::Null), ("nic-1".to_owned(), Value::Null)].into());

    let taint = DeviceTaint { key: "example.com/link".into(), effect: "NoExecute".into(), ..DeviceTaint::default() };
    nics.are(vec![nic("nic-0"), Device { taints: Some(vec![taint]), ..nic("nic-1") }]);
    let tainted = json!([{"effect": "NoExecute", "key": "example.com/link"}]);
    until("the taint is published", || published().get("nic-1") == Some(&tainted)).await;

    nics.are(vec![nic("nic-0")]);
    until("the device is gone", || published() == [("nic-0".to_owned(), Value::Null)].into()).await;
    assert!(running.readiness.is_ready() && !running.task.is_finished(), "the plugin was not restarted");
}
