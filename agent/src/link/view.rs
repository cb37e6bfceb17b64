use std::fmt;
use std::time::Instant;

use super::DisconnectReason;

/// The link as others see it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LinkView {
    /// What it is doing.
    pub state: LinkState,
    /// What needs somebody's attention, each kind at most once.
    pub alarms: Vec<Alarm>,
    /// What has happened since the start.
    pub counters: Counters,
}

/// What the link is doing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum LinkState {
    /// Not begun.
    #[default]
    Starting,
    /// An attempt is under way.
    Connecting {
        /// Which one since the last success, from 1.
        attempt: u32,
    },
    /// The broker has accepted.
    Connected {
        /// When.
        since: Instant,
        /// Whether the broker still had the session, with what it could not deliver meanwhile.
        session_present: bool,
        /// Whether the broker has answered the subscriptions: from then on nothing published is missed.
        subscribed: bool,
    },
    /// Waiting for the next attempt.
    Disconnected {
        /// Why the last one ended.
        reason: DisconnectReason,
        /// Since when there has been no connection.
        since: Instant,
        /// When the next attempt comes.
        next_try: Instant,
    },
    /// Ended by [`super::Link::stop`].
    Stopped,
}

impl LinkState {
    /// Whether messages can pass.
    pub fn is_connected(&self) -> bool {
        matches!(self, Self::Connected { .. })
    }
}

impl fmt::Display for LinkState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Starting => f.write_str("starting"),
            Self::Connecting { attempt } => write!(f, "connecting (attempt {attempt})"),
            Self::Connected { since, .. } => write!(f, "connected for {} s", since.elapsed().as_secs()),
            Self::Disconnected {
                reason,
                since,
                next_try,
            } => {
                let wait = next_try.saturating_duration_since(Instant::now());
                let (since, wait) = (since.elapsed().as_secs(), wait.as_secs_f64());
                write!(
                    f,
                    "disconnected for {since} s: {reason}; next attempt in {wait:.1} s"
                )
            }
            Self::Stopped => f.write_str("stopped"),
        }
    }
}

/// Something that does not heal by waiting.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Alarm {
    /// Two clients seem to have one id.
    #[error(
        "another client seems to use the client id {client_id:?}: the broker accepts this one and throws it out soon after, again and again; give each device its own name"
    )]
    Takeover {
        /// The id.
        client_id: String,
    },
    /// The broker holds a message that is too large to take.
    #[error(
        "the broker holds a message of {size} bytes for this device; `broker.max_packet` allows {limit}: raise it, or remove the retained message"
    )]
    OversizeInbound {
        /// Bytes of the packet.
        size: usize,
        /// Bytes allowed.
        limit: usize,
    },
    /// The broker refuses subscriptions.
    #[error("the broker refuses the subscription to {}: allow this device to read there", .filters.join(", "))]
    SubscriptionRefused {
        /// Which.
        filters: Vec<String>,
    },
    /// The outbox fails.
    #[error("{0}")]
    Outbox(super::OutboxError),
}

/// What has happened since the link started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Connections that the broker accepted.
    pub connects: u64,
    /// Attempts that failed or connections that ended, other than on request.
    pub failures: u64,
    /// Messages handed to the broker, repetitions included.
    pub published: u64,
    /// Messages that the broker acknowledged.
    pub acknowledged: u64,
    /// Messages from the outbox that can never be sent.
    pub refused: u64,
    /// Messages taken in.
    pub received: u64,
    /// Connections that ended because an inbound message was too large.
    pub oversize_inbound: u64,
}

impl LinkView {
    /// Raises an alarm, in place of one of its kind.
    pub(super) fn raise(&mut self, alarm: Alarm) {
        self.clear(&alarm);
        self.alarms.push(alarm);
    }

    /// Ends alarms of this kind.
    pub(super) fn clear(&mut self, kind: &Alarm) {
        let kind = std::mem::discriminant(kind);
        self.alarms
            .retain(|present| std::mem::discriminant(present) != kind);
    }
}
