//! What is remembered about one config between reconciles. Lost when the process ends, and then learnt again. Pure.

use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;

use crate::{
    api::DraDriverConfigStatus,
    controller::{
        config::Config,
        judge::{self, Judged},
        plan, status,
    },
};

/// Minimum interval between status writes in which only counts changed: claims may come and go every second.
const COUNTS_EVERY: SignedDuration = SignedDuration::from_secs(5);

/// What is remembered about one config between reconciles.
#[derive(Debug, Default)]
pub struct Remembered {
    /// What the plan and the writes of its children remember.
    pub(super) children: plan::Memory,
    /// What the next judgement continues from.
    pub(super) judge: judge::Memory,
    /// The status that this process last wrote.
    pub(super) status: WrittenStatus,
    /// Why pods cannot be created, and when that was checked.
    pub(super) refusal: Option<(Timestamp, Option<String>)>,
    /// Its contribution to the metrics.
    pub(super) counted: Counted,
    /// Consecutive failed reconciles.
    pub(super) failures: u32,
}

/// The last written status, and when the next may be written.
#[derive(Debug, Default)]
pub struct WrittenStatus {
    last: Option<Written>,
    held_back: Option<Timestamp>,
}

#[derive(Debug)]
struct Written {
    /// The object's resource version with this status.
    version: u64,
    at: Timestamp,
    status: DraDriverConfigStatus,
}

impl WrittenStatus {
    /// The config with its latest status, even if the watch does not show what was written yet.
    pub(super) fn latest(&self, config: &Config) -> Config {
        let version = version(config);
        let newer = self.last.as_ref().filter(|written| written.version > version);
        let status = newer.map(|written| written.status.clone());
        Config { status: status.or_else(|| config.status.clone()), ..config.clone() }
    }

    /// Whether to write `after` now: not if it equals `before`, and not immediately if only counts differ.
    pub(super) fn is_due(
        &mut self,
        before: Option<&DraDriverConfigStatus>,
        after: &DraDriverConfigStatus,
        now: Timestamp,
    ) -> bool {
        self.held_back = None;
        let Some(before) = before else { return true };
        if before == after {
            return false;
        }

        let next = self.last.as_ref().and_then(|written| written.at.checked_add(COUNTS_EVERY).ok());
        self.held_back = next.filter(|next| *next > now && status::only_counts_differ(before, after));
        self.held_back.is_none()
    }

    /// When a status that is being held back may be written.
    pub(super) fn held_back(&self) -> Option<Timestamp> {
        self.held_back
    }

    /// Records the stored object; `None` if it is gone.
    pub(super) fn wrote(&mut self, stored: Option<&Config>, status: DraDriverConfigStatus, now: Timestamp) {
        self.last = stored.map(|stored| Written { version: version(stored), at: now, status });
    }
}

/// Resource versions only increase (KEP-5504); 0 if there is none.
fn version(config: &Config) -> u64 {
    config.resource_version().and_then(|version| version.parse().ok()).unwrap_or(0)
}

/// One config's contribution to the metrics.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counted {
    pub(super) ready: i64,
    pub(super) unhealthy: i64,
    pub(super) devices: i64,
}

impl Counted {
    pub(super) fn of(judged: &Judged) -> Self {
        Self {
            ready: judged.rollout.ready.into(),
            unhealthy: i64::try_from(judged.health.unhealthy).unwrap_or(i64::MAX),
            devices: judged.usage.devices.total.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{
        api::DeviceCounts,
        controller::testing::{at, mk_config},
    };

    fn counting(total: i32) -> DraDriverConfigStatus {
        DraDriverConfigStatus { devices: Some(DeviceCounts { total, ..DeviceCounts::default() }), ..Default::default() }
    }

    fn stored(version: &str) -> Config {
        let mut config = mk_config("cpu", &json!({}));
        config.metadata.resource_version = Some(version.into());
        config
    }

    #[test]
    fn a_status_in_which_only_counts_changed_is_held_back_for_five_seconds() {
        let mut written = WrittenStatus::default();
        assert!(written.is_due(None, &counting(1), at(0)), "the first");
        assert!(written.is_due(Some(&counting(1)), &counting(2), at(0)), "another process wrote the last one");
        written.wrote(Some(&stored("7")), counting(2), at(0));
        for (now, due) in [(0, false), (4, false), (5, true)] {
            assert_eq!(written.is_due(Some(&counting(2)), &counting(3), at(now)), due, "after {now} s");
            assert_eq!(written.held_back(), (!due).then_some(at(5)));
        }
    }

    #[test]
    fn a_changed_status_is_written_immediately_and_an_unchanged_one_never() {
        let mut written = WrittenStatus::default();
        written.wrote(Some(&stored("7")), counting(2), at(0));
        assert!(!written.is_due(Some(&counting(2)), &counting(3), at(1)));
        let renamed = DraDriverConfigStatus { driver_name: Some("other".into()), ..counting(3) };
        assert!(written.is_due(Some(&counting(2)), &renamed, at(1)));
        assert_eq!(written.held_back(), None, "nothing is held back any more");
        assert!(!written.is_due(Some(&counting(2)), &counting(2), at(9)));
    }

    #[test]
    fn a_written_status_is_used_until_the_watch_shows_its_version() {
        let mut written = WrittenStatus::default();
        written.wrote(Some(&stored("7")), counting(2), at(0));
        assert_eq!(written.latest(&stored("6")).status, Some(counting(2)));
        assert_eq!(written.latest(&stored("7")).status, None, "the watch has caught up");
        written.wrote(None, counting(2), at(0));
        assert_eq!(written.latest(&stored("6")).status, None, "the object is gone");
    }
}
