/// The largest PUBLISH packet both sides take. Checked before a message is enqueued: the client underneath would accept a
/// larger one and then reconnect without end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketLimit(usize);

/// Why a message can never be sent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Larger than a packet may be.
    #[error("{topic}: a packet of {size} bytes; `broker.max_packet` allows {limit}")]
    Oversize {
        /// The topic.
        topic: String,
        /// Bytes of the whole packet.
        size: usize,
        /// Bytes allowed.
        limit: usize,
    },
    /// The topic cannot be published to.
    #[error("{topic:?} is not a topic to publish to: 1 to 65535 bytes, no `+`, `#` or NUL")]
    Topic {
        /// The topic.
        topic: String,
    },
}

impl PacketLimit {
    /// A limit of that many bytes for the whole packet.
    pub fn new(bytes: usize) -> Self {
        Self(bytes)
    }

    /// The limit in bytes.
    pub fn bytes(self) -> usize {
        self.0
    }

    /// Whether a message of `payload` bytes can be sent to `topic`.
    ///
    /// # Errors
    /// When it never can.
    pub fn check(self, topic: &str, payload: usize) -> Result<(), Refusal> {
        if topic.is_empty() || topic.len() > usize::from(u16::MAX) || topic.contains(['+', '#', '\0']) {
            return Err(Refusal::Topic {
                topic: topic.to_owned(),
            });
        }
        let size = publish_size(topic.len(), payload);
        match size <= self.0 {
            true => Ok(()),
            false => Err(Refusal::Oversize {
                topic: topic.to_owned(),
                size,
                limit: self.0,
            }),
        }
    }
}

/// Bytes of a QoS 1 PUBLISH (MQTT 3.1.1, sections 2.2 and 3.3): type, remaining length, topic with its length, packet id,
/// payload.
fn publish_size(topic: usize, payload: usize) -> usize {
    let remaining = 2 + topic + 2 + payload;
    let length_bytes = match remaining {
        0..=127 => 1,
        128..=16_383 => 2,
        16_384..=2_097_151 => 3,
        _ => 4,
    };
    1 + length_bytes + remaining
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_for_the_whole_packet() {
        let limit = PacketLimit::new(100);
        assert_eq!(limit.check("topic", 100 - 2 - 2 - 5 - 2), Ok(()));
        let refused = limit.check("topic", 90).unwrap_err();
        assert_eq!(
            refused,
            Refusal::Oversize {
                topic: "topic".into(),
                size: 101,
                limit: 100
            }
        );
        assert!(refused.to_string().contains("broker.max_packet"));
        for payload in [117, 118, 119, 16_373, 16_374, 16_375, 3_000_000] {
            assert_eq!(publish_size(5, payload), encoded(5, payload), "{payload}");
        }
    }

    /// The size as the client underneath writes it.
    fn encoded(topic: usize, payload: usize) -> usize {
        let mut packet =
            rumqttc::Publish::new("t".repeat(topic), rumqttc::QoS::AtLeastOnce, vec![0; payload]);
        packet.pkid = 1;
        packet.size()
    }

    #[test]
    fn topics_with_wildcards_are_refused() {
        for topic in ["", "a/+", "#", "a\0"] {
            assert!(
                matches!(PacketLimit::new(1000).check(topic, 1), Err(Refusal::Topic { .. })),
                "{topic:?}"
            );
        }
    }
}
