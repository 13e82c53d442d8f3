//! The plugin against a scripted runtime on a socket.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Mutex, MutexGuard, atomic::Ordering},
};

use tempfile::TempDir;
use tokio::task::JoinHandle;

use super::{super::reconnect::run, *};
use crate::{
    drivers::{Grant, GrantError, cpuset_fields::CpusetFields},
    logged,
    plugin::{
        grants::{ContainerIdentity, Refusal},
        nri::{
            fake_attachment::FakeAttachment,
            fake_runtime::{FakePlugin, FakeRuntime, container, pod},
            messages::{
                CdiDevice, Container, ContainerEvent, ContainerState, CreateContainerRequest, CreateContainerResponse,
                Empty, Event, StateChangeEvent,
            },
            ttrpc::Code,
        },
    },
};

/// Prepared claims: `DRA_TOKEN=x` in a container's environment is the claim x.
struct FakeGrants {
    fields: CpusetFields,
    /// What every pod's claims hold together.
    of_pod: Vec<Grant>,
    attachment: Option<Arc<dyn Attachment>>,
    state: Mutex<(BTreeMap<String, Grant>, Option<Grant>)>,
    changes: watch::Sender<u64>,
    /// CPUs that cannot be used at the moment.
    unusable: Mutex<CpuSet>,
}

fn grant(cpus: &str) -> Grant {
    Grant { cpus: cpus.parse().unwrap(), ..Grant::default() }
}

impl FakeGrants {
    fn state(&self) -> MutexGuard<'_, (BTreeMap<String, Grant>, Option<Grant>)> {
        self.state.lock().unwrap()
    }

    /// Changes the claims and the remainder. Returns the number of the new state.
    fn set(&self, claims: &[(&str, &str)], remainder: Option<&str>) -> u64 {
        *self.state() =
            (claims.iter().map(|(token, cpus)| ((*token).into(), grant(cpus))).collect(), remainder.map(grant));
        self.changes.send_modify(|state| *state += 1);
        *self.changes.borrow()
    }
}

impl Grants for FakeGrants {
    fn of_container(&self, container: &ContainerIdentity<'_>) -> Result<Option<Grant>, Refusal> {
        let Some(token) = container.env.iter().find_map(|variable| variable.strip_prefix("DRA_TOKEN=")) else {
            return Ok(None);
        };
        self.state().0.get(token).cloned().map(Some).ok_or_else(|| Refusal::NotPrepared {
            driver: "dra.cpu".into(),
            namespace: container.pod_namespace.into(),
            pod: container.pod_name.into(),
            container: container.container_name.into(),
        })
    }

    fn is_mark(&self, variable: &str) -> bool {
        variable.starts_with("DRA_TOKEN=")
    }

    fn of_pod(&self, _: &str) -> Vec<Grant> {
        self.of_pod.clone()
    }

    fn cpuset_fields(&self) -> CpusetFields {
        self.fields
    }

    fn check(&self, grant: &Grant) -> Result<(), GrantError> {
        if grant.cpus.is_disjoint(&self.unusable.lock().unwrap()) {
            return Ok(());
        }
        Err(GrantError::Unusable { what: "CPUs are offline".into(), remedy: "bring them online".into() })
    }

    fn remainder(&self) -> Option<Grant> {
        self.state().1.clone()
    }

    fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }
}

/// A node of CPUs 0-7 with a runtime, and the plugin on it.
struct Node {
    directory: TempDir,
    runtime: FakeRuntime,
    grants: Arc<FakeGrants>,
    status: watch::Receiver<NriStatus>,
    plugin: JoinHandle<Infallible>,
}

fn online(directory: &TempDir, cpus: &str) {
    let sys = directory.path().join("sys/devices/system");
    for (file, content) in [("cpu/online", cpus), ("node/has_memory", "0")] {
        std::fs::create_dir_all(sys.join(file).parent().unwrap()).unwrap();
        std::fs::write(sys.join(file), content).unwrap();
    }
}

impl Node {
    fn start(claims: &[(&str, &str)], remainder: Option<&str>) -> Self {
        Self::start_with(CpusetFields::Cpus, claims, remainder)
    }

    fn start_with(fields: CpusetFields, claims: &[(&str, &str)], remainder: Option<&str>) -> Self {
        Self::start_attaching(fields, None, claims, remainder)
    }

    fn start_attaching(
        fields: CpusetFields,
        attachment: Option<Arc<dyn Attachment>>,
        claims: &[(&str, &str)],
        remainder: Option<&str>,
    ) -> Self {
        let directory = tempfile::tempdir().unwrap();
        online(&directory, "0-7");
        let runtime = FakeRuntime::listen(&directory.path().join("nri.sock"));
        let (of_pod, changes) = (vec![grant("1")], watch::Sender::new(0));
        let (state, unusable) = (Mutex::default(), Mutex::default());
        let grants = Arc::new(FakeGrants { fields, of_pod, attachment, state, changes, unusable });
        grants.set(claims, remainder);
        let (plugin, status) = Self::plugin(&directory, &grants);
        Self { directory, runtime, grants, status, plugin }
    }

