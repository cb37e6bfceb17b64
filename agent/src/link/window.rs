use std::collections::{BTreeMap, HashMap};
use std::time::Instant;

/// What a packet in flight carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ticket {
    /// The outbox's message of this sequence.
    Record(u64),
    /// The link's own `status`.
    Status,
}

/// What the client did cannot be matched with what it was asked to do. The connection has to be given up: a wrong match
/// would delete a message that the broker does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("packet {0} was sent or acknowledged out of turn")]
pub(super) struct Uncorrelated(pub(super) u16);

/// Packets between publishing and acknowledgement, of one connection.
///
/// Its width counts from the *oldest* unacknowledged packet to the newest, not the packets between that are still open:
/// the client reuses packet ids in a cycle, and a packet whose acknowledgement is late must never meet its own id again.
#[derive(Debug)]
pub(super) struct Window {
    width: u64,
    /// By order of publishing.
    open: BTreeMap<u64, (Ticket, Instant)>,
    /// Order by packet id, once the client has chosen one.
    ids: HashMap<u16, u64>,
    next_order: u64,
    next_to_send: u64,
}

impl Window {
    pub(super) fn new(width: usize) -> Self {
        Self {
            width: width as u64,
            open: BTreeMap::new(),
            ids: HashMap::new(),
            next_order: 0,
            next_to_send: 0,
        }
    }

    /// How many more may be published now.
    pub(super) fn room(&self) -> usize {
        let oldest = self
            .open
            .first_key_value()
            .map_or(self.next_order, |(order, _)| *order);
        usize::try_from(self.width.saturating_sub(self.next_order - oldest)).unwrap_or(0)
    }

    /// A message was handed to the client.
    pub(super) fn submitted(&mut self, ticket: Ticket, now: Instant) {
        self.open.insert(self.next_order, (ticket, now));
        self.next_order += 1;
    }

    /// The client has sent the oldest message that it had not, under this id.
    pub(super) fn sent(&mut self, id: u16) -> Result<(), Uncorrelated> {
        if self.next_to_send >= self.next_order || self.ids.insert(id, self.next_to_send).is_some() {
            return Err(Uncorrelated(id));
        }
        self.next_to_send += 1;
        Ok(())
    }

    /// The broker has acknowledged this id.
    pub(super) fn acknowledged(&mut self, id: u16) -> Result<Ticket, Uncorrelated> {
        let order = self.ids.remove(&id).ok_or(Uncorrelated(id))?;
        self.open
            .remove(&order)
            .map(|(ticket, _)| ticket)
            .ok_or(Uncorrelated(id))
    }

    /// Since when the oldest open packet has been waiting.
    pub(super) fn oldest_since(&self) -> Option<Instant> {
        self.open.first_key_value().map(|(_, (_, since))| *since)
    }

    /// Whether everything published was acknowledged.
    pub(super) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(width: usize, submitted: u64) -> Window {
        let mut window = Window::new(width);
        for sequence in 0..submitted {
            window.submitted(Ticket::Record(sequence), Instant::now());
        }
        window
    }

    #[test]
    fn acknowledgements_find_their_own_record_whatever_their_order() {
        let mut window = window(4, 3);
        for id in [7, 8, 9] {
            window.sent(id).unwrap();
        }
        assert_eq!(window.acknowledged(9), Ok(Ticket::Record(2)));
        assert_eq!(window.acknowledged(7), Ok(Ticket::Record(0)));
        assert_eq!(window.acknowledged(7), Err(Uncorrelated(7)));
        assert_eq!(window.acknowledged(8), Ok(Ticket::Record(1)));
        assert!(window.is_empty());
    }

    #[test]
    fn a_late_acknowledgement_holds_the_window_although_others_are_done() {
        let mut window = window(4, 4);
        for id in 1..=4 {
            window.sent(id).unwrap();
        }
        assert_eq!(window.room(), 0);
        for id in 2..=4 {
            window.acknowledged(id).unwrap();
        }
        assert_eq!(window.room(), 0);
        window.acknowledged(1).unwrap();
        assert_eq!(window.room(), 4);
    }

    #[test]
    fn ids_that_do_not_fit_are_noticed() {
        let mut window = window(4, 2);
        window.sent(1).unwrap();
        assert_eq!(window.sent(1), Err(Uncorrelated(1)));
        let mut empty = Window::new(4);
        assert_eq!(empty.sent(1), Err(Uncorrelated(1)));
        assert_eq!(empty.acknowledged(1), Err(Uncorrelated(1)));
    }
}
