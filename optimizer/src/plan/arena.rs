//! Offsets in one arena: greedy by size (Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net
//! Inference", 2020). The largest buffer is placed first; each next one into the smallest gap between those that
//! live at the same time, or behind them.

use edgeopt_models::Bytes;

/// A buffer to place: when it lives (steps, both ends included) and how large it is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Interval {
    pub(super) first: usize,
    pub(super) last: usize,
    pub(super) size: Bytes,
}

impl Interval {
    pub(super) fn overlaps(&self, other: &Self) -> bool {
        self.first <= other.last && other.first <= self.last
    }
}

/// An offset for every interval, and the size of the arena.
pub(super) fn place(intervals: &[Interval]) -> (Vec<Bytes>, Bytes) {
    let mut order: Vec<usize> = (0..intervals.len()).collect();
    order.sort_by_key(|index| {
        let interval = intervals[*index];
        (std::cmp::Reverse(interval.size), interval.first)
    });
    let mut offsets = vec![Bytes::ZERO; intervals.len()];
    // Placed so far, by offset.
    let mut placed: Vec<usize> = Vec::with_capacity(intervals.len());
    let mut peak = Bytes::ZERO;
    for index in order {
        let interval = intervals[index];
        let mut best: Option<(Bytes, Bytes)> = None;
        let mut end = Bytes::ZERO;
        for other in placed
            .iter()
            .copied()
            .filter(|other| intervals[*other].overlaps(&interval))
        {
            let offset = offsets[other];
            if offset >= end + interval.size {
                let gap = offset - end;
                if best.is_none_or(|(smallest, _)| gap < smallest) {
                    best = Some((gap, end));
                }
            }
            end = end.max(offset + intervals[other].size);
        }
        let offset = best.map_or(end, |(_, offset)| offset);
        offsets[index] = offset;
        peak = peak.max(offset + interval.size);
        let at = placed.partition_point(|other| offsets[*other] <= offset);
        placed.insert(at, index);
    }
    (offsets, peak)
}
