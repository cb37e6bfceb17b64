//! Which devices there are, and what they run.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::{Operator, OperatorError};
use crate::protocol::{DesiredState, DeviceId, ReportedState, Status, Topic};

/// A device as the broker knows it.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize)]
pub struct DeviceView {
    /// Whether it is there; `None` if it never said.
    pub status: Option<Status>,
    /// What it runs.
    pub reported: Option<ReportedState>,
    /// What it should run.
    pub desired: Option<DesiredState>,
}

impl DeviceView {
    /// Whether it is connected.
    pub fn is_online(&self) -> bool {
        self.status.as_ref().is_some_and(|status| status.online)
    }

    /// Takes a message about it; `false` if it is none, or makes no sense.
    pub(super) fn take(&mut self, topic: &Topic, payload: &[u8]) -> bool {
        fn read<T: serde::de::DeserializeOwned>(payload: &[u8], place: &mut Option<T>) -> bool {
            let read = serde_json::from_slice(payload).ok();
            let understood = read.is_some();
            if payload.is_empty() || understood {
                *place = read;
            }
            understood
        }
        match topic {
            Topic::Status => read(payload, &mut self.status),
            Topic::Reported => read(payload, &mut self.reported),
            Topic::Desired => read(payload, &mut self.desired),
            _ => false,
        }
    }
}

/// Asks for what a [`DeviceView`] is made of: about `device`, or about all.
pub(super) fn subscribe(operator: &mut Operator, device: Option<&DeviceId>) -> Result<(), OperatorError> {
    let device = device.map_or("+", DeviceId::as_str);
    for leaf in ["status", "reported", "desired"] {
        operator.subscribe(&format!("edgeopt/v1/{device}/{leaf}"))?;
    }
    Ok(())
}

/// Collects what the broker keeps about `device`, or about all: until nothing has come for `quiet`. Messages
/// of other kinds are dropped meanwhile: not to be used while devices wait for something.
///
/// # Errors
/// When the broker refuses or is gone.
pub fn survey(
    operator: &mut Operator,
    device: Option<&DeviceId>,
    quiet: Duration,
) -> Result<BTreeMap<DeviceId, DeviceView>, OperatorError> {
    subscribe(operator, device)?;
    let mut views: BTreeMap<DeviceId, DeviceView> = BTreeMap::new();
    let mut heard_at = Instant::now();
    while heard_at.elapsed() < quiet {
        if let Some(heard) = operator.next(quiet.saturating_sub(heard_at.elapsed()))?
            && let Ok((device, topic)) = Topic::parse(&heard.topic)
            && views.entry(device).or_default().take(&topic, &heard.payload)
            && heard.retained
        {
            heard_at = Instant::now();
        }
    }
    Ok(views)
}
