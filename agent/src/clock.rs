//! Time, behind a trait: tests decide how it passes.

use std::fmt;
use std::time::{Duration, Instant};

/// A clock that only goes forward, and a way to wait for it. Wall time is never measured with it.
pub trait Clock: fmt::Debug + Send + Sync {
    /// Time since some fixed moment.
    fn elapsed(&self) -> Duration;
    /// Returns after this long.
    fn sleep(&self, duration: Duration);
}

/// Time since the device was switched on, sleep included: the same for every process, and never set back.
pub fn since_boot() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    // It begins at zero and only grows.
    Duration::new(
        u64::try_from(time.tv_sec).unwrap_or_default(),
        u32::try_from(time.tv_nsec).unwrap_or_default(),
    )
}

/// The system's monotonic clock.
#[derive(Clone, Copy, Debug)]
pub struct SystemClock(Instant);

impl Default for SystemClock {
    fn default() -> Self {
        Self(Instant::now())
    }
}

impl Clock for SystemClock {
    fn elapsed(&self) -> Duration {
        self.0.elapsed()
    }

    fn sleep(&self, duration: Duration) {
        std::thread::sleep(duration);
    }
}

/// A clock that stands still until it is told otherwise; sleeping only moves it.
#[cfg(test)]
#[derive(Debug, Default)]
pub(crate) struct ManualClock {
    now: std::sync::Mutex<Duration>,
    slept: std::sync::Mutex<Vec<Duration>>,
}

#[cfg(test)]
impl ManualClock {
    pub(crate) fn advance(&self, duration: Duration) {
        *self.now.lock().unwrap() += duration;
    }

    /// Every sleep so far.
    pub(crate) fn slept(&self) -> Vec<Duration> {
        self.slept.lock().unwrap().clone()
    }
}

#[cfg(test)]
impl Clock for ManualClock {
    fn elapsed(&self) -> Duration {
        *self.now.lock().unwrap()
    }

    fn sleep(&self, duration: Duration) {
        self.advance(duration);
        self.slept.lock().unwrap().push(duration);
    }
}
