//! A node plugin as the kubelet sees it.

use std::fs;

use serde_json::json;

use tokio::time::timeout;

use super::{fixture::*, *};
use crate::plugin::nri::fake_runtime::{FakeRuntime, container, pod};

const CDI_A: &str = "k8s.dra.cpu-claim_uid-a.json";

#[tokio::test]
async fn prepare_and_unprepare_are_idempotent() {
    let machine = Machine::new();
    let claim = machine.allocate("a", &["core-0-1", "core-0-2"], &json!([]));
    let kubelet = machine.start(None).ready().await;
    let first = kubelet.prepare_one(&claim).await.unwrap();
    let devices: Vec<_> = first.iter().map(|d| (d.device_name.as_str(), d.pool_name.as_str())).collect();
    assert_eq!(devices, [("core-0-1", "node-1"), ("core-0-2", "node-1")]);
    assert!(first.iter().all(|device| device.request_names == ["main"]));
    let ids: Vec<_> = first.iter().flat_map(|device| &device.cdi_device_ids).collect();
    assert_eq!(ids, ["k8s.dra.cpu/claim=uid-a-main"]);
    let cdi = fs::read_to_string(machine.cdi().join(CDI_A)).unwrap();
    assert_eq!(kubelet.prepare_one(&claim).await.unwrap(), first);
    assert_eq!(fs::read_to_string(machine.cdi().join(CDI_A)).unwrap(), cdi, "the same token");
    kubelet.unprepare(&claim).await.unwrap();
    kubelet.unprepare(&claim).await.unwrap();
    assert_eq!(machine.cdi_files(), [""; 0]);
    assert!(!fs::read_to_string(machine.checkpoint()).unwrap().contains("uid-a"));
}

#[tokio::test]
async fn a_claim_that_fails_does_not_fail_others() {
    let machine = Machine::new();
    let good = machine.allocate("good", &["core-0-1"], &json!([]));
    let parameters = json!([{"source": "FromClaim", "opaque": {"driver": "dra.cpu", "parameters": {"x": 1}}}]);
    let bad = machine.allocate("bad", &["core-0-2"], &parameters);
    let gone = dra_claim("gone");
    let kubelet = machine.start(None).ready().await;
    let answers = kubelet.prepare(&[&good, &bad, &gone]).await;
    assert!(answers["uid-good"].is_ok());
    assert!(answers["uid-bad"].as_ref().unwrap_err().contains("opaque parameters for request \"main\""));
    assert!(answers["uid-gone"].as_ref().unwrap_err().contains("apps/gone does not exist"));
    kubelet.unprepare(&gone).await.unwrap();
}

#[tokio::test]
async fn devices_that_overlap_with_a_claimed_one_that_no_longer_exists_are_offered_once_it_is_released() {
    let machine = Machine::new();
    let first = machine.start(None);
    let known = machine.allocate("known", &["core-0-2"], &json!([]));
    first.ready().await.prepare_one(&known).await.unwrap();
    first.kill().await;
    // As it was before the granularity changed.
    let mut claims = Checkpoint::within(&machine.state()).read().unwrap().unwrap();
    let mut old = claims[0].clone();
    old.uid = "uid-old".into();
    old.requests[0].token = "old".into();
    old.requests[0].devices[0].device = "pair-4".into();
    old.requests[0].grant.cpus = "4-5".parse().unwrap();
    claims.push(old);
    Checkpoint::within(&machine.state())
        .write(&crate::plugin::claims::checkpoint::encode(claims.iter()).unwrap())
        .unwrap();
    let kubelet = machine.start(None).ready().await;
    let missing = || (0..16).filter(|n| !offered(&machine).contains(&format!("core-0-{n}"))).collect::<Vec<_>>();
    assert_eq!(missing(), [4, 5]);
    kubelet.unprepare(&dra_claim("old")).await.unwrap();
    until("all are offered", || missing().is_empty()).await;
}

