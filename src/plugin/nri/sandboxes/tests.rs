//! Sandboxes come and go, over a scripted attachment. Time is paused and advances only when all tasks are idle.

use std::sync::atomic::Ordering;

use tokio::{sync::watch, time::timeout};

use super::*;
use crate::{
    drivers::{GrantError, cpuset_fields::CpusetFields},
    plugin::{
        grants::{ContainerIdentity, Refusal},
        nri::{
            fake_attachment::FakeAttachment,
            fake_runtime::pod,
            messages::{LinuxNamespace, LinuxPodSandbox},
        },
    },
};

/// Every pod whose name begins with `claims` has CPU 1.
struct PodGrants;

impl Grants for PodGrants {
    fn of_container(&self, _: &ContainerIdentity<'_>) -> Result<Option<Grant>, Refusal> {
        Ok(None)
    }

    fn is_mark(&self, variable: &str) -> bool {
        variable.starts_with("DRA_")
    }

    fn of_pod(&self, pod_uid: &str) -> Vec<Grant> {
        let grant = Grant { cpus: "1".parse().unwrap(), ..Grant::default() };
        if pod_uid.starts_with("uid-claims") { vec![grant] } else { vec![] }
    }

    fn check(&self, _: &Grant) -> Result<(), GrantError> {
        Ok(())
    }

    fn cpuset_fields(&self) -> CpusetFields {
        CpusetFields::Nothing
    }

    fn remainder(&self) -> Option<Grant> {
        None
    }

    fn changes(&self) -> watch::Receiver<u64> {
        watch::Sender::new(0).subscribe()
    }
}

fn sandboxes() -> (Sandboxes, Arc<FakeAttachment>) {
    let attachment = FakeAttachment::new();
    (Sandboxes::new(Arc::clone(&attachment) as _, Arc::new(PodGrants)), attachment)
}

fn call(sandboxes: &mut Sandboxes, stream: u32, method: &str, name: &str) {
    let event = ContainerEvent { pod: Some(pod(name, "shop")), container: None };
    assert!(sandboxes.take_call(stream, method, &event.encode_to_vec().into()), "{method} is about a sandbox");
}

/// The next answer, as its stream and the failure's message.
async fn answer(sandboxes: &mut Sandboxes) -> (u32, String) {
    let (stream, result) = sandboxes.answer().await;
    (stream, result.err().map(|failure| failure.message).unwrap_or_default())
}

/// Lets the sandboxes work for a while, without an answer.
async fn work_for(sandboxes: &mut Sandboxes, time: Duration) {
    assert!(timeout(time, sandboxes.answer()).await.is_err(), "an answer to nothing");
}

