//! Rules that turn results into outputs. Time is an argument: nothing here waits, reads a clock or touches a device.

use std::time::Duration;

use serde_json::Value;

use super::condition::{Condition, Unanswerable};
use crate::protocol::SlotName;

/// When an output becomes active, and for how long.
#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    /// The slot whose results count.
    pub slot: SlotName,
    /// What a result must be like.
    pub when: Condition,
    /// How many results in a row must be like that; 0 counts as 1.
    pub frames: u32,
    /// Name of the output.
    pub output: String,
    /// How long the output stays active after the last result that triggered.
    pub hold: Duration,
    /// Whether further results in the same row prolong the hold. If not, a row gives one pulse of exactly `hold`, and a
    /// result that is not like that must come before the next.
    pub retrigger: bool,
}

/// A rule with what it has seen.
#[derive(Clone, Debug)]
struct Watched {
    rule: Rule,
    /// Results in a row that met the condition.
    row: u32,
    /// End of the hold.
    until: Option<Duration>,
    /// Whether it has said that the results do not fit.
    complained: bool,
}

/// All rules with their state. An output is active while any rule holds it.
#[derive(Clone, Debug, Default)]
pub struct Rules {
    watched: Vec<Watched>,
    stopped: bool,
}

impl Rules {
    /// Rules that have seen nothing: every output is inactive.
    pub fn new(rules: Vec<Rule>) -> Self {
        let watched = rules.into_iter().map(|rule| Watched {
            rule,
            row: 0,
            until: None,
            complained: false,
        });
        Self {
            watched: watched.collect(),
            stopped: false,
        }
    }

    /// Takes in a result of a slot (its field `prediction`). A rule that cannot read it counts it as one that does not
    /// meet the condition, and says so the first time.
    pub fn result(&mut self, slot: &SlotName, prediction: &Value, now: Duration) -> Vec<Unanswerable> {
        let mut problems = Vec::new();
        if self.stopped {
            return problems;
        }
        for watched in self
            .watched
            .iter_mut()
            .filter(|watched| watched.rule.slot == *slot)
        {
            let met = watched.rule.when.holds(prediction).unwrap_or_else(|problem| {
                if !watched.complained {
                    problems.push(problem);
                }
                watched.complained = true;
                false
            });
            watched.take(met, now);
        }
        problems
    }

    /// A slot no longer answers: what its rules hold is released, and their rows begin anew.
    pub fn fault(&mut self, slot: &SlotName) {
        for watched in self
            .watched
            .iter_mut()
            .filter(|watched| watched.rule.slot == *slot)
        {
            watched.row = 0;
            watched.until = None;
        }
    }

    /// Releases every output for good: results that come later change nothing.
    pub fn stop(&mut self) {
        self.stopped = true;
        for watched in &mut self.watched {
            watched.until = None;
        }
    }

    /// Whether an output is to be active.
    pub fn active(&self, output: &str, now: Duration) -> bool {
        self.watched
            .iter()
            .filter(|watched| watched.rule.output == output)
            .any(|watched| watched.until.is_some_and(|until| now < until))
    }

    /// The next moment at which a hold ends, if no result comes before.
    pub fn next_change(&self, now: Duration) -> Option<Duration> {
        self.watched
            .iter()
            .filter_map(|watched| watched.until)
            .filter(|until| *until > now)
            .min()
    }
}