#[tokio::test]
async fn many_concurrent_claims_are_all_saved() {
    let machine = Machine::new();
    let kubelet = machine.start(None).ready().await;
    let claims: Vec<_> =
        (0..16).map(|n| machine.allocate(&format!("c{n}"), &[&format!("core-0-{n}")], &json!([]))).collect();
    let calls = claims.iter().map(|claim| kubelet.prepare_one(claim));
    assert!(futures::future::join_all(calls).await.iter().all(Result::is_ok));
    let kept = Checkpoint::within(&machine.state()).read().unwrap().unwrap();
    assert_eq!(kept.len(), 16);
    assert_eq!(machine.cdi_files().len(), 16);
}

#[tokio::test]
async fn a_device_is_not_granted_twice() {
    let machine = Machine::new();
    let (a, b) = (machine.allocate("a", &["core-0-1"], &json!([])), machine.allocate("b", &["core-0-1"], &json!([])));
    let kubelet = machine.start(None).ready().await;
    kubelet.prepare_one(&a).await.unwrap();
    assert!(kubelet.prepare_one(&b).await.unwrap_err().contains("held by claim apps/a"));
    kubelet.unprepare(&a).await.unwrap();
    kubelet.prepare_one(&b).await.unwrap();
}

/// `a` holds what `b` wants. `b`'s call is answered as soon as the wait ends, for any reason.
#[rstest::rstest]
#[case::it_is_given_back("")]
#[case::its_own_pod_goes("was unprepared while")]
#[case::another_instance_takes_over("no longer active")]
#[case::the_plugin_stops("held by claim apps/a")]
#[tokio::test]
async fn prepare_waits_for_a_held_device_until_it_is_released_or_waiting_is_pointless(#[case] expected: &str) {
    let machine = Machine::new();
    let (a, b) = (machine.allocate("a", &["core-0-1"], &json!([])), machine.allocate("b", &["core-0-1"], &json!([])));
    let running = machine.start_with(NodeSettings { held_timeout: Duration::from_mins(10), ..machine.settings(None) });
    let kubelet = running.ready().await;
    kubelet.prepare_one(&a).await.unwrap();
    let mut waiting = tokio::spawn({
        let (kubelet, b) = (kubelet.clone(), b.clone());
        async move { kubelet.prepare_one(&b).await }
    });
    assert!(timeout(Duration::from_millis(200), &mut waiting).await.is_err(), "given twice, or not waited for");
    let mut successor = None;
    match expected {
        "" => kubelet.unprepare(&a).await.unwrap(),
        "was unprepared while" => kubelet.unprepare(&b).await.unwrap(),
        "no longer active" => successor = Some(machine.start(Some("new"))),
        _ => running.stop.cancel(),
    }
    let answer = timeout(Duration::from_secs(10), waiting).await.expect("waits in vain").unwrap();
    match answer {
        Ok(devices) => assert_eq!((devices[0].device_name.as_str(), expected), ("core-0-1", "")),
        Err(error) => assert!(!expected.is_empty() && error.contains(expected), "{error}"),
    }
    drop(successor);
}

#[tokio::test]
async fn an_unprepare_during_a_prepare_wins() {
    let machine = Machine::new();
    let claim = machine.allocate("a", &["core-0-1"], &json!([]));
    let kubelet = machine.start(None).ready().await;
    let gate = machine.api.hold(&claim_path("a"));
    let late = tokio::spawn({
        let (kubelet, claim) = (kubelet.clone(), claim.clone());
        async move { kubelet.prepare_one(&claim).await }
    });
    until("the claim is being read", || gate.is_reached()).await;
    kubelet.unprepare(&claim).await.unwrap();
    gate.open();
    assert!(late.await.unwrap().unwrap_err().contains("was unprepared while"));
    assert_eq!(machine.cdi_files(), [""; 0]);
    kubelet.prepare_one(&claim).await.expect("a new pod may use the claim again");
}

#[tokio::test]
async fn a_killed_plugin_restores_its_claims() {
    let machine = Machine::new();
    let (a, b) = (machine.allocate("a", &["core-0-1"], &json!([])), machine.allocate("b", &["core-0-1"], &json!([])));
    let first = machine.start(None);
    let kubelet = first.ready().await;
    let answer = kubelet.prepare_one(&a).await.unwrap();
    let cdi = fs::read_to_string(machine.cdi().join(CDI_A)).unwrap();
    first.kill().await;
    fs::remove_dir_all(machine.cdi()).unwrap();
    let kubelet = machine.start(None).ready().await;
    assert_eq!(fs::read_to_string(machine.cdi().join(CDI_A)).unwrap(), cdi, "as before the reboot");
    assert_eq!(kubelet.prepare_one(&a).await.unwrap(), answer);
    assert!(kubelet.prepare_one(&b).await.is_err(), "given twice");
}

