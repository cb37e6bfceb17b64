/// Neighbouring pixels of a row, all above the threshold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) row: usize,
    pub(super) start: usize,
    /// Behind the last.
    pub(super) end: usize,
}

/// The pixels above `threshold` as runs, grouped so that pixels which touch, be it at a corner, are in one group.
pub(super) fn components(map: &[f32], width: usize, threshold: f32) -> Vec<Vec<Run>> {
    let mut runs: Vec<Run> = Vec::new();
    // Each run's group: the place of a run of that group, its own for the group's first.
    let mut parents: Vec<usize> = Vec::new();
    let mut above = 0..0;
    for (row, values) in map.chunks_exact(width.max(1)).enumerate() {
        let begin = runs.len();
        let mut column = 0;
        while let Some(start) = values[column..].iter().position(|value| *value > threshold) {
            let start = column + start;
            let length = values[start..]
                .iter()
                .take_while(|value| **value > threshold)
                .count();
            column = start + length;
            parents.push(runs.len());
            runs.push(Run {
                row,
                start,
                end: column,
            });
        }
        // Both rows' runs from left to right: what ends first cannot touch anything further.
        let (mut upper, mut lower) = (above.start, begin);
        while upper < above.end && lower < runs.len() {
            let (a, b) = (runs[upper], runs[lower]);
            if a.start <= b.end && b.start <= a.end {
                join(&mut parents, upper, lower);
            }
            if a.end < b.end {
                upper += 1;
            } else {
                lower += 1;
            }
        }
        above = begin..runs.len();
    }
    let mut groups: Vec<Vec<Run>> = Vec::new();
    let mut places = vec![None; runs.len()];
    for (run, value) in runs.iter().enumerate() {
        let root = root(&mut parents, run);
        let place = *places[root].get_or_insert_with(|| {
            groups.push(Vec::new());
            groups.len() - 1
        });
        groups[place].push(*value);
    }
    groups
}

fn root(parents: &mut [usize], mut run: usize) -> usize {
    while parents[run] != run {
        parents[run] = parents[parents[run]];
        run = parents[run];
    }
    run
}

fn join(parents: &mut [usize], a: usize, b: usize) {
    let (a, b) = (root(parents, a), root(parents, b));
    parents[a.max(b)] = a.min(b);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// By the definition: every pixel takes the lowest number among its neighbours until nothing changes.
    fn reference(map: &[f32], width: usize) -> Vec<Option<usize>> {
        let height = map.len() / width;
        let mut labels: Vec<Option<usize>> = map
            .iter()
            .enumerate()
            .map(|(place, value)| (*value > 0.5).then_some(place))
            .collect();
        loop {
            let before = labels.clone();
            for (y, x) in (0..height).flat_map(|y| (0..width).map(move |x| (y, x))) {
                let rows = y.saturating_sub(1)..(y + 2).min(height);
                let columns = x.saturating_sub(1)..(x + 2).min(width);
                let lowest = rows
                    .flat_map(|row| columns.clone().map(move |column| row * width + column))
                    .filter_map(|place| labels[place])
                    .min();
                if labels[y * width + x].is_some() {
                    labels[y * width + x] = lowest;
                }
            }
            if labels == before {
                return labels;
            }
        }
    }

    proptest! {
        #[test]
        fn pixels_that_touch_are_together(
            (width, map) in (1..12usize).prop_flat_map(|width| {
                (Just(width), prop::collection::vec(prop::bool::ANY, width * 9))
            })
        ) {
            let map: Vec<f32> = map.into_iter().map(|on| if on { 0.9 } else { 0.1 }).collect();
            let mut labels = vec![None; map.len()];
            for runs in components(&map, width, 0.5) {
                let pixels = runs.iter().flat_map(|run| (run.start..run.end).map(|x| run.row * width + x));
                let first = pixels.clone().min();
                for pixel in pixels {
                    prop_assert!(labels[pixel].is_none());
                    labels[pixel] = first;
                }
            }
            prop_assert_eq!(labels, reference(&map, width));
        }
    }
}
