//! What NRI learns about prepared claims.

use k8s_openapi::api::resource::v1::Device;
use serde_json::json;

use super::*;
use crate::plugin::{
    claims::{allocation::ClaimRef, reader::ClaimReader},
    grants::{ContainerIdentity, Grants as _, Refusal},
    node::fixture::Machine,
};

fn reader(machine: &Machine) -> ClaimReader {
    ClaimReader::new(machine.api.client())
}

async fn active(machine: &Machine) -> Claims {
    let settings = machine.settings(None);
    std::fs::create_dir_all(&settings.state_dir).unwrap();
    let claims = Claims::new(ClaimsConfig {
        driver_name: settings.driver_name.to_string(),
        pool: settings.node_name,
        driver: machine.driver(),
        checkpoint: Checkpoint::within(&settings.state_dir),
        cdi: Cdi::new(&settings.cdi_dir, &settings.driver_name),
        nri: None,
        held_timeout: settings.held_timeout,
        stop: CancellationToken::new(),
    });
    claims.activate().await.unwrap();
    claims
}

fn named(name: &str) -> ClaimRef {
    ClaimRef { namespace: "apps".into(), name: name.into(), uid: format!("uid-{name}") }
}

/// Prepares the claim and returns the environment that its CDI file gives a container.
async fn prepared_env(machine: &Machine, claims: &Claims, name: &str, devices: &[&str]) -> Vec<String> {
    machine.allocate(name, devices, &json!([]));
    claims.prepare(&named(name), claims.arrives(), &reader(machine)).await.unwrap();
    let file = machine.cdi().join(format!("k8s.dra.cpu-claim_uid-{name}.json"));
    let spec: serde_json::Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    serde_json::from_value(spec["devices"][0]["containerEdits"]["env"].clone()).unwrap()
}

fn of_container(claims: &Claims, namespace: &str, env: &[String]) -> Result<Option<String>, Refusal> {
    of_container_with(claims, namespace, env, &[])
}

fn of_container_with(
    claims: &Claims,
    namespace: &str,
    env: &[String],
    cdi_devices: &[String],
) -> Result<Option<String>, Refusal> {
    let container = ContainerIdentity {
        pod_uid: "p",
        pod_namespace: namespace,
        pod_name: "pod",
        container_name: "c",
        env,
        cdi_devices,
    };
    claims.of_container(&container).map(|grant| grant.map(|grant| grant.cpus.to_string()))
}

#[tokio::test]
async fn a_container_gets_the_grants_of_all_its_marks_and_one_without_a_mark_gets_none() {
    let machine = Machine::new();
    let claims = active(&machine).await;
    let mut env = prepared_env(&machine, &claims, "a", &["core-0-1", "core-0-2"]).await;
    assert_eq!(of_container(&claims, "apps", &env), Ok(Some("1-2".to_owned())));
    let marks: Vec<_> = env.iter().filter(|variable| claims.is_mark(variable)).collect();
    assert!(matches!(&marks[..], [mark] if mark.starts_with("DRA_CLAIM_UID_A_MAIN=dra.cpu/")), "{marks:?} of {env:?}");
    env.extend(prepared_env(&machine, &claims, "b", &["core-0-5"]).await);
    env.push("PATH=/bin".to_owned());
    assert_eq!(of_container(&claims, "apps", &env), Ok(Some("1-2,5".to_owned())));
    assert_eq!(of_container(&claims, "apps", &["PATH=/bin".to_owned()]), Ok(None));
}

#[tokio::test]
async fn a_mark_that_a_container_carries_twice_counts_once() {
    let machine = Machine::new();
    let claims = active(&machine).await;
    let mut env = prepared_env(&machine, &claims, "a", &["core-0-1"]).await;
    // A kind whose requests bring amounts.
    claims.change(|prepared| {
        let mut claim = prepared.remove("uid-a").unwrap();
        claim.requests[0].grant.memory_limit = Some(1 << 30);
        prepared.reset(vec![claim]);
    });
    let mark = env.iter().find_map(|variable| variable.strip_prefix("DRA_CLAIM_UID_A_MAIN=")).unwrap();
    env.push(format!("DRA_CLAIM_AGAIN={mark}"));
    let container = ContainerIdentity {
        pod_uid: "p",
        pod_namespace: "apps",
        pod_name: "pod",
        container_name: "c",
        env: &env,
        cdi_devices: &[],
    };
    assert_eq!(claims.of_container(&container).unwrap().unwrap().memory_limit, Some(1 << 30));
}

