//! Times of frames: which are due, how many come, when to try again. Pure.

use std::collections::VecDeque;
use std::time::Duration;

/// Chooses frames so that no more than a rate of them is taken, and on average just as many.
#[derive(Clone, Debug)]
pub(super) struct Pacer {
    /// Zero = each frame is due.
    interval: Duration,
    next: Duration,
}

impl Pacer {
    /// `rate` per second; absent: no bound.
    pub(super) fn new(rate: Option<f64>) -> Self {
        let interval = rate.and_then(|rate| Duration::try_from_secs_f64(1.0 / rate).ok());
        Self {
            interval: interval.unwrap_or_default(),
            next: Duration::ZERO,
        }
    }

    /// Whether the frame of this moment is to be taken.
    pub(super) fn is_due(&self, moment: Duration) -> bool {
        moment >= self.next
    }

    /// It was. The next is due an interval after this one was, not after it came: frames come in steps of their own, and
    /// rounding up each time would lower the rate.
    pub(super) fn taken(&mut self, moment: Duration) {
        self.next += self.interval;
        if self.next <= moment {
            // Nothing was taken for a while; that is not made up for.
            self.next = moment + self.interval;
        }
    }

    /// What was taken last was good for nothing: the next frame is due.
    pub(super) fn again(&mut self) {
        self.next = Duration::ZERO;
    }
}

/// Frames of the last moments that are counted.
const WINDOW: usize = 32;

/// Frames per second over the last frames.
#[derive(Clone, Debug, Default)]
pub(super) struct Meter(VecDeque<Duration>);

impl Meter {
    pub(super) fn note(&mut self, moment: Duration) {
        if self.0.len() == WINDOW {
            self.0.pop_front();
        }
        self.0.push_back(moment);
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// 0 with fewer than two frames, and it falls while none comes.
    pub(super) fn fps(&self, now: Duration) -> f64 {
        let (Some(first), Some(last)) = (self.0.front(), self.0.back()) else {
            return 0.0;
        };
        let count = (self.0.len() - 1) as f64;
        let usual = last.saturating_sub(*first).as_secs_f64();
        // As if the next one came now, when that is later than usual.
        let until_now = now.saturating_sub(*first).as_secs_f64();
        let fps = (count / usual).min((count + 1.0) / until_now);
        if fps.is_finite() { fps } else { 0.0 }
    }
}

const FIRST_WAIT: Duration = Duration::from_millis(500);
/// A camera that is plugged in again is found within this.
const LONGEST_WAIT: Duration = Duration::from_secs(10);
/// One that worked this long fails for the first time again.
const STABLE: Duration = Duration::from_secs(10);

/// How long to wait before a camera is opened again: twice as long each time.
#[derive(Clone, Debug)]
pub(super) struct Retry(Duration);

impl Default for Retry {
    fn default() -> Self {
        Self(FIRST_WAIT)
    }
}

impl Retry {
    /// `worked`: from its first frame to the last one.
    pub(super) fn after(&mut self, worked: Duration) -> Duration {
        if worked >= STABLE {
            self.0 = FIRST_WAIT;
        }
        let wait = self.0;
        self.0 = (wait * 2).min(LONGEST_WAIT);
        wait
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FRAME: Duration = Duration::from_nanos(33_333_333);

    #[test]
    fn on_average_the_rate_is_kept_and_never_exceeded() {
        for (rate, frames, expected) in [
            (10.0, 300u32, 100),
            (7.0, 300, 70),
            (25.0, 300, 250),
            (60.0, 300, 300),
        ] {
            let mut pacer = Pacer::new(Some(rate));
            let mut taken: Vec<Duration> = Vec::new();
            for index in 0..frames {
                // Cameras are not punctual: up to 3 ms early or late.
                let moment = FRAME * (index + 1) + Duration::from_micros(u64::from(index * 7919 % 6000));
                if pacer.is_due(moment) {
                    pacer.taken(moment);
                    taken.push(moment);
                }
            }
            assert!(taken.len().abs_diff(expected) <= 1, "{rate}: {}", taken.len());
            // In any second or more, no more than the rate allows, and one.
            for (first, from) in taken.iter().enumerate() {
                let within = taken[first..]
                    .iter()
                    .take_while(|moment| **moment < *from + Duration::from_secs(1));
                assert!(within.count() as f64 <= rate + 1.0, "{rate}");
            }
        }
        let mut all = Pacer::new(None);
        assert!((1..100).all(|index| {
            all.taken(FRAME * index);
            all.is_due(FRAME * index)
        }));
    }

    #[test]
    fn a_pause_is_not_made_up_for_and_a_bad_frame_is() {
        let mut pacer = Pacer::new(Some(1.0));
        let at = |ms| Duration::from_millis(ms);
        pacer.taken(at(1000));
        assert!(!pacer.is_due(at(1900)) && pacer.is_due(at(2000)));
        pacer.taken(at(60_000));
        assert!(!pacer.is_due(at(60_900)), "one for the whole pause");
        pacer.again();
        assert!(pacer.is_due(at(60_033)));
        pacer.taken(at(60_033));
        assert!(!pacer.is_due(at(61_000)) && pacer.is_due(at(61_033)));
    }

    #[test]
    fn frames_are_counted_over_the_last_second_and_the_count_falls_with_silence() {
        let mut meter = Meter::default();
        assert_eq!(meter.fps(FRAME), 0.0);
        meter.note(FRAME);
        assert_eq!(meter.fps(FRAME), 0.0);
        for index in 2..200 {
            meter.note(FRAME * index);
        }
        let now = FRAME * 199;
        assert!((meter.fps(now) - 30.0).abs() < 0.01, "{}", meter.fps(now));
        assert!((meter.fps(now + FRAME / 2) - 30.0).abs() < 0.01);
        let later = meter.fps(now + Duration::from_secs(30));
        assert!(later < 1.1, "{later}");
        meter.clear();
        assert_eq!(meter.fps(now), 0.0);
    }

    #[test]
    fn waits_double_and_start_over_after_a_good_time() {
        let mut retry = Retry::default();
        let waits: Vec<u128> = (0..7)
            .map(|_| retry.after(Duration::from_secs(9)).as_millis())
            .collect();
        assert_eq!(waits, [500, 1000, 2000, 4000, 8000, 10_000, 10_000]);
        assert_eq!(retry.after(STABLE), FIRST_WAIT);
    }
}