    fn plugin(directory: &TempDir, grants: &Arc<FakeGrants>) -> (JoinHandle<Infallible>, watch::Receiver<NriStatus>) {
        let settings = Settings {
            socket: directory.path().join("nri.sock"),
            plugin_name: "dra.cpu".into(),
            state_dir: directory.path().into(),
            host_root: directory.path().into(),
        };
        let (report, status) = watch::channel(NriStatus::default());
        let attachment = grants.attachment.clone();
        let grants: Arc<dyn Grants> = Arc::clone(grants) as _;
        (tokio::spawn(run(settings, grants, attachment, report)), status)
    }

    /// The plugin dies and a new one starts.
    fn restart(&mut self) {
        self.plugin.abort();
        (self.plugin, self.status) = Self::plugin(&self.directory, &self.grants);
    }

    /// Waits until the plugin reports this.
    async fn reports(&mut self, what: impl FnMut(&NriStatus) -> bool) -> NriStatus {
        let reported = tokio::time::timeout(Duration::from_secs(10), self.status.wait_for(what)).await;
        reported.expect("the plugin reports it").unwrap().clone()
    }

    /// A connected plugin that knows these containers.
    async fn connect(&mut self, containers: &[(&str, &str, &str)]) -> FakePlugin {
        let mut plugin = self.runtime.plugin().await;
        let containers = containers.iter().map(|(id, env, cpus)| container(id, "pod", env, cpus)).collect();
        let answer = plugin.synchronize(vec![pod("pod", "default")], containers, false).await;
        assert!(!answer.more);
        self.reports(|status| status.connected).await;
        plugin
    }
}

#[tokio::test]
async fn without_claims_no_changes_are_requested() {
    let mut node = Node::start(&[], None);
    let mut plugin = node.connect(&[("a", "", ""), ("b", "", "2-3")]).await;
    assert_eq!(plugin.create(pod("pod", "default"), container("c", "pod", "", "")).await, Ok((String::new(), vec![])));
    plugin.event("PostCreateContainer", container("c", "pod", "", "")).await;
    plugin.asks_nothing().await;
    node.reports(|status| status.applied == 1).await;
    assert!(!node.directory.path().join("nri.json").exists(), "nothing to remember");
}

#[tokio::test]
async fn a_claims_container_is_pinned_and_others_are_off_its_cpus_before_it_starts() {
    let mut node = Node::start(&[], None);
    let mut plugin = node.connect(&[("a", "", "")]).await;
    let state = node.grants.set(&[("x", "0-1")], Some("2-7"));
    let (asked, changes) = plugin.asks().await;
    assert_eq!(changes, ["a 2-7"]);
    // The runtime is busy with the creation and makes the changes only after it.
    let created = plugin.create(pod("pod", "default"), container("b", "pod", "DRA_TOKEN=x", "")).await;
    assert_eq!(created, Ok(("0-1".into(), vec!["a 2-7".into()])));
    assert_ne!(node.status.borrow().applied, state);
    plugin.reply(asked, Ok(vec![])).await;
    node.reports(|status| status.applied == state).await;
    plugin.event("PostCreateContainer", container("b", "pod", "DRA_TOKEN=x", "0-1")).await;
    let created = plugin.create(pod("pod", "default"), container("c", "pod", "", "")).await;
    assert_eq!(created, Ok(("2-7".into(), vec![])));
    plugin.asks_nothing().await;
}

#[tokio::test]
async fn a_claim_that_is_prepared_just_before_its_container_is_created_is_known() {
    let mut node = Node::start(&[], None);
    let mut plugin = node.connect(&[]).await;
    *node.grants.state() = ([("x".to_owned(), grant("3"))].into(), Some(grant("0-2,4-7")));
    let created = plugin.create(pod("pod", "default"), container("b", "pod", "DRA_TOKEN=x", "")).await;
    assert_eq!(created, Ok(("3".into(), vec![])), "although no change was announced");
}

#[tokio::test]
async fn a_container_with_an_unknown_token_is_refused_with_the_reason() {
    let mut node = Node::start(&[], None);
    let mut plugin = node.connect(&[]).await;
    let refused = plugin.create(pod("web", "shop"), container("b", "web", "DRA_TOKEN=forged", "")).await.unwrap_err();
    assert_eq!(refused.code, Code::FailedPrecondition as i32);
    assert!(refused.message.contains("shop/web") && refused.message.contains("not prepared"), "{refused:?}");
}

#[tokio::test]
async fn an_invalid_mark_that_came_while_the_plugin_was_away_gives_a_container_nothing() {
    let mut node = Node::start(&[("x", "0-1"), ("nothing", "")], Some("2-7"));
    let mut plugin = node
        .connect(&[("a", "DRA_TOKEN=forged", ""), ("b", "DRA_TOKEN=nothing", "1-2"), ("c", "DRA_TOKEN=x", "0-1")])
        .await;
    let mut changes = plugin.makes().await;
    changes.sort();
    assert_eq!(changes, ["a 2-7", "b 2", "c 0-1"]);
    node.grants.set(&[], None);
    let mut changes = plugin.makes().await;
    changes.sort();
    assert_eq!(changes, ["a 0-7", "b 1-2"], "like any other");
}

