//! When a config is reconciled again without an event. Pure.

use std::time::Duration;

use jiff::Timestamp;
use kube::runtime::controller::Action;

use crate::backoff::Backoff;

/// For what may change without an event that is watched, such as another owner's object that goes.
pub(super) const LOOK_AGAIN: Duration = Duration::from_mins(1);
/// The DaemonSet controller reports a moment late why it cannot create a pod, and its Events are not watched.
pub(super) const ASK_WHY: Duration = Duration::from_secs(5);
/// Pauses after reconciles that failed.
const BACKOFF: Backoff = Backoff { first: Duration::from_secs(1), longest: Duration::from_mins(2) };
/// What is due now is due after this: a clock that is set back does not make the loop spin.
const SHORTEST: Duration = Duration::from_millis(100);

/// The earliest of several times.
#[derive(Debug, Default)]
pub(super) struct Requeue(Option<Duration>);

impl Requeue {
    /// Comes back after `pause` at the latest.
    pub(super) fn within(&mut self, pause: Duration) {
        self.0 = Some(self.0.map_or(pause, |earlier| earlier.min(pause)));
    }

    /// Comes back at `due` at the latest, where there is such a time.
    pub(super) fn at(&mut self, due: Option<Timestamp>, now: Timestamp) {
        if let Some(due) = due {
            self.within(Duration::try_from(due.duration_since(now)).unwrap_or_default().max(SHORTEST));
        }
    }

    /// What kube's Controller is to do.
    pub(super) fn action(self) -> Action {
        self.0.map_or_else(Action::await_change, Action::requeue)
    }
}

/// The pause after so many failures in a row.
pub(super) fn backoff(failures: u32) -> Duration {
    BACKOFF.pause(failures.saturating_sub(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controller::testing::at;

    #[test]
    fn the_earliest_time_wins_and_none_waits_for_an_event() {
        assert_eq!(Requeue::default().action(), Action::await_change());
        let mut requeue = Requeue::default();
        requeue.at(None, at(0));
        requeue.within(Duration::from_secs(9));
        requeue.at(Some(at(7)), at(0));
        requeue.within(Duration::from_secs(8));
        assert_eq!(requeue.action(), Action::requeue(Duration::from_secs(7)));
    }

    #[test]
    fn what_is_overdue_waits_a_moment() {
        let mut requeue = Requeue::default();
        requeue.at(Some(at(0)), at(9));
        assert_eq!(requeue.action(), Action::requeue(Duration::from_millis(100)));
    }

    #[test]
    fn failures_in_a_row_double_the_pause_up_to_two_minutes() {
        let pauses = [1, 2, 3, 7, 8, 9, u32::MAX].map(|failures| backoff(failures).as_secs());
        assert_eq!(pauses, [1, 2, 4, 64, 120, 120, 120]);
    }
}
