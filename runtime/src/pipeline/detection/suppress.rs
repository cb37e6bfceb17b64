use super::Candidate;

/// The `most` best candidates, best first; of two of one class whose intersection over union is above `iou`, only the
/// better one (greedy non-maximum suppression). Among equal scores the earlier one is the better. Takes at most
/// candidates × `most` comparisons.
pub fn suppress(mut candidates: Vec<Candidate>, iou: Option<f32>, most: usize) -> Vec<Candidate> {
    candidates.sort_by(|a, b| b.score.total_cmp(&a.score));
    let Some(iou) = iou else {
        candidates.truncate(most);
        return candidates;
    };
    let mut kept: Vec<Candidate> = Vec::new();
    for candidate in candidates {
        if kept.len() >= most {
            break;
        }
        let doubles =
            |other: &Candidate| other.class == candidate.class && other.bounds.iou(&candidate.bounds) > iou;
        if !kept.iter().any(doubles) {
            kept.push(candidate);
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::pipeline::detection::Bounds;

    /// Boxes on a coarse grid, so that many overlap, some exactly, with few different scores, so that some are equal.
    fn candidates() -> impl Strategy<Value = Vec<Candidate>> {
        let one = (0..20u8, 0..20u8, 1..12u8, 1..12u8, 0..8u8, 0..3usize);
        let one = one.prop_map(|(x, y, width, height, score, class)| Candidate {
            bounds: Bounds {
                left: f32::from(x),
                top: f32::from(y),
                right: f32::from(x + width),
                bottom: f32::from(y + height),
            },
            score: f32::from(score) / 8.0,
            class,
        });
        prop::collection::vec(one, 0..60)
    }

    /// Pixels in both boxes ÷ pixels in either.
    fn counted_iou(a: &Bounds, b: &Bounds) -> f32 {
        let inside = |bounds: &Bounds, x: f32, y: f32| {
            (bounds.left..bounds.right).contains(&x) && (bounds.top..bounds.bottom).contains(&y)
        };
        let (mut both, mut either) = (0u32, 0u32);
        for (x, y) in (0..40).flat_map(|x| (0..40).map(move |y| (x as f32 + 0.5, y as f32 + 0.5))) {
            both += u32::from(inside(a, x, y) && inside(b, x, y));
            either += u32::from(inside(a, x, y) || inside(b, x, y));
        }
        both as f32 / either as f32
    }

    /// By the definition: take the best that is left, strike what overlaps it, until nothing is left.
    fn reference(mut left: Vec<Candidate>, iou: f32) -> Vec<Candidate> {
        let mut kept = Vec::new();
        while !left.is_empty() {
            let mut best = 0;
            for (place, candidate) in left.iter().enumerate() {
                if candidate.score > left[best].score {
                    best = place;
                }
            }
            let taken = left.remove(best);
            left.retain(|other| {
                other.class != taken.class || counted_iou(&other.bounds, &taken.bounds) <= iou
            });
            kept.push(taken);
        }
        kept
    }

    proptest! {
        #[test]
        fn it_keeps_what_the_definition_keeps(found in candidates(), iou in 0.05f32..0.95) {
            prop_assert_eq!(suppress(found.clone(), Some(iou), usize::MAX), reference(found, iou));
        }

        #[test]
        fn what_is_kept_does_not_overlap_and_what_is_dropped_does(
            found in candidates(), iou in 0.05f32..0.95, most in 0..20usize
        ) {
            let all = suppress(found.clone(), Some(iou), usize::MAX);
            prop_assert!(all.windows(2).all(|pair| pair[0].score >= pair[1].score));
            for (i, a) in all.iter().enumerate() {
                prop_assert!(found.contains(a));
                prop_assert!(all[..i].iter().all(|b| a.class != b.class || a.bounds.iou(&b.bounds) <= iou));
            }
            for a in found.iter().filter(|a| !all.contains(a)) {
                let better = |b: &&Candidate| b.class == a.class && b.score >= a.score;
                let overlap = all.iter().filter(better).map(|b| a.bounds.iou(&b.bounds));
                prop_assert!(overlap.fold(0.0, f32::max) > iou);
            }
            // A limit takes the beginning, a second pass nothing.
            prop_assert_eq!(&suppress(found, Some(iou), most)[..], &all[..most.min(all.len())]);
            prop_assert_eq!(suppress(all.clone(), Some(iou), usize::MAX), all);
        }

        #[test]
        fn overlap_is_the_share_of_common_pixels(found in candidates()) {
            for pair in found.windows(2) {
                let (a, b) = (&pair[0].bounds, &pair[1].bounds);
                prop_assert!((a.iou(b) - counted_iou(a, b)).abs() < 1e-5);
                prop_assert_eq!(a.iou(b), b.iou(a));
            }
        }
    }

    #[test]
    fn without_a_threshold_the_best_are_taken_as_they_are() {
        let twice = Candidate {
            bounds: Bounds {
                left: 0.0,
                top: 0.0,
                right: 4.0,
                bottom: 4.0,
            },
            score: 0.5,
            class: 1,
        };
        assert_eq!(suppress(vec![twice; 3], None, 2), [twice; 2]);
        assert_eq!(suppress(vec![twice; 3], Some(0.5), 2), [twice]);
    }
}
