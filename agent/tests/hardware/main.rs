//! The device's hardware on a made-up `/sys` of a Jetson, with scripted buses, pins and pulses.

#![allow(clippy::unwrap_used, missing_docs)] // helpers of tests, too

mod configuration;
mod devices;
mod limits;
mod switching;
mod telemetry;
mod tree;

use std::path::Path;

use edgeopt_agent::config::{Config, ConfigError};

/// A configuration with two slots and this `[hardware]`.
fn config(hardware: &str) -> Result<Config, ConfigError> {
    let text = format!(
        "device = \"cam-1\"\n[broker]\nhost = \"b\"\n[trust]\nrequire_signature = false\n\
         [slots.detector]\ninputs = [{{ kind = \"mqtt\" }}]\n[slots.anomaly]\ninputs = [{{ kind = \"mqtt\" }}]\n{hardware}"
    );
    Config::from_text(Path::new("agent.toml"), &text, [])
}
