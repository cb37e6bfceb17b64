use crate::random::Random;

const WHO: &[&str] = &[
    "The driver",
    "A young engineer",
    "Our neighbour",
    "The old camera",
    "Nobody",
    "My sister",
    "The night shift",
    "A delivery robot",
    "The farmer's dog",
    "Every pump in the plant",
    "The city council",
    "A nurse",
    "The new sensor",
    "His teacher",
    "The bakery on the corner",
    "An autonomous tractor",
];
const DOES: &[&str] = &[
    "stopped near",
    "looked for",
    "carefully repaired",
    "forgot",
    "counted",
    "could not find",
    "was waiting for",
    "finally replaced",
    "reported",
    "walked past",
    "paid for",
    "is proud of",
    "complained about",
    "photographed",
    "ran into",
    "does not need",
];
const WHAT: &[&str] = &[
    "the broken bridge",
    "two red apples",
    "a letter from the bank",
    "the missing bolts",
    "a cheaper battery",
    "the train to the coast",
    "fresh bread",
    "an unusual vibration",
    "the wheat field",
    "a faster network",
    "the patient in room seven",
    "the football match",
    "an overheated motor",
    "the tax form",
    "a song about the sea",
    "the safety rules",
];
const WHEN: &[&str] = &[
    "",
    " this morning",
    " after the storm",
    " without saying a word",
    " for the third time",
    " during the meeting",
    " because the lights were out",
    " before anyone noticed",
    " in heavy rain",
    " last summer",
    " although it was late",
    ", as usual",
];

/// The sentence with this number in the series of this seed: one of some fifty thousand.
pub fn sentence(seed: u64, number: usize) -> String {
    let mut random = Random::of(seed, number);
    let mut pick = |choices: &[&'static str]| random.pick(choices).copied().unwrap_or_default();
    format!("{} {} {}{}.", pick(WHO), pick(DOES), pick(WHAT), pick(WHEN))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentences_repeat_with_the_seed_and_hardly_otherwise() {
        assert_eq!(sentence(1, 7), sentence(1, 7));
        let distinct: std::collections::HashSet<String> =
            (0..300).map(|number| sentence(1, number)).collect();
        assert!(distinct.len() > 290, "{}", distinct.len());
    }
}
