//! The publisher against an in-memory API server.

use std::time::Duration;

use http::Method;
use serde_json::{Value, json};

use super::*;
use crate::fake_api::{FakeApi, SLICES};

const NODE: &str = "/api/v1/nodes/node-1";

fn devices(count: usize) -> Vec<Device> {
    (0..count).map(|n| Device { name: format!("core-0-{n}"), ..Device::default() }).collect()
}

fn api() -> FakeApi {
    let api = FakeApi::default();
    api.put(NODE, json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-1", "uid": "node-uid"}}));
    api
}

fn publisher(api: &FakeApi, devices: Vec<Device>) -> Publisher {
    let offered = watch::channel(Offered { devices: Arc::new(devices), withheld: BTreeSet::new() }).1;
    Publisher::new(api.client(), "dra.cpu", "node-1", offered, PublishCounters::default())
}

/// Runs a publisher concurrently with the story.
async fn beside<T>(
    api: &FakeApi,
    count: usize,
    story: impl AsyncFnOnce(&FakeApi, watch::Receiver<Published>) -> T,
) -> T {
    let (status, updates) = watch::channel(Published::default());
    let publisher = publisher(api, devices(count));
    let limit = Duration::from_secs(20);
    tokio::select! {
        done = tokio::time::timeout(limit, story(api, updates)) => done.expect("the story ends in time"),
        never = publisher.run(&status) => match never {},
    }
}

async fn until_true(condition: impl Fn() -> bool) {
    while !condition() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn complete(mut updates: watch::Receiver<Published>) {
    updates.wait_for(|published| published.complete).await.unwrap();
}

fn generations(api: &FakeApi) -> Vec<i64> {
    api.slices().iter().map(|(_, slice)| slice["spec"]["pool"]["generation"].as_i64().unwrap()).collect()
}

fn device_count(api: &FakeApi) -> usize {
    api.slices().iter().map(|(_, slice)| slice["spec"]["devices"].as_array().map_or(0, Vec::len)).sum()
}

#[tokio::test]
async fn slices_are_published_once_owned_by_the_node_and_then_nothing_is_written() {
    beside(&api(), 130, async |api, updates| {
        complete(updates).await;
        assert_eq!(device_count(api), 130);
        assert!(api.slices().iter().all(|(_, slice)| slice["metadata"]["ownerReferences"][0]["uid"] == "node-uid"));
        until_true(|| api.is_watched()).await;
        // An event that does not change the content of a slice must not cause a write either.
        let (path, mut slice) = api.slices().remove(0);
        slice["metadata"]["annotations"] = json!({"seen": "yes"});
        api.put(&path, slice);
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert_eq!(api.writes().len(), 2, "{:?}", api.writes());
    })
    .await;
}

#[tokio::test]
async fn slices_from_before_a_restart_are_left_unchanged() {
    let api = api();
    beside(&api, 3, async |_, updates| complete(updates).await).await;
    let before = api.writes().len();
    beside(&api, 3, async |_, updates| complete(updates).await).await;
    assert_eq!(api.writes().len(), before);
}

#[tokio::test]
async fn slices_that_the_kubelet_deleted_are_recreated() {
    beside(&api(), 130, async |api, updates| {
        complete(updates).await;
        until_true(|| api.is_watched()).await;
        for (path, _) in api.slices() {
            api.delete(&path);
        }
        until_true(|| device_count(api) == 130).await;
        let generations = generations(api);
        assert!(generations.iter().all(|generation| *generation == generations[0]), "{generations:?}");
    })
    .await;
}

#[tokio::test]
async fn foreign_changes_and_slices_are_corrected() {
    beside(&api(), 3, async |api, updates| {
        complete(updates).await;
        until_true(|| api.is_watched()).await;
        let (path, mut slice) = api.slices().remove(0);
        slice["spec"]["devices"] = json!([]);
        api.put(&path, slice.clone());
        slice["metadata"] = json!({"name": "stray"});
        api.put(&format!("{SLICES}/stray"), slice);
        until_true(|| device_count(api) == 3 && api.slices().len() == 1).await;
    })
    .await;
}

#[tokio::test]
async fn slices_lost_while_the_watch_was_down_are_recreated() {
    beside(&api(), 3, async |api, updates| {
        complete(updates).await;
        until_true(|| api.is_watched()).await;
        api.expire_watches();
        let (path, _) = api.slices().remove(0);
        api.delete(&path);
        until_true(|| device_count(api) == 3).await;
    })
    .await;
}

#[tokio::test]
async fn errors_are_reported_and_retried() {
    let api = api();
    api.fail(Method::POST, 500);
    beside(&api, 3, async |api, mut updates| {
        let problem = updates.wait_for(|published| published.problem.is_some()).await.unwrap().problem.clone().unwrap();
        assert!(problem.contains("cannot create ResourceSlice \"node-1-dra.cpu"), "{problem}");
        complete(updates).await;
        assert_eq!(device_count(api), 3);
    })
    .await;
}

#[tokio::test]
async fn a_missing_node_is_reported_and_waited_for() {
    let api = FakeApi::default();
    beside(&api, 3, async |api, mut updates| {
        let problem = updates.wait_for(|published| published.problem.is_some()).await.unwrap().problem.clone().unwrap();
        assert!(problem.contains("Node \"node-1\" does not exist"), "{problem}");
        api.put(NODE, json!({"metadata": {"name": "node-1", "uid": "late"}}));
        complete(updates).await;
        assert_eq!(api.slices()[0].1["metadata"]["ownerReferences"][0]["uid"], "late");
    })
    .await;
}

#[tokio::test]
async fn slices_garbage_collected_with_their_node_are_recreated_for_the_new_one() {
    beside(&api(), 3, async |api, updates| {
        complete(updates).await;
        until_true(|| api.is_watched()).await;
        api.delete(NODE);
        api.put(NODE, json!({"metadata": {"name": "node-1", "uid": "second"}}));
        let (path, _) = api.slices().remove(0);
        api.delete(&path);
        let owner = |slices: &[(String, Value)]| {
            slices.first().map(|(_, slice)| slice["metadata"]["ownerReferences"][0]["uid"].clone())
        };
        until_true(|| owner(&api.slices()) == Some(json!("second"))).await;
    })
    .await;
}

#[tokio::test]
async fn a_field_that_the_server_drops_is_not_rewritten() {
    let api = api();
    api.admit(|slice| {
        for device in slice["spec"]["devices"].as_array_mut().unwrap() {
            device.as_object_mut().unwrap().remove("allowMultipleAllocations");
        }
    });
    let (status, updates) = watch::channel(Published::default());
    let mut devices = devices(3);
    devices[1].allow_multiple_allocations = Some(true);
    let publisher = publisher(&api, devices);
    let story = async {
        complete(updates).await;
        until_true(|| api.is_watched()).await;
        let (path, mut slice) = api.slices().remove(0);
        slice["metadata"]["annotations"] = json!({"seen": "yes"});
        api.put(&path, slice);
        tokio::time::sleep(Duration::from_millis(300)).await;
    };
    tokio::select! {
        () = story => {}
        never = publisher.run(&status) => match never {},
    }
    assert_eq!(api.writes().len(), 1, "{:?}", api.writes());
}

#[tokio::test]
async fn a_fight_over_a_slice_slows_down() {
    beside(&api(), 3, async |api, updates| {
        complete(updates).await;
        until_true(|| api.is_watched()).await;
        let begun = Instant::now();
        for _ in 0..5 {
            until_true(|| !api.slices().is_empty()).await;
            let (path, _) = api.slices().remove(0);
            api.delete(&path);
        }
        until_true(|| !api.slices().is_empty()).await;
        // 100 + 200 + 400 + … ms, each less at most a quarter.
        assert!(begun.elapsed() > Duration::from_secs(1), "{:?}", begun.elapsed());
    })
    .await;
}
