//! How long to wait before putting something right (again). Pure, but for the jitter's randomness.

use std::time::Duration;

use tokio::time::Instant;

/// The first pause: a burst of changes ends in it (the kubelet deletes slice by slice).
const SHORTEST: Duration = Duration::from_millis(100);
/// No pause is longer.
const LONGEST: Duration = Duration::from_secs(30);
/// After so long without an act the next pause is the shortest again.
const CALM: Duration = Duration::from_mins(1);

/// Pauses that double with every act that soon follows another: against errors, and against somebody who undoes every
/// write.
#[derive(Debug)]
pub(super) struct Pace {
    pause: Duration,
    last: Option<Instant>,
}

impl Default for Pace {
    fn default() -> Self {
        Self { pause: SHORTEST, last: None }
    }
}

impl Pace {
    /// Notes an act: a write, or a failed attempt.
    pub(super) fn acted(&mut self, now: Instant) {
        self.pause = match self.last {
            Some(last) if now - last < CALM.max(2 * self.pause) => (2 * self.pause).min(LONGEST),
            _ => SHORTEST,
        };
        self.last = Some(now);
    }

    /// How long to wait now, with a quarter of it left to chance: nodes do not come back in step after an outage.
    pub(super) fn pause(&self, now: Instant) -> Duration {
        if self.last.is_none_or(|last| now - last >= CALM) {
            return SHORTEST;
        }
        // Without randomness there is no jitter, and still a pause.
        let chance = f64::from(getrandom::u32().unwrap_or(u32::MAX)) / f64::from(u32::MAX);
        self.pause.mul_f64(0.75 + 0.25 * chance)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest_and_shrink_after_calm() {
        let mut now = Instant::now();
        let mut pace = Pace::default();
        assert_eq!(pace.pause(now), SHORTEST);
        for _ in 0..12 {
            pace.acted(now);
            now += pace.pause(now);
        }
        assert!(pace.pause(now) >= LONGEST.mul_f64(0.75) && pace.pause(now) <= LONGEST);
        now += CALM;
        assert_eq!(pace.pause(now), SHORTEST);
        pace.acted(now);
        assert!(pace.pause(now) <= SHORTEST);
    }
}
