//! The link against brokers that misbehave on purpose, and against the real mosquitto.

#![allow(clippy::unwrap_used, missing_docs)] // helpers of tests, too

#[path = "../support/mod.rs"]
mod support;

mod delivery;
mod embedded;
mod inbound;
mod lifecycle;
mod mosquitto;
mod reconnect;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::mpsc::Receiver;
use std::time::Duration;

use edgeopt_agent::config::Config;
use edgeopt_agent::link::{
    BackoffPolicy, Environment, Inbound, Link, LinkOptions, LinkState, MemoryOutbox, Nudge, PacketLimit,
    QuarantinePolicy,
};

use support::PATIENCE;
use support::packet::Publish;

/// Options for a broker on this machine, with waits short enough for tests.
fn options(device: &str, port: u16) -> LinkOptions {
    let text = format!(
        "device = \"{device}\"\n[broker]\nhost = \"127.0.0.1\"\nport = {port}\n[trust]\nrequire_signature = false\n"
    );
    let config = Config::from_text(Path::new("agent.toml"), &text, []).unwrap();
    LinkOptions {
        backoff: BackoffPolicy {
            base: Duration::from_millis(20),
            cap: Duration::from_millis(200),
            stable: Duration::from_secs(60),
        },
        quarantine: QuarantinePolicy {
            strikes: 3,
            hold: Duration::from_secs(600),
            settled: Duration::from_millis(300),
        },
        ..LinkOptions::new(&config, "0.0.0-test")
    }
}

/// A link with its outbox and what it receives.
struct Device {
    link: Link,
    outbox: MemoryOutbox,
    received: Receiver<Inbound>,
}

impl Device {
    fn start(options: LinkOptions) -> Self {
        Self::start_in(options, Environment::default())
    }

    fn start_in(options: LinkOptions, environment: Environment) -> Self {
        let outbox = MemoryOutbox::new(100_000, options.packet_limit());
        let (link, received) = Link::start(options, Box::new(outbox.clone()), environment).unwrap();
        Self {
            link,
            outbox,
            received,
        }
    }

    /// Puts numbered results into the outbox.
    fn produce(&self, numbers: std::ops::Range<u64>) {
        produce(&self.outbox, &self.link.nudge(), numbers);
    }
}

/// Waits until messages can come in.
fn subscribed(device: &Device) {
    let seen = device.link.watch().wait(PATIENCE, |view| {
        matches!(view.state, LinkState::Connected { subscribed: true, .. })
    });
    assert!(seen.is_ok(), "{seen:?}");
}

fn produce(outbox: &MemoryOutbox, nudge: &Nudge, numbers: std::ops::Range<u64>) {
    for number in numbers {
        let payload = number.to_string().into_bytes();
        outbox
            .push("edgeopt/v1/d/models/s/result".into(), payload, false)
            .unwrap();
    }
    nudge.outbox_changed();
}

/// The number in a message that [`Device::produce`] made.
fn number(message: &Publish) -> u64 {
    std::str::from_utf8(&message.payload).unwrap().parse().unwrap()
}

fn numbers(messages: &[Publish]) -> Vec<u64> {
    messages.iter().map(number).collect()
}

fn set(range: std::ops::Range<u64>) -> BTreeSet<u64> {
    range.collect()
}

/// An outbox whose own limit is higher than the link's.
fn generous_outbox() -> MemoryOutbox {
    MemoryOutbox::new(100, PacketLimit::new(usize::MAX))
}
