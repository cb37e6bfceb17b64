use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// First levels of every topic of this protocol.
const PREFIX: &str = "edgeopt/v1";

/// Longest device, slot or command name, in bytes.
const MAX_NAME: usize = 64;

/// A name that cannot be a level of an MQTT topic here.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} {name:?} is not valid: use 1 to {MAX_NAME} ASCII letters, digits, `-`, `_` or `.`")]
pub struct InvalidName {
    what: &'static str,
    name: String,
}

macro_rules! name_type {
    ($(#[$doc:meta])* $type:ident, $what:literal) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $type(String);

        impl $type {
            /// The name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl TryFrom<String> for $type {
            type Error = InvalidName;
            fn try_from(name: String) -> Result<Self, InvalidName> {
                let allowed = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'-' | b'_' | b'.');
                if name.is_empty() || name.len() > MAX_NAME || !name.bytes().all(allowed) {
                    return Err(InvalidName { what: $what, name });
                }
                Ok(Self(name))
            }
        }

        impl FromStr for $type {
            type Err = InvalidName;
            fn from_str(name: &str) -> Result<Self, InvalidName> {
                name.to_owned().try_into()
            }
        }

        impl From<$type> for String {
            fn from(name: $type) -> String {
                name.0
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&self.0)
            }
        }
    };
}

name_type!(
    /// Identifies a device in the fleet; also its MQTT client id.
    DeviceId,
    "device"
);
name_type!(
    /// Names the place on a device that one model occupies, such as `detector`.
    SlotName,
    "slot"
);

/// A topic of one device.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Topic {
    /// Retained: what the device should run. Operator → device.
    Desired,
    /// Retained: what it runs. Device → operator.
    Reported,
    /// Retained, and the device's last will: online or offline.
    Status,
    /// Inputs for the model in a slot.
    Input(SlotName),
    /// Results of the model in a slot.
    Result(SlotName),
    /// Measurements of one kind: `memory`, `power`, `temperature`, `latency`.
    Telemetry(String),
    /// One command and its state.
    Command(String),
    /// Chunks of a file the device asked for.
    Blob(String),
}

/// Why a topic is not of this protocol.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseTopicError {
    /// It lies outside the protocol's tree, or has no such branch.
    #[error("{0:?} is not a topic of {PREFIX}/<device>/…")]
    Foreign(String),
    /// A level is not a valid name.
    #[error(transparent)]
    Name(#[from] InvalidName),
}

impl Topic {
    /// The full topic for `device`.
    pub fn of(&self, device: &DeviceId) -> String {
        let tail = match self {
            Self::Desired => "desired".to_owned(),
            Self::Reported => "reported".to_owned(),
            Self::Status => "status".to_owned(),
            Self::Input(slot) => format!("models/{slot}/input"),
            Self::Result(slot) => format!("models/{slot}/result"),
            Self::Telemetry(kind) => format!("telemetry/{kind}"),
            Self::Command(id) => format!("command/{id}"),
            Self::Blob(id) => format!("blob/{id}"),
        };
        format!("{PREFIX}/{device}/{tail}")
    }

    /// Takes a full topic apart.
    ///
    /// # Errors
    /// When it is not of this protocol.
    pub fn parse(topic: &str) -> Result<(DeviceId, Self), ParseTopicError> {
        let foreign = || ParseTopicError::Foreign(topic.to_owned());
        let rest = topic
            .strip_prefix(PREFIX)
            .and_then(|rest| rest.strip_prefix('/'))
            .ok_or_else(foreign)?;
        let levels: Vec<&str> = rest.split('/').collect();
        let (device, tail) = levels.split_first().ok_or_else(foreign)?;
        let device = device.parse()?;
        // Kinds and ids follow the same rule as slot names.
        let level = |name: &str| name.parse::<SlotName>().map(String::from);
        let parsed = match tail {
            ["desired"] => Self::Desired,
            ["reported"] => Self::Reported,
            ["status"] => Self::Status,
            ["models", slot, "input"] => Self::Input(slot.parse()?),
            ["models", slot, "result"] => Self::Result(slot.parse()?),
            ["telemetry", kind] => Self::Telemetry(level(kind)?),
            ["command", id] => Self::Command(level(id)?),
            ["blob", id] => Self::Blob(level(id)?),
            _ => return Err(foreign()),
        };
        Ok((device, parsed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_topic_survives_writing_and_parsing() {
        let device: DeviceId = "line-3.cam_1".parse().unwrap();
        let slot: SlotName = "detector".parse().unwrap();
        for topic in [
            Topic::Desired,
            Topic::Reported,
            Topic::Status,
            Topic::Input(slot.clone()),
            Topic::Result(slot),
            Topic::Telemetry("power".into()),
            Topic::Command("42".into()),
            Topic::Blob("a1".into()),
        ] {
            assert_eq!(Topic::parse(&topic.of(&device)), Ok((device.clone(), topic)));
        }
    }

    #[test]
    fn names_that_would_change_a_topic_are_refused() {
        for bad in ["", "a/b", "+", "#", "caméra", "a b", "\0", &"x".repeat(65)] {
            assert!(bad.parse::<DeviceId>().is_err(), "{bad:?}");
        }
        for foreign in [
            "edgeopt/v2/d/status",
            "edgeopt/v1",
            "edgeopt/v1/d",
            "edgeopt/v1/d/models/s/other",
            "x",
        ] {
            assert!(Topic::parse(foreign).is_err(), "{foreign}");
        }
    }
}