#[tokio::test]
async fn offline_cpus_are_not_shared_by_other_containers() {
    let mut node = Node::start(&[("x", "0-1"), ("y", "4")], Some("2-3,5-7"));
    let mut plugin = node.connect(&[("a", "", "")]).await;
    assert_eq!(plugin.makes().await, ["a 2-3,5-7"]);
    online(&node.directory, "0-5");
    let created = plugin.create(pod("pod", "default"), container("b", "pod", "", "")).await;
    assert_eq!(created, Ok(("2-3,5".into(), vec![])));
    assert_eq!(plugin.makes().await, ["a 2-3,5"]);
}

#[tokio::test]
async fn a_container_is_refused_while_what_its_claim_holds_cannot_be_used() {
    let mut node = Node::start(&[("x", "0-1"), ("y", "4")], Some("2-3,5-7"));
    let mut plugin = node.connect(&[]).await;
    *node.grants.unusable.lock().unwrap() = "0".parse().unwrap();
    let refused = plugin.create(pod("web", "shop"), container("c", "web", "DRA_TOKEN=x", "")).await.unwrap_err();
    assert_eq!(
        refused.message,
        "container \"name-c\" of pod shop/web: CPUs are offline: bring them online, or delete the pod so that it is \
         rescheduled"
    );
    let created = plugin.create(pod("pod", "default"), container("d", "pod", "DRA_TOKEN=y", "")).await.unwrap();
    assert_eq!(created.0, "4", "this one can be used");
    *node.grants.unusable.lock().unwrap() = CpuSet::new();
    plugin.create(pod("web", "shop"), container("c", "web", "DRA_TOKEN=x", "")).await.unwrap();
}

#[tokio::test]
async fn others_run_anywhere_if_every_online_cpu_is_claimed_and_the_status_says_so() {
    let (log, _guard) = logged::capture();
    let mut node = Node::start(&[("x", "0-5")], Some("6-7"));
    let mut plugin = node.connect(&[("a", "", "")]).await;
    assert_eq!(plugin.makes().await, ["a 6-7"]);
    online(&node.directory, "0-5");
    let created = plugin.create(pod("pod", "default"), container("b", "pod", "", "")).await;
    assert_eq!(created, Ok((String::new(), vec![])));
    assert_eq!(plugin.makes().await, ["a 0-5"]);
    let problem = node.reports(|status| status.problem.is_some()).await.problem.unwrap();
    assert!(problem.contains("every CPU is claimed"), "{problem}");
    for claims in [[("x", "0-4"), ("y", "5")], [("x", "0-3"), ("y", "4-5")]] {
        let state = node.grants.set(&claims, Some("6-7"));
        node.reports(|status| status.applied == state).await;
    }
    assert_eq!(log.text().matches("every CPU is claimed").count(), 1, "still the same problem");
}

#[tokio::test]
async fn the_status_says_that_every_cpu_was_claimed_already() {
    let mut node = Node::start(&[("x", "0-7")], Some(""));
    node.connect(&[("a", "", "")]).await;
    let problem = node.reports(|status| status.connected).await.problem.unwrap();
    assert!(problem.contains("every CPU is claimed"), "{problem}");
}

#[tokio::test]
async fn a_container_whose_claim_provides_nothing_is_refused() {
    let mut node = Node::start(&[("x", "")], None);
    let mut plugin = node.connect(&[]).await;
    let refused = plugin.create(pod("web", "shop"), container("b", "web", "DRA_TOKEN=x", "")).await.unwrap_err();
    assert!(refused.message.contains("neither CPUs nor memory nodes"), "{refused:?}");
}

#[tokio::test]
async fn limits_of_a_claim_are_set_when_its_container_is_created_even_without_pinning() {
    let limited = Grant {
        memory_limit: Some(1 << 30),
        huge_page_limits: [("2MB".to_owned(), 64 << 20)].into(),
        ..Grant::default()
    };
    for (fields, cpus) in [(CpusetFields::Nothing, ""), (CpusetFields::Cpus, "2")] {
        let mut node = Node::start_with(fields, &[], None);
        let grant = Grant { cpus: cpus.parse().unwrap(), ..limited.clone() };
        *node.grants.state() = ([("x".to_owned(), grant)].into(), None);
        let mut plugin = node.connect(&[]).await;
        let (pod, container) = (Some(pod("pod", "default")), Some(container("b", "pod", "DRA_TOKEN=x", "")));
        let request = CreateContainerRequest { pod, container };
        let CreateContainerResponse { adjust, .. } = plugin.call("CreateContainer", &request).await.unwrap();
        let resources = adjust.unwrap().linux.unwrap().resources.unwrap();
        assert_eq!(resources.memory.unwrap().limit.unwrap().value, 1_073_741_824);
        let hugepages: Vec<_> = resources.hugepage_limits.iter().map(|l| (l.page_size.as_str(), l.limit)).collect();
        assert_eq!(hugepages, [("2MB", 67_108_864)]);
        assert_eq!(resources.cpu.map(|cpu| cpu.cpus).unwrap_or_default(), cpus);
    }
}

