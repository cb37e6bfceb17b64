use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A value that one thread changes and others look at or wait for. Clones see the same value.
#[derive(Debug)]
pub struct Watch<T> {
    shared: Arc<(Mutex<T>, Condvar)>,
}

impl<T> Clone for Watch<T> {
    fn clone(&self) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
        }
    }
}

impl<T: Clone> Watch<T> {
    /// Starts with `value`.
    pub(super) fn new(value: T) -> Self {
        Self {
            shared: Arc::new((Mutex::new(value), Condvar::new())),
        }
    }

    fn lock(&self) -> MutexGuard<'_, T> {
        self.shared.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The value now.
    pub fn get(&self) -> T {
        self.lock().clone()
    }

    /// Changes the value and wakes those who wait.
    pub(super) fn change(&self, change: impl FnOnce(&mut T)) {
        change(&mut self.lock());
        self.shared.1.notify_all();
    }

    /// Waits until the value is as `wanted`, for at most `limit`. Returns the value, or the last one seen as an error. A
    /// value that comes and goes between two looks is not seen.
    ///
    /// # Errors
    /// When the time is over.
    pub fn wait(&self, limit: Duration, mut wanted: impl FnMut(&T) -> bool) -> Result<T, T> {
        let deadline = Instant::now() + limit;
        let mut value = self.lock();
        while !wanted(&value) {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(value.clone());
            }
            value = self
                .shared
                .1
                .wait_timeout(value, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
        Ok(value.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_ends_with_the_value_or_with_the_time() {
        let watch = Watch::new(0);
        let other = watch.clone();
        let thread = std::thread::spawn(move || (1..=5).for_each(|value| other.change(|seen| *seen = value)));
        assert_eq!(watch.wait(Duration::from_secs(10), |value| *value == 5), Ok(5));
        thread.join().unwrap();
        assert_eq!(watch.wait(Duration::from_millis(10), |value| *value == 6), Err(5));
        assert_eq!(watch.get(), 5);
    }
}