#[tokio::test]
async fn a_mark_that_is_copied_forged_or_of_an_unprepared_claim_is_refused() {
    let machine = Machine::new();
    let claims = active(&machine).await;
    let env = prepared_env(&machine, &claims, "a", &["core-0-1"]).await;
    let elsewhere = of_container(&claims, "other", &env).unwrap_err();
    assert!(elsewhere.to_string().contains("another namespace"), "{elsewhere}");
    let made_up = vec!["DRA_CLAIM_UID_A_MAIN=dra.cpu/0123".to_owned()];
    assert!(matches!(of_container(&claims, "apps", &made_up), Err(Refusal::NotPrepared { .. })));
    claims.unprepare(&named("a")).await.unwrap();
    assert!(matches!(of_container(&claims, "apps", &env), Err(Refusal::NotPrepared { .. })));
}

#[tokio::test]
async fn a_container_whose_claim_was_not_injected_is_refused_instead_of_running_unpinned() {
    let machine = Machine::new();
    let claims = active(&machine).await;
    let env = prepared_env(&machine, &claims, "a", &["core-0-1"]).await;
    let own = ["k8s.dra.cpu/claim=uid-a-main".to_owned()];
    let refusal = of_container_with(&claims, "apps", &["PATH=/bin".to_owned()], &own).unwrap_err().to_string();
    assert!(refusal.contains("enable CDI in the runtime") && refusal.contains("apps/pod"), "{refusal}");
    assert_eq!(of_container_with(&claims, "apps", &env, &own), Ok(Some("1".to_owned())));
    let others = ["k8s.dra.cpu.more/claim=x".to_owned(), "vendor.com/gpu=0".to_owned()];
    assert_eq!(of_container_with(&claims, "apps", &[], &others), Ok(None));
}

#[tokio::test]
async fn a_claim_is_refused_while_some_of_its_cpus_are_offline() {
    let machine = Machine::new();
    let claims = active(&machine).await;
    machine.allocate("a", &["core-0-1", "core-0-2", "core-0-3"], &json!([]));
    machine.online("0-1,4-15");
    let error = claims.prepare(&named("a"), claims.arrives(), &reader(&machine)).await.unwrap_err().to_string();
    assert!(error.contains("request \"main\": CPUs 2-3 are offline"), "{error}");
    assert_eq!(claims.count(), 0, "it holds nothing");
    machine.online("0-15");
    claims.prepare(&named("a"), claims.arrives(), &reader(&machine)).await.unwrap();
    assert_eq!(claims.count(), 1);

    // Nor does the runtime start its container while one is.
    let [grant] = &claims.of_pod("uid-pod")[..] else { panic!("one request") };
    assert_eq!(claims.check(grant), Ok(()));
    machine.online("0-1,4-15");
    assert_eq!(
        claims.check(grant).unwrap_err().to_string(),
        "CPUs 2-3 are offline on this node: bring them online, or delete the pod so that it is rescheduled"
    );
}

#[tokio::test]
async fn a_device_that_overlaps_one_that_no_longer_exists_is_withheld_unless_the_scheduler_knows_that_it_is_taken() {
    let machine = Machine::new();
    let claims = active(&machine).await;
    prepared_env(&machine, &claims, "a", &["core-0-1"]).await;
    prepared_env(&machine, &claims, "b", &["core-0-2"]).await;
    let published = ["core-0-1", "core-0-2", "core-0-3"];
    let published = published.map(|name| Device { name: name.into(), ..Device::default() });
    let withheld = |share_id: Option<&str>| {
        claims.change(|prepared| {
            let [mut gone, mut other] = [prepared.remove("uid-a").unwrap(), prepared.remove("uid-b").unwrap()];
            // Held before the granularity changed.
            gone.requests[0].devices[0].device = "thread-0-1".into();
            gone.requests[0].grant.cpus = "1-2".parse().unwrap();
            other.requests[0].devices[0].share_id = share_id.map(str::to_owned);
            prepared.reset(vec![gone, other]);
        });
        claims.withheld(&published).into_iter().collect::<Vec<_>>()
    };
    assert_eq!(withheld(None), ["core-0-1"]);
    assert_eq!(withheld(Some("share-1")), ["core-0-1", "core-0-2"], "others may get shares of it");
}

