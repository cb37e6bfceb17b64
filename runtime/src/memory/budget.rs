use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use edgeopt_models::Bytes;

use crate::MemoryUse;

/// A limit on memory, shared by everything that clones it. What is reserved is given back when the
/// [`Reservation`] is dropped.
#[derive(Clone)]
pub struct Budget {
    state: Arc<State>,
}

struct State {
    limit: Bytes,
    held: Mutex<Vec<(u64, String, MemoryUse)>>,
}

/// Memory set aside for one model; given back when dropped.
pub struct Reservation {
    state: Arc<State>,
    id: u64,
}

/// A model does not fit into the budget.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub struct BudgetError {
    /// What was to be loaded.
    pub name: String,
    /// What it needs, by part.
    pub needs: MemoryUse,
    /// The limit of the budget.
    pub limit: Bytes,
    /// What others hold of it, by name.
    pub held: Vec<(String, Bytes)>,
    /// What would fit instead, if somebody worked it out: `int8, batch 1`.
    pub would_fit: Option<String>,
}

impl BudgetError {
    /// The same error with what would fit instead.
    #[must_use]
    pub fn with_would_fit(mut self, what: impl Into<String>) -> Self {
        self.would_fit = Some(what.into());
        self
    }
}

impl fmt::Display for BudgetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} needs {}, limit {}",
            self.name,
            self.needs.total(),
            self.limit
        )?;
        if !self.held.is_empty() {
            let held: Vec<String> = self
                .held
                .iter()
                .map(|(name, bytes)| format!("{name} {bytes}"))
                .collect();
            write!(f, " (already held: {})", held.join(", "))?;
        }
        let parts = [
            ("weights", self.needs.weights),
            ("activations", self.needs.activations),
            ("workspace", self.needs.workspace),
            ("inputs and outputs", self.needs.io),
            ("backend overhead", self.needs.overhead),
        ];
        let mut parts: Vec<_> = parts
            .into_iter()
            .filter(|(_, bytes)| *bytes > Bytes::ZERO)
            .collect();
        parts.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
        let parts: Vec<String> = parts
            .iter()
            .map(|(name, bytes)| format!("{name} {bytes}"))
            .collect();
        write!(f, "; largest parts: {}", parts.join(", "))?;
        match &self.would_fit {
            Some(what) => write!(f, "; this would fit: {what}"),
            None => Ok(()),
        }
    }
}

impl Budget {
    /// A budget of `limit`.
    pub fn new(limit: Bytes) -> Self {
        Self {
            state: Arc::new(State {
                limit,
                held: Mutex::default(),
            }),
        }
    }

    /// A budget of what the system leaves to this process now (`MemAvailable` and the control group's limit), and of
    /// at most `user_limit`. `None` when nothing limits: the user gave no limit and the system tells none.
    pub fn for_system(user_limit: Option<Bytes>) -> Option<Self> {
        let limits = [user_limit, super::system::available()];
        limits.into_iter().flatten().min().map(Self::new)
    }

    /// The limit.
    pub fn limit(&self) -> Bytes {
        self.state.limit
    }

    /// What is not reserved.
    pub fn available(&self) -> Bytes {
        self.state.limit.saturating_sub(self.state.held_total())
    }

    /// Sets memory aside for `name`.
    ///
    /// # Errors
    /// When less is available than `needs`; nothing is reserved then.
    pub fn reserve(&self, name: &str, needs: MemoryUse) -> Result<Reservation, BudgetError> {
        let mut held = self.state.held.lock().unwrap_or_else(PoisonError::into_inner);
        let total: Bytes = held.iter().map(|(_, _, used)| used.total()).sum();
        if total + needs.total() > self.state.limit {
            return Err(BudgetError {
                name: name.to_owned(),
                needs,
                limit: self.state.limit,
                held: held
                    .iter()
                    .map(|(_, name, used)| (name.clone(), used.total()))
                    .collect(),
                would_fit: None,
            });
        }
        let id = held.last().map_or(0, |(id, _, _)| id + 1);
        held.push((id, name.to_owned(), needs));
        Ok(Reservation {
            state: Arc::clone(&self.state),
            id,
        })
    }
}

impl State {
    fn held_total(&self) -> Bytes {
        let held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        held.iter().map(|(_, _, used)| used.total()).sum()
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let mut held = self.state.held.lock().unwrap_or_else(PoisonError::into_inner);
        held.retain(|(id, _, _)| *id != self.id);
    }
}

impl fmt::Debug for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Budget({} of {} available)", self.available(), self.limit())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn weights(mib: u64) -> MemoryUse {
        MemoryUse {
            weights: Bytes::mib(mib),
            overhead: Bytes::mib(1),
            ..MemoryUse::default()
        }
    }

    #[test]
    fn what_is_dropped_can_be_reserved_again() {
        let budget = Budget::new(Bytes::mib(64));
        let first = budget.reserve("detector", weights(40)).unwrap();
        let error = budget.reserve("recognizer", weights(40)).err().unwrap();
        assert_eq!(
            error.to_string(),
            "recognizer needs 41.0 MiB, limit 64.0 MiB (already held: detector 41.0 MiB); \
             largest parts: weights 40.0 MiB, backend overhead 1.00 MiB"
        );
        let hint = error.with_would_fit("int8, batch 1").to_string();
        assert!(hint.ends_with("; this would fit: int8, batch 1"), "{hint}");
        drop(first);
        assert_eq!(budget.available(), Bytes::mib(64));
        assert!(budget.reserve("recognizer", weights(40)).is_ok());
    }

    #[test]
    fn the_users_limit_holds_when_it_is_the_tighter_one() {
        let budget = Budget::for_system(Some(Bytes::kib(1))).unwrap();
        assert_eq!(budget.limit(), Bytes::kib(1));
        let without = Budget::for_system(None).unwrap().limit();
        assert!(Budget::for_system(Some(Bytes(u64::MAX))).unwrap().limit() < Bytes(u64::MAX));
        assert!(without > Bytes::ZERO);
    }
}
