//! What containers get, one story per test.

use super::*;

fn cpus(cpus: &str) -> CpuSet {
    cpus.parse().unwrap()
}

fn on(list: &str) -> Cpuset {
    Cpuset::of_cpus(cpus(list))
}

fn free(id: &str, cpus: &str) -> Observed {
    Observed { id: id.into(), usage: Use::Free, placement: on(cpus), is_running: true }
}

fn claims(id: &str, grant: &str, cpus: &str) -> Observed {
    Observed { id: id.into(), usage: Use::Claim(on(grant)), placement: on(cpus), is_running: true }
}

/// A host with CPUs 0-7, with other containers restricted to `share`, or unrestricted.
fn host(observed: Vec<Observed>, share: Option<&str>) -> Containers {
    Containers::synchronize(observed, &HashMap::new(), share.map(cpus), cpus("0-7"))
}

/// The next changes, as `id cpus`, without answering them.
fn ask(containers: &mut Containers) -> (Vec<Change>, Vec<String>) {
    let changes = containers.next_changes(100, true);
    let text = changes.iter().map(|change| format!("{} {}", change.id, change.placement.cpus)).collect();
    (changes, text)
}

/// All changes until nothing is left to do, each confirmed, sorted.
fn settle(containers: &mut Containers) -> Vec<String> {
    let mut all = Vec::new();
    loop {
        let (changes, text) = ask(containers);
        if changes.is_empty() {
            break;
        }
        containers.confirm(&changes);
        all.extend(text);
    }
    assert!(containers.settled());
    all.sort();
    all
}

/// What a plugin that starts later reads.
fn remembered(containers: &Containers) -> HashMap<String, Remembered> {
    containers.to_remember().map(|(id, remembered)| (id.to_owned(), remembered)).collect()
}

#[test]
fn with_no_claims_no_container_is_touched() {
    let mut containers = host(vec![free("a", ""), free("b", "2-3"), free("c", "0-7")], None);
    assert_eq!(settle(&mut containers), [""; 0]);
    assert_eq!(containers.create("d", Use::Free, on("")), None);
    containers.observe("d", Some(on("")));
    assert_eq!(containers.update("a", on("1")), None);
    containers.observe("a", Some(on("1")));
    assert_eq!(settle(&mut containers), [""; 0]);
    assert!(remembered(&containers).is_empty());
}

#[test]
fn other_containers_are_moved_off_claimed_cpus_then_get_them_back_and_are_left_alone() {
    let mut containers = host(vec![free("a", ""), free("b", "2-3"), claims("c", "0-1", "")], None);
    assert_eq!(settle(&mut containers), ["c 0-1"]);
    containers.keep_others_to(Some(cpus("2-7")), cpus("0-7"));
    assert_eq!(containers.outstanding("c").len(), 1, "only what must leave");
    assert!(!containers.widens_later(), "b waits for nothing");
    assert_eq!(settle(&mut containers), ["a 2-7"], "b is within the share already");
    assert_eq!(containers.overlapping(), 0);
    containers.keep_others_to(Some(cpus("4-7")), cpus("0-7"));
    assert_eq!(settle(&mut containers), ["a 4-7"], "something else keeps b to what is claimed now");
    assert_eq!(containers.overlapping(), 1);
    containers.keep_others_to(None, cpus("0-7"));
    assert_eq!(settle(&mut containers), ["a 0-7"]);
    assert!(remembered(&containers).is_empty());
    containers.keep_others_to(None, cpus("0-5"));
    assert_eq!(settle(&mut containers), [""; 0], "offline CPUs are no reason to touch what is free");
}

#[test]
fn a_container_that_something_else_narrowed_is_never_widened_and_gets_back_what_it_had() {
    let mut containers = host(vec![free("a", "0-3")], Some("2-7"));
    assert_eq!(settle(&mut containers), ["a 2-3"]);
    containers.keep_others_to(None, cpus("0-7"));
    assert_eq!(settle(&mut containers), ["a 0-3"]);
}

