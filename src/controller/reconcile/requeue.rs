//! When to reconcile a config again without an event. Pure.

use std::time::Duration;

use jiff::Timestamp;
use kube::runtime::controller::Action;

use crate::backoff::Backoff;

/// For changes that no watch shows, such as another owner deleting its object.
pub(super) const LOOK_AGAIN: Duration = Duration::from_mins(1);
/// The DaemonSet controller reports with a delay why it cannot create a pod, and its Events are not watched.
pub(super) const ASK_WHY: Duration = Duration::from_secs(5);
/// Pauses after failed reconciles.
const BACKOFF: Backoff = Backoff { first: Duration::from_secs(1), longest: Duration::from_mins(2) };
/// Minimum pause, so that a clock that is set back does not make the loop spin.
const SHORTEST: Duration = Duration::from_millis(100);

/// The earliest of several times.
#[derive(Debug, Default)]
pub(super) struct Requeue(Option<Duration>);

impl Requeue {
    /// Requeues after `pause` at the latest.
    pub(super) fn within(&mut self, pause: Duration) {
        self.0 = Some(self.0.map_or(pause, |earlier| earlier.min(pause)));
    }

    /// Requeues at `due` at the latest, if set.
    pub(super) fn at(&mut self, due: Option<Timestamp>, now: Timestamp) {
        if let Some(due) = due {
            self.within(Duration::try_from(due.duration_since(now)).unwrap_or_default().max(SHORTEST));
        }
    }

    /// The resulting action for kube's Controller.
    pub(super) fn action(self) -> Action {
        self.0.map_or_else(Action::await_change, Action::requeue)
    }
}

/// The pause after this many consecutive failures.
pub(super) fn backoff(failures: u32) -> Duration {
    BACKOFF.pause(failures.saturating_sub(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controller::testing::at;

    #[test]
    fn the_earliest_time_wins_and_without_one_an_event_is_awaited() {
        assert_eq!(Requeue::default().action(), Action::await_change());
        let mut requeue = Requeue::default();
        requeue.at(None, at(0));
        requeue.within(Duration::from_secs(9));
        requeue.at(Some(at(7)), at(0));
        requeue.within(Duration::from_secs(8));
        assert_eq!(requeue.action(), Action::requeue(Duration::from_secs(7)));
    }

    #[test]
    fn an_overdue_time_waits_for_the_minimum_pause() {
        let mut requeue = Requeue::default();
        requeue.at(Some(at(0)), at(9));
        assert_eq!(requeue.action(), Action::requeue(Duration::from_millis(100)));
    }

    #[test]
    fn consecutive_failures_double_the_pause_up_to_two_minutes() {
        let pauses = [1, 2, 3, 7, 8, 9, u32::MAX].map(|failures| backoff(failures).as_secs());
        assert_eq!(pauses, [1, 2, 4, 64, 120, 120, 120]);
    }
}