#[tokio::test]
async fn a_driver_that_pins_nothing_leaves_every_container_alone() {
    let mut node = Node::start_with(CpusetFields::Nothing, &[("x", "")], None);
    let mut plugin = node.connect(&[("a", "DRA_TOKEN=x", "0-1"), ("b", "", "2")]).await;
    let created = plugin.create(pod("pod", "default"), container("c", "pod", "DRA_TOKEN=x", "3")).await;
    assert_eq!(created, Ok((String::new(), vec![])));
    plugin.event("PostCreateContainer", container("c", "pod", "DRA_TOKEN=x", "4")).await;
    assert_eq!(plugin.update(container("b", "pod", "", "2"), "5").await, [""; 0]);
    plugin.asks_nothing().await;
    let refused =
        plugin.create(pod("pod", "default"), container("d", "pod", "DRA_TOKEN=forged", "")).await.unwrap_err();
    assert!(refused.message.contains("not prepared"), "its claims are enforced all the same: {refused:?}");
}

#[tokio::test]
async fn memory_nodes_are_left_to_another_drivers_claim_that_provides_them() {
    let mut node = Node::start(&[], None);
    let cpus = Grant { cpus: "1".parse().unwrap(), memory_nodes: "0".parse().unwrap(), ..Grant::default() };
    *node.grants.state() = ([("x".to_owned(), cpus)].into(), None);
    let mut plugin = node.connect(&[]).await;
    let mut shared = container("a", "pod", "DRA_TOKEN=x", "");
    shared.env.push("DRA_MEMORY_NODES_1_MAIN=dra.memory".into());
    let created = plugin.create_placed(pod("pod", "default"), shared).await;
    assert_eq!(created, Ok(("1".to_owned(), String::new())));
    let alone = container("b", "pod", "DRA_TOKEN=x", "");
    let created = plugin.create_placed(pod("pod", "default"), alone).await;
    assert_eq!(created, Ok(("1".to_owned(), "0".to_owned())));
}

#[tokio::test]
async fn a_memory_driver_leaves_cpus_and_other_containers_alone() {
    let mut node = Node::start_with(CpusetFields::MemoryNodes, &[], None);
    let memory = Grant { memory_nodes: "1".parse().unwrap(), ..Grant::default() };
    *node.grants.state() = ([("x".to_owned(), memory)].into(), None);
    let mut plugin = node.connect(&[("a", "", "2-7")]).await;
    plugin.event("PostUpdateContainer", container("a", "pod", "", "4-7")).await;
    let mut own = container("b", "pod", "DRA_TOKEN=x", "0-3");
    own.env.push("DRA_MEMORY_NODES_1_MAIN=dra.other".into());
    let created = plugin.create_placed(pod("pod", "default"), own).await;
    assert_eq!(created, Ok((String::new(), "1".to_owned())), "whoever else claims to bring memory nodes");
    plugin.asks_nothing().await;
}

#[tokio::test]
async fn when_the_last_claim_goes_other_containers_get_everything_back_once() {
    let mut node = Node::start(&[("x", "0-1")], Some("2-7"));
    let mut plugin = node.connect(&[("a", "", ""), ("b", "DRA_TOKEN=x", "0-1")]).await;
    assert_eq!(plugin.makes().await, ["b 0-1", "a 2-7"]);
    plugin.event("StopContainer", container("b", "pod", "DRA_TOKEN=x", "0-1")).await;
    let state = node.grants.set(&[], None);
    assert_eq!(plugin.makes().await, ["a 0-7"]);
    node.reports(|status| status.applied == state).await;
    plugin.asks_nothing().await;
}

#[tokio::test]
async fn a_change_that_the_runtime_has_not_confirmed_does_not_count_as_applied() {
    let mut node = Node::start(&[("x", "0-1")], Some("2-7"));
    let mut plugin = node.connect(&[("a", "", "")]).await;
    let (stream, asked) = plugin.asks().await;
    assert_eq!(asked, ["a 2-7"]);
    let state = node.grants.set(&[], None);
    for _ in 0..3 {
        plugin.asks_nothing().await;
    }
    assert_ne!(node.status.borrow().applied, state, "a plugin that ends now leaves the container where it is put");
    plugin.reply(stream, Ok(Vec::new())).await;
    assert_eq!(plugin.makes().await, ["a 0-7"]);
    node.reports(|status| status.applied == state).await;
}

