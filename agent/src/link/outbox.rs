use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{PacketLimit, Refusal};

/// A message that waits for the broker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outgoing {
    /// Its place in the outbox; grows with each message.
    pub sequence: u64,
    /// Full topic.
    pub topic: String,
    /// Content.
    pub payload: Vec<u8>,
    /// Whether the broker is to keep it.
    pub retain: bool,
}

/// The outbox could not be read or written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("outbox: {0}")]
pub struct OutboxError(pub String);

/// Messages that wait for the broker, in order. The link reads ahead as far as its window allows; a message stays until
/// [`Outbox::acknowledged`] or [`Outbox::refused`] names it. After a reconnect the link begins again at the oldest.
///
/// It is called on the link's thread, where it should not take longer than a read from disk.
pub trait Outbox: Send {
    /// Up to `max` messages with a sequence above `after` (from the oldest, if `None`), in order. Empty: none for now;
    /// whoever adds one calls [`super::Nudge::outbox_changed`].
    ///
    /// # Errors
    /// When it cannot be read. The link raises an alarm, stays connected and tries again.
    fn next(&mut self, after: Option<u64>, max: usize) -> Result<Vec<Outgoing>, OutboxError>;

    /// The broker has this message. Acknowledgements may come out of order, and for messages that are gone already
    /// (dropped because the outbox was full): those change nothing.
    ///
    /// # Errors
    /// When it cannot be noted. The message may then be sent again.
    fn acknowledged(&mut self, sequence: u64) -> Result<(), OutboxError>;

    /// This message can never be sent; it must not be offered again.
    ///
    /// # Errors
    /// When it cannot be noted.
    fn refused(&mut self, sequence: u64, why: &Refusal) -> Result<(), OutboxError>;
}

/// An outbox in memory, bounded; what comes when it is full pushes the oldest out. Clones share the content: one goes to
/// the link, others to producers.
#[derive(Clone, Debug)]
pub struct MemoryOutbox {
    shared: Arc<Mutex<Content>>,
    limit: PacketLimit,
    capacity: usize,
}

#[derive(Debug, Default)]
struct Content {
    waiting: VecDeque<Outgoing>,
    next_sequence: u64,
    dropped: u64,
    refused: u64,
}

impl MemoryOutbox {
    /// Holds at most `capacity` messages, each within `limit`.
    pub fn new(capacity: usize, limit: PacketLimit) -> Self {
        Self {
            shared: Arc::default(),
            limit,
            capacity: capacity.max(1),
        }
    }

    // A panic elsewhere cannot leave the queue half-changed: each change is one call.
    fn content(&self) -> MutexGuard<'_, Content> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a message and returns its sequence.
    ///
    /// # Errors
    /// When it could never be sent; counted in [`MemoryOutbox::refused_count`].
    pub fn push(&self, topic: String, payload: Vec<u8>, retain: bool) -> Result<u64, Refusal> {
        let mut content = self.content();
        if let Err(refusal) = self.limit.check(&topic, payload.len()) {
            content.refused += 1;
            return Err(refusal);
        }
        if content.waiting.len() >= self.capacity {
            content.waiting.pop_front();
            content.dropped += 1;
        }
        let sequence = content.next_sequence;
        content.next_sequence += 1;
        content.waiting.push_back(Outgoing {
            sequence,
            topic,
            payload,
            retain,
        });
        Ok(sequence)
    }

    /// Messages that wait.
    pub fn len(&self) -> usize {
        self.content().waiting.len()
    }

    /// Whether none waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Messages pushed out because it was full.
    pub fn dropped_count(&self) -> u64 {
        self.content().dropped
    }

    /// Messages that could never be sent.
    pub fn refused_count(&self) -> u64 {
        self.content().refused
    }
}

impl Outbox for MemoryOutbox {
    fn next(&mut self, after: Option<u64>, max: usize) -> Result<Vec<Outgoing>, OutboxError> {
        let content = self.content();
        let waiting = content.waiting.iter();
        Ok(waiting
            .filter(|message| Some(message.sequence) > after)
            .take(max)
            .cloned()
            .collect())
    }

    fn acknowledged(&mut self, sequence: u64) -> Result<(), OutboxError> {
        self.content()
            .waiting
            .retain(|message| message.sequence != sequence);
        Ok(())
    }

    fn refused(&mut self, sequence: u64, _why: &Refusal) -> Result<(), OutboxError> {
        let mut content = self.content();
        content.waiting.retain(|message| message.sequence != sequence);
        content.refused += 1;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sequences(outbox: &mut MemoryOutbox, after: Option<u64>, max: usize) -> Vec<u64> {
        outbox
            .next(after, max)
            .unwrap()
            .iter()
            .map(|message| message.sequence)
            .collect()
    }

    #[test]
    fn messages_stay_until_each_is_acknowledged() {
        let mut outbox = MemoryOutbox::new(10, PacketLimit::new(1000));
        for _ in 0..4 {
            outbox.push("t".into(), vec![1], false).unwrap();
        }
        assert_eq!(sequences(&mut outbox, None, 3), [0, 1, 2]);
        assert_eq!(sequences(&mut outbox, Some(1), 3), [2, 3]);
        outbox.acknowledged(1).unwrap();
        outbox.acknowledged(77).unwrap();
        assert_eq!(sequences(&mut outbox, None, 9), [0, 2, 3]);
    }

    #[test]
    fn when_full_the_oldest_gives_way_and_is_counted() {
        let mut outbox = MemoryOutbox::new(2, PacketLimit::new(20));
        for _ in 0..5 {
            outbox.push("t".into(), vec![1], false).unwrap();
        }
        assert_eq!(sequences(&mut outbox, None, 9), [3, 4]);
        assert_eq!(outbox.dropped_count(), 3);
        assert!(outbox.push("t".into(), vec![0; 100], false).is_err());
        assert_eq!((outbox.refused_count(), outbox.len()), (1, 2));
    }
}
