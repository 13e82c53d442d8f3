//! Faults on a node: nothing is lost, and nothing is given out twice.

use std::{fs, path::PathBuf};

use dra_operator::cpuset::CpuSet;
use k8s_openapi::api::{
    core::v1::Pod,
    resource::v1::{ResourceClaim, ResourceSlice},
};
use kube::{ResourceExt, api::DeleteParams};
use serde_json::json;

use super::support::{
    cluster::{CONFIG, Cluster, NAMESPACE, is_ready, script, tool},
    eventually,
    node::{kill, online, plugin_processes},
    objects::{claim, pod},
};

/// A pinned pod `pinned` with the claim `one`, and a pod `neighbour` that is kept off its CPUs. Returns the CPUs held.
async fn pinned_and_neighbour(c: &Cluster) -> CpuSet {
    plugin_is_ready_again(c).await;
    c.create::<Pod>(pod("neighbour", None)).await;
    c.create::<ResourceClaim>(claim("one", 1)).await;
    c.create::<Pod>(pod("pinned", Some("one"))).await;
    c.pod_is_ready("pinned").await;
    c.pod_is_ready("neighbour").await;
    let held = c.cpus_of_claim("one").await;
    still_pinned(c, &held).await;
    held
}

async fn still_pinned(c: &Cluster, held: &CpuSet) {
    c.container_has("pinned", "main", held).await;
    c.container_has("neighbour", "main", &online().difference(held)).await;
}

/// Another claim gets the remaining CPUs, never those held. Then everything is released.
async fn another_claim_gets_the_rest(c: &Cluster, held: &CpuSet) {
    c.create::<ResourceClaim>(claim("another", 1)).await;
    c.create::<Pod>(pod("another", Some("another"))).await;
    c.pod_is_ready("another").await;
    assert!(c.cpus_of("another", "main").is_disjoint(held), "a CPU was given twice");
    for name in ["another", "pinned"] {
        c.delete_and_wait(&c.here::<Pod>(), name).await;
    }
    c.container_has("neighbour", "main", &online()).await;
}

async fn plugin_is_ready_again(c: &Cluster) {
    eventually("the node plugin is ready", || async {
        let pods = c.plugin_pods().await;
        if pods.len() == 1 && pods.iter().all(is_ready) && !plugin_processes().is_empty() {
            Ok(())
        } else {
            Err(pods.into_iter().map(|p| p.status).collect::<Vec<_>>())
        }
    })
    .await;
}

#[tokio::test]
async fn a_plugin_killed_while_pods_run_restarts_with_the_same_claims() {
    let c = Cluster::with_driver("killed").await;
    let held = pinned_and_neighbour(&c).await;
    kill(&plugin_processes());
    plugin_is_ready_again(&c).await;
    still_pinned(&c, &held).await;
    another_claim_gets_the_rest(&c, &held).await;
}

#[tokio::test]
async fn a_plugin_killed_at_any_moment_of_prepare_loses_nothing_and_gives_nothing_out_twice() {
    let c = Cluster::with_driver("killed-prepare").await;
    // Each round kills a little later after the pod was created: before, during and after Prepare.
    for (round, after) in [0_u64, 120, 240, 360, 480].into_iter().enumerate() {
        let (first, second) = (format!("a{round}"), format!("b{round}"));
        for name in [&first, &second] {
            c.create::<ResourceClaim>(claim(name, 1)).await;
            c.create::<Pod>(pod(name, Some(name))).await;
        }
        tokio::time::sleep(std::time::Duration::from_millis(after)).await;
        kill(&plugin_processes());
        plugin_is_ready_again(&c).await;
        for name in [&first, &second] {
            c.nudge(name).await;
            c.pod_is_ready(name).await;
        }
        for name in [&first, &second] {
            let held = c.cpus_of_claim(name).await;
            c.container_has(name, "main", &held).await;
        }
        assert!(
            c.cpus_of(&first, "main").is_disjoint(&c.cpus_of(&second, "main")),
            "round {round}: a CPU was given twice"
        );
        let (pods, claims) = (c.here::<Pod>(), c.here::<ResourceClaim>());
        let release = async |name| {
            c.delete_and_wait(&pods, name).await;
            c.delete_and_wait(&claims, name).await;
        };
        tokio::join!(release(&first), release(&second));
        plugin_is_ready_again(&c).await;
    }
}

#[tokio::test]
async fn prepare_waits_for_the_cpus_that_a_pod_deleted_by_force_still_runs_on() {
    let c = Cluster::with_driver("forced").await;
    plugin_is_ready_again(&c).await;
    let all = c.slices().await.iter().map(|slice| slice.spec.devices.as_ref().map_or(0, Vec::len)).sum::<usize>();
    for name in ["first", "second"] {
        c.create::<ResourceClaim>(claim(name, u32::try_from(all).unwrap())).await;
    }
    let mut first = pod("first", Some("first"));
    // The first process of a container, if it does not handle SIGTERM, runs until this is over.
    first["spec"]["containers"][0]["command"] = json!(["sleep", "100000"]);
    first["spec"]["terminationGracePeriodSeconds"] = 10.into();
    c.create::<Pod>(first).await;
    c.pod_is_ready("first").await;
    c.create::<Pod>(pod("second", Some("second"))).await;

    c.here::<Pod>().delete("first", &DeleteParams::default().grace_period(0)).await.unwrap();
    c.delete_and_wait(&c.here::<ResourceClaim>(), "first").await;
    c.pod_is_ready("second").await;
    assert_eq!(c.cpus_of("second", "main"), online());
    let failed: Vec<String> = c.events("second").await.into_iter().filter(|event| event.contains("held by")).collect();
    assert_eq!(failed, [""; 0], "the kubelet would come back a minute later");
    let plugin = c.plugin_pods().await.remove(0).name_any();
    let log = tool("kubectl", &["-n", NAMESPACE, "logs", &plugin]);
    assert!(log.contains("waiting: device"), "the pod was gone before its CPUs were wanted: {log}");
}