#[tokio::test(start_paused = true)]
async fn a_pods_devices_are_attached_and_detached_before_the_runtime_is_answered() {
    let (mut sandboxes, attachment) = sandboxes();
    call(&mut sandboxes, 1, "RunPodSandbox", "claims");
    assert_eq!(answer(&mut sandboxes).await, (1, String::new()));
    assert_eq!(attachment.calls(), ["attach claims 1"]);
    for (stream, method) in [(3, "StopPodSandbox"), (5, "RemovePodSandbox")] {
        call(&mut sandboxes, stream, method, "claims");
        assert_eq!(answer(&mut sandboxes).await, (stream, String::new()));
        assert_eq!(attachment.calls(), ["detach claims 1"]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_pod_without_a_claim_waits_for_nothing() {
    let (mut sandboxes, attachment) = sandboxes();
    attachment.hangs.store(true, Ordering::Relaxed);
    call(&mut sandboxes, 1, "RunPodSandbox", "claims");
    call(&mut sandboxes, 3, "RunPodSandbox", "other");
    assert_eq!(answer(&mut sandboxes).await, (3, String::new()));
}

#[tokio::test(start_paused = true)]
async fn a_failed_attachment_fails_its_sandbox_with_the_reason_and_is_cleaned_up() {
    let (mut sandboxes, attachment) = sandboxes();
    attachment.fails.store(true, Ordering::Relaxed);
    call(&mut sandboxes, 1, "RunPodSandbox", "claims");
    let message = "cannot attach the devices of pod shop/claims: cannot move eth9: no such link; the kubelet retries";
    assert_eq!(answer(&mut sandboxes).await, (1, message.to_owned()));
    work_for(&mut sandboxes, Duration::from_millis(1)).await;
    assert_eq!(attachment.calls(), ["attach claims 1", "detach claims 1"]);

    sandboxes.synchronize([]);
    call(&mut sandboxes, 3, "StopPodSandbox", "claims");
    let message = "cannot detach the devices of pod shop/claims: cannot move eth9: no such link";
    assert_eq!(answer(&mut sandboxes).await, (3, message.to_owned()));
}

#[tokio::test(start_paused = true)]
async fn every_call_is_answered_before_the_runtime_drops_the_plugin() {
    let (mut sandboxes, attachment) = sandboxes();
    attachment.hangs.store(true, Ordering::Relaxed);
    sandboxes.synchronize([]);
    let start = Instant::now();
    for (stream, name) in [(1, "claims-a"), (3, "claims-b")] {
        call(&mut sandboxes, stream, "RunPodSandbox", name);
    }
    for (stream, name) in [(1, "claims-a"), (3, "claims-b")] {
        let (answered, message) = answer(&mut sandboxes).await;
        assert_eq!(answered, stream);
        assert!(start.elapsed() >= ANSWER_WITHIN, "not before its deadline");
        assert!(message.contains(&format!("pod shop/{name}: timed out")), "{message}");
    }
    let took = start.elapsed();
    assert!(took < Duration::from_secs(2), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn the_cleanup_of_a_failed_attachment_has_a_time_limit_of_its_own() {
    let (mut sandboxes, attachment) = sandboxes();
    attachment.fails.store(true, Ordering::Relaxed);
    call(&mut sandboxes, 1, "RunPodSandbox", "claims");
    answer(&mut sandboxes).await;
    attachment.hangs.store(true, Ordering::Relaxed);
    call(&mut sandboxes, 3, "StopPodSandbox", "other");
    work_for(&mut sandboxes, ANSWER_WITHIN / 2).await;
    assert_eq!(attachment.calls(), ["attach claims 1", "detach claims 1"], "the next pod waits for it");
}

#[tokio::test(start_paused = true)]
async fn sandboxes_are_handled_one_at_a_time_in_the_order_of_the_calls() {
    let (mut sandboxes, attachment) = sandboxes();
    sandboxes.synchronize([pod("claims-old", "shop"), pod("other", "shop")]);
    call(&mut sandboxes, 1, "RunPodSandbox", "claims-a");
    call(&mut sandboxes, 3, "StopPodSandbox", "claims-old");
    for stream in [1, 3] {
        assert_eq!(answer(&mut sandboxes).await, (stream, String::new()));
    }
    let expected = ["recover claims-a 1, other ", "attach claims-a 1", "detach claims-old 1"];
    assert_eq!(attachment.calls(), expected, "recovered is what exists when it begins");
}

#[tokio::test(start_paused = true)]
async fn a_failed_recovery_is_retried_with_the_current_sandboxes() {
    let (mut sandboxes, attachment) = sandboxes();
    attachment.fails.store(true, Ordering::Relaxed);
    sandboxes.synchronize([pod("claims-a", "shop"), pod("other", "shop")]);
    work_for(&mut sandboxes, Duration::from_secs(1)).await;
    assert_eq!(attachment.calls(), ["recover claims-a 1, other "]);

    attachment.fails.store(false, Ordering::Relaxed);
    call(&mut sandboxes, 1, "StopPodSandbox", "other");
    call(&mut sandboxes, 3, "RunPodSandbox", "claims-b");
    for stream in [1, 3] {
        assert_eq!(answer(&mut sandboxes).await, (stream, String::new()));
    }
    assert_eq!(attachment.calls(), ["detach other ", "attach claims-b 1"]);
    work_for(&mut sandboxes, RETRY).await;
    assert_eq!(attachment.calls(), ["recover claims-a 1, claims-b 1"]);
    work_for(&mut sandboxes, 2 * RETRY).await;
    assert_eq!(attachment.calls(), [""; 0], "it worked");
}

#[tokio::test(start_paused = true)]
async fn a_recovery_that_hangs_is_aborted_and_retried() {
    let (mut sandboxes, attachment) = sandboxes();
    attachment.hangs.store(true, Ordering::Relaxed);
    sandboxes.synchronize([]);
    work_for(&mut sandboxes, RECOVER_WITHIN + RETRY + Duration::from_secs(1)).await;
    assert_eq!(attachment.calls(), ["recover "; 2]);
}

#[test]
fn events_of_runtimes_with_a_single_method_for_events_are_understood() {
    let change =
        |event: Event| StateChangeEvent { event: event.into(), pod: Some(pod("claims", "shop")), container: None };
    for event in EVENTS {
        let (found, pod) = sandbox_event("StateChange", &change(event).encode_to_vec().into()).unwrap();
        assert_eq!((found, &*pod.name), (event, "claims"));
    }
    assert_eq!(sandbox_event("StateChange", &change(Event::StopContainer).encode_to_vec().into()), None);
    assert_eq!(sandbox_event("CreateContainer", &Bytes::new()), None);
}

#[test]
fn a_sandbox_has_its_own_network_namespace_and_not_the_hosts() {
    let namespace = |kind: &str, path: &str| LinuxNamespace { r#type: kind.into(), path: path.into() };
    let network = |namespaces: Vec<LinuxNamespace>| {
        let linux = Some(LinuxPodSandbox { namespaces });
        sandbox(PodSandbox { linux, ..pod("web", "shop") }).network_namespace
    };
    let own = network(vec![namespace("ipc", "/proc/1/ns/ipc"), namespace("network", "/var/run/netns/cni-1")]);
    assert_eq!(own.as_deref(), Some(std::path::Path::new("/var/run/netns/cni-1")));
    assert_eq!(network(vec![namespace("ipc", "/proc/1/ns/ipc"), namespace("network", "")]), None);
    assert_eq!(network(vec![]), None);
}
