/// Share of samples whose label is among the highest scores. Among equal scores the lower class wins, as in
/// `argmax`; scores that are NaN never win.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TopK {
    samples: usize,
    first: usize,
    fifth: usize,
}

impl TopK {
    /// Adds the scores of one sample. A label that is no class counts as wrong.
    pub fn add(&mut self, scores: &[f32], label: usize) {
        self.samples += 1;
        let Some(own) = scores.get(label).filter(|score| !score.is_nan()) else {
            return;
        };
        let better = |(class, score): &(usize, &f32)| *score > own || (*score == own && *class < label);
        let rank = scores.iter().enumerate().filter(better).count();
        self.first += usize::from(rank == 0);
        self.fifth += usize::from(rank < 5);
    }

    /// Share of samples whose highest score is the label's, 0..=1.
    pub fn top1(&self) -> f64 {
        share(self.first as f64, self.samples)
    }

    /// Share of samples whose label is among the five highest scores, 0..=1.
    pub fn top5(&self) -> f64 {
        share(self.fifth as f64, self.samples)
    }
}

/// Accuracy of recognized text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TextAccuracy {
    samples: usize,
    exact: usize,
    characters: usize,
    edits: usize,
}

impl TextAccuracy {
    /// Adds one text.
    pub fn add(&mut self, expected: &str, actual: &str) {
        self.samples += 1;
        self.exact += usize::from(expected == actual);
        self.characters += expected.chars().count();
        self.edits += levenshtein(expected, actual);
    }

    /// 1 − edits ÷ characters over all texts (Levenshtein distance), not below 0.
    pub fn characters(&self) -> f64 {
        if self.characters == 0 {
            return self.exact();
        }
        (1.0 - self.edits as f64 / self.characters as f64).max(0.0)
    }

    /// Share of texts without any error, 0..=1.
    pub fn exact(&self) -> f64 {
        share(self.exact as f64, self.samples)
    }
}

/// Mean cosine similarity of embeddings.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct EmbeddingSimilarity {
    samples: usize,
    sum: f64,
}

impl EmbeddingSimilarity {
    /// Adds a pair of vectors; one with infinities or NaNs counts as 0.
    pub fn add(&mut self, expected: &[f32], actual: &[f32]) {
        let mut difference = super::Difference::default();
        difference.add(expected, actual);
        self.samples += 1;
        self.sum += if difference.non_finite() > 0 {
            0.0
        } else {
            difference.cosine()
        };
    }

    /// The mean, −1..=1.
    pub fn mean(&self) -> f64 {
        share(self.sum, self.samples)
    }
}

fn share(part: f64, samples: usize) -> f64 {
    if samples == 0 { 0.0 } else { part / samples as f64 }
}

/// The least number of inserted, removed and replaced characters that turns one text into the other.
pub fn levenshtein(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = i;
        let mut left = i + 1;
        for (cell, y) in row.iter_mut().skip(1).zip(&b) {
            let replaced = diagonal + usize::from(x != *y);
            diagonal = *cell;
            left = replaced.min(diagonal + 1).min(left + 1);
            *cell = left;
        }
        if let Some(first) = row.first_mut() {
            *first = i + 1;
        }
    }
    row.last().copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_count_ties_as_argmax_does() {
        let mut top = TopK::default();
        for label in [1, 2, 6] {
            top.add(&[0.1, 0.9, 0.9, 0.0, 0.0, 0.0, 0.0], label);
        }
        top.add(&[f32::NAN; 3], 0);
        assert_eq!((top.top1(), top.top5()), (0.25, 0.5));
        assert_eq!(TopK::default().top1(), 0.0);
    }

    #[test]
    fn edits_are_counted_in_characters() {
        let cases = [
            ("kitten", "sitting", 3),
            ("", "abc", 3),
            ("größe", "grosse", 3),
            ("ab", "ba", 2),
            ("x", "", 1),
        ];
        for (a, b, edits) in cases {
            assert_eq!((levenshtein(a, b), levenshtein(b, a)), (edits, edits), "{a} {b}");
        }
        let mut text = TextAccuracy::default();
        text.add("hello", "hallo");
        text.add("world", "world");
        assert_eq!((text.characters(), text.exact()), (0.9, 0.5));
    }

    #[test]
    fn embeddings_compare_by_direction() {
        let mut similarity = EmbeddingSimilarity::default();
        similarity.add(&[1.0, 0.0], &[2.0, 0.0]);
        similarity.add(&[1.0, 0.0], &[0.0, 3.0]);
        assert_eq!(similarity.mean(), 0.5);
    }
}
