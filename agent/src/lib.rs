//! The fleet protocol that devices and operators share: topics and messages over MQTT.
//!
//! The daemon itself does not exist yet; this crate holds only what both sides must agree on.

pub mod protocol;
