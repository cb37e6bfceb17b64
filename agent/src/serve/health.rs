//! How a model behaves: counters, latency, and the judgement of a watch.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use serde::Serialize;

/// Latencies kept for the summary.
const KEPT: usize = 2048;

/// Upper bounds of the latency histogram's buckets, milliseconds; the last bucket has none.
pub const LATENCY_BOUNDS_MS: [f64; 13] = [
    0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0,
];

/// Counters of a slot since the daemon started, and recent latencies.
#[derive(Clone, Debug, Default)]
pub struct Health {
    /// Answers given.
    pub answered: u64,
    /// Inputs that could not be answered: unreadable, or the model failed.
    pub failed: u64,
    /// Answers with NaN or an infinity that no golden output of the same name holds.
    pub non_finite: u64,
    /// What and where, in the last of them.
    pub last_non_finite: Option<String>,
    /// Inputs given up because the queue was full.
    pub dropped: u64,
    /// Answers by latency: how many lie in each bucket of [`LATENCY_BOUNDS_MS`], and beyond.
    pub latency_counts: [u64; LATENCY_BOUNDS_MS.len() + 1],
    /// Latencies of all answers together, milliseconds.
    pub latency_sum_ms: f64,
    latencies_ms: VecDeque<f32>,
    /// What executes the model whose answers these latencies are of.
    backend: &'static str,
}

/// Latency of the last answers, milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
#[allow(missing_docs)]
pub struct LatencySummary {
    pub p50_ms: f64,
    pub p95_ms: f64,
    pub p99_ms: f64,
    pub max_ms: f64,
}

impl Health {
    /// From now on latencies are those of this backend: what another one took says nothing about it.
    pub(super) fn measure(&mut self, backend: &'static str) {
        if self.backend != backend {
            self.backend = backend;
            self.latencies_ms.clear();
        }
    }

    pub(super) fn answered_in(&mut self, latency_ms: f64, non_finite: Option<&str>, backend: &'static str) {
        self.answered += 1;
        let bucket = LATENCY_BOUNDS_MS.partition_point(|bound| *bound < latency_ms);
        if let Some(count) = self.latency_counts.get_mut(bucket) {
            *count += 1;
        }
        self.latency_sum_ms += latency_ms;
        if let Some(what) = non_finite {
            self.non_finite += 1;
            self.last_non_finite = Some(what.to_owned());
        }
        // The last answers of a model that was replaced may come after the switch.
        if self.backend != backend {
            return;
        }
        if self.latencies_ms.len() == KEPT {
            self.latencies_ms.pop_front();
        }
        self.latencies_ms.push_back(latency_ms as f32);
    }

    /// Latency of the last answers, at most 2048 of them.
    pub fn latency(&self) -> LatencySummary {
        self.latency_of_last(u64::MAX)
    }

    /// Latency of the last `count` answers, at most 2048 of them.
    pub fn latency_of_last(&self, count: u64) -> LatencySummary {
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        let mut sorted: Vec<f32> = self.latencies_ms.iter().rev().take(count).copied().collect();
        sorted.sort_by(f32::total_cmp);
        let at = |share: f64| {
            let index = (share * sorted.len().saturating_sub(1) as f64).round() as usize;
            sorted.get(index).copied().map_or(0.0, f64::from)
        };
        LatencySummary {
            p50_ms: at(0.5),
            p95_ms: at(0.95),
            p99_ms: at(0.99),
            max_ms: at(1.0),
        }
    }
}

/// Answers from which on the speed of a model is judged when its watch ends.
const ENOUGH: u64 = 5;

/// When a new model is trusted, and when it is not.
#[derive(Clone, Copy, Debug)]
pub struct WatchCriteria {
    /// Watched until it has given this many answers …
    pub answers: u64,
    /// … or for this long, whatever comes first.
    pub longest: Duration,
    /// Share of inputs that may fail, besides the share that failed before.
    pub failures: f64,
    /// How many times as slow as the model before it may be (median); `None` = as slow as it likes.
    pub slowdown: Option<f64>,
}

impl Default for WatchCriteria {
    fn default() -> Self {
        Self {
            answers: 50,
            longest: Duration::from_secs(60),
            failures: 0.1,
            slowdown: Some(10.0),
        }
    }
}

/// A watch in progress.
#[derive(Clone, Debug)]
pub(super) struct Watch {
    pub(super) since: Instant,
    /// The counters when it began.
    pub(super) before: Health,
}

