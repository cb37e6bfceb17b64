use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustls::pki_types::UnixTime;
use rustls::time_provider::TimeProvider;

/// The time of day, which may be wrong and may jump. Durations never come from here.
pub trait WallClock: fmt::Debug + Send + Sync {
    /// The time now.
    fn now(&self) -> SystemTime;
}

/// The system's clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl WallClock for SystemClock {
    fn now(&self) -> SystemTime {
        SystemTime::now()
    }
}

/// What the link takes from outside besides the network.
pub struct Environment {
    /// Judges certificates.
    pub wall: Arc<dyn WallClock>,
    /// Evenly distributed from 0 to 1; spreads a fleet's reconnects.
    pub random: Box<dyn FnMut() -> f64 + Send>,
}

impl Default for Environment {
    fn default() -> Self {
        // Keys of the standard hasher come from the system, so devices that boot at the same moment differ.
        let (keys, mut drawn) = (RandomState::new(), 0u64);
        let random = move || {
            drawn += 1;
            (keys.hash_one(drawn) >> 11) as f64 / (1u64 << 53) as f64
        };
        Self {
            wall: Arc::new(SystemClock),
            random: Box::new(random),
        }
    }
}

impl fmt::Debug for Environment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Environment")
            .field("wall", &self.wall)
            .finish_non_exhaustive()
    }
}

/// A clock before this has not been set since power-on: 2025-01-01, before this software existed.
const SOFTWARE_EXISTS: Duration = Duration::from_secs(1_735_689_600);

/// Whether a clock has plausibly been set.
pub(crate) fn is_set(wall: &dyn WallClock) -> bool {
    wall.now() >= UNIX_EPOCH + SOFTWARE_EXISTS
}

/// Notices that the wall clock was set: it moved apart from the monotonic one.
#[derive(Debug)]
pub(super) struct JumpDetector {
    wall: SystemTime,
    monotonic: Instant,
}

impl JumpDetector {
    /// Larger than any drift between two looks, smaller than any correction that matters to certificates.
    const JUMP: Duration = Duration::from_secs(30);

    pub(super) fn new(wall: SystemTime, monotonic: Instant) -> Self {
        Self { wall, monotonic }
    }

    pub(super) fn jumped(&self, wall: SystemTime, monotonic: Instant) -> bool {
        let expected = self.wall + monotonic.saturating_duration_since(self.monotonic);
        let apart = match wall.duration_since(expected) {
            Ok(ahead) => ahead,
            Err(behind) => behind.duration(),
        };
        apart > Self::JUMP
    }
}

/// Lets rustls judge certificates by our clock.
#[derive(Debug)]
pub(super) struct CertificateTime(pub(super) Arc<dyn WallClock>);

impl TimeProvider for CertificateTime {
    fn current_time(&self) -> Option<UnixTime> {
        self.0
            .now()
            .duration_since(UNIX_EPOCH)
            .ok()
            .map(UnixTime::since_unix_epoch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_jump_is_a_difference_between_the_clocks() {
        let (wall, monotonic) = (UNIX_EPOCH, Instant::now());
        let detector = JumpDetector::new(wall, monotonic);
        let later = Duration::from_secs(500);
        assert!(!detector.jumped(wall + later, monotonic + later));
        assert!(detector.jumped(wall + later + Duration::from_secs(31), monotonic + later));
        let ahead = JumpDetector::new(wall + later, monotonic);
        assert!(ahead.jumped(wall, monotonic));
    }

    #[test]
    fn randomness_is_even_and_differs_between_devices() {
        let (mut one, mut other) = (Environment::default(), Environment::default());
        let (a, b): (Vec<f64>, Vec<f64>) = (0..1000).map(|_| ((one.random)(), (other.random)())).unzip();
        assert_ne!(a, b);
        assert!(a.iter().all(|drawn| (0.0..1.0).contains(drawn)));
        let mean = a.iter().sum::<f64>() / 1000.0;
        assert!((0.4..0.6).contains(&mean), "{mean}");
    }
}
