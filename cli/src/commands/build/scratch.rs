//! What a build writes for itself while it runs.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Context;
use edgeopt_runtime::backends::tensorrt::{Stop, StopRequest};

/// Exit status of a program that was interrupted.
const INTERRUPTED: i32 = 130;

/// A folder beside the bundle that goes with the build, also when Ctrl-C ends it.
pub(super) struct Scratch {
    folder: tempfile::TempDir,
    builder: Arc<Mutex<Option<StopRequest>>>,
}

impl Scratch {
    /// Makes the folder beside `output`, and from here on answers to Ctrl-C.
    pub(super) fn beside(output: &Path) -> anyhow::Result<Self> {
        let parent = output
            .parent()
            .filter(|parent| !parent.as_os_str().is_empty())
            .unwrap_or(Path::new("."));
        let folder = tempfile::Builder::new()
            .prefix(".edgeopt-build-")
            .tempdir_in(parent)
            .with_context(|| format!("cannot write {}", output.display()))?;
        let builder = Arc::default();
        remove_on_interrupt(folder.path().to_owned(), Arc::clone(&builder))?;
        Ok(Self { folder, builder })
    }

    /// Where it is.
    pub(super) fn path(&self) -> &Path {
        self.folder.path()
    }

    /// While the result lives, Ctrl-C asks `builder` to stop; the second one ends the program.
    pub(super) fn interrupts(&self, builder: StopRequest) -> Interruptible {
        *self.builder.lock().unwrap_or_else(PoisonError::into_inner) = Some(builder);
        Interruptible(Arc::clone(&self.builder))
    }
}

/// A builder that Ctrl-C asks to stop.
pub(super) struct Interruptible(Arc<Mutex<Option<StopRequest>>>);

impl Drop for Interruptible {
    fn drop(&mut self) {
        // What is done does not stop: the next Ctrl-C would do nothing.
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}

/// Whether a builder that runs was asked to stop.
fn asked_to_stop(builder: &Mutex<Option<StopRequest>>) -> bool {
    let builder = builder.lock().unwrap_or_else(PoisonError::into_inner);
    let running = builder.as_ref().filter(|builder| builder.reason().is_none());
    running.inspect(|builder| builder.ask(Stop::Asked)).is_some()
}

fn remove_on_interrupt(folder: PathBuf, builder: Arc<Mutex<Option<StopRequest>>>) -> anyhow::Result<()> {
    ctrlc::set_handler(move || {
        if asked_to_stop(&builder) {
            return;
        }
        let _ = std::fs::remove_dir_all(&folder);
        std::process::exit(INTERRUPTED);
    })
    .context("Ctrl-C cannot be caught")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_builder_is_asked_once_while_it_runs_and_not_when_it_is_done() {
        let scratch = Scratch {
            folder: tempfile::tempdir().unwrap(),
            builder: Arc::default(),
        };
        assert!(!asked_to_stop(&scratch.builder));
        let running = scratch.interrupts(StopRequest::default());
        assert!(asked_to_stop(&scratch.builder));
        assert!(
            !asked_to_stop(&scratch.builder),
            "the second time the program ends"
        );
        drop(running);
        let done = scratch.interrupts(StopRequest::default());
        drop(done);
        assert!(!asked_to_stop(&scratch.builder));
    }
}
