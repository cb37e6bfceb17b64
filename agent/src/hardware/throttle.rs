//! How often slots may answer: lower rates while the device is hot, draws too much or runs in a saving mode. Time and
//! readings are arguments.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::settings::{Cause, LimitSettings, ThrottleSettings};
use crate::protocol::SlotName;

/// What limits depend on. What is not known puts no limit in force and lifts none.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Conditions {
    /// Degrees Celsius by zone.
    pub zones: BTreeMap<String, f64>,
    /// Watts by rail.
    pub rails: BTreeMap<String, f64>,
    /// Name of the power mode.
    pub power_mode: Option<String>,
    /// Whether the system has lowered clocks.
    pub throttled: Option<bool>,
}

/// A limit that came into force or was lifted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// What it is about, such as `temperature of tj-thermal`.
    pub cause: String,
    /// In force now, or lifted.
    pub in_force: bool,
}

#[derive(Clone, Debug)]
struct Limit {
    settings: LimitSettings,
    in_force: bool,
    /// Since when the cause has been gone without a break, while in force.
    gone_since: Option<Duration>,
}

/// The policy: limits with hysteresis. One comes into force at once and is lifted only after its cause was gone for the
/// whole dwell time, so none comes into force twice within it.
#[derive(Clone, Debug)]
pub struct Throttle {
    limits: Vec<Limit>,
    dwell: Duration,
}

/// What a cause says of the conditions.
enum Verdict {
    /// It is there.
    Present,
    /// It is gone.
    Gone,
    /// Between the two thresholds, or not known: what is in force stays so.
    Between,
}

impl Throttle {
    /// Limits, none of them in force.
    pub fn new(settings: &ThrottleSettings) -> Self {
        let limits = settings.limits.iter().map(|settings| Limit {
            settings: settings.clone(),
            in_force: false,
            gone_since: None,
        });
        Self {
            limits: limits.collect(),
            dwell: Duration::from_secs(settings.dwell_s.into()),
        }
    }

    /// Whether there is nothing to watch.
    pub fn is_empty(&self) -> bool {
        self.limits.is_empty()
    }

    /// Takes in what is measured now and says what that changes.
    pub fn update(&mut self, conditions: &Conditions, now: Duration) -> Vec<Change> {
        let mut changes = Vec::new();
        for limit in &mut self.limits {
            let before = limit.in_force;
            match verdict(&limit.settings.when, conditions) {
                Verdict::Present => {
                    limit.in_force = true;
                    limit.gone_since = None;
                }
                Verdict::Between => limit.gone_since = None,
                Verdict::Gone => {
                    let since = *limit.gone_since.get_or_insert(now);
                    if now.saturating_sub(since) >= self.dwell {
                        limit.in_force = false;
                    }
                }
            }
            if limit.in_force != before {
                changes.push(Change {
                    cause: describe(&limit.settings.when),
                    in_force: limit.in_force,
                });
            }
        }
        changes
    }

    /// Largest number of inferences per second for a slot; `None` while nothing limits it.
    pub fn rate_limit(&self, slot: &SlotName) -> Option<f64> {
        self.limits
            .iter()
            .filter(|limit| limit.in_force)
            .filter_map(|limit| limit.settings.rates.get(slot).copied().or(limit.settings.rate))
            .reduce(f64::min)
    }

    /// What the limits in force are about.
    pub fn causes(&self) -> BTreeSet<String> {
        self.limits
            .iter()
            .filter(|limit| limit.in_force)
            .map(|limit| describe(&limit.settings.when))
            .collect()
    }
}

fn verdict(cause: &Cause, conditions: &Conditions) -> Verdict {
    let threshold = |value: Option<f64>, above: f64, below: f64| match value {
        Some(value) if value >= above => Verdict::Present,
        Some(value) if value < below => Verdict::Gone,
        _ => Verdict::Between,
    };
    let flag = |value: Option<bool>| match value {
        Some(true) => Verdict::Present,
        Some(false) => Verdict::Gone,
        None => Verdict::Between,
    };
    match cause {
        Cause::Temperature { above, below, zone } => {
            let degrees = match zone {
                Some(zone) => conditions.zones.get(zone).copied(),
                None => conditions.zones.values().copied().reduce(f64::max),
            };
            threshold(degrees, *above, *below)
        }
        Cause::Power { above, below, rail } => threshold(conditions.rails.get(rail).copied(), *above, *below),
        Cause::PowerMode { names } => flag(conditions.power_mode.as_ref().map(|mode| names.contains(mode))),
        Cause::Throttled {} => flag(conditions.throttled),
    }
}