impl Watched {
    fn take(&mut self, met: bool, now: Duration) {
        if !met {
            self.row = 0;
            return;
        }
        let frames = self.rule.frames.max(1);
        self.row = self.row.saturating_add(1);
        let held = self.until.is_some_and(|until| now < until);
        let triggers = match self.rule.retrigger {
            true => self.row >= frames,
            false => self.row == frames && !held,
        };
        if triggers {
            self.until = Some(now.saturating_add(self.rule.hold));
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn slot(name: &str) -> SlotName {
        name.parse().unwrap()
    }

    fn rule(frames: u32, hold: u64, retrigger: bool) -> Rule {
        Rule {
            slot: slot("detector"),
            when: "person > 0.8".parse().unwrap(),
            frames,
            output: "lamp".into(),
            hold: ms(hold),
            retrigger,
        }
    }

    fn seen(score: f64) -> Value {
        json!({"detections": [{"label": "person", "score": score}]})
    }

    #[test]
    fn three_frames_light_the_lamp_for_two_seconds() {
        let mut rules = Rules::new(vec![rule(3, 2000, true)]);
        let frames = [0.9, 0.9, 0.3, 0.9, 0.9, 0.9, 0.1];
        let mut lit = Vec::new();
        for (index, score) in frames.into_iter().enumerate() {
            let now = ms(index as u64 * 100);
            rules.result(&slot("detector"), &seen(score), now);
            lit.push(rules.active("lamp", now));
        }
        assert_eq!(lit, [false, false, false, false, false, true, true]);
        assert_eq!(rules.next_change(ms(600)), Some(ms(2500)));
        assert!(rules.active("lamp", ms(2499)));
        assert!(!rules.active("lamp", ms(2500)));
        assert_eq!(rules.next_change(ms(2500)), None);
    }

    #[test]
    fn a_row_that_goes_on_prolongs_the_hold_or_gives_one_pulse() {
        for (retrigger, expected) in [(true, ms(1100)), (false, ms(200))] {
            let mut rules = Rules::new(vec![rule(1, 200, retrigger)]);
            for step in 0..10 {
                rules.result(&slot("detector"), &seen(0.9), ms(step * 100));
            }
            let off = (0..2000)
                .map(ms)
                .find(|now| *now >= ms(1) && !rules.active("lamp", *now));
            assert_eq!(off, Some(expected), "retrigger = {retrigger}");
        }
    }

    #[test]
    fn rules_watch_their_own_slot_and_share_an_output() {
        let mut other = rule(1, 5000, true);
        other.slot = slot("reader");
        other.when = "text contains \"STOP\"".parse().unwrap();
        let mut rules = Rules::new(vec![rule(1, 1000, true), other]);
        rules.result(&slot("detector"), &seen(0.9), ms(0));
        rules.result(&slot("reader"), &json!({"text": "STOP"}), ms(0));
        // One slot stops answering: the other's hold remains.
        rules.fault(&slot("reader"));
        assert!(rules.active("lamp", ms(999)) && !rules.active("lamp", ms(1000)));
        assert!(!rules.active("horn", ms(0)));
    }

    #[test]
    fn a_result_that_does_not_fit_breaks_the_row_and_is_reported_once() {
        let mut rules = Rules::new(vec![rule(2, 1000, true)]);
        let text = json!({"kind": "text", "text": "a"});
        rules.result(&slot("detector"), &seen(0.9), ms(0));
        assert_eq!(rules.result(&slot("detector"), &text, ms(1)).len(), 1);
        assert!(rules.result(&slot("detector"), &text, ms(2)).is_empty());
        rules.result(&slot("detector"), &seen(0.9), ms(3));
        assert!(!rules.active("lamp", ms(3)));
    }

    #[derive(Clone, Debug)]
    enum Event {
        Result(bool),
        Fault,
    }

    fn events() -> impl Strategy<Value = Vec<(u64, Event)>> {
        let event = prop_oneof![
            6 => any::<bool>().prop_map(Event::Result),
            1 => Just(Event::Fault),
        ];
        prop::collection::vec((0u64..400, event), 0..40)
    }

    /// The moments at which a row reached its length or went on, straight from the words of [`Rule`].
    fn triggers(history: &[(Duration, Event)], rule: &Rule) -> Vec<Duration> {
        let mut found: Vec<Duration> = Vec::new();
        let mut last_fault = None;
        for (index, (now, event)) in history.iter().enumerate() {
            if matches!(event, Event::Fault) {
                found.clear();
                last_fault = Some(index);
                continue;
            }
            let begin = last_fault.map_or(0, |fault: usize| fault + 1);
            let row = history[begin..=index]
                .iter()
                .rev()
                .take_while(|(_, event)| matches!(event, Event::Result(true)))
                .count();
            let held = found.last().is_some_and(|before| *now < *before + rule.hold);
            let frames = rule.frames as usize;
            if rule.retrigger && row >= frames || !rule.retrigger && row == frames && !held {
                found.push(*now);
            }
        }
        found
    }

    proptest! {
        #[test]
        fn an_output_is_active_exactly_within_the_hold_after_a_trigger(
            events in events(), frames in 1u32..5, hold in 1u64..1000, retrigger: bool,
        ) {
            let rule = rule(frames, hold, retrigger);
            let mut rules = Rules::new(vec![rule.clone()]);
            let mut now = ms(0);
            let mut history = Vec::new();
            for (pause, event) in events {
                now += ms(pause);
                match event {
                    Event::Result(met) => {
                        rules.result(&rule.slot, &seen(if met { 0.9 } else { 0.1 }), now);
                    }
                    Event::Fault => rules.fault(&rule.slot),
                }
                history.push((now, event));
                let last = triggers(&history, &rule).last().copied();
                for later in [0, hold / 2, hold.saturating_sub(1), hold, hold + 1] {
                    let then = now + ms(later);
                    let expected = last.is_some_and(|last| then < last + rule.hold);
                    prop_assert_eq!(rules.active("lamp", then), expected);
                }
                prop_assert_eq!(rules.next_change(now), last.map(|last| last + rule.hold).filter(|end| *end > now));
            }
            // However it went, stopping releases, and nothing brings it back.
            rules.stop();
            for _ in 0..frames {
                rules.result(&rule.slot, &seen(0.9), now);
            }
            prop_assert!(!rules.active("lamp", now));
            prop_assert_eq!(rules.next_change(now), None);
        }
    }
}
