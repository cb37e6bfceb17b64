use super::{DeviceId, InvalidName, SlotName, TopicName};

/// First levels of every topic of this protocol.
const PREFIX: &str = "edgeopt/v1";

/// A topic of one device.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Topic {
    /// What the device should run.
    Desired,
    /// What it runs.
    Reported,
    /// Online or offline; also the device's last will.
    Status,
    /// Inputs for the model in a slot.
    Input(SlotName),
    /// Results of the model in a slot.
    Result(SlotName),
    /// Measurements of one kind; see [`super::Sample`].
    Telemetry(TopicName),
    /// A command; its creator clears it (an empty retained message) after it has seen the end.
    Command(TopicName),
    /// How far a command has come; the device clears it once the command is cleared.
    CommandReply(TopicName),
    /// Asks for chunks of a bundle.
    BlobRequest(TopicName),
    /// Chunks of a bundle.
    BlobChunk(TopicName),
}

/// Who publishes on a topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writer {
    /// The operator, or whatever acts for them.
    Operator,
    /// The device.
    Device,
    /// Whoever has inputs for a model.
    Producer,
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
            Self::CommandReply(id) => format!("command/{id}/reply"),
            Self::BlobRequest(id) => format!("blob/{id}/request"),
            Self::BlobChunk(id) => format!("blob/{id}/chunk"),
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
        let parsed = match tail {
            ["desired"] => Self::Desired,
            ["reported"] => Self::Reported,
            ["status"] => Self::Status,
            ["models", slot, "input"] => Self::Input(slot.parse()?),
            ["models", slot, "result"] => Self::Result(slot.parse()?),
            ["telemetry", kind] => Self::Telemetry(kind.parse()?),
            ["command", id] => Self::Command(id.parse()?),
            ["command", id, "reply"] => Self::CommandReply(id.parse()?),
            ["blob", id, "request"] => Self::BlobRequest(id.parse()?),
            ["blob", id, "chunk"] => Self::BlobChunk(id.parse()?),
            _ => return Err(foreign()),
        };
        Ok((device, parsed))
    }

    /// Whether the broker keeps the last message for those who come later.
    pub fn retained(&self) -> bool {
        matches!(
            self,
            Self::Desired | Self::Reported | Self::Status | Self::Command(_) | Self::CommandReply(_)
        )
    }

    /// Who publishes here. Each topic has one writer, so that nobody overwrites another's word.
    pub fn writer(&self) -> Writer {
        match self {
            Self::Desired | Self::Command(_) | Self::BlobChunk(_) => Writer::Operator,
            Self::Input(_) => Writer::Producer,
            Self::Reported
            | Self::Status
            | Self::Result(_)
            | Self::Telemetry(_)
            | Self::CommandReply(_)
            | Self::BlobRequest(_) => Writer::Device,
        }
    }

    /// What a device subscribes to: every topic of its own that others write.
    pub fn device_filters(device: &DeviceId) -> Vec<String> {
        ["desired", "models/+/input", "command/+", "blob/+/chunk"]
            .iter()
            .map(|tail| format!("{PREFIX}/{device}/{tail}"))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_topic_survives_writing_and_parsing() {
        let device: DeviceId = "line-3.cam_1".parse().unwrap();
        for topic in every_topic() {
            assert_eq!(Topic::parse(&topic.of(&device)), Ok((device.clone(), topic)));
        }
    }

    fn every_topic() -> [Topic; 10] {
        let slot: SlotName = "detector".parse().unwrap();
        let name: TopicName = "42".parse().unwrap();
        [
            Topic::Desired,
            Topic::Reported,
            Topic::Status,
            Topic::Input(slot.clone()),
            Topic::Result(slot),
            Topic::Telemetry(name.clone()),
            Topic::Command(name.clone()),
            Topic::CommandReply(name.clone()),
            Topic::BlobRequest(name.clone()),
            Topic::BlobChunk(name),
        ]
    }

    #[test]
    fn a_device_subscribes_to_what_others_write_and_to_nothing_else() {
        let device: DeviceId = "d".parse().unwrap();
        let filters = Topic::device_filters(&device);
        let matches = |topic: &str| {
            filters.iter().any(|filter| {
                let (filter, topic): (Vec<_>, Vec<_>) =
                    (filter.split('/').collect(), topic.split('/').collect());
                filter.len() == topic.len() && filter.iter().zip(topic).all(|(f, t)| *f == "+" || *f == t)
            })
        };
        for topic in every_topic() {
            assert_eq!(
                matches(&topic.of(&device)),
                topic.writer() != Writer::Device,
                "{topic:?}"
            );
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
