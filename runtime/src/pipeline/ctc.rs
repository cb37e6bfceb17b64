//! Text from the output of a recognizer trained with connectionist temporal classification (Graves et al. 2006).

use serde::Serialize;

/// A recognized text.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Text {
    /// The characters.
    pub text: String,
    /// Mean probability of the characters kept, 0..=1; 0 for an empty text.
    pub confidence: f32,
}

/// Decodes greedily: the best class at each step, repeats merged, blanks (class 0) dropped. `scores` holds
/// `steps × classes` probabilities; class i is `alphabet[i - 1]`. Classes beyond the alphabet are spaces, which
/// recognizers append to their character list.
pub fn greedy(scores: &[f32], classes: usize, alphabet: &[String]) -> Text {
    let mut text = String::new();
    let (mut sum, mut kept, mut previous) = (0.0, 0usize, 0);
    for step in scores.chunks_exact(classes.max(1)) {
        let mut best = 0;
        for (class, score) in step.iter().enumerate() {
            if *score > step[best] {
                best = class;
            }
        }
        if best != 0 && best != previous {
            text.push_str(alphabet.get(best - 1).map_or(" ", String::as_str));
            sum += step[best];
            kept += 1;
        }
        previous = best;
    }
    Text {
        text,
        confidence: if kept == 0 { 0.0 } else { sum / kept as f32 },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeats_merge_unless_a_blank_stands_between() {
        let alphabet = ["l".to_owned(), "o".to_owned()];
        // Classes: blank, l, o, and the space beyond the alphabet.
        let steps = [1, 1, 0, 1, 2, 2, 3, 0, 2];
        let scores: Vec<f32> = steps
            .iter()
            .flat_map(|best| (0..4).map(move |class| if class == *best { 0.7 } else { 0.1 }))
            .collect();
        let text = greedy(&scores, 4, &alphabet);
        assert_eq!(text.text, "llo o");
        assert!((text.confidence - 0.7).abs() < 1e-6);
        assert_eq!(
            greedy(&[0.9, 0.1], 2, &alphabet),
            Text {
                text: String::new(),
                confidence: 0.0
            }
        );
        assert_eq!(greedy(&[], 0, &alphabet).text, "");
    }
}
