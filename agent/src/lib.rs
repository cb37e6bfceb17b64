//! The device daemon's parts, and the fleet protocol that devices and operators share.
//!
//! Start with [`config`] (`agent.toml`), then [`protocol`] (topics and messages over MQTT) and [`link`] (the connection
//! to the broker, which loses nothing and never gives up). [`broker`] is a small broker for trying things out.

pub mod broker;
pub mod clock;
pub mod config;
pub mod deploy;
pub mod disk;
pub mod durable;
pub mod hardware;
pub mod link;
pub mod protocol;
pub mod serve;
pub mod spool;
pub mod store;
