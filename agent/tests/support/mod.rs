//! Brokers for tests: one that follows a script packet by packet, and the real mosquitto.

pub(crate) mod authority;
pub(crate) mod mosquitto;
pub(crate) mod packet;
pub(crate) mod scripted;

use std::time::{Duration, Instant};

/// No step of a test takes longer, however loaded the machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// Waits until `done` holds.
pub(crate) fn eventually(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < PATIENCE, "never happened: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
