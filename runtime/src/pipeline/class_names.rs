//! Names of classes as YOLO's exporters write them into a model's metadata: a Python dictionary or list.

use std::collections::BTreeMap;

/// The names in the order of their classes; `None` if the text is neither `{0: 'person', 1: 'car'}`, with every class
/// from 0 on, nor `['person', 'car']`.
pub(super) fn parse(text: &str) -> Option<Vec<String>> {
    let text = text.trim();
    let (inner, numbered) = match text.strip_prefix('{').and_then(|text| text.strip_suffix('}')) {
        Some(inner) => (inner, true),
        None => (text.strip_prefix('[')?.strip_suffix(']')?, false),
    };
    let mut names = BTreeMap::new();
    let mut rest = inner.trim_start();
    while !rest.is_empty() {
        let mut class = names.len();
        if numbered {
            let (key, behind) = rest.split_once(':')?;
            class = key.trim().parse().ok()?;
            rest = behind.trim_start();
        }
        let (name, behind) = string(rest)?;
        if names.insert(class, name).is_some() {
            return None;
        }
        rest = behind.trim_start();
        if !rest.is_empty() {
            rest = rest.strip_prefix(',')?.trim_start();
        }
    }
    let complete = names.keys().copied().eq(0..names.len());
    complete.then(|| names.into_values().collect())
}

/// The string literal at the start, and what stands behind it.
fn string(text: &str) -> Option<(String, &str)> {
    let mut characters = text.char_indices();
    let (_, quote) = characters.next()?;
    if !matches!(quote, '\'' | '"') {
        return None;
    }
    let mut value = String::new();
    while let Some((place, character)) = characters.next() {
        match character {
            '\\' => match characters.next()?.1 {
                escaped @ ('\\' | '\'' | '"') => value.push(escaped),
                _ => return None,
            },
            _ if character == quote => return Some((value, &text[place + quote.len_utf8()..])),
            _ => value.push(character),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dictionaries_and_lists_are_read_and_nothing_else() {
        let names = |names: &[&str]| Some(names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>());
        for (text, expected) in [
            (
                "{0: 'person', 1: \"trader's stall\"}",
                names(&["person", "trader's stall"]),
            ),
            ("{1: 'b', 0: 'a, {x}: y',}", names(&["a, {x}: y", "b"])),
            ("['größe', 'don\\'t']", names(&["größe", "don't"])),
            (" [] ", names(&[])),
            ("{0: 'a', 2: 'c'}", None),
            ("{0: 'a', 0: 'b'}", None),
            ("{0: 'a' 1: 'b'}", None),
            ("{0: a}", None),
            ("['a", None),
            ("person", None),
            ("", None),
        ] {
            assert_eq!(parse(text), expected, "{text}");
        }
    }
}