#[test]
fn giving_back_can_wait_and_is_dropped_if_the_next_claim_takes_the_same_cpus() {
    let mut containers = host(vec![free("a", "")], Some("2-7"));
    settle(&mut containers);
    containers.keep_others_to(None, cpus("0-7"));
    assert!(containers.widens_later());
    assert_eq!(containers.next_changes(100, false), []);
    assert_eq!(containers.outstanding("b"), [], "nor is it made with the next container's creation");
    containers.keep_others_to(Some(cpus("2-7")), cpus("0-7"));
    assert_eq!(settle(&mut containers), [""; 0]);
    containers.keep_others_to(Some(cpus("1-6")), cpus("0-7"));
    assert!(!containers.widens_later(), "7 is to be left at once");
    assert_eq!(containers.next_changes(100, false).len(), 1);
}

#[test]
fn a_container_is_created_on_the_cpus_it_should_have() {
    let mut containers = host(vec![], Some("2-7"));
    assert_eq!(containers.create("a", Use::Free, on("")), Some(on("2-7")));
    assert_eq!(containers.create("b", Use::Claim(on("0-1")), on("")), Some(on("0-1")));
    assert_eq!(containers.create("c", Use::Claim(on("0-1")), on("0-1")), None, "it would be there anyway");
    assert!(containers.settled());
}

#[test]
fn a_container_is_not_updated_before_the_runtime_can_find_it() {
    let mut containers = host(vec![], None);
    assert_eq!(containers.create("a", Use::Free, on("")), None);
    containers.keep_others_to(Some(cpus("2-7")), cpus("0-7"));
    assert_eq!(ask(&mut containers).1, [""; 0]);
    assert!(!containers.settled(), "it may run where it must not");
    containers.observe("a", Some(on("")));
    assert_eq!(settle(&mut containers), ["a 2-7"]);
}

#[test]
fn a_change_made_while_a_container_started_is_repeated_once_it_runs() {
    let starting = |observed| Observed { is_running: false, ..observed };
    let found = vec![starting(claims("c", "0-1", "")), starting(free("f", ""))];
    let mut containers = host(found, Some("2-7"));
    assert_eq!(settle(&mut containers), ["c 0-1", "f 2-7"]);
    containers.started("c");
    containers.started("f");
    assert_eq!(settle(&mut containers), ["c 0-1", "f 2-7"], "the runtime may have changed what it had read before");
    containers.started("c");
    assert_eq!(settle(&mut containers), [""; 0], "it ran when it was changed");

    containers.create("g", Use::Free, on(""));
    containers.observe("g", Some(on("2-7")));
    containers.keep_others_to(None, cpus("0-7"));
    assert_eq!(settle(&mut containers), ["f 0-7", "g 0-7"]);
    containers.started("g");
    assert_eq!(settle(&mut containers), ["g 0-7"], "also what was given back");
    assert!(remembered(&containers).is_empty());

    containers.create("h", Use::Claim(on("0")), on(""));
    containers.observe("h", Some(on("0")));
    containers.started("h");
    assert_eq!(settle(&mut containers), [""; 0], "it was created so");
}

#[test]
fn an_update_by_another_component_does_not_move_a_claims_container() {
    let mut containers = host(vec![claims("a", "0-1", "0-1")], Some("2-7"));
    settle(&mut containers);
    assert_eq!(containers.update("a", on("2-7")), Some(on("0-1")));
    assert_eq!(containers.update("a", on("")), None, "an update of its memory limit, say");
    containers.observe("a", Some(on("5")));
    assert_eq!(settle(&mut containers), ["a 0-1"], "whatever did that");
}

#[test]
fn an_update_by_another_component_is_what_a_container_without_a_claim_gets_back() {
    let mut containers = host(vec![free("a", "")], Some("2-7"));
    settle(&mut containers);
    assert_eq!(containers.update("a", on("0-4")), Some(on("2-4")));
    containers.observe("a", Some(on("2-4")));
    assert_eq!(settle(&mut containers), [""; 0]);
    containers.keep_others_to(None, cpus("0-7"));
    assert_eq!(settle(&mut containers), ["a 0-4"]);
}

