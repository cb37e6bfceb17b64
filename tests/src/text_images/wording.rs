use super::words::WORDS;
use crate::random::Random;

/// The text of one line: words in one of three cases, now and then a number, a price, a date or a code. At most 28
/// characters, printable ASCII, single spaces.
pub(super) fn line(random: &mut Random) -> String {
    const LONGEST: usize = 28;
    let parts = 1 + random.below(4);
    let mut line = String::new();
    for _ in 0..parts {
        let part = part(random);
        if !line.is_empty() && line.len() + 1 + part.len() > LONGEST {
            break;
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(&part);
    }
    line
}

fn part(random: &mut Random) -> String {
    match random.below(10) {
        0 => random.below(100_000).to_string(),
        1 => format!("{}.{:02}", random.below(1000), random.below(100)),
        2 => format!(
            "{:04}-{:02}-{:02}",
            1990 + random.below(50),
            1 + random.below(12),
            1 + random.below(28)
        ),
        3 => code(random),
        _ => {
            let word = random.pick(WORDS).copied().unwrap_or_default();
            match random.below(4) {
                0 => word.to_ascii_uppercase(),
                1 => capitalized(word),
                _ => word.to_owned(),
            }
        }
    }
}

/// A part number such as `KX-4071`: without I and O, which no reader can tell from 1 and 0 in every font.
fn code(random: &mut Random) -> String {
    const LETTERS: &[u8] = b"ABCDEFGHJKLMNPQRSTUVWXYZ";
    let mut letter = || char::from(random.pick(LETTERS).copied().unwrap_or(b'A'));
    let (first, second) = (letter(), letter());
    format!("{first}{second}-{:04}", random.below(10_000))
}

fn capitalized(word: &str) -> String {
    let (first, rest) = word.split_at(word.len().min(1));
    first.to_ascii_uppercase() + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_short_printable_and_varied() {
        let mut random = Random::new(7);
        let lines: Vec<String> = (0..500).map(|_| line(&mut random)).collect();
        for line in &lines {
            assert!((1..=28).contains(&line.len()), "{line:?}");
            assert!(!line.contains("  ") && line.trim() == line, "{line:?}");
            assert!(line.bytes().all(|byte| (b' '..=b'~').contains(&byte)), "{line:?}");
        }
        let all = lines.concat();
        for wanted in ('a'..='z').chain('A'..='Z').chain('0'..='9') {
            assert!(all.contains(wanted), "no {wanted:?} in 500 lines");
        }
    }

    #[test]
    fn the_seed_decides() {
        let lines = |seed| {
            let mut random = Random::new(seed);
            (0..20).map(|_| line(&mut random)).collect::<Vec<_>>()
        };
        assert_eq!(lines(1), lines(1));
        assert_ne!(lines(1), lines(2));
    }
}
