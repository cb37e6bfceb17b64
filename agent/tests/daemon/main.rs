//! The whole daemon: the real program with the real broker, the operator's side, real bundles on the CPU backend.
//! Where a test has to reach inside, the daemon runs in this process.

#![allow(clippy::unwrap_used, missing_docs)] // helpers of tests, too

#[path = "../deployment/bundles.rs"]
#[allow(dead_code, reason = "shared with other tests, which use other parts")]
mod bundles;
#[path = "../deployment/slow_builder.rs"]
#[allow(dead_code, reason = "shared with other tests, which use other parts")]
mod slow_builder;
#[path = "../support/mod.rs"]
#[allow(dead_code, reason = "shared with other tests, which use other parts")]
mod support;

mod aedes;
mod device;
mod http;
mod observer;
mod rabbitmq;
mod range_server;

mod building;
mod camera;
mod commands;
mod deploying;
mod folder;
mod health;
mod kills;
mod lies;
mod other_brokers;
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