fn describe(cause: &Cause) -> String {
    match cause {
        Cause::Temperature { zone: Some(zone), .. } => format!("temperature of {zone}"),
        Cause::Temperature { zone: None, .. } => "temperature of the hottest zone".into(),
        Cause::Power { rail, .. } => format!("power of {rail}"),
        Cause::PowerMode { .. } => "power mode".into(),
        Cause::Throttled {} => "clocks lowered by the system".into(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn secs(secs: u64) -> Duration {
        Duration::from_secs(secs)
    }

    fn slot(name: &str) -> SlotName {
        name.parse().unwrap()
    }

    fn policy(toml: &str) -> Throttle {
        Throttle::new(&toml::from_str(toml).unwrap())
    }

    fn hot(degrees: f64) -> Conditions {
        Conditions {
            zones: [("cpu-thermal".into(), 20.0), ("tj-thermal".into(), degrees)].into(),
            ..Conditions::default()
        }
    }

    const HEAT: &str = "dwell_s = 10\n[[limits]]\nwhen = { kind = 'temperature', above = 80.0, below = 75.0 }\n\
        rate = 5.0\nrates = { detector = 2.0 }\n";

    #[test]
    fn heat_lowers_the_rate_at_once_and_coolness_must_last() {
        let mut throttle = policy(HEAT);
        let mut limits = Vec::new();
        for (at, degrees) in [
            (0, 79.9),
            (1, 80.0), // in force
            (2, 76.0), // between: stays
            (3, 74.9), // gone, from here on
            (8, 75.0), // between again: gone from anew
            (9, 70.0),
            (18, 70.0),
            (19, 70.0), // gone for 10 s
        ] {
            throttle.update(&hot(degrees), secs(at));
            limits.push(throttle.rate_limit(&slot("detector")));
        }
        let two = Some(2.0);
        assert_eq!(limits, [None, two, two, two, two, two, two, None]);
    }

    #[test]
    fn the_lowest_rate_in_force_counts_and_says_why() {
        let mut throttle = policy(&format!(
            "{HEAT}[[limits]]\nwhen = {{ kind = 'power', rail = 'VDD_IN', above = 14.0, below = 12.0 }}\nrate = 3.0\n\
             [[limits]]\nwhen = {{ kind = 'power_mode', names = ['7W'] }}\nrates = {{ reader = 1.0 }}\n\
             [[limits]]\nwhen = {{ kind = 'throttled' }}\nrate = 4.0\n"
        ));
        let mut conditions = hot(85.0);
        conditions.power_mode = Some("7W".into());
        conditions.throttled = Some(true);
        throttle.update(&conditions, secs(0));
        assert_eq!(throttle.rate_limit(&slot("detector")), Some(2.0));
        assert_eq!(throttle.rate_limit(&slot("reader")), Some(1.0));
        assert_eq!(throttle.rate_limit(&slot("other")), Some(4.0));
        conditions.rails.insert("VDD_IN".into(), 14.5);
        let changes = throttle.update(&conditions, secs(1));
        assert_eq!(
            changes,
            [Change {
                cause: "power of VDD_IN".into(),
                in_force: true
            }]
        );
        assert_eq!(throttle.rate_limit(&slot("other")), Some(3.0));
        assert_eq!(throttle.causes().len(), 4);
    }

    #[test]
    fn a_sensor_that_is_lost_lifts_nothing() {
        let mut throttle = policy(HEAT);
        throttle.update(&Conditions::default(), secs(0));
        assert_eq!(throttle.rate_limit(&slot("detector")), None);
        throttle.update(&hot(90.0), secs(1));
        for at in 2..100 {
            assert!(throttle.update(&Conditions::default(), secs(at)).is_empty());
        }
        assert_eq!(throttle.rate_limit(&slot("detector")), Some(2.0));

        let mut throttle = policy(
            "dwell_s = 10\n[[limits]]\nwhen = { kind = 'power_mode', names = ['7W'] }\nrate = 1.0\n\
             [[limits]]\nwhen = { kind = 'throttled' }\nrate = 2.0\n",
        );
        let known = Conditions {
            power_mode: Some("7W".into()),
            throttled: Some(true),
            ..Conditions::default()
        };
        assert_eq!(throttle.update(&known, secs(0)).len(), 2);
        for at in 1..100 {
            assert!(throttle.update(&Conditions::default(), secs(at)).is_empty());
        }
    }

    proptest! {
        #[test]
        fn a_limit_never_flaps_faster_than_the_dwell_time(
            steps in prop::collection::vec((0u64..4000, prop_oneof![
                3 => (60.0f64..95.0).prop_map(Some), 1 => Just(None),
            ]), 1..200),
        ) {
            let mut throttle = policy(HEAT);
            let dwell = secs(10);
            let mut now = Duration::ZERO;
            let mut last_present = None;
            let mut last_start: Option<Duration> = None;
            for (pause, degrees) in steps {
                now += Duration::from_millis(pause);
                let conditions = degrees.map_or_else(Conditions::default, hot);
                let changes = throttle.update(&conditions, now);
                prop_assert!(changes.len() <= 1);
                // Hot means limited, whatever came before.
                if degrees.is_some_and(|degrees| degrees >= 80.0) {
                    prop_assert_eq!(throttle.rate_limit(&slot("detector")), Some(2.0));
                }
                match changes.first().map(|change| change.in_force) {
                    Some(true) => {
                        prop_assert!(last_start.is_none_or(|before| now - before >= dwell));
                        last_start = Some(now);
                    }
                    Some(false) => prop_assert!(last_present.is_some_and(|present| now - present >= dwell)),
                    None => {}
                }
                if degrees.is_some_and(|degrees| degrees >= 75.0) {
                    last_present = Some(now);
                }
            }
        }
    }
}
