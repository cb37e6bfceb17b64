//! Files that appear in a folder.
//!
//! A file is taken once it is complete: closed after writing, or renamed into place. It is removed (or moved to `done/`)
//! only when its result waits for the broker on disk, so a power cut costs a repetition and no file. What the model
//! cannot read goes to `failed/`. While there is no model, or the queue is full, files wait where they are.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::ffi::OsStr;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime};

use inotify::{EventMask, Inotify, WatchMask};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::daemon::slots::Slots;
use crate::protocol::SlotName;
use crate::pulse::{Pulse, Pulses};
use crate::serve::ServeError;

/// Files under way at a time, at most.
const WINDOW: usize = 16;
/// Times that a model may fail on a file before the file is given up.
const MODEL_TRIES: u32 = 5;
/// A file larger than this is no input.
const LARGEST: u64 = 256 << 20;
/// How long a wait for events may last; the thread ends no later after it was asked to.
const WAIT: Duration = Duration::from_millis(250);
/// The same while answers are awaited.
const SHORT_WAIT: Duration = Duration::from_millis(2);
/// How often the whole folder is looked through: for files that waited, and those whose event was lost.
const LOOK: Duration = Duration::from_secs(1);
/// A file found without an event is complete if nobody has written to it for this long.
const QUIET: Duration = Duration::from_secs(2);
const STEP: Duration = Duration::from_secs(60);

/// A folder cannot be watched.
#[derive(Debug, thiserror::Error)]
#[error("cannot watch {}: {source}; the folder must exist, and the daemon's user must be able to read and write it", .path.display())]
pub struct FolderError {
    /// The folder.
    pub path: PathBuf,
    /// What the system said.
    pub source: io::Error,
}

/// Watches a folder until it is dropped.
pub struct FolderWatch {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for FolderWatch {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // A panic there has been reported by its thread already.
            drop(thread.join());
        }
    }
}

impl FolderWatch {
    /// Hands files in `path` to `slot`; afterwards they are removed, or kept in `done/`.
    ///
    /// # Errors
    /// When the folder cannot be watched, or the system gives no thread.
    pub(crate) fn start(
        path: &Path,
        keep: bool,
        slot: SlotName,
        slots: Arc<Slots>,
        pulses: &Pulses,
    ) -> Result<Self, FolderError> {
        let failed = |source| FolderError {
            path: path.into(),
            source,
        };
        let inotify = Inotify::init().map_err(failed)?;
        inotify
            .watches()
            .add(
                path,
                WatchMask::CLOSE_WRITE | WatchMask::MOVED_TO | WatchMask::ONLYDIR,
            )
            .map_err(failed)?;
        let stop = Arc::new(AtomicBool::new(false));
        let pulse = pulses.join(format!("folder {}", path.display()));
        let (done, ended) = mpsc::channel();
        let worker = Worker {
            folder: path.into(),
            keep,
            slot,
            slots,
            stop: Arc::clone(&stop),
            complete: VecDeque::new(),
            queued: HashSet::new(),
            model_failures: BTreeMap::new(),
            unnamed: false,
            under_way: BTreeMap::new(),
            given_up: BTreeMap::new(),
            done,
            ended,
        };
        let thread = thread::Builder::new()
            .name("folder".into())
            .spawn(move || worker.run(inotify, &pulse))
            .map_err(failed)?;
        Ok(Self {
            stop,
            thread: Some(thread),
        })
    }
}

/// Which content a name had: another one under the same name is another file.
type Identity = (u64, i64, i64, u64);

fn identity(data: &Metadata) -> Identity {
    (data.ino(), data.mtime(), data.mtime_nsec(), data.len())
}

struct Worker {
    folder: PathBuf,
    keep: bool,
    slot: SlotName,
    slots: Arc<Slots>,
    stop: Arc<AtomicBool>,
    /// Names of files that are complete, and the same to look them up.
    complete: VecDeque<String>,
    queued: HashSet<String>,
    under_way: BTreeMap<String, Identity>,
    /// How often the model failed on a file.
    model_failures: BTreeMap<String, u32>,
    /// Whether a name that is not UTF-8 was told of.
    unnamed: bool,
    /// Files that could be neither removed nor moved.
    given_up: BTreeMap<String, Identity>,
    done: Sender<Done>,
    ended: Receiver<Done>,
}

