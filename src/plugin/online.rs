//! Notices that CPUs went offline or came online. IO: sysfs.
//!
//! The kernel tells nobody who reads a file of sysfs, so it is looked at.

use std::time::Duration;

use tokio::time::sleep;

use crate::{cpuset::CpuSet, host::Host};

/// How often it is looked.
const LOOK: Duration = Duration::from_secs(2);

/// Returns the CPUs that are online once they are others than `before` and stay so. Never where it cannot be read.
pub async fn changed(host: &Host, before: Option<CpuSet>) -> CpuSet {
    let mut looks = Looks { before, last: None };
    loop {
        sleep(LOOK).await;
        if let Some(now) = looks.see(host.observe_online()) {
            return now;
        }
    }
}

/// What was seen. CPUs go and come one by one, so only what is seen twice counts.
struct Looks {
    before: Option<CpuSet>,
    last: Option<CpuSet>,
}

impl Looks {
    fn see(&mut self, now: Option<CpuSet>) -> Option<CpuSet> {
        let now = now.filter(|now| self.before.as_ref().is_some_and(|before| now != before));
        let last = std::mem::replace(&mut self.last, now.clone());
        if last == now { now } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// At which of the looks, counted from 0, a change was noticed; `-` is what cannot be read.
    fn noticed(before: &str, looks: &[&str]) -> Option<usize> {
        let set = |online: &&str| (*online != "-").then(|| online.parse().unwrap());
        let mut seen = Looks { before: set(&before), last: None };
        looks.iter().map(set).position(|online| seen.see(online).is_some())
    }

    #[test]
    fn cpus_that_went_are_noticed_once_no_more_go() {
        assert_eq!(noticed("0-7", &["0-6", "0-5", "0-3", "0-3"]), Some(3));
        assert_eq!(noticed("0-3", &["0-7", "0-7"]), Some(1));
    }

    #[test]
    fn what_stays_or_comes_back_or_cannot_be_read_is_no_change() {
        assert_eq!(noticed("0-7", &["0-7", "0-7", "0-6", "0-7", "0-6", "-", "0-6", "-", "-"]), None);
        assert_eq!(noticed("-", &["0-7", "0-7"]), None);
    }
}