#[tokio::test]
async fn a_claim_right_after_another_does_not_move_containers_back_and_forth() {
    let mut node = Node::start(&[("x", "0-1")], Some("2-7"));
    let mut plugin = node.connect(&[("a", "", "")]).await;
    assert_eq!(plugin.makes().await, ["a 2-7"]);
    for _ in 0..10 {
        node.grants.set(&[], None);
        plugin.asks_nothing().await;
        let state = node.grants.set(&[("y", "0-1")], Some("2-7"));
        node.reports(|status| status.applied == state).await;
        plugin.asks_nothing().await;
    }
}

#[tokio::test]
async fn an_update_by_another_component_does_not_move_a_claims_container() {
    let mut node = Node::start(&[("x", "0-1")], Some("2-7"));
    let mut plugin = node.connect(&[("b", "DRA_TOKEN=x", "0-1")]).await;
    plugin.makes().await;
    assert_eq!(plugin.update(container("b", "pod", "DRA_TOKEN=x", "0-1"), "2-7").await, ["b 0-1"]);
    assert_eq!(plugin.update(container("b", "pod", "DRA_TOKEN=x", "0-1"), "").await, [""; 0]);
}

#[tokio::test]
async fn after_a_restart_of_the_runtime_the_plugin_reconnects_and_moves_its_containers() {
    let mut node = Node::start(&[("x", "0-1")], Some("2-7"));
    let mut plugin = node.connect(&[("a", "", ""), ("b", "DRA_TOKEN=x", "0-1")]).await;
    plugin.makes().await;
    drop(plugin);
    let lost = node.reports(|status| !status.connected).await;
    assert_eq!((lost.reconnects, lost.problem.as_deref()), (1, Some("the runtime closed the connection")));
    // Meanwhile a container with a claim started without the plugin.
    node.grants.set(&[("x", "0-1"), ("y", "2")], Some("3-7"));
    let mut plugin = node.connect(&[("a", "", "2-7"), ("b", "DRA_TOKEN=x", "0-1"), ("c", "DRA_TOKEN=y", "")]).await;
    let mut changes = plugin.makes().await;
    assert_eq!(changes.pop().as_deref(), Some("a 3-7"), "claims come first");
    changes.sort();
    assert_eq!(changes, ["b 0-1", "c 2"]);
    assert_eq!(node.reports(|status| status.applied == 2).await.problem, None);
}

#[tokio::test]
async fn a_restarted_plugin_gives_back_what_its_predecessor_took() {
    let mut node = Node::start(&[("x", "0-1")], Some("2-7"));
    let mut plugin = node.connect(&[("a", "", "")]).await;
    plugin.makes().await;
    plugin.create(pod("pod", "default"), container("c", "pod", "", "4-7")).await.unwrap();
    node.restart();
    node.grants.set(&[], None);
    let mut plugin = node.connect(&[("a", "", "2-7"), ("b", "", "3"), ("c", "", "4-7")]).await;
    assert_eq!(plugin.makes().await, ["a 0-7"], "b and c were narrow before");
    plugin.asks_nothing().await;
}

#[tokio::test]
async fn what_a_hook_gives_a_container_is_remembered_before_the_runtime_is_answered() {
    let mut node = Node::start(&[("x", "0-1")], Some("2-7"));
    let mut plugin = node.connect(&[]).await;
    node.reports(|status| status.applied == 1).await;
    plugin.create(pod("pod", "default"), container("a", "pod", "", "")).await.unwrap();
    let remembered = RememberedFile::new(node.directory.path().join("nri.json")).load();
    assert_eq!(remembered["a"].given[0].cpus.to_string(), "2-7");
}

#[tokio::test]
async fn a_synchronisation_in_parts_is_understood_whichever_part_has_the_pod() {
    let mut node = Node::start(&[("x", "0-1")], Some("2-7"));
    let mut plugin = node.runtime.plugin().await;
    let first = plugin.synchronize(vec![], vec![container("b", "pod", "DRA_TOKEN=x", "")], true).await;
    assert!(first.more && first.update.is_empty());
    assert!(!node.status.borrow().connected);
    let last = plugin.synchronize(vec![pod("pod", "default")], vec![container("a", "pod", "", "")], false).await;
    assert!(!last.more);
    assert_eq!(plugin.makes().await, ["b 0-1", "a 2-7"]);
    node.reports(|status| status.connected && status.applied == 1).await;
}

#[tokio::test]
async fn a_container_that_cannot_be_moved_is_reported_and_blocks_no_other() {
    let mut node = Node::start(&[("x", "0-1")], Some("2-7"));
    let mut plugin = node.connect(&[("a", "", ""), ("b", "", "")]).await;
    let failure = || Err(Failure::new(Code::FailedPrecondition, "NRI update of some containers failed"));
    let (asked, changes) = plugin.asks().await;
    assert_eq!(changes.len(), 2);
    plugin.reply(asked, failure()).await;
    for _ in 0..2 {
        let (asked, changes) = plugin.asks().await;
        let [change] = &changes[..] else { panic!("alone, not {changes:?}") };
        plugin.reply(asked, if change.starts_with('a') { failure() } else { Ok(vec![]) }).await;
    }
    let status = node.reports(|status| status.applied == 1).await;
    assert!(status.connected);
    let problem = status.problem.unwrap();
    assert!(problem.contains("1 containers") && problem.contains("container a:"), "{problem}");

    // It is retried later.
    tokio::time::pause();
    tokio::time::advance(RETRY).await;
    tokio::time::resume();
    assert_eq!(plugin.makes().await, ["a 2-7"]);
    node.reports(|status| status.problem.is_none()).await;
}

