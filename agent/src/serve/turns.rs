//! Who may run next when the device shall not run everything at once.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use crate::config::Priority;

/// A number of permissions to run, handed out by priority, then by order. Clones share them.
#[derive(Clone, Debug)]
pub struct Turns(Option<Arc<Shared>>);

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    free: usize,
    /// The one that is next comes first.
    waiting: BTreeSet<(Reverse<Priority>, u64)>,
    tickets: u64,
}

/// The permission to run; given back when dropped.
#[derive(Debug)]
pub struct Turn(Option<Arc<Shared>>);

impl Turns {
    /// So many at the same time; `None` = as many as like.
    pub fn new(concurrent: Option<usize>) -> Self {
        Self(concurrent.map(|free| {
            Arc::new(Shared {
                state: Mutex::new(State {
                    free: free.max(1),
                    waiting: BTreeSet::new(),
                    tickets: 0,
                }),
                changed: Condvar::new(),
            })
        }))
    }

    /// Waits for its turn.
    pub fn take(&self, priority: Priority) -> Turn {
        let Some(shared) = &self.0 else {
            return Turn(None);
        };
        let mut state = shared.lock();
        let own = (Reverse(priority), state.tickets);
        state.tickets += 1;
        state.waiting.insert(own);
        while state.free == 0 || state.waiting.first() != Some(&own) {
            state = shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.waiting.pop_first();
        state.free -= 1;
        let more = state.free > 0 && !state.waiting.is_empty();
        drop(state);
        if more {
            shared.changed.notify_all();
        }
        Turn(Some(Arc::clone(shared)))
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if let Some(shared) = &self.0 {
            shared.lock().free += 1;
            shared.changed.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;
    use std::time::Duration;

    use super::*;

    #[test]
    fn never_more_than_allowed_and_the_more_important_first() {
        let turns = Turns::new(Some(1));
        let held = turns.take(Priority::Low);
        let (order, seen) = mpsc::channel();
        thread::scope(|scope| {
            for (name, priority) in [
                ("low", Priority::Low),
                ("normal 1", Priority::Normal),
                ("normal 2", Priority::Normal),
                ("high", Priority::High),
            ] {
                let (own, order) = (turns.clone(), order.clone());
                scope.spawn(move || {
                    let _turn = own.take(priority);
                    order.send(name).unwrap();
                });
                // So that they queue in this order.
                while turns
                    .0
                    .as_ref()
                    .unwrap()
                    .lock()
                    .waiting
                    .iter()
                    .all(|one| one.0.0 != priority)
                    || (name == "normal 2" && turns.0.as_ref().unwrap().lock().waiting.len() < 3)
                {
                    thread::sleep(Duration::from_millis(1));
                }
            }
            drop(held);
        });
        drop(order);
        let order: Vec<_> = seen.iter().collect();
        assert_eq!(order, ["high", "normal 1", "normal 2", "low"]);
    }

    #[test]
    fn without_a_bound_nobody_waits() {
        let turns = Turns::new(None);
        let _all: Vec<Turn> = (0..100).map(|_| turns.take(Priority::Low)).collect();
    }
}
