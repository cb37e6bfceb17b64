//! What the broker brings, handed to whom it is for.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::commands::Asked;
use super::quiet::Quiet;
use super::reports::Reports;
use super::slots::{Slot, Slots};
use crate::config::Input;
use crate::deploy::Event;
use crate::download::Blobs;
use crate::link;
use crate::protocol::{DesiredState, DeviceId, Phase, ReportedSlot, SlotName, Topic};
use crate::pulse::{Pulse, Pulses};
use crate::serve::ServeError;

/// How long handling one message may take.
const STEP: Duration = Duration::from_secs(30);

/// To whom messages go.
pub(super) struct Addressees {
    pub(super) device: DeviceId,
    pub(super) slots: Arc<Slots>,
    pub(super) reports: Reports,
    pub(super) blobs: Blobs,
    pub(super) commands: Asked,
}

/// Starts the thread that reads inbound messages; it ends with the link.
pub(super) fn start(
    received: Receiver<link::Inbound>,
    to: Addressees,
    pulses: &Pulses,
) -> std::io::Result<JoinHandle<()>> {
    let pulse = pulses.join("inbound messages");
    thread::Builder::new()
        .name("inbound".into())
        .spawn(move || run(&received, &to, &pulse))
}

fn run(received: &Receiver<link::Inbound>, to: &Addressees, pulse: &Pulse) {
    let quiet = Quiet::default();
    loop {
        pulse.rest();
        let message = match received.recv_timeout(Duration::from_secs(1)) {
            Ok(message) => message,
            Err(RecvTimeoutError::Timeout) => continue,
            Err(RecvTimeoutError::Disconnected) => return,
        };
        pulse.beat(STEP);
        if let Err(Bad { kind, problem }) = handle(message, to, &quiet) {
            quiet.warn(kind, &problem);
        }
    }
}

/// A message that cannot be used.
struct Bad {
    /// Which messages it is like.
    kind: &'static str,
    problem: String,
}

fn bad(kind: &'static str) -> impl Fn(String) -> Bad {
    move |problem| Bad { kind, problem }
}

fn handle(message: link::Inbound, to: &Addressees, quiet: &Quiet) -> Result<(), Bad> {
    let foreign = bad("topic");
    let (device, topic) = Topic::parse(&message.topic).map_err(|error| foreign(error.to_string()))?;
    if device != to.device {
        let problem = format!("{}: for another device; this is {}", message.topic, to.device);
        return Err(bad("device")(problem));
    }
    match topic {
        Topic::Desired => desired(&message, to).map_err(bad("desired")),
        Topic::Input(name) => input(message, &name, to, quiet).map_err(bad("input")),
        Topic::Command(id) => {
            to.commands.ask(id, message.payload);
            Ok(())
        }
        Topic::BlobChunk(id) => {
            let delivered = to.blobs.deliver(&id, message.payload);
            delivered.map_err(|error| bad("blob")(format!("{}: {error}", message.topic)))
        }
        _ => Err(bad("direction")(format!(
            "{}: not a topic that a device reads",
            message.topic
        ))),
    }
}

fn input(message: link::Inbound, name: &SlotName, to: &Addressees, quiet: &Quiet) -> Result<(), String> {
    let slot = to
        .slots
        .get(name)
        .ok_or_else(|| format!("{}: this device has no slot {name}", message.topic))?;
    let inputs = &slot.settings.inputs;
    if !inputs.iter().any(|input| matches!(input, Input::Mqtt {})) {
        return Err(format!(
            "{}: slot {name} takes no inputs from MQTT; add {{ kind = \"mqtt\" }} to its inputs",
            message.topic
        ));
    }
    let (topic, quiet) = (message.topic, quiet.clone());
    slot.submit(
        "input over MQTT".to_owned(),
        "mqtt".to_owned(),
        message.payload,
        move |result| match result {
            Ok(_) => {}
            // Counted, and reported by telemetry.
            Err(ServeError::QueueFull) => tracing::debug!("{topic}: the queue is full"),
            Err(error) => quiet.warn("answer", &format!("{topic}: {error}")),
        },
    );
    Ok(())
}

fn desired(message: &link::Inbound, to: &Addressees) -> Result<(), String> {
    // An empty retained message clears the topic: it says nothing about what should run.
    if message.payload.is_empty() {
        return Ok(());
    }
    let desired: DesiredState = serde_json::from_slice(&message.payload)
        .map_err(|error| format!("{}: {error}; nothing is changed", message.topic))?;
    let current = to.reports.generation();
    if desired.generation < current {
        tracing::info!(
            "desired generation {} is older than {}: nothing is changed",
            desired.generation.0,
            current.0
        );
        // Whoever sent it does not know.
        to.reports.again();
        return Ok(());
    }
    let contradicted = |slot: &&Slot| desired.contradicts(&slot.name, &slot.keeper.report().slot);
    if let Some(slot) = to.slots.all().find(contradicted) {
        tracing::warn!(
            slot = %slot.name,
            "desired generation {} was taken before with another content: this one changes nothing",
            current.0
        );
        to.reports.again();
    }
    // The same one again comes with each connection. Slots that have taken it ignore it; one that is new in the
    // configuration has not.
    if desired.generation.supersedes(current) {
        let generation = desired.generation.0;
        tracing::info!(generation, "a new desired state, generation {generation}");
    }
    for slot in to.slots.all() {
        slot.keeper.send(Event::Desired {
            generation: desired.generation,
            spec: desired.slots.get(&slot.name).cloned(),
        });
    }
    let unknown: BTreeMap<_, _> = desired
        .slots
        .iter()
        .filter(|(name, _)| to.slots.get(name).is_none())
        .map(|(name, spec)| {
            let reason = format!("this device has no slot {name}: add [slots.{name}] to its configuration");
            let report = ReportedSlot {
                phase: Phase::Failed,
                reason: Some(reason),
                generation: Some(desired.generation),
                desired_sha256: Some(spec.sha256.clone()),
                ..ReportedSlot::default()
            };
            (name.clone(), report)
        })
        .collect();
    to.reports.taken(desired.generation, unknown);
    Ok(())
}