/// What is on disk at each point where the process may die, and how it must be repaired.
#[rstest::rstest]
#[case::prepare_died_before_the_rename(false, false, true)]
#[case::prepare_died_before_the_cdi_file(true, false, false)]
#[case::prepare_died_before_the_answer(true, true, false)]
#[case::unprepare_died_before_the_cdi_file_went(false, true, false)]
#[tokio::test]
async fn the_state_is_repaired_after_a_crash_at_any_point(
    #[case] in_checkpoint: bool,
    #[case] cdi_file: bool,
    #[case] half: bool,
) {
    let machine = Machine::new();
    let (a, b) = (machine.allocate("a", &["core-0-1"], &json!([])), machine.allocate("b", &["core-0-1"], &json!([])));
    let first = machine.start(None);
    let kubelet = first.ready().await;
    kubelet.prepare_one(&a).await.unwrap();
    let (with, cdi) = (fs::read(machine.checkpoint()).unwrap(), fs::read(machine.cdi().join(CDI_A)).unwrap());
    kubelet.unprepare(&a).await.unwrap();
    first.kill().await;
    if in_checkpoint {
        fs::write(machine.checkpoint(), &with).unwrap();
    }
    if cdi_file {
        fs::write(machine.cdi().join(CDI_A), &cdi).unwrap();
    }
    if half {
        fs::write(machine.state().join("checkpoint.json.tmp"), &with[..with.len() / 2]).unwrap();
    }
    let kubelet = machine.start(None).ready().await;
    assert_eq!(machine.cdi_files().len(), usize::from(in_checkpoint), "{:?}", machine.cdi_files());
    assert_eq!(kubelet.prepare_one(&b).await.is_err(), in_checkpoint, "given twice, or lost");
    if in_checkpoint {
        kubelet.unprepare(&a).await.unwrap();
    }
    kubelet.prepare_one(&b).await.unwrap();
    assert!(kubelet.prepare_one(&a).await.is_err(), "given twice");
}

#[tokio::test]
async fn a_truncated_checkpoint_is_reported_and_fails_closed_until_someone_fixes_it() {
    let machine = Machine::new();
    let claim = machine.allocate("a", &["core-0-1"], &json!([]));
    let first = machine.start(None);
    first.ready().await.prepare_one(&claim).await.unwrap();
    first.kill().await;
    let whole = fs::read(machine.checkpoint()).unwrap();
    fs::write(machine.checkpoint(), &whole[..whole.len() / 2]).unwrap();
    let second = machine.start(None);
    let kubelet = second.register().await;
    for error in [kubelet.prepare_one(&claim).await.map(|_| ()), kubelet.unprepare(&claim).await] {
        let error = error.unwrap_err();
        assert!(error.contains("checkpoint.json is damaged") && error.contains("drain"), "{error}");
    }
    assert!(!second.readiness.is_ready());
    assert!(second.readiness.report().contains("[-] checkpoint: checkpoint "), "{}", second.readiness.report());
    assert_eq!(fs::read(machine.checkpoint()).unwrap(), whole[..whole.len() / 2]);
    assert_eq!(machine.cdi_files(), [CDI_A], "containers that restart still find it");
    until("no pod is sent here", || offered(&machine).is_empty()).await;
    fs::write(machine.checkpoint(), &whole).unwrap();
    until("ready once it is fixed", || second.readiness.is_ready() && offered(&machine).len() == 16).await;
    kubelet.prepare_one(&claim).await.unwrap();
}

#[tokio::test]
async fn a_lost_checkpoint_is_not_mistaken_for_an_empty_node() {
    let machine = Machine::new();
    let claim = machine.allocate("a", &["core-0-1"], &json!([]));
    let first = machine.start(None);
    first.ready().await.prepare_one(&claim).await.unwrap();
    first.kill().await;
    fs::remove_file(machine.checkpoint()).unwrap();
    let second = machine.start(None);
    let error = second.register().await.prepare_one(&claim).await.unwrap_err();
    assert!(error.contains("checkpoint.json is missing, but") && error.contains(CDI_A), "{error}");
    assert_eq!(machine.cdi_files(), [CDI_A]);
}

