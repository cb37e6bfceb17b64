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

mod commands;
mod deploying;
mod folder;
mod health;
mod kills;
mod lies;
mod outage;
mod refusals;
mod replacing;
mod serving;
