//! Decides which plugin sets the memory nodes of a container with claims of several drivers. Pure.
//!
//! `docs/development/nri-sharing.md` has the decision and its reasons.

/// The prefix of the variables that say that a claim provides memory nodes. A driver of memory must add
/// `DRA_MEMORY_NODES_<claim>_<request>=<driver>` to the claim's CDI device. No driver here does so yet; `claims/cdi.rs` is
/// where it belongs.
const MARK: &str = "DRA_MEMORY_NODES_";

/// Whether a variable of a container may say that a claim provides memory nodes.
pub(super) fn is_mark(variable: &str) -> bool {
    variable.starts_with(MARK)
}

/// Whether a container's environment says that a claim of a driver other than `own` provides its memory nodes.
///
/// This is not proof, because a pod's author may set such a variable too. So this is asked only about containers with a
/// claim of this driver, and only that container's memory nodes depend on it.
pub(super) fn are_claimed_elsewhere(own: &str, env: &[String]) -> bool {
    let owners = env.iter().filter_map(|variable| variable.strip_prefix(MARK)?.split_once('='));
    owners.into_iter().any(|(_, driver)| !driver.is_empty() && driver != own)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_mark_of_another_driver_says_that_memory_nodes_are_claimed_elsewhere() {
        let says = |variable: &str| are_claimed_elsewhere("dra.cpu", &["PATH=/bin".to_owned(), variable.to_owned()]);
        assert!(says("DRA_MEMORY_NODES_0A1B_MAIN=dra.memory"));
        assert!(is_mark("DRA_MEMORY_NODES_0A1B_MAIN=dra.memory") && !is_mark("DRA_CPUS_MAIN=1"));
        for variable in [
            "DRA_MEMORY_NODES_0A1B_MAIN=dra.cpu",
            "DRA_MEMORY_NODES_0A1B_MAIN=",
            "DRA_MEMORY_NODES_0A1B_MAIN",
            "DRA_CLAIM_0A1B_MAIN=dra.memory/token",
            "XDRA_MEMORY_NODES_0A1B_MAIN=dra.memory",
        ] {
            assert!(!says(variable), "{variable}");
        }
    }
}
