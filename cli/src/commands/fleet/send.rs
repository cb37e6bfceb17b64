use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use edgeopt_agent::protocol::{DeviceId, SlotName, Topic};
use serde::Serialize;

use super::access::BrokerArguments;
use crate::screen::Screen;

/// Sends inputs (images, .npy, .npz) to a slot over MQTT.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The files.
    #[arg(required = true)]
    input: Vec<PathBuf>,

    /// The device.
    #[arg(short, long)]
    device: DeviceId,

    /// The slot.
    #[arg(short, long)]
    slot: SlotName,

    #[command(flatten)]
    broker: BrokerArguments,
}

#[derive(Serialize)]
struct Sent {
    sent: usize,
}

pub(crate) fn run(arguments: &Arguments, screen: &Screen) -> anyhow::Result<ExitCode> {
    let mut operator = arguments.broker.connect()?;
    let topic = Topic::Input(arguments.slot.clone()).of(&arguments.device);
    for path in &arguments.input {
        let bytes = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        operator.publish(&topic, bytes, false)?;
        // One after the other, so that a slow broker or a long list does not pile up here.
        operator.settle()?;
    }
    let sent = Sent {
        sent: arguments.input.len(),
    };
    screen.result(&sent, |sent| format!("{} sent\n", sent.sent))?;
    Ok(ExitCode::SUCCESS)
}
