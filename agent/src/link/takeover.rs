use std::time::Duration;

use super::DisconnectReason;

/// Notices that another client uses this client id. A broker allows one connection for an id: whoever comes later throws
/// the earlier out, who comes back, and so on. MQTT 3.1.1 gives no reason, so this goes by the pattern: connections that
/// are accepted and closed by the broker soon after, again and again, with no sign that the broker itself was away.
#[derive(Debug)]
pub(super) struct TakeoverDetector {
    stable: Duration,
    short_lives: u32,
}

impl TakeoverDetector {
    /// Short connections in a row that raise the alarm.
    const SUSPICIOUS: u32 = 3;

    /// A connection shorter than `stable` counts.
    pub(super) fn new(stable: Duration) -> Self {
        Self {
            stable,
            short_lives: 0,
        }
    }

    /// An attempt has ended. Whether a takeover is to be suspected now.
    pub(super) fn ended(&mut self, reason: &DisconnectReason, connected_for: Option<Duration>) -> bool {
        match (reason, connected_for) {
            (DisconnectReason::ClosedByPeer, Some(lasted)) if lasted < self.stable => {
                self.short_lives = self.short_lives.saturating_add(1);
            }
            _ => self.short_lives = 0,
        }
        self.short_lives >= Self::SUSPICIOUS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_lives_in_a_row_are_suspicious_and_a_broker_that_was_away_is_not() {
        let mut detector = TakeoverDetector::new(Duration::from_secs(120));
        let short = Some(Duration::from_secs(3));
        let unreachable = DisconnectReason::Unreachable("refused".into());
        for (reason, lasted, suspected) in [
            (&DisconnectReason::ClosedByPeer, short, false),
            (&DisconnectReason::ClosedByPeer, short, false),
            (&unreachable, None, false),
            (&DisconnectReason::ClosedByPeer, short, false),
            (&DisconnectReason::ClosedByPeer, short, false),
            (&DisconnectReason::ClosedByPeer, short, true),
            (
                &DisconnectReason::ClosedByPeer,
                Some(Duration::from_secs(500)),
                false,
            ),
        ] {
            assert_eq!(detector.ended(reason, lasted), suspected);
        }
    }
}
