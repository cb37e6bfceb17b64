//! One command to one device.

use std::time::{Duration, Instant};

use super::{Operator, OperatorError};
use crate::protocol::{Action, Command, CommandReply, CommandState, DeviceId, Topic, TopicName};

/// What came of a command.
#[derive(Clone, Debug, PartialEq)]
pub enum CommandOutcome {
    /// The device's last word.
    Replied(CommandReply),
    /// No word in time; it is withdrawn.
    Silent,
}

/// Asks, waits for the last word for at most `wait`, and clears the command.
///
/// # Errors
/// When the broker refuses or is gone.
pub fn command(
    operator: &mut Operator,
    device: &DeviceId,
    action: Action,
    id: &TopicName,
    expires_ms: Option<u64>,
    wait: Duration,
) -> Result<CommandOutcome, OperatorError> {
    let topic = Topic::Command(id.clone()).of(device);
    let reply_topic = Topic::CommandReply(id.clone()).of(device);
    operator.subscribe(&reply_topic)?;
    let command = Command { action, expires_ms };
    operator.publish(&topic, serde_json::to_vec(&command)?, true)?;
    let (mut outcome, until) = (CommandOutcome::Silent, Instant::now() + wait);
    while outcome == CommandOutcome::Silent && Instant::now() < until {
        let left = until.saturating_duration_since(Instant::now());
        if let Some(heard) = operator.next(left)?
            && heard.topic == reply_topic
            && let Ok(reply) = serde_json::from_slice::<CommandReply>(&heard.payload)
            && reply.state != CommandState::Running
        {
            outcome = CommandOutcome::Replied(reply);
        }
    }
    operator.publish(&topic, Vec::new(), true)?;
    operator.settle()?;
    Ok(outcome)
}
