//! Watching a build: cancellation on request, and before the system runs out of memory.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use edgeopt_models::Bytes;

use super::builder::{BuildEvents, Watched};
use super::failure::Stop;
use crate::{Cancel, OnStep};

/// A request to stop, shared between who asks and the build.
#[derive(Clone, Default)]
pub struct StopRequest {
    reason: Arc<Mutex<Option<Stop>>>,
    cancel: Option<Cancel>,
}

impl StopRequest {
    /// One that is also asked by `cancel`.
    pub fn with(cancel: Option<Cancel>) -> Self {
        Self {
            reason: Arc::default(),
            cancel,
        }
    }

    /// Asks the build to stop; the first reason counts.
    pub fn ask(&self, reason: Stop) {
        self.reason
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get_or_insert(reason);
    }

    /// The reason, if anybody asked.
    pub fn reason(&self) -> Option<Stop> {
        if self.cancel.as_ref().is_some_and(Cancel::is_asked) {
            self.ask(Stop::Asked);
        }
        self.reason.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// How often available memory is read: a build allocates some hundred MiB a second at most.
const PERIOD: Duration = Duration::from_millis(50);

/// A thread that asks for a stop when available memory falls below a floor; it ends when this is dropped.
pub struct MemoryWatch {
    done: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl MemoryWatch {
    /// Watches `available` (bytes that can be taken without swapping; `None` = not known).
    pub fn start(
        floor: Bytes,
        stop: StopRequest,
        available: impl Fn() -> Option<Bytes> + Send + 'static,
    ) -> Self {
        let done = Arc::new(AtomicBool::new(false));
        let ended = Arc::clone(&done);
        let watch = move || {
            while !ended.load(Ordering::Relaxed) {
                if let Some(left) = available().filter(|left| *left < floor) {
                    stop.ask(Stop::MemoryLow {
                        available: left,
                        floor,
                    });
                    return;
                }
                std::thread::park_timeout(PERIOD);
            }
        };
        // Without a thread there is no watch: the build still has its limits.
        let thread = std::thread::Builder::new()
            .name("memory-watch".into())
            .spawn(watch);
        if let Err(error) = &thread {
            tracing::warn!("memory is not watched during the build: {error}");
        }
        Self {
            done,
            thread: thread.ok(),
        }
    }
}

impl Drop for MemoryWatch {
    fn drop(&mut self) {
        self.done.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // It cannot panic; if it did, there is nothing to do about it here.
            let _ = thread.join();
        }
    }
}

/// Events that stop when they are asked to.
pub struct Stoppable<'a> {
    events: &'a dyn BuildEvents,
    stop: StopRequest,
}

impl<'a> Stoppable<'a> {
    /// Passes events on and stops when `stop` is asked.
    pub fn new(events: &'a dyn BuildEvents, stop: StopRequest) -> Self {
        Self { events, stop }
    }
}

impl BuildEvents for Stoppable<'_> {
    fn phase_begins(&self, phase: &str, parent: Option<&str>, steps: u32) {
        self.events.phase_begins(phase, parent, steps);
    }

    fn step_done(&self, phase: &str, step: u32) -> bool {
        if self.stop.reason().is_some() {
            return false;
        }
        let go_on = self.events.step_done(phase, step);
        if !go_on {
            self.stop.ask(Stop::Asked);
        }
        go_on
    }

    fn phase_ends(&self, phase: &str) {
        self.events.phase_ends(phase);
    }
}

impl Watched for Stoppable<'_> {
    fn stopped(&self) -> Option<Stop> {
        self.stop.reason()
    }
}

/// Of a build's events only that something went on; `None` = nobody listens.
pub struct Steps<'a>(pub Option<&'a OnStep>);

impl Steps<'_> {
    fn tell(&self) {
        if let Some(on_step) = self.0 {
            on_step.done();
        }
    }
}

impl BuildEvents for Steps<'_> {
    fn phase_begins(&self, _: &str, _: Option<&str>, _: u32) {
        self.tell();
    }
    fn step_done(&self, _: &str, _: u32) -> bool {
        self.tell();
        true
    }
    fn phase_ends(&self, _: &str) {
        self.tell();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;
    use std::time::Instant;

    use super::*;

    #[test]
    fn whatever_a_build_does_is_a_step() {
        let told = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&told);
        let on_step = OnStep::new(move || {
            count.fetch_add(1, Ordering::Relaxed);
        });
        let steps = Steps(Some(&on_step));
        steps.phase_begins("tactics", None, 2);
        assert!(steps.step_done("tactics", 0) && steps.step_done("tactics", 1));
        steps.phase_ends("tactics");
        assert_eq!(told.load(Ordering::Relaxed), 4);
        assert!(Steps(None).step_done("any", 1));
    }

    #[test]
    fn falling_below_the_floor_asks_for_a_stop_with_the_numbers() {
        let left = Arc::new(AtomicU64::new(500));
        let read = Arc::clone(&left);
        let stop = StopRequest::default();
        let watch = MemoryWatch::start(Bytes(400), stop.clone(), move || {
            Some(Bytes(read.load(Ordering::Relaxed)))
        });
        std::thread::sleep(PERIOD * 2);
        assert_eq!(stop.reason(), None);
        left.store(399, Ordering::Relaxed);
        let begun = Instant::now();
        while stop.reason().is_none() && begun.elapsed() < Duration::from_secs(10) {
            std::thread::sleep(Duration::from_millis(5));
        }
        let reason = Stop::MemoryLow {
            available: Bytes(399),
            floor: Bytes(400),
        };
        assert_eq!(stop.reason(), Some(reason));
        assert!(!Stoppable::new(&Steps(None), stop).step_done("any", 1));
        drop(watch);
    }

    #[test]
    fn the_first_reason_counts() {
        let stop = StopRequest::default();
        stop.ask(Stop::Asked);
        stop.ask(Stop::MemoryLow {
            available: Bytes(1),
            floor: Bytes(2),
        });
        assert_eq!(stop.reason(), Some(Stop::Asked));
    }
}
