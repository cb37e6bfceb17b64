//! Keeps a flood of bad messages from flooding the log.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Problems of one kind are logged this often.
const PAUSE: Duration = Duration::from_secs(10);

/// Logs the first problem of each kind, and counts those that follow closely. Clones share the counts.
#[derive(Clone, Default)]
pub(super) struct Quiet(Arc<Mutex<BTreeMap<&'static str, Said>>>);

struct Said {
    at: Instant,
    suppressed: u64,
}

impl Quiet {
    /// Logs `problem`, unless one of its kind was logged just now.
    pub(super) fn warn(&self, kind: &'static str, problem: &str) {
        if let Some(suppressed) = self.due(kind, Instant::now()) {
            tracing::warn!(suppressed, "{problem}");
        }
    }

    /// How many of the kind were passed over since the last one that was logged; `None` while it is too early.
    fn due(&self, kind: &'static str, now: Instant) -> Option<u64> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let suppressed = match all.get_mut(kind) {
            Some(said) if now.saturating_duration_since(said.at) < PAUSE => {
                said.suppressed += 1;
                return None;
            }
            Some(said) => said.suppressed,
            None => 0,
        };
        all.insert(
            kind,
            Said {
                at: now,
                suppressed: 0,
            },
        );
        Some(suppressed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_is_told_at_once_and_then_counted() {
        let quiet = Quiet::default();
        let start = Instant::now();
        assert_eq!(quiet.due("input", start), Some(0));
        assert_eq!(quiet.due("desired", start), Some(0), "another kind is not hidden");
        for _ in 0..5 {
            assert_eq!(quiet.clone().due("input", start + PAUSE / 2), None);
        }
        assert_eq!(quiet.due("input", start + PAUSE), Some(5));
        assert_eq!(quiet.due("input", start + PAUSE * 2), Some(0));
    }
}
