//! Which threads make progress: what the watchdog is fed from.
//!
//! A thread says before each step by when it will speak again. One that does not keep its word hangs, and the daemon
//! stops feeding the service manager's watchdog, which then restarts it. A thread that waits for work says so, and may
//! wait for ever.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

/// How often an event loop shows that it turns, and how long it may be held up.
const TURN: Duration = Duration::from_secs(1);
const HELD_UP: Duration = Duration::from_secs(60);
/// No promise is open.
const RESTING: u64 = u64::MAX;

/// The threads of a daemon. Clones share them.
#[derive(Clone, Debug)]
pub struct Pulses(Arc<All>);

#[derive(Debug)]
struct All {
    begun: Instant,
    members: Mutex<Vec<Weak<Member>>>,
}

#[derive(Debug)]
struct Member {
    name: String,
    begun: Instant,
    /// Milliseconds after `begun` at which the next word is due.
    due: AtomicU64,
}

/// One thread's promises; forgotten when dropped.
#[derive(Clone, Debug)]
pub struct Pulse(Arc<Member>);

/// A thread that has not kept its word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Overdue {
    /// Which.
    pub thread: String,
    /// For how long.
    pub by: Duration,
}

impl fmt::Display for Overdue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} hangs: {:.1} s overdue", self.thread, self.by.as_secs_f64())
    }
}

impl Default for Pulses {
    fn default() -> Self {
        Self(Arc::new(All {
            begun: Instant::now(),
            members: Mutex::default(),
        }))
    }
}

impl Pulses {
    /// A new thread's pulse; it rests.
    pub fn join(&self, name: impl Into<String>) -> Pulse {
        let member = Arc::new(Member {
            name: name.into(),
            begun: self.0.begun,
            due: AtomicU64::new(RESTING),
        });
        let mut members = self.0.members.lock().unwrap_or_else(PoisonError::into_inner);
        members.retain(|member| member.strong_count() > 0);
        members.push(Arc::downgrade(&member));
        Pulse(member)
    }

    /// By when the thread of this name has promised to speak; `None` = it rests.
    #[cfg(test)]
    pub(crate) fn promise(&self, thread: &str) -> Option<Duration> {
        let members = self.0.members.lock().unwrap_or_else(PoisonError::into_inner);
        let mut members = members.iter().filter_map(Weak::upgrade);
        let due = members
            .find(|member| member.name == thread)?
            .due
            .load(Ordering::Relaxed);
        (due != RESTING).then(|| Duration::from_millis(due))
    }

    /// Threads that hang.
    pub fn overdue(&self) -> Vec<Overdue> {
        let now = milliseconds(self.0.begun.elapsed());
        let members = self.0.members.lock().unwrap_or_else(PoisonError::into_inner);
        members
            .iter()
            .filter_map(Weak::upgrade)
            .filter_map(|member| {
                let due = member.due.load(Ordering::Relaxed);
                (due < now).then(|| Overdue {
                    thread: member.name.clone(),
                    by: Duration::from_millis(now - due),
                })
            })
            .collect()
    }
}

impl Drop for Pulse {
    fn drop(&mut self) {
        // A thread that dies of a panic does not keep its word, ever: only a new start brings it back.
        if std::thread::panicking() {
            self.0.due.store(0, Ordering::Relaxed);
            std::mem::forget(Arc::clone(&self.0));
        }
    }
}

impl Pulse {
    /// Promises to speak again within this time.
    pub fn beat(&self, within: Duration) {
        let due = milliseconds(self.0.begun.elapsed().saturating_add(within));
        self.0.due.store(due, Ordering::Relaxed);
    }

    /// Waits for work.
    pub fn rest(&self) {
        self.0.due.store(RESTING, Ordering::Relaxed);
    }

    /// Shows that an event loop of one thread turns, as a task of that loop: what holds the thread up, holds this up too.
    pub(crate) async fn beat_while_turning(self) {
        loop {
            self.beat(HELD_UP);
            tokio::time::sleep(TURN).await;
        }
    }
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(RESTING)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_panics_is_overdue_for_ever() {
        let pulses = Pulses::default();
        let pulse = pulses.join("unlucky");
        let died = std::thread::spawn(move || {
            let _pulse = pulse;
            panic!("for the test");
        });
        assert!(died.join().is_err());
        std::thread::sleep(Duration::from_millis(5));
        assert_eq!(pulses.overdue()[0].thread, "unlucky");
    }

    #[test]
    fn who_breaks_a_promise_is_named_until_it_speaks_rests_or_goes() {
        let pulses = Pulses::default();
        let (one, other) = (pulses.join("one"), pulses.join("other"));
        assert_eq!(pulses.overdue(), []);
        one.beat(Duration::ZERO);
        other.beat(Duration::from_secs(3600));
        std::thread::sleep(Duration::from_millis(5));
        let overdue = pulses.overdue();
        assert_eq!(overdue.len(), 1);
        assert!(
            overdue[0].to_string().starts_with("one hangs: 0.0"),
            "{}",
            overdue[0]
        );
        one.beat(Duration::from_secs(3600));
        assert_eq!(pulses.overdue(), []);
        one.beat(Duration::ZERO);
        other.beat(Duration::ZERO);
        std::thread::sleep(Duration::from_millis(5));
        one.rest();
        drop(other);
        assert_eq!(pulses.overdue(), []);
    }
}
