//! From answers to messages.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, UNIX_EPOCH};

use super::mail::Mail;
use super::quiet::Quiet;
use crate::clock::since_boot;
use crate::link::{WallClock, is_set};
use crate::protocol::{DeviceId, Encoding, Prediction, ResultMessage, SlotName, Topic};
use crate::serve::Answer;
use crate::spool::SpoolError;

/// Publishes a slot's answers. Clones share the count.
#[derive(Clone)]
pub(crate) struct Results {
    shared: Arc<Shared>,
}

struct Shared {
    mail: Mail,
    slot: SlotName,
    topic: String,
    encoding: Encoding,
    /// Distinguishes this start of the daemon from all others.
    instance: String,
    count: Arc<AtomicU64>,
    wall: Arc<dyn WallClock>,
    quiet: Quiet,
}

impl fmt::Debug for Results {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Results")
            .field("slot", &self.shared.slot)
            .finish_non_exhaustive()
    }
}

/// When an input came in, by both clocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrival {
    pub(crate) instant: Instant,
    wall_ms: Option<u64>,
    monotonic: Duration,
}

impl Results {
    pub(super) fn new(
        mail: Mail,
        device: &DeviceId,
        slot: &SlotName,
        encoding: Encoding,
        instance: &str,
        count: Arc<AtomicU64>,
        wall: Arc<dyn WallClock>,
    ) -> Self {
        Self {
            shared: Arc::new(Shared {
                mail,
                slot: slot.clone(),
                topic: Topic::Result(slot.clone()).of(device),
                encoding,
                instance: instance.to_owned(),
                count,
                wall,
                quiet: Quiet::default(),
            }),
        }
    }

    /// Notes that an input comes in now.
    pub(crate) fn arrival(&self) -> Arrival {
        Arrival {
            instant: Instant::now(),
            wall_ms: wall_ms(self.shared.wall.as_ref()),
            monotonic: since_boot(),
        }
    }

    /// When something happened that is known by the monotonic clock.
    pub(crate) fn arrived(&self, instant: Instant) -> Arrival {
        let ago = instant.elapsed();
        let now = self.arrival();
        Arrival {
            instant,
            wall_ms: now
                .wall_ms
                .map(|now| now.saturating_sub(u64::try_from(ago.as_millis()).unwrap_or(u64::MAX))),
            monotonic: now.monotonic.saturating_sub(ago),
        }
    }

    /// The message for an answer, and whether it waits for the broker now.
    pub(crate) fn publish(
        &self,
        stream: &str,
        arrival: &Arrival,
        answer: Answer,
    ) -> (ResultMessage<Prediction>, bool) {
        let shared = &self.shared;
        let number = shared.count.fetch_add(1, Ordering::Relaxed);
        let message = ResultMessage {
            id: format!("{}-{number}", shared.instance),
            stream: stream.to_owned(),
            model: answer.model,
            version: answer.version,
            wall_ms: arrival.wall_ms,
            monotonic_us: u64::try_from(arrival.monotonic.as_micros()).unwrap_or(u64::MAX),
            sequence: answer.sequence,
            latency_ms: answer.latency_ms,
            prediction: answer.prediction,
        };
        let kept = shared.mail.keep_result(&shared.topic, &message, shared.encoding);
        tracing::debug!(
            id = message.id,
            stream,
            latency_ms = message.latency_ms,
            "answered"
        );
        if let Err(error) = &kept {
            let problem = format!("slot {}: result {} is lost: {error}", shared.slot, message.id);
            shared.quiet.warn("results", &problem);
        }
        (message, kept.is_ok())
    }

    /// Makes what was published survive a power cut.
    pub(crate) fn sync(&self) -> Result<(), SpoolError> {
        self.shared.mail.sync()
    }
}

/// Milliseconds since 1970, if the clock has been set.
pub(super) fn wall_ms(wall: &dyn WallClock) -> Option<u64> {
    let since = is_set(wall)
        .then(|| wall.now().duration_since(UNIX_EPOCH).ok())
        .flatten()?;
    u64::try_from(since.as_millis()).ok()
}