#[tokio::test]
async fn removed_sockets_and_files_are_recreated() {
    let machine = Machine::new();
    let claim = machine.allocate("a", &["core-0-1"], &json!([]));
    let running = machine.start(None);
    let kubelet = running.ready().await;
    kubelet.prepare_one(&claim).await.unwrap();
    fs::remove_file(machine.cdi().join(CDI_A)).unwrap();
    until("the CDI file is there again", || machine.cdi_files() == [CDI_A]).await;
    fs::remove_file(&running.sockets.registration).unwrap();
    until("unready until registered again", || running.readiness.report().contains("[-] registration")).await;
    running.ready().await;
    fs::remove_file(&running.sockets.dra).unwrap();
    // The kubelet does not register a plugin again while its registration socket still exists.
    let live = || std::os::unix::net::UnixStream::connect(&running.sockets.dra).is_ok();
    until("ready with the DRA socket recreated", || live() && running.readiness.is_ready()).await;
    running.ready().await.prepare_one(&claim).await.unwrap();
}

#[tokio::test]
async fn a_stopped_plugin_finishes_calls_in_flight_removes_its_sockets_and_leaves_the_slices() {
    let machine = Machine::new();
    let claim = machine.allocate("a", &["core-0-1"], &json!([]));
    let running = machine.start(None);
    let kubelet = running.ready().await;
    let gate = machine.api.hold(&claim_path("a"));
    let call = tokio::spawn(async move { kubelet.prepare_one(&claim).await });
    until("the claim is being read", || gate.is_reached()).await;
    running.stop.cancel();
    until("out of the kubelet's sight", || names(&machine.registry()).is_empty()).await;
    assert!(!running.task.is_finished(), "a call is in flight");
    gate.open();
    call.await.unwrap().unwrap();
    running.stop().await;
    assert!(!names(&machine.state()).contains(&"dra.sock".to_owned()));
    assert!(fs::read_to_string(machine.checkpoint()).unwrap().contains("uid-a"));
    assert_eq!(machine.api.slices().len(), 1);
}