struct Done {
    name: String,
    outcome: Outcome,
}

enum Outcome {
    Published,
    Later(String),
    Unreadable(String),
    ModelFailed(String),
}

impl Worker {
    fn run(mut self, mut inotify: Inotify, pulse: &Pulse) {
        let mut buffer = [0; 4096];
        let (mut looked, mut lost) = (None::<Instant>, false);
        while !self.stop.load(Ordering::Relaxed) {
            pulse.beat(STEP);
            if lost || looked.is_none_or(|looked| looked.elapsed() >= LOOK) {
                (looked, lost) = (Some(Instant::now()), false);
                self.look_through();
            }
            self.submit();
            if self.wait(&inotify) {
                match inotify.read_events(&mut buffer) {
                    Ok(events) => {
                        for event in events {
                            lost |= event.mask.contains(EventMask::Q_OVERFLOW);
                            self.note(event.name);
                        }
                    }
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    Err(error) => {
                        tracing::error!("{}: {error}", self.folder.display());
                        thread::sleep(WAIT);
                    }
                }
            }
            let ended: Vec<Done> = self.ended.try_iter().collect();
            self.end_all(ended);
        }
        // What is under way ends before the queue does; its files must go, or they come again.
        let begun = Instant::now();
        while !self.under_way.is_empty() && begun.elapsed() < WAIT {
            if let Ok(done) = self.ended.recv_timeout(WAIT) {
                self.end_all(vec![done]);
            }
        }
    }

    /// Files go only after their results are safe from a power cut, whatever the spool does about others.
    fn end_all(&mut self, mut ended: Vec<Done>) {
        if ended
            .iter()
            .any(|done| matches!(done.outcome, Outcome::Published))
            && let Some(slot) = self.slots.get(&self.slot)
            && let Err(error) = slot.results.sync()
        {
            tracing::error!(
                "{}: files stay until results can be kept: {error}",
                self.folder.display()
            );
            for done in &mut ended {
                if matches!(done.outcome, Outcome::Published) {
                    done.outcome = Outcome::Later("its result may not be on disk yet".into());
                }
            }
        }
        for done in ended {
            self.end(done);
        }
    }

    /// Whether there are events.
    fn wait(&self, inotify: &Inotify) -> bool {
        let wait = if self.under_way.is_empty() {
            WAIT
        } else {
            SHORT_WAIT
        };
        let timeout = Timespec::try_from(wait).ok();
        let mut descriptors = [PollFd::new(inotify, PollFlags::IN)];
        poll(&mut descriptors, timeout.as_ref()).is_ok_and(|ready| ready > 0)
    }

    fn note(&mut self, name: Option<&OsStr>) {
        let Some(name) = name else {
            return;
        };
        let Some(name) = name.to_str() else {
            if !std::mem::replace(&mut self.unnamed, true) {
                tracing::warn!(
                    "{}: {name:?} is not UTF-8; such files are left alone",
                    self.folder.display()
                );
            }
            return;
        };
        if !name.starts_with('.') && self.queued.insert(name.to_owned()) {
            self.complete.push_back(name.to_owned());
        }
    }

    /// Finds files that nobody told of.
    fn look_through(&mut self) {
        let entries = match fs::read_dir(&self.folder) {
            Ok(entries) => entries,
            Err(error) => return tracing::error!("{}: {error}", self.folder.display()),
        };
        let mut found = Vec::new();
        for entry in entries.flatten() {
            let Ok(data) = entry.metadata() else { continue };
            let quiet = data
                .modified()
                .ok()
                .and_then(|modified| SystemTime::now().duration_since(modified).ok())
                .is_none_or(|since| since >= QUIET);
            let name = entry.file_name();
            let known = name.to_str().is_some_and(|name| {
                self.under_way.contains_key(name) || self.given_up.get(name) == Some(&identity(&data))
            });
            if data.is_file() && quiet && !known {
                found.push((data.mtime(), data.mtime_nsec(), name));
            }
        }
        // Oldest first.
        found.sort();
        for (_, _, name) in found {
            self.note(Some(&name));
        }
    }