#[tokio::test]
async fn other_containers_avoid_prepared_cpus_and_only_real_changes_are_announced() {
    let machine = Machine::new();
    let claims = active(&machine).await;
    let mut changes = claims.changes();
    changes.mark_unchanged();
    assert_eq!(claims.remainder(), None);
    prepared_env(&machine, &claims, "a", &["core-0-1"]).await;
    assert!(changes.has_changed().unwrap());
    assert_eq!(claims.remainder().unwrap().cpus.to_string(), "0,2-15");
    changes.mark_unchanged();
    claims.prepare(&named("a"), claims.arrives(), &reader(&machine)).await.unwrap();
    claims.unprepare(&named("never")).await.unwrap();
    assert!(!changes.has_changed().unwrap(), "nothing is different");
    claims.unprepare(&named("a")).await.unwrap();
    assert!(changes.has_changed().unwrap());
    assert_eq!(claims.remainder(), None);
}

#[tokio::test]
async fn prepare_fails_while_the_checkpoint_cannot_be_written_and_succeeds_later() {
    let machine = Machine::new();
    let claims = active(&machine).await;
    machine.allocate("a", &["core-0-1"], &json!([]));
    // A directory in place of the temporary file.
    let blocker = machine.state().join("checkpoint.json.tmp");
    std::fs::create_dir(&blocker).unwrap();
    let error = claims.prepare(&named("a"), claims.arrives(), &reader(&machine)).await.unwrap_err();
    assert!(error.to_string().contains("cannot write checkpoint"), "{error}");
    assert_eq!(machine.cdi_files(), [""; 0]);
    claims.restore_cdi().await.unwrap();
    assert_eq!(machine.cdi_files().len(), 1, "wanted, though the kubelet has no answer yet");
    let restarted = active(&machine).await;
    restarted.rewrite_cdi().await.unwrap();
    assert_eq!(machine.cdi_files(), [""; 0], "the checkpoint does not have it");
    std::fs::remove_dir(blocker).unwrap();
    claims.prepare(&named("a"), claims.arrives(), &reader(&machine)).await.unwrap();
    assert_eq!(Checkpoint::within(&machine.state()).read().unwrap().unwrap().len(), 1);
}

#[tokio::test]
async fn a_pod_has_what_its_claims_hold_and_a_later_prepare_adds_its_pod() {
    let machine = Machine::new();
    let claims = active(&machine).await;
    prepared_env(&machine, &claims, "a", &["core-0-1"]).await;
    let cpus = |claims: &Claims, pod| claims.of_pod(pod).iter().map(|g| g.cpus.to_string()).collect::<Vec<_>>();
    assert_eq!((cpus(&claims, "uid-pod"), cpus(&claims, "uid-pod-2")), (vec!["1".to_owned()], vec![]));
    machine.allocate_to("pod-2", "a", &["core-0-1"], &json!([]));
    claims.prepare(&named("a"), claims.arrives(), &reader(&machine)).await.unwrap();
    let restarted = active(&machine).await;
    assert_eq!(cpus(&restarted, "uid-pod"), ["1"]);
    assert_eq!(cpus(&restarted, "uid-pod-2"), ["1"], "the checkpoint has it");
    claims.unprepare(&named("a")).await.unwrap();
    assert_eq!(cpus(&claims, "uid-pod-2"), [""; 0]);
}

#[tokio::test]
async fn an_unprepare_leaves_the_file_of_a_claim_that_is_prepared_again_in_the_meantime() {
    let machine = Machine::new();
    let claims = active(&machine).await;
    prepared_env(&machine, &claims, "a", &["core-0-1"]).await;
    let claim = claims.lock().iter().next().unwrap().clone();
    let writing = claims.written.lock().await;
    let a = named("a");
    let again = async {
        claims.change(|prepared| prepared.reset(vec![claim]));
        drop(writing);
    };
    // The Unprepare gets as far as writing the checkpoint, then the other one runs.
    let (unprepared, ()) = tokio::join!(biased; claims.unprepare(&a), again);
    unprepared.unwrap();
    assert_eq!(machine.cdi_files().len(), 1);
}

#[tokio::test]
async fn a_recreated_claim_is_not_prepared_for_the_old_uid() {
    let machine = Machine::new();
    let claims = active(&machine).await;
    machine.allocate("a", &["core-0-1"], &json!([]));
    let old = ClaimRef { uid: "uid-before".into(), ..named("a") };
    let error = claims.prepare(&old, claims.arrives(), &reader(&machine)).await.unwrap_err();
    assert!(error.to_string().contains("deleted and recreated"), "{error}");
    assert_eq!(claims.count(), 0);
}
