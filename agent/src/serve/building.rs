//! An engine that is built on a thread of its own, while something else answers.

use std::panic::{self, AssertUnwindSafe};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use edgeopt_runtime::{Backend, Cancel, CompileOptions, OnStep};

use super::model::{LoadError, Opened};
use crate::pulse::Pulse;

/// How long until the first step of a build, or its end where the library tells of none.
const BUILDING: Duration = Duration::from_secs(3600);
/// How long until the next step, of a library that tells of them.
const NEXT_STEP: Duration = Duration::from_secs(600);

/// How long the end of a build is waited for when the slot ends.
const LONGEST_STOP: Duration = Duration::from_secs(3);

/// How a build goes on, for whoever looks. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct BuildProgress(Arc<Mutex<Option<(Instant, u64)>>>);

impl BuildProgress {
    /// How long the build under way has taken, and how many steps it has done; `None` while there is none.
    pub fn now(&self) -> Option<(Duration, u64)> {
        let shared = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        shared.map(|(begun, steps)| (begun.elapsed(), steps))
    }

    fn set(&self, value: Option<(Instant, u64)>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = value;
    }

    fn step(&self) {
        if let Some((_, steps)) = &mut *self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            *steps += 1;
        }
    }
}

/// A build under way; cancelled when dropped, without waiting for its end.
pub(super) struct Building {
    pub(super) bundle: PathBuf,
    cancel: Cancel,
    progress: BuildProgress,
    /// Why there is no thread, until that was told; `None` = the end was told.
    thread: Option<std::io::Result<JoinHandle<Result<(), LoadError>>>>,
}

impl Building {
    /// Begins to build the engine of `bundle`. `pulse` shows that it goes on.
    pub(super) fn start(
        bundle: &Path,
        backend: Arc<dyn Backend>,
        options: CompileOptions,
        progress: BuildProgress,
        pulse: Pulse,
    ) -> Self {
        let cancel = Cancel::default();
        let stopped = cancel.clone();
        let (told, beaten) = (progress.clone(), pulse.clone());
        let options = CompileOptions {
            cancel: Some(cancel.clone()),
            on_step: Some(OnStep::new(move || {
                // A build that was given up, but has not noticed yet, is not the one that is shown.
                if !stopped.is_asked() {
                    told.step();
                }
                beaten.beat(NEXT_STEP);
            })),
            ..options
        };
        progress.set(Some((Instant::now(), 0)));
        let path = bundle.to_owned();
        let thread = Some(thread::Builder::new().name("engine-build".into()).spawn(move || {
            pulse.beat(BUILDING);
            let build = || Opened::read(&path).and_then(|opened| opened.build(&*backend, &options));
            // A panic is the build's end, and told as such: the pulse must not show a thread that died.
            let built = panic::catch_unwind(AssertUnwindSafe(build)).unwrap_or(Err(LoadError::Panicked));
            pulse.rest();
            built
        }));
        Self {
            bundle: bundle.into(),
            cancel,
            progress,
            thread,
        }
    }

    /// The end of the build, once; `None` while it goes on.
    pub(super) fn ended(&mut self) -> Option<Result<(), LoadError>> {
        let over = |thread: &mut std::io::Result<JoinHandle<_>>| {
            thread.as_ref().map_or(true, JoinHandle::is_finished)
        };
        let ended = self.thread.take_if(over)?;
        self.progress.set(None);
        Some(match ended {
            Ok(thread) => thread.join().unwrap_or(Err(LoadError::Panicked)),
            Err(source) => Err(LoadError::Io {
                path: self.bundle.clone(),
                source,
            }),
        })
    }

    /// Asks it to end, and waits for that, but not for a library that cannot be interrupted: what that builds is thrown
    /// away when it is done.
    pub(super) fn stop(mut self) {
        self.cancel.ask();
        let begun = Instant::now();
        let runs = |thread: &JoinHandle<_>| !thread.is_finished() && begun.elapsed() < LONGEST_STOP;
        if let Some(Ok(thread)) = self.thread.take() {
            while runs(&thread) {
                thread::sleep(Duration::from_millis(5));
            }
        }
    }
}

impl Drop for Building {
    fn drop(&mut self) {
        self.cancel.ask();
        self.progress.set(None);
    }
}