    fn submit(&mut self) {
        let Some(slot) = self.slots.get(&self.slot) else {
            return;
        };
        // Without a model, or paused, every input would come straight back.
        if slot.server.is_closed() {
            return;
        }
        while self.under_way.len() < WINDOW.min(slot.settings.queue as usize) {
            let Some(name) = self.complete.pop_front() else {
                return;
            };
            self.queued.remove(&name);
            if self.under_way.contains_key(&name) {
                continue;
            }
            let path = self.folder.join(&name);
            let data = match fs::metadata(&path) {
                Ok(data) if data.is_file() => data,
                // Gone again, or a folder.
                _ => continue,
            };
            let outcome = if data.len() > LARGEST {
                Err(format!(
                    "it has {} bytes; an input has at most {LARGEST}",
                    data.len()
                ))
            } else {
                fs::read(&path).map_err(|error| error.to_string())
            };
            self.under_way.insert(name.clone(), identity(&data));
            let done = self.done.clone();
            let tell = move |name: String, outcome: Outcome| {
                // The watch may have ended.
                drop(done.send(Done { name, outcome }));
            };
            match outcome {
                Err(problem) => tell(name, Outcome::Unreadable(problem)),
                Ok(bytes) => {
                    let folder = self.folder.file_name().unwrap_or_default().to_string_lossy();
                    let stream = format!("{folder}/{name}");
                    slot.submit(path.display().to_string(), stream, bytes, move |result| {
                        let outcome = match result {
                            Ok((_, true)) => Outcome::Published,
                            Ok((_, false)) => Outcome::Later("its result could not be kept".into()),
                            Err(ServeError::Input(problem)) => Outcome::Unreadable(problem),
                            Err(ServeError::Model(problem)) => Outcome::ModelFailed(problem),
                            Err(error) => Outcome::Later(error.to_string()),
                        };
                        tell(name, outcome);
                    });
                }
            }
        }
    }

    fn end(&mut self, done: Done) {
        let path = self.folder.join(&done.name);
        let taken = self.under_way.remove(&done.name);
        let now = fs::metadata(&path).ok().map(|data| identity(&data));
        if now != taken {
            // Another file has this name now; it has its own event.
            return;
        }
        let outcome = match done.outcome {
            // The model may be to blame, and soon another one.
            Outcome::ModelFailed(problem) => {
                let failures = self.model_failures.entry(done.name.clone()).or_default();
                *failures += 1;
                if *failures < MODEL_TRIES {
                    Outcome::Later(problem)
                } else {
                    Outcome::Unreadable(problem)
                }
            }
            outcome => outcome,
        };
        if !matches!(outcome, Outcome::Later(_)) {
            self.model_failures.remove(&done.name);
        }
        let result = match &outcome {
            Outcome::Later(why) => {
                // Found again by looking through the folder.
                tracing::debug!("{}: {why}", path.display());
                return;
            }
            Outcome::Published if self.keep => self.move_to("done", &done.name),
            Outcome::Published => fs::remove_file(&path),
            Outcome::Unreadable(problem) | Outcome::ModelFailed(problem) => {
                tracing::warn!("{}: {problem}; moved to failed/", path.display());
                self.move_to("failed", &done.name)
            }
        };
        if let (Err(error), Some(identity)) = (result, taken) {
            tracing::error!("{}: {error}: it stays, and is not taken again", path.display());
            self.given_up.insert(done.name, identity);
        }
    }

    fn move_to(&self, inside: &str, name: &str) -> io::Result<()> {
        let folder = self.folder.join(inside);
        fs::create_dir_all(&folder)?;
        // Producers use names again; what is kept is not overwritten.
        let mut target = folder.join(name);
        let mut number = 1;
        while target.exists() {
            target = folder.join(format!("{name}.{number}"));
            number += 1;
        }
        fs::rename(self.folder.join(name), target)
    }
}