/// Judges what happened since a watch began.
pub(super) fn judge(
    criteria: &WatchCriteria,
    watch: &Watch,
    now: &Health,
    at: Instant,
) -> crate::deploy::Verdict {
    use crate::deploy::Verdict;
    let answered = now.answered - watch.before.answered;
    let failed = now.failed - watch.before.failed;
    let non_finite = now.non_finite - watch.before.non_finite;
    if non_finite > 0 {
        let what = now.last_non_finite.as_deref().unwrap_or("NaN or infinity");
        return Verdict::Unhealthy(format!(
            "{non_finite} of {answered} answers hold {what}, which no golden output does"
        ));
    }
    // One unreadable input among three says nothing about the model, nor do inputs that failed before as well.
    let total = answered + failed;
    let all_before = watch.before.answered + watch.before.failed;
    let share_before = watch.before.failed as f64 / all_before.max(1) as f64;
    if failed >= 3 && failed as f64 > (criteria.failures + share_before) * total as f64 {
        return Verdict::Unhealthy(format!("{failed} of {total} inputs failed"));
    }
    let over = at.saturating_duration_since(watch.since) >= criteria.longest;
    if answered < criteria.answers && !over {
        return Verdict::Open;
    }
    // A few answers are enough to tell ten times as slow; another backend has a speed of its own.
    if let Some(slowdown) = criteria.slowdown
        && now.backend == watch.before.backend
        && answered >= criteria.answers.min(ENOUGH)
    {
        let own = now.latency_of_last(answered).p50_ms;
        let before = watch.before.latency().p50_ms;
        if watch.before.answered > 0 && before > 0.0 && own > slowdown * before {
            return Verdict::Unhealthy(format!(
                "answers take {own:.1} ms, those of the model before took {before:.1}"
            ));
        }
    }
    Verdict::Healthy
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::deploy::Verdict;

    fn after(answers: u64, latency: f64, failed: u64, non_finite: bool) -> (Watch, Health) {
        let mut before = Health::default();
        for _ in 0..10 {
            before.answered_in(2.0, None, "");
        }
        let mut now = before.clone();
        for _ in 0..answers {
            now.answered_in(latency, non_finite.then_some("NaN in output \"y\""), "");
        }
        now.failed += failed;
        (
            Watch {
                since: Instant::now(),
                before,
            },
            now,
        )
    }

    fn verdict(answers: u64, latency: f64, failed: u64, non_finite: bool) -> Verdict {
        let (watch, now) = after(answers, latency, failed, non_finite);
        judge(&WatchCriteria::default(), &watch, &now, watch.since)
    }

    #[test]
    fn the_speed_of_another_backend_says_nothing() {
        for (from, to) in [("tensorrt", "cpu"), ("cpu", "tensorrt")] {
            let mut before = Health::default();
            before.measure(from);
            (0..10).for_each(|_| before.answered_in(2.0, None, from));
            let (watch, mut now) = (
                Watch {
                    since: Instant::now(),
                    before: before.clone(),
                },
                before,
            );
            now.measure(to);
            // One that was still under way at the switch.
            now.answered_in(2.0, None, from);
            (0..49).for_each(|_| now.answered_in(500.0, None, to));
            assert_eq!(now.latency().p50_ms, 500.0);
            let verdict =
                |now: &Health, watch: &Watch| judge(&WatchCriteria::default(), watch, now, watch.since);
            assert_eq!(verdict(&now, &watch), Verdict::Healthy);
            // The next model on the same backend is compared with that, not with what came before it.
            let next = Watch {
                since: Instant::now(),
                before: now.clone(),
            };
            (0..50).for_each(|_| now.answered_in(4000.0, None, to));
            assert_eq!(verdict(&now, &next), Verdict::Healthy);
            (0..50).for_each(|_| now.answered_in(5001.0, None, to));
            assert!(matches!(verdict(&now, &next), Verdict::Unhealthy(_)));
        }
    }

    #[test]
    fn a_model_is_judged_by_answers_failures_numbers_and_speed() {
        assert_eq!(verdict(49, 2.0, 0, false), Verdict::Open);
        assert_eq!(verdict(50, 2.0, 2, false), Verdict::Healthy);
        assert_eq!(verdict(50, 19.0, 0, false), Verdict::Healthy);
        for (verdict, part) in [
            (
                verdict(1, 2.0, 0, true),
                "1 of 1 answers hold NaN in output \"y\"",
            ),
            (verdict(20, 2.0, 3, false), "3 of 23 inputs failed"),
            (verdict(50, 21.0, 0, false), "answers take 21.0 ms"),
        ] {
            assert!(
                matches!(&verdict, Verdict::Unhealthy(reason) if reason.contains(part)),
                "{verdict:?}"
            );
        }
        // Every third input failed with the model before, too.
        let (mut watch, mut now) = after(50, 2.0, 25, false);
        watch.before.failed = 5;
        now.failed += 5;
        let verdict = judge(&WatchCriteria::default(), &watch, &now, watch.since);
        assert_eq!(verdict, Verdict::Healthy);
        let (watch, now) = after(1, 2.0, 0, false);
        let later = watch.since + Duration::from_secs(61);
        assert_eq!(
            judge(&WatchCriteria::default(), &watch, &now, later),
            Verdict::Healthy
        );
    }
}
