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

    #[derive(Clone, Default)]
    struct Written(Arc<Mutex<Vec<u8>>>);

    impl std::io::Write for Written {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn the_log_gets_the_first_of_a_flood_and_one_of_each_other_kind() {
        let written = Written::default();
        let writer = written.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_ansi(false)
            .with_writer(move || writer.clone())
            .finish();
        let quiet = Quiet::default();
        tracing::subscriber::with_default(subscriber, || {
            for index in 0..100 {
                quiet.warn("input", &format!("bad input {index}"));
                quiet.clone().warn("desired", &format!("bad state {index}"));
            }
        });
        let text = String::from_utf8(written.0.lock().unwrap().clone()).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 2, "{text}");
        for (line, words) in lines
            .iter()
            .zip(["bad input 0 suppressed=0", "bad state 0 suppressed=0"])
        {
            assert!(line.contains("WARN") && line.ends_with(words), "{line}");
        }
    }

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
