use std::time::Duration;

/// How long to wait between attempts to connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackoffPolicy {
    /// Longest wait after the first failure.
    pub base: Duration,
    /// Longest wait after any number of them.
    pub cap: Duration,
    /// A connection that lasted this long makes the next failure a first one. Longer than `cap`, so that two clients
    /// that keep throwing each other out do not start over each time.
    pub stable: Duration,
}

impl Default for BackoffPolicy {
    fn default() -> Self {
        Self {
            base: Duration::from_secs(2),
            cap: Duration::from_secs(60),
            stable: Duration::from_secs(120),
        }
    }
}

/// Exponential back-off with full jitter: each wait is drawn evenly from zero to a bound that doubles. Drawing from zero
/// is what spreads a fleet that lost its broker at one moment over the whole window.
#[derive(Clone, Debug)]
pub struct Backoff {
    policy: BackoffPolicy,
    failures: u32,
}

impl Backoff {
    /// At the start: the next failure is the first.
    pub fn new(policy: BackoffPolicy) -> Self {
        Self { policy, failures: 0 }
    }

    /// How long to wait after an attempt has ended. `connected_for` is how long the connection lasted, if it came to
    /// one; `random` is drawn evenly from 0 to 1.
    pub fn after(&mut self, connected_for: Option<Duration>, random: f64) -> Duration {
        if connected_for.is_some_and(|lasted| lasted >= self.policy.stable) {
            self.failures = 0;
        }
        let bound = 2u32
            .checked_pow(self.failures)
            .and_then(|factor| self.policy.base.checked_mul(factor))
            .map_or(self.policy.cap, |bound| bound.min(self.policy.cap));
        self.failures = self.failures.saturating_add(1);
        bound.mul_f64(random.clamp(0.0, 1.0))
    }

    /// Attempts that failed in a row.
    pub fn failures(&self) -> u32 {
        self.failures
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: BackoffPolicy = BackoffPolicy {
        base: Duration::from_secs(1),
        cap: Duration::from_secs(60),
        stable: Duration::from_secs(120),
    };

    #[test]
    fn bounds_double_up_to_the_cap_and_never_overflow() {
        let mut backoff = Backoff::new(POLICY);
        let bounds: Vec<u64> = (0..8).map(|_| backoff.after(None, 1.0).as_secs()).collect();
        assert_eq!(bounds, [1, 2, 4, 8, 16, 32, 60, 60]);
        for _ in 0..100 {
            assert_eq!(backoff.after(None, 1.0), POLICY.cap);
        }
        assert_eq!(backoff.after(None, 0.0), Duration::ZERO);
        backoff.failures = u32::MAX;
        assert_eq!(backoff.after(None, 1.0), POLICY.cap);
    }

    #[test]
    fn only_a_connection_that_lasted_starts_over() {
        let mut backoff = Backoff::new(POLICY);
        for _ in 0..4 {
            backoff.after(Some(Duration::from_secs(119)), 1.0);
        }
        assert_eq!(backoff.failures(), 4);
        assert_eq!(backoff.after(Some(Duration::from_secs(120)), 1.0), POLICY.base);
        assert_eq!(backoff.after(None, 1.0), POLICY.base * 2);
    }

    #[test]
    fn a_fleet_spreads_over_the_whole_window() {
        let mut state = 1u64;
        let mut random = || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 11) as f64 / (1u64 << 53) as f64
        };
        let mut tenths = [0u32; 10];
        for _ in 0..200 {
            let wait = Backoff::new(POLICY).after(None, random());
            tenths[((wait.as_secs_f64() * 10.0) as usize).min(9)] += 1;
        }
        assert!(tenths.iter().all(|count| (5..=40).contains(count)), "{tenths:?}");
    }
}