#[test]
fn what_another_nri_plugin_set_at_creation_is_left_alone() {
    let mut containers = host(vec![], None);
    assert_eq!(containers.create("a", Use::Free, on("")), None);
    containers.observe("a", Some(on("1")));
    assert_eq!(settle(&mut containers), [""; 0], "nothing is claimed");
    containers.keep_others_to(Some(cpus("2-7")), cpus("0-7"));
    assert_eq!(containers.create("b", Use::Free, on("")), Some(on("2-7")));
    containers.observe("b", Some(on("3")));
    assert_eq!(settle(&mut containers), [""; 0]);
    containers.keep_others_to(None, cpus("0-7"));
    assert_eq!(settle(&mut containers), [""; 0], "it was not kept from more");
}

#[test]
fn claims_are_pinned_again_at_synchronisation_and_before_others_are_moved() {
    let mut containers = host(vec![free("a", ""), claims("b", "0-1", "0-1"), free("c", "")], Some("2-7"));
    let (_, asked) = ask(&mut containers);
    assert_eq!(asked[0], "b 0-1");
    assert_eq!(asked.len(), 3);
}

#[test]
fn a_restarted_plugin_gives_back_what_its_predecessor_took() {
    let mut before = host(vec![free("a", ""), free("b", "0-3")], Some("2-7"));
    settle(&mut before);
    let found = || vec![free("a", "2-7"), free("b", "2-3")];
    let mut after = Containers::synchronize(found(), &remembered(&before), None, cpus("0-7"));
    assert_eq!(settle(&mut after), ["a 0-7", "b 0-3"]);
    let mut forgetful = host(found(), None);
    assert_eq!(settle(&mut forgetful), [""; 0], "what is not remembered was placed by something else");
}

#[test]
fn what_another_component_changed_while_the_plugin_was_away_is_not_undone() {
    let mut before = host(vec![free("a", "")], Some("2-7"));
    settle(&mut before);
    let mut after = Containers::synchronize([free("a", "5")], &remembered(&before), None, cpus("0-7"));
    assert_eq!(settle(&mut after), [""; 0]);
}

#[test]
fn a_change_is_remembered_before_the_runtime_is_asked_for_it() {
    let mut before = host(vec![free("a", "")], Some("2-7"));
    let remembered_before = remembered(&before);
    ask(&mut before);
    for remembered in [remembered_before, remembered(&before)] {
        // The plugin dies. The runtime may or may not have made the change.
        for found in ["2-7", ""] {
            let mut after = Containers::synchronize([free("a", found)], &remembered, None, cpus("0-7"));
            assert_eq!(settle(&mut after), if found.is_empty() { vec![] } else { vec!["a 0-7"] });
        }
    }
}

#[test]
fn changes_that_fail_together_are_retried_one_by_one_and_the_culprit_later() {
    let mut containers = host(vec![free("a", ""), free("b", "")], Some("2-7"));
    let (both, _) = ask(&mut containers);
    assert_eq!(both.len(), 2);
    assert!(!containers.fail(&both));
    let mut tried = Vec::new();
    loop {
        let (changes, _) = ask(&mut containers);
        let [change] = &changes[..] else { break };
        tried.push(change.id.clone());
        if change.id == "a" {
            assert!(containers.fail(&changes));
        } else {
            containers.confirm(&changes);
        }
    }
    tried.sort();
    assert_eq!((tried, containers.failed()), (vec!["a".to_owned(), "b".to_owned()], 1));
    assert!(containers.settled(), "one dying container does not hold up the claims");
    containers.retry();
    assert_eq!(settle(&mut containers), ["a 2-7"]);
}

