//! Sequences that were acknowledged before earlier ones were.

use std::collections::BTreeMap;

/// Most separate ranges that are kept. A sender whose window is bounded never gets near it.
const MAX_RANGES: usize = 4096;

/// A set of sequences as ranges: one old record that is never acknowledged costs one range, however many follow it.
#[derive(Debug, Default)]
pub(super) struct Acks {
    /// Start to end (exclusive); neither overlapping nor touching.
    ranges: BTreeMap<u64, u64>,
    total: u64,
}

impl Acks {
    /// Adds a sequence; `false` if it is there already or there is no room to remember it.
    pub(super) fn insert(&mut self, sequence: u64) -> bool {
        let before = self.ranges.range(..=sequence).next_back().map(|(s, e)| (*s, *e));
        if before.is_some_and(|(_, end)| sequence < end) {
            return false;
        }
        let joins_before = before.filter(|(_, end)| *end == sequence);
        let joins_after = self.ranges.get(&(sequence + 1)).copied();
        if joins_before.is_none() && joins_after.is_none() && self.ranges.len() >= MAX_RANGES {
            return false;
        }
        if joins_after.is_some() {
            self.ranges.remove(&(sequence + 1));
        }
        let start = joins_before.map_or(sequence, |(start, _)| start);
        self.ranges.insert(start, joins_after.unwrap_or(sequence + 1));
        self.total += 1;
        true
    }

    pub(super) fn contains(&self, sequence: u64) -> bool {
        let before = self.ranges.range(..=sequence).next_back();
        before.is_some_and(|(_, end)| sequence < *end)
    }

    /// How many sequences are in the set.
    pub(super) fn total(&self) -> u64 {
        self.total
    }

    /// Takes away the range that starts at `cursor`; gives its end.
    pub(super) fn take_at(&mut self, cursor: u64) -> Option<u64> {
        let end = self.ranges.remove(&cursor)?;
        self.total -= end - cursor;
        Some(end)
    }

    /// Takes away everything from `from` up to `to` (exclusive).
    pub(super) fn remove(&mut self, from: u64, to: u64) {
        if from >= to {
            return;
        }
        let touched: Vec<_> = self
            .ranges
            .range(..to)
            .rev()
            .take_while(|(_, end)| **end > from)
            .map(|(start, end)| (*start, *end))
            .collect();
        for (start, end) in touched {
            self.ranges.remove(&start);
            self.total -= end.min(to) - start.max(from);
            if start < from {
                self.ranges.insert(start, from);
            }
            if end > to {
                self.ranges.insert(to, end);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn behaves_like_a_set(operations in prop::collection::vec((0u8..3, 0u64..40, 0u64..12), 1..120)) {
            let (mut acks, mut model) = (Acks::default(), BTreeSet::new());
            for (kind, at, length) in operations {
                match kind {
                    0 => prop_assert_eq!(acks.insert(at), model.insert(at)),
                    1 => {
                        acks.remove(at, at + length);
                        model.retain(|n| !(at..at + length).contains(n));
                    }
                    _ => {
                        let starts = model.contains(&at) && (at == 0 || !model.contains(&(at - 1)));
                        let end = acks.take_at(at);
                        prop_assert_eq!(end.is_some(), starts);
                        if let Some(end) = end {
                            prop_assert!((at..end).all(|n| model.remove(&n)));
                            prop_assert!(!model.contains(&end));
                        }
                    }
                }
                prop_assert_eq!(acks.total(), model.len() as u64);
                prop_assert!((0..60).all(|n| acks.contains(n) == model.contains(&n)));
            }
        }
    }

    #[test]
    fn memory_is_bounded_and_what_is_not_remembered_is_said() {
        let mut acks = Acks::default();
        let kept = (0..10_000).filter(|n| acks.insert(n * 2)).count();
        assert_eq!(kept, MAX_RANGES);
        assert!(acks.insert(1), "joins what is there");
    }
}
