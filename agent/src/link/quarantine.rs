use std::time::{Duration, Instant};

use super::DisconnectReason;

/// What to do about an inbound message that is larger than `broker.max_packet`. The broker keeps offering it, and each
/// offer ends the connection before anything is known about the message but its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuarantinePolicy {
    /// Times it is met before the broker's queue for this device is emptied.
    pub strikes: u32,
    /// How long nothing is subscribed to if it comes back even then (it is retained). Results go out meanwhile.
    pub hold: Duration,
    /// A connection that lasted this long shows that the message is gone.
    pub settled: Duration,
}

impl Default for QuarantinePolicy {
    fn default() -> Self {
        Self {
            strikes: 3,
            hold: Duration::from_secs(600),
            settled: Duration::from_secs(30),
        }
    }
}

/// How the next connection is to be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Plan {
    /// As always: the broker keeps the session.
    Usual,
    /// Only to make the broker forget the session with its queue; ends at once.
    Purge,
    /// Without subscriptions, so that nothing can come in, until then.
    Deaf {
        /// End of the hold.
        until: Instant,
    },
}

#[derive(Debug)]
pub(super) struct Quarantine {
    policy: QuarantinePolicy,
    strikes: u32,
    purged: bool,
    plan: Plan,
}

impl Quarantine {
    pub(super) fn new(policy: QuarantinePolicy) -> Self {
        Self {
            policy,
            strikes: 0,
            purged: false,
            plan: Plan::Usual,
        }
    }

    pub(super) fn plan(&self) -> Plan {
        self.plan
    }

    /// Whether the message has been met so often that somebody should know.
    pub(super) fn alarming(&self) -> bool {
        self.strikes >= self.policy.strikes
    }

    /// A connection lasts: called from time to time.
    pub(super) fn lasting(&mut self, connected_for: Duration) {
        if self.plan == Plan::Usual && connected_for >= self.policy.settled {
            (self.strikes, self.purged) = (0, false);
        }
    }

    /// An attempt has ended.
    pub(super) fn ended(&mut self, reason: &DisconnectReason, now: Instant) {
        self.plan = match (self.plan, reason) {
            (Plan::Usual, DisconnectReason::OversizeInbound { .. }) => {
                self.strikes = self.strikes.saturating_add(1);
                match (self.alarming(), self.purged) {
                    (false, _) => Plan::Usual,
                    (true, false) => Plan::Purge,
                    (true, true) => Plan::Deaf {
                        until: now + self.policy.hold,
                    },
                }
            }
            (Plan::Purge, DisconnectReason::Purged) => {
                self.purged = true;
                Plan::Usual
            }
            (Plan::Deaf { until }, _) if now >= until => Plan::Usual,
            (plan, _) => plan,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OVERSIZE: DisconnectReason = DisconnectReason::OversizeInbound { size: 9, limit: 1 };
    const POLICY: QuarantinePolicy = QuarantinePolicy {
        strikes: 3,
        hold: Duration::from_secs(600),
        settled: Duration::from_secs(30),
    };

    #[test]
    fn a_queued_message_is_purged_after_the_strikes_and_the_alarm_ends_when_it_is_gone() {
        let now = Instant::now();
        let mut quarantine = Quarantine::new(POLICY);
        for _ in 0..2 {
            quarantine.ended(&OVERSIZE, now);
            assert_eq!((quarantine.plan(), quarantine.alarming()), (Plan::Usual, false));
        }
        quarantine.ended(&OVERSIZE, now);
        assert_eq!((quarantine.plan(), quarantine.alarming()), (Plan::Purge, true));
        quarantine.ended(&DisconnectReason::ClosedByPeer, now);
        assert_eq!(
            quarantine.plan(),
            Plan::Purge,
            "a purge that did not get through is tried again"
        );
        quarantine.ended(&DisconnectReason::Purged, now);
        quarantine.lasting(Duration::from_secs(29));
        assert!(quarantine.alarming());
        quarantine.lasting(Duration::from_secs(30));
        assert!(!quarantine.alarming());
    }

    #[test]
    fn a_retained_message_leads_to_a_hold_and_one_look_after_it() {
        let now = Instant::now();
        let mut quarantine = Quarantine::new(POLICY);
        for reason in [OVERSIZE, OVERSIZE, OVERSIZE, DisconnectReason::Purged, OVERSIZE] {
            quarantine.ended(&reason, now);
        }
        let until = now + POLICY.hold;
        assert_eq!(quarantine.plan(), Plan::Deaf { until });
        quarantine.lasting(Duration::from_secs(500));
        quarantine.ended(&DisconnectReason::ClosedByPeer, now + Duration::from_secs(10));
        assert_eq!(
            quarantine.plan(),
            Plan::Deaf { until },
            "a broken connection does not end the hold"
        );
        quarantine.ended(&DisconnectReason::HoldOver, until);
        assert_eq!(quarantine.plan(), Plan::Usual);
        quarantine.ended(&OVERSIZE, until);
        assert_eq!(
            quarantine.plan(),
            Plan::Deaf {
                until: until + POLICY.hold
            }
        );
    }
}
