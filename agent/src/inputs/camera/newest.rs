//! The newest frame, which waits for the model: when its turn comes, it gets the latest there is.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::monitor::Monitor;
use super::source::Frame;
use crate::serve::LiveInput;

/// Holds one frame at most. A frame that gives way to a newer one goes back to its driver undecoded.
pub(super) struct Newest<F> {
    state: Mutex<State<F>>,
    monitor: Arc<Monitor>,
}

struct State<F> {
    frame: Option<(F, Instant)>,
    /// An input in the slot's queue stands for whatever frame will be here.
    awaited: bool,
    /// What was taken could not be decoded.
    spoilt: bool,
}

impl<F: Frame> Newest<F> {
    pub(super) fn new(monitor: Arc<Monitor>) -> Self {
        Self {
            state: Mutex::new(State {
                frame: None,
                awaited: false,
                spoilt: false,
            }),
            monitor,
        }
    }

    fn lock(&self) -> MutexGuard<'_, State<F>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Replaces the frame that is awaited; gives the new one back if none is.
    pub(super) fn renew(&self, frame: F, captured: Instant) -> Option<F> {
        let mut state = self.lock();
        if !state.awaited {
            return Some(frame);
        }
        let before = state.frame.replace((frame, captured));
        drop(state);
        if before.is_some() {
            self.monitor.skipped(1);
        }
        None
    }

    /// Puts the frame for an input that is about to be handed to the slot.
    pub(super) fn put(&self, frame: F, captured: Instant) {
        let mut state = self.lock();
        state.frame = Some((frame, captured));
        state.awaited = true;
    }

    /// The input was given up before its turn came: the next frame may have one of its own.
    pub(super) fn withdraw(&self) {
        let mut state = self.lock();
        state.awaited = false;
        if state.frame.take().is_some() {
            drop(state);
            self.monitor.skipped(1);
        }
    }

    /// No newer frame will come: an old one is nothing to answer about.
    pub(super) fn clear(&self) {
        if self.lock().frame.take().is_some() {
            self.monitor.skipped(1);
        }
    }

    /// Whether what was taken was spoilt; forgets it.
    pub(super) fn was_spoilt(&self) -> bool {
        std::mem::take(&mut self.lock().spoilt)
    }

    /// The input's turn has come: decodes the frame, into `spare` if it is large enough. `None` if there is none any more, or it is spoilt.
    pub(super) fn take(&self, spare: Vec<u8>) -> Option<LiveInput> {
        let taken = {
            let mut state = self.lock();
            state.awaited = false;
            state.frame.take()
        };
        let (frame, captured) = taken?;
        match frame.layout().rgb(frame.bytes(), spare) {
            Ok(image) => {
                self.monitor.taken();
                Some(LiveInput {
                    image,
                    captured,
                    sequence: frame.sequence().into(),
                })
            }
            Err(problem) => {
                self.monitor.bad(&problem);
                self.lock().spoilt = true;
                None
            }
        }
    }
}
