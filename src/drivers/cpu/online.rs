//! Detects CPUs that go offline or come online. IO: sysfs.
//!
//! The kernel sends no event for a change of this sysfs file, so it is polled.

use std::time::Duration;

use tokio::time::sleep;

use crate::{cpuset::CpuSet, host::Host};

/// How often the file is read.
const POLL: Duration = Duration::from_secs(2);

/// Returns the online CPUs once they differ from `before` and are stable. Does not return while they cannot be read.
pub(super) async fn changed(host: &Host, before: Option<CpuSet>) -> CpuSet {
    let mut readings = Readings { before, last: None };
    loop {
        sleep(POLL).await;
        if let Some(now) = readings.settled(host.observe_online()) {
            return now;
        }
    }
}

/// The last readings. CPUs change one by one, so only a value that is read twice in a row counts.
struct Readings {
    before: Option<CpuSet>,
    last: Option<CpuSet>,
}

impl Readings {
    fn settled(&mut self, now: Option<CpuSet>) -> Option<CpuSet> {
        let now = now.filter(|now| self.before.as_ref().is_some_and(|before| now != before));
        let last = std::mem::replace(&mut self.last, now.clone());
        if last == now { now } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The index of the reading at which a change was noticed. `-` stands for a failed reading.
    fn noticed(before: &str, read: &[&str]) -> Option<usize> {
        let set = |online: &&str| (*online != "-").then(|| online.parse().unwrap());
        let mut readings = Readings { before: set(&before), last: None };
        read.iter().map(set).position(|online| readings.settled(online).is_some())
    }

    #[test]
    fn a_change_is_noticed_once_no_more_cpus_go() {
        assert_eq!(noticed("0-7", &["0-6", "0-5", "0-3", "0-3"]), Some(3));
        assert_eq!(noticed("0-3", &["0-7", "0-7"]), Some(1));
    }

    #[test]
    fn cpus_that_stay_or_come_back_or_cannot_be_read_are_not_a_change() {
        assert_eq!(noticed("0-7", &["0-7", "0-7", "0-6", "0-7", "0-6", "-", "0-6", "-", "-"]), None);
        assert_eq!(noticed("-", &["0-7", "0-7"]), None);
    }
}
