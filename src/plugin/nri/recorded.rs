//! Tests with what containerd really sends, as recorded in `tests/fixtures/nri` (its README says how).

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};

use proptest::prelude::*;
use prost::{
    Message,
    bytes::{Bytes, BytesMut},
};
use tokio::sync::watch;

use super::{
    cpuset::Cpuset,
    hooks::Hooks,
    messages::{
        ConfigureRequest, Container, ContainerEvent, CreateContainerRequest, CreateContainerResponse, PodSandbox,
        SynchronizeRequest, UpdateContainerRequest,
    },
    mux::{self, Lane},
    ttrpc::{self, Incoming},
};
use crate::{
    drivers::{Grant, GrantError, cpuset_fields::CpusetFields},
    plugin::grants::{ContainerIdentity, Grants, Refusal},
};

const FROM_RUNTIME: &[u8] = include_bytes!("../../../tests/fixtures/nri/from-runtime.bin");
const FROM_PLUGIN: &[u8] = include_bytes!("../../../tests/fixtures/nri/from-plugin.bin");

/// All messages on both lanes, up to the first bytes that cannot be decoded.
fn messages(bytes: &[u8]) -> Result<Vec<(Lane, Incoming)>, String> {
    let mut read = BytesMut::from(bytes);
    let mut lanes = [BytesMut::new(), BytesMut::new()];
    let mut messages = Vec::new();
    while let Some((lane, payload)) = mux::take_frame(&mut read).map_err(|error| error.to_string())? {
        let buffer = &mut lanes[usize::from(lane == Lane::Runtime)];
        buffer.extend_from_slice(&payload);
        while let Some(message) = ttrpc::take_message(buffer).map_err(|error| error.to_string())? {
            messages.push((lane, message));
        }
    }
    Ok(messages)
}

/// A line for each message of the runtime.
fn told(message: &Incoming) -> String {
    let Incoming::Call { method, payload, .. } = message else { return "an answer".to_owned() };
    let names = |pod: Option<PodSandbox>, container: Option<Container>| {
        let (pod, container) = (pod.unwrap_or_default(), container.unwrap_or_default());
        let marks: Vec<_> = container.env.iter().filter(|variable| variable.contains("=dra.cpu/")).collect();
        let devices: Vec<_> = container.cdi_devices.iter().map(|device| &device.name).collect();
        let has = Cpuset::of_container(&container).unwrap();
        format!(
            "{}/{} {} has={:?} marks={marks:?} devices={devices:?}",
            pod.namespace,
            pod.name,
            container.name,
            has.cpus.to_string()
        )
    };
    let payload = payload.clone();
    let rest = match &**method {
        "Configure" => {
            let ConfigureRequest { runtime_name, runtime_version, request_timeout, nri_version } =
                ConfigureRequest::decode(payload).unwrap();
            format!("{runtime_name} {runtime_version} NRI {nri_version}, answers within {request_timeout} ms")
        }
        "Synchronize" => {
            let SynchronizeRequest { mut pods, mut containers, more } = SynchronizeRequest::decode(payload).unwrap();
            let last = containers.pop().map(|container| Container::decode(container).unwrap());
            format!("{}, {} more={more}", pods.len(), names(pods.pop(), last))
        }
        "CreateContainer" => {
            let CreateContainerRequest { pod, container } = CreateContainerRequest::decode(payload).unwrap();
            names(pod, container)
        }
        "UpdateContainer" => {
            let UpdateContainerRequest { pod, container, linux_resources } =
                UpdateContainerRequest::decode(payload).unwrap();
            let asked = Cpuset::of_resources(linux_resources.as_ref()).unwrap();
            format!("{} asked={:?}", names(pod, container), asked.cpus.to_string())
        }
        _ => {
            let ContainerEvent { pod, container } = ContainerEvent::decode(payload).unwrap();
            names(pod, container)
        }
    };
    format!("{method}: {rest}")
}

#[test]
fn what_containerd_sends_is_understood() {
    let told: Vec<String> = messages(FROM_RUNTIME).unwrap().iter().map(|(_, message)| told(message)).collect();
    insta::assert_snapshot!(told.join("\n"));
}

