//! The daemon as a service: what it tells a service manager, and the files that are shipped for systemd.
//!
//! No manager runs: the tests bind the socket that one would bind, and let systemd's own programs judge the files.

#![allow(clippy::unwrap_used)] // helpers of tests, too

mod device;
mod files;
mod journal;
mod lifecycle;
mod manager;
mod model;
mod progress;