#[tokio::test]
async fn events_are_understood_in_the_form_of_every_runtime() {
    let a = || container("a", "pod", "", "0-7");
    for in_one_method in [false, true] {
        let mut node = Node::start(&[("x", "0-1")], Some("2-7"));
        let mut plugin = node.connect(&[]).await;
        let send = async |plugin: &mut FakePlugin, event: Event| {
            let change = StateChangeEvent { event: event.into(), pod: None, container: Some(a()) };
            match event {
                _ if in_one_method => drop(plugin.call::<Empty>("StateChange", &change).await.unwrap()),
                _ => plugin.event(&format!("{event:?}"), a()).await,
            }
        };
        // Each of these makes the plugin ask for something, or stop asking.
        let new = container("a", "pod", "", "");
        assert_eq!(plugin.create(pod("pod", "default"), new).await, Ok(("2-7".into(), vec![])));
        for event in [Event::PostCreateContainer, Event::PostUpdateContainer, Event::PostStartContainer] {
            send(&mut plugin, event).await;
            assert_eq!(plugin.makes().await, ["a 2-7"], "{event:?}");
        }
        send(&mut plugin, Event::StopContainer).await;
        node.grants.set(&[("x", "0-2")], Some("3-7"));
        plugin.asks_nothing().await;
        let Empty {} = plugin.call("Shutdown", &Empty {}).await.unwrap();
    }
}

#[tokio::test]
async fn a_process_that_does_not_speak_nri_is_reported_and_the_connection_retried() {
    let mut node = Node::start(&[], None);
    let mut stranger = node.runtime.accept().await;
    tokio::io::AsyncWriteExt::write_all(&mut stranger, b"HTTP/1.1 400 Bad Request\r\n").await.unwrap();
    let problem = node.reports(|status| status.problem.is_some()).await.problem.unwrap();
    assert!(problem.contains("does not speak NRI"), "{problem}");
    node.connect(&[]).await;
}

#[tokio::test]
async fn a_missing_socket_is_named_with_what_to_do() {
    let mut node = Node::start(&[], None);
    std::fs::remove_file(node.directory.path().join("nri.sock")).unwrap();
    node.restart();
    let problem = node.reports(|status| status.problem.is_some()).await.problem.unwrap();
    assert!(problem.contains("nri.sock") && problem.contains("NRI must be enabled"), "{problem}");
}

#[tokio::test(start_paused = true)]
async fn a_runtime_that_is_down_for_long_is_logged_once() {
    let (log, _guard) = logged::capture();
    let mut node = Node::start(&[], None);
    std::fs::remove_file(node.directory.path().join("nri.sock")).unwrap();
    node.restart();
    tokio::time::sleep(Duration::from_mins(1)).await;
    assert_eq!(log.text().matches("NRI must be enabled").count(), 1, "{}", log.text());
}

#[tokio::test]
async fn the_reason_is_reported_if_the_runtime_refuses_the_plugin() {
    let mut node = Node::start(&[], None);
    let socket = node.runtime.accept().await;
    let mut socket = socket;
    let refusal = super::super::ttrpc::answer(1, Err(Failure::new(Code::InvalidArgument, "invalid plugin name")));
    let refusal = super::super::mux::frame(super::super::mux::Lane::Runtime, &refusal.unwrap());
    tokio::io::AsyncWriteExt::write_all(&mut socket, &refusal).await.unwrap();
    let problem = node.reports(|status| status.problem.is_some()).await.problem.unwrap();
    assert_eq!(problem, "the runtime rejected the plugin: invalid plugin name");
}

#[tokio::test]
async fn thousands_of_containers_are_synchronised_within_the_runtimes_timeout_and_all_moved() {
    let mut node = Node::start(&[("x", "0-1")], Some("2-7"));
    let mut plugin = node.runtime.plugin().await;
    let start = std::time::Instant::now();
    for part in 0..4 {
        let one = |n| Container {
            env: (0..40).map(|variable| format!("VARIABLE_{variable}={n:0100}")).collect(),
            ..container(&format!("{part}-{n}"), "pod", "", "")
        };
        let answer = plugin.synchronize(vec![pod("pod", "default")], (0..500).map(one).collect(), part < 3).await;
        assert_eq!(answer.more, part < 3);
    }
    let took = start.elapsed();
    assert!(took < Duration::from_secs(2), "{took:?}");
    let mut moved = 0;
    while moved < 2000 {
        let changes = plugin.makes().await;
        assert!(changes.len() <= BATCH, "no container is created meanwhile");
        moved += changes.len();
    }
    node.reports(|status| status.connected && status.applied == 1).await;
}

