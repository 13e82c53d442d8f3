//! Pauses between attempts that double. Pure: callers count the attempts and keep the time.

use std::time::Duration;

/// A first pause, doubled for every further attempt, up to a longest one.
#[derive(Clone, Copy, Debug)]
pub struct Backoff {
    /// The pause after the first attempt.
    pub first: Duration,
    /// No pause is longer.
    pub longest: Duration,
}

impl Backoff {
    /// The pause after the first attempt and `repeats` more in a row.
    pub fn pause(&self, repeats: u32) -> Duration {
        // Past 31 doublings any pause in use has long reached the longest one.
        let factor = 1_u32.checked_shl(repeats).unwrap_or(u32::MAX);
        self.first.saturating_mul(factor).min(self.longest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest_however_many_attempts_there_were() {
        let backoff = Backoff { first: Duration::from_millis(50), longest: Duration::from_secs(1) };
        let pauses: Vec<_> = (0..7).map(|repeats| backoff.pause(repeats).as_millis()).collect();
        assert_eq!(pauses, [50, 100, 200, 400, 800, 1000, 1000]);
        for repeats in [31, 32, 33, u32::MAX] {
            assert_eq!(backoff.pause(repeats), Duration::from_secs(1), "{repeats}");
        }
    }
}
