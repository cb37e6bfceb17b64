use std::collections::HashMap;
use std::path::Path;

use anyhow::Context;
use edgeopt_models::Tensor;

/// Texts into token numbers as uncased BERT does (Devlin et al. 2019): lower case, words and punctuation apart, each
/// word into the longest pieces the vocabulary has. Accents stay, so text beyond ASCII may come out differently.
pub struct Tokenizer {
    pieces: HashMap<String, i64>,
    start: i64,
    end: i64,
    unknown: i64,
}

impl Tokenizer {
    /// Reads a vocabulary with one piece a line.
    ///
    /// # Errors
    /// When it cannot be read or lacks BERT's special pieces.
    pub fn read(path: &Path) -> anyhow::Result<Self> {
        let text =
            std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        Self::parse(&text).with_context(|| format!("in {}", path.display()))
    }

    fn parse(vocabulary: &str) -> anyhow::Result<Self> {
        let pieces: HashMap<String, i64> = vocabulary.lines().map(str::to_owned).zip(0..).collect();
        let special = |piece: &str| {
            pieces
                .get(piece)
                .copied()
                .with_context(|| format!("the vocabulary has no {piece}"))
        };
        let (start, end, unknown) = (special("[CLS]")?, special("[SEP]")?, special("[UNK]")?);
        Ok(Self {
            pieces,
            start,
            end,
            unknown,
        })
    }

    /// The encoder's inputs for one text, `input_ids` and `attention_mask`, both `[1, length]`: cut or padded with 0.
    ///
    /// # Errors
    /// When the length is too large for a tensor.
    pub fn inputs(&self, text: &str, length: usize) -> anyhow::Result<[Tensor; 2]> {
        let mut ids = self.tokens(text);
        ids.truncate(length.saturating_sub(2));
        ids.insert(0, self.start);
        ids.push(self.end);
        let mut mask = vec![1i64; ids.len()];
        ids.resize(length, 0);
        mask.resize(length, 0);
        Ok([
            Tensor::new(&[1, length], &ids)?,
            Tensor::new(&[1, length], &mask)?,
        ])
    }

    fn tokens(&self, text: &str) -> Vec<i64> {
        let lower = text.to_lowercase();
        let mut tokens = Vec::new();
        for word in lower.split_whitespace() {
            let mut rest = word;
            while let Some(first) = rest.chars().next() {
                let length = if first.is_ascii_punctuation() {
                    first.len_utf8()
                } else {
                    rest.find(|c: char| c.is_ascii_punctuation())
                        .unwrap_or(rest.len())
                };
                let (part, after) = rest.split_at(length);
                self.word(part, &mut tokens);
                rest = after;
            }
        }
        tokens
    }

    /// A word's pieces, or one unknown piece if it cannot be made of any.
    fn word(&self, word: &str, tokens: &mut Vec<i64>) {
        let before = tokens.len();
        let mut rest = word;
        while !rest.is_empty() {
            let continued = if rest.len() == word.len() { "" } else { "##" };
            let longest = rest
                .char_indices()
                .map(|(at, c)| at + c.len_utf8())
                .rev()
                .find_map(|end| {
                    let piece = self.pieces.get(&format!("{continued}{}", &rest[..end]))?;
                    Some((*piece, end))
                });
            let Some((piece, end)) = longest else {
                tokens.truncate(before);
                tokens.push(self.unknown);
                return;
            };
            tokens.push(piece);
            rest = &rest[end..];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_become_their_longest_pieces() {
        let tokenizer = Tokenizer::parse("[PAD]\n[CLS]\n[SEP]\n[UNK]\nun\nunit\n##s\n##able\n.\n-").unwrap();
        assert_eq!(tokenizer.tokens("Units un-UNABLE. xyz"), [5, 6, 4, 9, 4, 7, 8, 3]);
        let [ids, mask] = tokenizer.inputs("unit", 5).unwrap();
        assert_eq!(ids.view::<i64>().unwrap()[..], [1, 5, 2, 0, 0]);
        assert_eq!(mask.view::<i64>().unwrap()[..], [1, 1, 1, 0, 0]);
        let [ids, _] = tokenizer.inputs("unit unit unit unit", 4).unwrap();
        assert_eq!(ids.view::<i64>().unwrap()[..], [1, 5, 5, 2]);
        assert!(Tokenizer::parse("a\nb").is_err());
    }
}
