//! Exponential backoff. Pure: callers count the attempts and track the time.

use std::time::Duration;

/// The first pause is doubled for every further attempt, up to a maximum.
#[derive(Clone, Copy, Debug)]
pub struct Backoff {
    /// The pause after the first attempt.
    pub first: Duration,
    /// The maximum pause.
    pub longest: Duration,
}

impl Backoff {
    /// The pause after the first attempt and `repeats` more consecutive ones.
    pub fn pause(&self, repeats: u32) -> Duration {
        // After 31 doublings every pause in use has long reached its maximum.
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