fn is_subscribed(plugin: &FakePlugin, event: Event) -> bool {
    plugin.events & 1 << (event as i32 - 1) != 0
}

#[tokio::test]
async fn the_plugin_subscribes_to_pod_sandboxes_only_if_something_is_attached_to_them() {
    let of_containers = [
        Event::CreateContainer,
        Event::PostCreateContainer,
        Event::PostStartContainer,
        Event::UpdateContainer,
        Event::PostUpdateContainer,
        Event::StopContainer,
        Event::RemoveContainer,
    ];
    let of_sandboxes = [Event::RunPodSandbox, Event::StopPodSandbox, Event::RemovePodSandbox];
    for attachment in [None, Some(FakeAttachment::new() as Arc<dyn Attachment>)] {
        let attaches = attachment.is_some();
        let mut node = Node::start_attaching(CpusetFields::Nothing, attachment, &[], None);
        let plugin = node.connect(&[]).await;
        assert!(of_containers.iter().all(|event| is_subscribed(&plugin, *event)));
        assert!(of_sandboxes.iter().all(|event| is_subscribed(&plugin, *event) == attaches));
    }
}

#[tokio::test]
async fn a_slow_attachment_delays_no_other_hook_and_fails_its_own_sandbox_in_time() {
    let attachment = FakeAttachment::new();
    let mut node =
        Node::start_attaching(CpusetFields::Cpus, Some(Arc::clone(&attachment) as _), &[("x", "1")], Some("2-7"));
    let mut plugin = node.connect(&[("a", "", "")]).await;
    assert_eq!(plugin.makes().await, ["a 2-7"]);
    attachment.hangs.store(true, Ordering::Relaxed);
    let start = std::time::Instant::now();
    let sandbox = ContainerEvent { pod: Some(pod("web", "shop")), container: None };
    let running = plugin.begin("RunPodSandbox", &sandbox).await;

    // The runtime's other calls are answered, and the plugin's own calls continue.
    let created = plugin.create(pod("pod", "default"), container("b", "pod", "DRA_TOKEN=x", "")).await;
    assert_eq!(created, Ok(("1".to_owned(), vec![])));
    node.grants.set(&[("x", "1")], Some("3-7"));
    assert_eq!(plugin.makes().await, ["a 3-7"]);

    let refused = plugin.end::<Empty>(running).await.unwrap_err();
    assert!(refused.message.contains("pod shop/web: timed out"), "{refused:?}");
    let took = start.elapsed();
    assert!(took < Duration::from_secs(2), "{took:?}: the runtime drops the plugin");
    assert_eq!(attachment.calls(), ["recover pod 1", "attach web 1", "detach web 1"]);
}

#[tokio::test]
async fn sandboxes_are_recovered_at_each_synchronisation_even_if_it_comes_in_parts() {
    let attachment = FakeAttachment::new();
    let mut node = Node::start_attaching(CpusetFields::Nothing, Some(Arc::clone(&attachment) as _), &[], None);
    let mut plugin = node.runtime.plugin().await;
    plugin.synchronize(vec![pod("a", "default")], vec![], true).await;
    assert_eq!(attachment.calls(), [""; 0], "more comes");
    plugin.synchronize(vec![pod("b", "default")], vec![], false).await;
    plugin.asks_nothing().await;
    assert!(matches!(&attachment.calls()[..], [recovered] if recovered.contains("a 1") && recovered.contains("b 1")));
    drop(plugin);
    node.reports(|status| status.reconnects == 1).await;
    let mut plugin = node.connect(&[]).await;
    plugin.asks_nothing().await;
    assert_eq!(attachment.calls(), ["recover pod 1"]);
}

#[tokio::test]
async fn a_container_that_was_created_while_the_plugin_connected_is_found_by_its_next_event() {
    let (log, _guard) = logged::capture();
    for event in ["PostCreateContainer", "PostStartContainer", "PostUpdateContainer"] {
        let mut node = Node::start(&[("x", "0-1")], Some("2-7"));
        let mut plugin = node.connect(&[]).await;
        for (id, env, expected) in
            [("a", "", "a 2-7"), ("b", "DRA_TOKEN=x", "b 0-1"), ("c", "DRA_TOKEN=forged", "c 2-7")]
        {
            plugin.event_in(event, pod("pod", "default"), container(id, "pod", env, "")).await;
            assert_eq!(plugin.makes().await, [expected], "{event}");
        }
        assert_eq!(plugin.update(container("d", "pod", "", "0-7"), "0-5").await, ["d 2-5"]);
        assert_eq!(plugin.makes().await, ["d 2-5"]);
        plugin.event("StopContainer", container("e", "pod", "", "0-7")).await;
        let ended = Container { state: ContainerState::Stopped.into(), ..container("f", "pod", "", "0-7") };
        plugin.event(event, ended).await;
        plugin.asks_nothing().await;
    }
    assert!(log.text().contains("while this plugin connected"), "{}", log.text());
}