#[test]
fn an_answer_to_an_outdated_change_does_not_confirm_the_latest() {
    let mut containers = host(vec![free("a", "")], Some("2-7"));
    let (old, _) = ask(&mut containers);
    containers.keep_others_to(None, cpus("0-7"));
    containers.confirm(&old);
    assert_eq!(settle(&mut containers), ["a 0-7"]);
    let (_, _) = ask(&mut containers);
    containers.keep_others_to(Some(cpus("3-7")), cpus("0-7"));
    let (late, _) = ask(&mut containers);
    containers.update("a", on("3-5"));
    containers.confirm(&late);
    containers.observe("a", Some(on("3-5")));
    assert!(!containers.settled(), "either of the two may have come last");
    assert_eq!(settle(&mut containers), ["a 3-5"]);
}

#[test]
fn if_no_cpu_is_left_other_containers_run_anywhere() {
    let mut containers = host(vec![free("a", ""), free("b", "")], Some("4-7"));
    settle(&mut containers);
    containers.keep_others_to(Some(cpus("")), cpus("0-7"));
    assert_eq!(settle(&mut containers), ["a 0-7", "b 0-7"]);
}

#[test]
fn memory_nodes_are_set_only_for_claims_that_provide_them() {
    let at = |cpus: &str, memory_nodes: &str| Cpuset { memory_nodes: memory_nodes.parse().unwrap(), ..on(cpus) };
    let observed = [
        Observed { placement: at("", "0"), ..free("free", "") },
        Observed { placement: at("", "0"), ..claims("cpus", "1", "") },
        Observed { usage: Use::Claim(at("2", "1")), placement: at("", "0"), ..free("both", "") },
        Observed { usage: Use::Claim(at("", "1")), placement: at("5", "0"), ..free("memory", "") },
    ];
    let mut containers = Containers::synchronize(observed, &HashMap::new(), Some(cpus("3-7")), cpus("0-7"));
    let (changes, _) = ask(&mut containers);
    let mut placed: Vec<_> = changes.iter().map(|change| (&*change.id, (*change.placement).clone())).collect();
    placed.sort_by_key(|(id, _)| *id);
    assert_eq!(
        placed,
        [("both", at("2", "1")), ("cpus", at("1", "")), ("free", at("3-7", "")), ("memory", at("", "1"))]
    );
    containers.confirm(&changes);

    // Changes that others make to memory nodes are not undone, neither at once nor with the next change.
    for id in ["cpus", "free"] {
        assert_eq!(containers.update(id, at("", "1")), None);
        containers.observe(id, Some(at(if id == "cpus" { "1" } else { "3-7" }, "1")));
    }
    assert_eq!(settle(&mut containers), [""; 0]);
    containers.keep_others_to(Some(cpus("4-7")), cpus("0-7"));
    let (changes, _) = ask(&mut containers);
    let [change] = &changes[..] else { panic!("{changes:?}") };
    assert_eq!((&*change.id, &*change.placement), ("free", &at("4-7", "")));

    assert_eq!(containers.update("both", at("", "0")), Some(at("", "1")), "this claim's memory nodes stay");
    assert_eq!(containers.create("new", Use::Claim(on("0")), at("", "1")), Some(on("0")));
}

#[test]
fn what_one_creation_has_changed_is_not_changed_again_with_the_next_but_confirmed() {
    let mut containers = host(vec![free("a", "")], None);
    containers.keep_others_to(Some(cpus("2-7")), cpus("0-7"));
    let (asked, _) = ask(&mut containers);
    containers.create("c", Use::Claim(on("0")), on(""));
    assert_eq!(containers.outstanding("c").len(), 1);
    containers.create("d", Use::Claim(on("1")), on(""));
    assert_eq!(containers.outstanding("d"), [], "the runtime has it already");
    containers.observe("c", Some(on("0")));
    containers.observe("d", Some(on("1")));
    containers.confirm(&asked);
    assert!(containers.settled(), "the call gave the same, whichever came last");

    // Another share is another change.
    containers.keep_others_to(Some(cpus("3-7")), cpus("0-7"));
    containers.create("e", Use::Claim(on("2")), on(""));
    assert_eq!(containers.outstanding("e").len(), 1);
    containers.started("a");
    assert_eq!(containers.outstanding("e").len(), 1, "it may not have reached the process");
}

