use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, bail};
use clap::ValueEnum;
use edgeopt_agent::fleet::{CommandOutcome, command};
use edgeopt_agent::protocol::{Action, CommandReply, CommandState, DeviceId, SlotName, TopicName};

use super::access::BrokerArguments;
use crate::screen::{GOOD, Screen, printable_line};

/// Asks a device to do something once, and waits for its answer.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// What to do.
    action: Kind,

    /// The device.
    #[arg(short, long)]
    device: DeviceId,

    /// The slot, where the action needs one.
    #[arg(short, long)]
    slot: Option<SlotName>,

    /// Seconds to wait; a device that has not begun by then does not do it any more.
    #[arg(long, default_value_t = 60, value_name = "SECONDS")]
    timeout: u64,

    #[command(flatten)]
    broker: BrokerArguments,
}

#[derive(Clone, Copy, ValueEnum)]
enum Kind {
    /// Answer.
    Ping,
    /// Reproduce the golden outputs of the model that answers.
    SelfTest,
    /// Return to the previous model.
    Rollback,
    /// Stop answering.
    Pause,
    /// Answer again.
    Resume,
    /// Build an engine again that could not be built, or that misbehaved.
    Rebuild,
    /// Report every kind of telemetry now.
    Report,
}

pub(crate) fn run(arguments: &Arguments, screen: &Screen) -> anyhow::Result<ExitCode> {
    let slot = || arguments.slot.clone().context("this action needs --slot");
    let action = match arguments.action {
        Kind::Ping => Action::Ping {},
        Kind::SelfTest => Action::SelfTest { slot: slot()? },
        Kind::Rollback => Action::Rollback { slot: slot()? },
        Kind::Pause => Action::Pause { slot: slot()? },
        Kind::Resume => Action::Resume { slot: slot()? },
        Kind::Rebuild => Action::Rebuild { slot: slot()? },
        Kind::Report => Action::Report {},
    };
    let mut operator = arguments.broker.connect()?;
    let id: TopicName = format!("cli-{:08x}", fastrand::u32(..)).parse()?;
    let wait = Duration::from_secs(arguments.timeout);
    let expires = SystemTime::now().duration_since(UNIX_EPOCH)? + wait;
    let expires = u64::try_from(expires.as_millis())?;
    match command(&mut operator, &arguments.device, action, &id, Some(expires), wait)? {
        CommandOutcome::Silent => bail!(
            "{} has not answered within {} s; the command is withdrawn",
            arguments.device,
            arguments.timeout
        ),
        CommandOutcome::Replied(reply) if reply.state == CommandState::Failed => bail!(
            "{}: {}",
            arguments.device,
            printable_line(reply.reason.as_deref().unwrap_or("it failed, without a reason"))
        ),
        CommandOutcome::Replied(reply) => {
            screen.result(&reply, shown)?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn shown(reply: &CommandReply) -> String {
    match &reply.detail {
        Some(detail) => format!("{GOOD}done{GOOD:#} {}\n", printable_line(&detail.to_string())),
        None => format!("{GOOD}done{GOOD:#}\n"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_does_not_control_the_terminal() {
        let reply = CommandReply {
            state: CommandState::Succeeded,
            reason: None,
            // JSON escapes some control characters, but not this one.
            detail: Some(serde_json::json!({ "said": "\u{9b}2J" })),
        };
        assert_eq!(
            shown(&reply),
            format!("{GOOD}done{GOOD:#} {{\"said\":\"\u{fffd}2J\"}}\n")
        );
    }
}
