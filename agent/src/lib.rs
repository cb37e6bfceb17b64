//! The device daemon's parts, and the fleet protocol that devices and operators share.
//!
//! - [`config`]: `agent.toml`.
//! - [`protocol`]: topics and messages over MQTT.

pub mod config;
pub mod protocol;