#[tokio::test]
async fn a_rolling_update_hands_the_claims_over_and_back_when_the_new_one_dies() {
    let machine = Machine::new();
    let claims: Vec<_> =
        (0..3).map(|n| machine.allocate(&format!("c{n}"), &[&format!("core-0-{n}")], &json!([]))).collect();
    let old = machine.start(Some("old"));
    let old_kubelet = old.ready().await;
    old_kubelet.prepare_one(&claims[0]).await.unwrap();
    let new = machine.start(Some("new"));
    let new_kubelet = new.ready().await;
    assert_eq!(names(&machine.registry()), ["dra.cpu-new@reg.sock", "dra.cpu-old@reg.sock"]);
    assert!(old.readiness.is_ready(), "a DaemonSet's controller would delete the old pod: {}", old.readiness.report());
    assert!(old_kubelet.prepare_one(&claims[1]).await.unwrap_err().contains("no longer active"));
    new_kubelet.prepare_one(&claims[1]).await.unwrap();
    new_kubelet.unprepare(&claims[0]).await.unwrap();
    new.kill().await;
    let again = async {
        while old_kubelet.prepare_one(&claims[2]).await.is_err() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(Duration::from_secs(10), again).await.expect("the old one comes back");
    let uids: Vec<_> =
        Checkpoint::within(&machine.state()).read().unwrap().unwrap().into_iter().map(|c| c.uid).collect();
    assert_eq!(uids, ["uid-c1", "uid-c2"], "what the new one did is known");
}

#[tokio::test]
async fn without_a_connection_to_nri_nothing_is_prepared_and_readiness_says_why() {
    let machine = Machine::new();
    let claim = machine.allocate("a", &["core-0-1"], &json!([]));
    let nri_socket = Some(machine.root.path().join("nri.sock"));
    let running = machine.start_with(NodeSettings { nri_socket, ..machine.settings(None) });
    let kubelet = running.register().await;
    let error = kubelet.prepare_one(&claim).await.unwrap_err();
    assert!(error.contains("not connected to the container runtime over NRI"), "{error}");
    assert!(!running.readiness.is_ready());
    assert!(running.readiness.report().contains("[-] nri: "), "{}", running.readiness.report());
    kubelet.unprepare(&claim).await.expect("what is not prepared can go");
}

#[tokio::test]
async fn an_instance_that_is_active_again_prepares_nothing_before_nri_is_connected_again() {
    let machine = Machine::new();
    let claim = machine.allocate("a", &["core-0-1"], &json!([]));
    let socket = machine.root.path().join("nri.sock");
    let runtime = FakeRuntime::listen(&socket);
    let start =
        |uid| machine.start_with(NodeSettings { nri_socket: Some(socket.clone()), ..machine.settings(Some(uid)) });
    let old = start("old");
    let mut first = runtime.plugin().await;
    first.synchronize(vec![], vec![], false).await;
    let kubelet = old.ready().await;
    let new = start("new");
    let mut second = runtime.plugin().await;
    second.synchronize(vec![], vec![], false).await;
    new.ready().await;
    new.kill().await;

    // The old instance is active again once it connects. The runtime has not admitted it yet.
    let mut third = runtime.plugin().await;
    let mut preparing = tokio::spawn(async move { kubelet.prepare_one(&claim).await });
    assert!(timeout(Duration::from_millis(300), &mut preparing).await.is_err(), "the container would start unpinned");
    third.synchronize(vec![], vec![], false).await;
    preparing.await.unwrap().unwrap();
}

#[tokio::test]
async fn other_containers_get_back_the_last_claims_cpus_before_the_plugin_ends() {
    let machine = Machine::new();
    let claim = machine.allocate("a", &["core-0-1"], &json!([]));
    let socket = machine.root.path().join("nri.sock");
    let runtime = FakeRuntime::listen(&socket);
    let running = machine.start_with(NodeSettings { nri_socket: Some(socket), ..machine.settings(None) });
    let mut plugin = runtime.plugin().await;
    let other = container("other", "pod", "", "");
    plugin.synchronize(vec![pod("pod", "apps")], vec![other], false).await;
    let kubelet = running.ready().await;
    kubelet.prepare_one(&claim).await.unwrap();
    assert_eq!(plugin.makes().await, ["other 0,2-15"]);
    kubelet.unprepare(&claim).await.unwrap();
    running.stop.cancel();
    assert_eq!(plugin.makes().await, ["other 0-15"]);
    running.task.await.unwrap().unwrap();
}

#[tokio::test]
async fn readiness_quotes_a_kubelet_that_rejects_the_plugin() {
    let machine = Machine::new();
    let running = machine.start(None);
    running.ready().await;
    running.is_refused("plugin dra.cpu is not allowed").await;
    assert!(!running.readiness.is_ready());
    assert!(running.readiness.report().contains("rejected the registration: plugin dra.cpu is not allowed"));
}

#[tokio::test]
async fn publish_only_uses_neither_the_kubelet_nor_the_host() {
    let machine = Machine::new();
    let plugin = NodePlugin {
        settings: machine.settings(None),
        driver: machine.driver(),
        client: machine.api.client(),
        connect: machine.connect(),
        readiness: Arc::new(Readiness::of(&NodePlugin::PUBLISHING)),
        metrics: PluginMetrics::new(&mut prometheus_client::registry::Registry::default()),
    };
    let stop = CancellationToken::new();
    let published = async {
        until("ready", || plugin.readiness.is_ready()).await;
        stop.cancel();
    };
    tokio::join!(plugin.publish_only(stop.clone()), published);
    assert_eq!(machine.api.slices().len(), 1);
    assert!(names(&machine.registry()).is_empty() && !machine.state().exists() && !machine.cdi().exists());
}

fn offered(machine: &Machine) -> Vec<String> {
    let slices = machine.api.slices();
    let devices = slices.iter().flat_map(|(_, slice)| slice["spec"]["devices"].as_array().unwrap());
    devices.map(|device| device["name"].as_str().unwrap().to_owned()).collect()
}

fn dra_claim(name: &str) -> crate::plugin::kubelet::grpc::dra::Claim {
    crate::plugin::kubelet::grpc::dra::Claim { namespace: "apps".into(), uid: format!("uid-{name}"), name: name.into() }
}
