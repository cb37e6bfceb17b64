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

    /// From here on Ctrl-C asks `builder` to stop; the second one ends the program.
    pub(super) fn interrupts(&self, builder: StopRequest) {
        *self.builder.lock().unwrap_or_else(PoisonError::into_inner) = Some(builder);
    }
}

fn remove_on_interrupt(folder: PathBuf, builder: Arc<Mutex<Option<StopRequest>>>) -> anyhow::Result<()> {
    ctrlc::set_handler(move || {
        let builder = builder.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(builder) = builder.as_ref().filter(|builder| builder.reason().is_none()) {
            builder.ask(Stop::Asked);
            return;
        }
        let _ = std::fs::remove_dir_all(&folder);
        std::process::exit(INTERRUPTED);
    })
    .context("Ctrl-C cannot be caught")
}