#[tokio::test]
async fn a_container_that_another_plugin_places_is_created_and_moved_afterwards() {
    let mut node = Node::start(&[("x", "0-1")], Some("2-7"));
    let mut plugin = node.connect(&[]).await;
    let placed = container("a", "pod", "", "0-3");
    let created = plugin.create(pod("pod", "default"), placed.clone()).await;
    assert_eq!(created, Ok((String::new(), vec![])), "the runtime fails the creation if two plugins set its CPUs");
    plugin.event("PostCreateContainer", placed).await;
    assert_eq!(plugin.makes().await, ["a 2-3"]);
    node.grants.set(&[], None);
    assert_eq!(plugin.makes().await, ["a 0-3"]);
}

#[tokio::test]
async fn a_large_environment_is_not_kept_and_hides_no_mark() {
    let node = Node::start(&[("x", "0-1")], Some("2-7"));
    let mut plugin = node.runtime.plugin().await;
    let mut fat = container("a", "pod", "", "");
    fat.env = (0..20_000).map(|n| format!("OTHER_{n}=")).collect();
    fat.env.extend((0..20_000).map(|_| "DRA_TOKEN=".to_owned()));
    fat.env.push("DRA_TOKEN=x".into());
    fat.cdi_devices = vec![CdiDevice { name: "d".repeat(20_000) }; 100];
    let hooks = Hooks::new(Arc::clone(&node.grants) as _, "dra.cpu", HashMap::new(), CpuSet::new());
    let kept = hooks.without_bulk(fat.clone());
    assert!(kept.env.capacity() < 300, "{}", kept.env.capacity());
    assert!(kept.env.iter().all(|variable| variable.starts_with("DRA_TOKEN=")));
    assert_eq!((kept.env[0].as_str(), kept.cdi_devices.capacity()), ("DRA_TOKEN=x", 0));
    plugin.synchronize(vec![pod("pod", "default")], vec![fat], false).await;
    assert_eq!(plugin.makes().await, ["a 0-1"]);
}

/// What the containers of a runtime have once it made these changes, each as `id cpus`.
fn apply(has: &mut BTreeMap<String, String>, changes: &[String]) {
    has.extend(changes.iter().filter_map(|change| change.split_once(' ')).map(|(id, cpus)| (id.into(), cpus.into())));
}

#[tokio::test]
async fn a_short_claim_on_a_node_with_many_containers_leaves_none_confined() {
    let mut node = Node::start(&[], None);
    let ids: Vec<String> = (0..40).map(|n| format!("s{n}")).collect();
    let containers: Vec<_> = ids.iter().map(|id| (id.as_str(), "", "")).collect();
    let mut plugin = node.connect(&containers).await;
    let mut has: BTreeMap<String, String> = BTreeMap::new();
    node.grants.set(&[("x", "7")], Some("0-6"));
    let (asked, first) = plugin.asks().await;

    // The claim's container is created meanwhile. The runtime changes the others first, and some silently do not change.
    let claims = container("c", "pod", "DRA_TOKEN=x", "");
    let (_, others) = plugin.create(pod("pod", "default"), claims).await.unwrap();
    assert_eq!(others.len(), 40);
    apply(&mut has, &others[..30]);
    apply(&mut has, &first);
    for event in ["PostCreateContainer", "StopContainer"] {
        plugin.event(event, container("c", "pod", "DRA_TOKEN=x", "7")).await;
    }

    // Its pod is over before the runtime answers.
    let state = node.grants.set(&[], None);
    plugin.asks_nothing().await;
    plugin.reply(asked, Ok(vec![])).await;
    while node.status.borrow().applied != state {
        tokio::select! {
            (asked, changes) = plugin.asks() => {
                apply(&mut has, &changes);
                plugin.reply(asked, Ok(vec![])).await;
            }
            reported = node.status.wait_for(|status| status.applied == state) => drop(reported.unwrap()),
        }
    }
    assert_eq!(has.len(), 40);
    assert!(has.values().all(|cpus| cpus == "0-7"), "{has:?}");
}

#[tokio::test]
async fn a_change_that_an_update_overtook_is_made_again() {
    let mut node = Node::start(&[("x", "0-1")], Some("2-7"));
    let mut plugin = node.connect(&[("a", "", "")]).await;
    assert_eq!(plugin.makes().await, ["a 2-7"]);
    node.grants.set(&[], None);
    let (asked, widening) = plugin.asks().await;
    assert_eq!(widening, ["a 0-7"]);

    // The kubelet changes the container's memory, say. The runtime then makes the plugin's change: it has 0-7.
    assert_eq!(plugin.update(container("a", "pod", "", "2-7"), "").await, [""; 0]);
    plugin.event("PostUpdateContainer", container("a", "pod", "", "2-7")).await;
    let state = node.grants.set(&[("y", "0-1")], Some("2-7"));
    plugin.asks_nothing().await;
    assert_ne!(node.status.borrow().applied, state);
    plugin.reply(asked, Ok(vec![])).await;
    assert_eq!(plugin.makes().await, ["a 2-7"]);
    node.reports(|status| status.applied == state).await;
}