#[test]
fn what_the_plugin_sent_is_understood() {
    let calls: Vec<_> = messages(FROM_PLUGIN)
        .unwrap()
        .into_iter()
        .map(|(lane, message)| match message {
            Incoming::Call { method, stream, .. } => format!("{lane:?} {stream} call {method}"),
            Incoming::Answer { stream, result } => format!("{lane:?} {stream} answer ok={}", result.is_ok()),
        })
        .collect();
    insta::assert_snapshot!(calls.join("\n"));
}

/// Every mark is a claim for CPU 0 of a machine with two CPUs.
struct OneClaim(watch::Sender<u64>, Mutex<Vec<String>>);

impl Grants for OneClaim {
    fn of_container(&self, container: &ContainerIdentity<'_>) -> Result<Option<Grant>, Refusal> {
        let marks = container.env.iter().any(|variable| variable.contains("=dra.cpu/"));
        self.1.lock().unwrap().push(format!("{}/{}", container.pod_namespace, container.pod_name));
        Ok(marks.then(|| Grant { cpus: "0".parse().unwrap(), ..Grant::default() }))
    }

    fn is_mark(&self, variable: &str) -> bool {
        variable.starts_with("DRA_CLAIM_")
    }

    fn of_pod(&self, _: &str) -> Vec<Grant> {
        vec![]
    }

    fn cpuset_fields(&self) -> CpusetFields {
        CpusetFields::Cpus
    }

    fn check(&self, _: &Grant) -> Result<(), GrantError> {
        Ok(())
    }

    fn remainder(&self) -> Option<Grant> {
        Some(Grant { cpus: "1".parse().unwrap(), ..Grant::default() })
    }

    fn changes(&self) -> watch::Receiver<u64> {
        self.0.subscribe()
    }
}

fn hooks() -> (Hooks, Arc<OneClaim>) {
    let grants = Arc::new(OneClaim(watch::Sender::new(0), Mutex::default()));
    let online = "0-1".parse().unwrap();
    (Hooks::new(Arc::clone(&grants) as _, "dra.cpu", HashMap::new(), online), grants)
}

#[test]
fn the_recorded_pod_is_pinned_and_its_neighbour_moved() {
    let (mut hooks, grants) = hooks();
    let mut created = None;
    for (_, message) in messages(FROM_RUNTIME).unwrap() {
        let Incoming::Call { service: name, method, payload, .. } = message else { continue };
        let answer = hooks.answer(&name, &method, payload).unwrap();
        if method == "CreateContainer" {
            created = Some(CreateContainerResponse::decode(&*answer).unwrap());
        }
    }
    assert_eq!(*grants.1.lock().unwrap(), ["default/before", "default/pinned"]);
    let created = created.unwrap();
    let cpus = |resources: super::messages::LinuxResources| resources.cpu.unwrap().cpus;
    assert_eq!(cpus(created.adjust.unwrap().linux.unwrap().resources.unwrap()), "0");
    let [neighbour] = &created.update[..] else { panic!("{:?}", created.update) };
    assert_eq!(cpus(neighbour.linux.clone().unwrap().resources.unwrap()), "1");
}

proptest! {
    #[test]
    fn damaged_input_never_causes_a_panic(
        damage in proptest::collection::vec((0..FROM_RUNTIME.len(), any::<u8>()), 1..20),
        length in 0..=FROM_RUNTIME.len(),
    ) {
        let mut bytes = FROM_RUNTIME.to_vec();
        for (position, byte) in damage {
            bytes[position] = byte;
        }
        let (mut hooks, _) = hooks();
        for (_, message) in messages(&bytes[..length]).unwrap_or_default() {
            if let Incoming::Call { service: name, method, payload, .. } = message {
                let _ = hooks.answer(&name, &method, payload);
            }
        }
    }

    #[test]
    fn no_payload_causes_a_panic(
        method in "Configure|Synchronize|CreateContainer|UpdateContainer|PostCreateContainer|StopContainer|StateChange|x",
        payload in proptest::collection::vec(any::<u8>(), 0..300),
    ) {
        let (mut hooks, _) = hooks();
        hooks.answer(super::messages::PLUGIN_SERVICE, "Synchronize", Bytes::new()).unwrap();
        let _ = hooks.answer(super::messages::PLUGIN_SERVICE, &method, payload.into());
    }
}
