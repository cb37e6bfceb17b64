//! The whole daemon: the real program with the real broker, the operator's side, real bundles on the CPU backend.
//! Where a test has to reach inside, the daemon runs in this process.

#![allow(clippy::unwrap_used, missing_docs)] // helpers of tests, too

#[path = "../deployment/bundles.rs"]
#[allow(dead_code, reason = "shared with other tests, which use other parts")]
mod bundles;
#[path = "../support/mod.rs"]
#[allow(dead_code, reason = "shared with other tests, which use other parts")]
mod support;

mod device;
mod http;
mod observer;
mod range_server;

mod camera;
mod commands;
mod deploying;
mod folder;
mod health;
mod kills;
mod lies;
mod outage;
mod refusals;
mod reloading;
mod replacing;
mod serving;

use std::sync::atomic::{AtomicBool, Ordering};

/// Becomes true when dropped: threads that wait for it end, also when the test fails.
pub(crate) struct OnDrop<'a>(pub(crate) &'a AtomicBool);

impl Drop for OnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