#[test]
fn a_widening_that_is_not_confirmed_is_undone_with_the_next_claims_creation() {
    let mut containers = host(vec![free("a", "")], Some("2-7"));
    settle(&mut containers);
    containers.keep_others_to(None, cpus("0-7"));
    let (widening, asked) = ask(&mut containers);
    assert_eq!(asked, ["a 0-7"]);
    containers.keep_others_to(Some(cpus("2-7")), cpus("0-7"));
    containers.create("c", Use::Claim(on("0-1")), on(""));
    let others = containers.outstanding("c");
    assert_eq!(others.iter().map(|change| change.placement.cpus.to_string()).collect::<Vec<_>>(), ["2-7"]);
    containers.observe("c", Some(on("0-1")));
    containers.confirm(&widening);
    assert_eq!(settle(&mut containers), ["a 2-7"]);

    // A call that failed may have done its work too.
    containers.keep_others_to(None, cpus("0-7"));
    let (widening, _) = ask(&mut containers);
    containers.fail(&widening);
    containers.keep_others_to(Some(cpus("2-7")), cpus("0-7"));
    assert!(!containers.widens_later(), "it must leave them at once");
    assert_eq!(containers.outstanding("d").len(), 1);
}

#[test]
fn a_container_whose_creation_was_not_reported_is_known_by_its_next_event() {
    for update in [false, true] {
        let mut containers = host(vec![], Some("3-7"));
        containers.create("a", Use::Free, on(""));
        containers.keep_others_to(Some(cpus("2-7")), cpus("0-7"));
        if update {
            assert_eq!(containers.update("a", on("")), None);
            containers.observe("a", None);
        } else {
            containers.started("a");
        }
        assert_eq!(settle(&mut containers), ["a 2-7"]);
    }
}

#[test]
fn only_what_may_have_changed_is_saved() {
    let mut containers = host(vec![free("a", "")], None);
    assert!(containers.take_unsaved() && !containers.take_unsaved());
    containers.create("b", Use::Free, on(""));
    containers.observe("b", Some(on("")));
    containers.started("b");
    assert!(!containers.take_unsaved(), "nothing is claimed");
    containers.keep_others_to(Some(cpus("2-7")), cpus("0-7"));
    containers.create("c", Use::Free, on(""));
    assert!(containers.take_unsaved());
    containers.observe("c", Some(on("2-7")));
    containers.started("c");
    assert!(!containers.take_unsaved(), "it was created so");
    containers.update("a", on("3"));
    assert!(containers.take_unsaved());
}

#[test]
fn the_doubts_about_a_container_that_always_fails_are_bounded() {
    let mut containers = host(vec![free("a", "")], None);
    for first in 1..200 {
        containers.keep_others_to(Some((first % 97 + 1..=100).collect()), (0..=100).collect());
        let (changes, _) = ask(&mut containers);
        containers.fail(&changes);
    }
    assert!(remembered(&containers)["a"].given.len() <= 10);
}

#[test]
fn thousands_of_containers_are_placed_within_a_hook() {
    let start = std::time::Instant::now();
    let observed = (0..5000).map(|n| free(&format!("{n:064}"), ""));
    let share = Some((4..256).collect());
    let mut containers = Containers::synchronize(observed, &HashMap::new(), share, (0..256).collect());
    assert_eq!(containers.next_changes(16, true).len(), 16);
    containers.create("new", Use::Claim(on("0-3")), on(""));
    assert_eq!(containers.outstanding("new").len(), 5000);
    let took = start.elapsed();
    assert!(took < std::time::Duration::from_secs(1), "{took:?}: the runtime waits for 2 s");
}
