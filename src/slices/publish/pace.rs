//! How long to wait before the next write. Pure, except for the random jitter.

use std::time::Duration;

use tokio::time::Instant;

use crate::backoff::Backoff;

/// The first pause outlasts a burst of changes (the kubelet deletes slices one by one).
const BACKOFF: Backoff = Backoff { first: Duration::from_millis(100), longest: Duration::from_secs(30) };
/// After this long without a write or failure, the pauses start over.
const CALM: Duration = Duration::from_mins(1);

/// Pauses that double with every write or failure that soon follows another. They slow down retries, and fights with a
/// client that undoes every write.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// Consecutive writes or failures that soon followed another.
    repeats: u32,
    last: Option<Instant>,
}

impl Pace {
    /// Records a write or a failed attempt.
    pub(super) fn acted(&mut self, now: Instant) {
        self.repeats = match self.last {
            Some(last) if now - last < CALM => self.repeats.saturating_add(1),
            _ => 0,
        };
        self.last = Some(now);
    }

    /// How long to wait now. A quarter of it is random, so that nodes do not retry in step after an outage.
    pub(super) fn pause(&self, now: Instant) -> Duration {
        if self.last.is_none_or(|last| now - last >= CALM) {
            return BACKOFF.first;
        }
        // If the system has no random numbers, the pause has no jitter.
        let chance = f64::from(getrandom::u32().unwrap_or(u32::MAX)) / f64::from(u32::MAX);
        BACKOFF.pause(self.repeats).mul_f64(0.75 + 0.25 * chance)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest_and_shrink_after_calm() {
        let mut now = Instant::now();
        let mut pace = Pace::default();
        assert_eq!(pace.pause(now), BACKOFF.first);
        for _ in 0..12 {
            pace.acted(now);
            now += pace.pause(now);
        }
        assert!(pace.pause(now) >= BACKOFF.longest.mul_f64(0.75) && pace.pause(now) <= BACKOFF.longest);
        now += CALM;
        assert_eq!(pace.pause(now), BACKOFF.first);
        pace.acted(now);
        assert!(pace.pause(now) <= BACKOFF.first);
    }
}