#[tokio::test]
async fn slices_are_published_again_after_a_kubelet_restart_and_pods_stay_pinned() {
    let c = Cluster::with_driver("kubelet-restart").await;
    let held = pinned_and_neighbour(&c).await;
    let devices = devices(&c.slices().await);
    script("restart", &["kubelet"]);
    eventually("the slices are back", || async {
        let now = self::devices(&c.slices().await);
        if now == devices { Ok(()) } else { Err(now) }
    })
    .await;
    still_pinned(&c, &held).await;
    another_claim_gets_the_rest(&c, &held).await;
}

#[tokio::test]
async fn a_slice_that_someone_else_deleted_is_published_again() {
    let c = Cluster::with_driver("stranger").await;
    let before = c.slices().await;
    let gone = before[0].name_any();
    let uid = before[0].uid();
    c.all::<ResourceSlice>().delete(&gone, &DeleteParams::default()).await.unwrap();
    eventually("the slice is back", || async {
        let now = c.slices().await;
        if devices(&now) == devices(&before) && now.iter().all(|s| s.uid() != uid) { Ok(()) } else { Err(now) }
    })
    .await;
}

fn devices(slices: &[ResourceSlice]) -> Vec<String> {
    let mut names: Vec<_> =
        slices.iter().flat_map(|s| s.spec.devices.iter().flatten()).map(|d| d.name.clone()).collect();
    names.sort();
    names
}

#[tokio::test]
async fn pinning_continues_after_a_containerd_restart() {
    let c = Cluster::with_driver("containerd-restart").await;
    let held = pinned_and_neighbour(&c).await;
    script("restart", &["containerd"]);
    plugin_is_ready_again(&c).await;
    still_pinned(&c, &held).await;
    c.create::<Pod>(pod("late", None)).await;
    c.pod_is_ready("late").await;
    c.container_has("late", "main", &online().difference(&held)).await;
    another_claim_gets_the_rest(&c, &held).await;
}

#[tokio::test]
async fn cdi_files_are_written_again_when_the_directory_is_emptied() {
    let c = Cluster::with_driver("cdi-emptied").await;
    let held = pinned_and_neighbour(&c).await;
    let cdi = c.place("CDI_DIR").to_owned();
    let files = || fs::read_dir(&cdi).unwrap().map(|entry| entry.unwrap().path()).collect::<Vec<_>>();
    let before = files();
    assert!(!before.is_empty());
    for file in &before {
        fs::remove_file(file).unwrap();
    }
    eventually("the CDI files are back", || async {
        let mut now = files();
        now.sort();
        let mut wanted = before.clone();
        wanted.sort();
        if now == wanted { Ok(()) } else { Err(now) }
    })
    .await;
    // The container of a running pod can be recreated, which needs the file.
    tool("kubectl", &["-n", &c.namespace, "exec", "pinned", "--", "true"]);
    another_claim_gets_the_rest(&c, &held).await;
}

#[tokio::test]
async fn a_truncated_checkpoint_fails_closed_and_says_so() {
    let c = Cluster::with_driver("checkpoint").await;
    let held = pinned_and_neighbour(&c).await;
    kill(&plugin_processes());
    let checkpoint = Halved::of(c.state_dir().join("checkpoint.json"));
    c.create::<ResourceClaim>(claim("refused", 1)).await;
    c.create::<Pod>(pod("refused", Some("refused"))).await;
    c.config_where(CONFIG, "says that the checkpoint is broken", |config| {
        let problems = config.status.as_ref().and_then(|s| s.problems.as_ref());
        problems.is_some_and(|p| p.first.iter().any(|p| p.node == "dra-node-1"))
    })
    .await;
    eventually("the log names the file", || async {
        let logs = tool("kubectl", &["-n", NAMESPACE, "logs", "-l", "dra-operator.dev/config=cpu", "--tail=500"]);
        if logs.contains("checkpoint.json") { Ok(()) } else { Err(logs) }
    })
    .await;
    c.container_has("pinned", "main", &held).await;
    assert_eq!(fs::read(&checkpoint.path).unwrap(), checkpoint.half(), "what is broken is not overwritten");

    drop(checkpoint);
    c.delete_and_wait(&c.here::<Pod>(), "refused").await;
    c.delete_and_wait(&c.here::<ResourceClaim>(), "refused").await;
    plugin_is_ready_again(&c).await;
    still_pinned(&c, &held).await;
    another_claim_gets_the_rest(&c, &held).await;
}

/// A file that has lost its second half, which is restored at the end.
struct Halved {
    path: PathBuf,
    whole: Vec<u8>,
}

impl Halved {
    fn of(path: PathBuf) -> Self {
        let whole = fs::read(&path).unwrap();
        let halved = Self { path, whole };
        fs::write(&halved.path, halved.half()).unwrap();
        halved
    }

    fn half(&self) -> &[u8] {
        &self.whole[..self.whole.len() / 2]
    }
}

impl Drop for Halved {
    fn drop(&mut self) {
        fs::write(&self.path, &self.whole).unwrap();
    }
}
