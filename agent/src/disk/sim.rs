//! A disk in memory that can be cut from power, run full, or fail at any operation. It keeps apart what programs see
//! and what the medium holds, and is as unkind as POSIX allows: a name is durable only once its folder was synced,
//! content only once its file was.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

use edgeopt_models::Bytes;

use super::{Disk, DiskFile, Found, OpenMode, Room};

const SECTOR: usize = 512;

/// What of the unsynced writes is found after a power cut.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Survival {
    /// Only what was synced.
    Synced,
    /// Everything: the process died, the system did not.
    Everything,
    /// Any sectors of file content and any first part of the changes of names.
    Random(u64),
}

/// A shared handle on the simulated disk.
#[derive(Clone, Debug, Default)]
pub(crate) struct SimDisk(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    files: Vec<Content>,
    live: BTreeMap<PathBuf, Node>,
    durable: BTreeMap<PathBuf, Node>,
    pending: Vec<Change>,
    off: bool,
    operations: u64,
    bytes_written: u64,
    cut_at_operation: Option<u64>,
    cut_at_byte: Option<u64>,
    fail_at: Option<(u64, i32)>,
    capacity: Option<u64>,
    /// Counts reboots: handles opened before one are dead.
    boot: u64,
}

#[derive(Debug, Default)]
struct Content {
    live: Vec<u8>,
    synced: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Node {
    File(usize),
    Folder,
}

/// A change of names that its folder's sync makes durable.
#[derive(Clone, Debug)]
struct Change {
    folder: PathBuf,
    remove: Option<PathBuf>,
    add: Option<(PathBuf, Node)>,
}

#[derive(Debug)]
struct SimFile {
    disk: SimDisk,
    index: usize,
    boot: u64,
    writable: bool,
}

fn folder_of(path: &Path) -> PathBuf {
    path.parent().unwrap_or(Path::new("")).to_owned()
}

fn power_lost() -> io::Error {
    io::Error::other("power lost")
}

impl State {
    /// Counts one changing operation; fails if power is off or this is the one to fail.
    fn step(&mut self) -> io::Result<()> {
        if self.off {
            return Err(power_lost());
        }
        self.operations += 1;
        if self.cut_at_operation.is_some_and(|at| self.operations > at) {
            self.off = true;
            return Err(power_lost());
        }
        match self.fail_at {
            Some((at, code)) if at == self.operations => Err(io::Error::from_raw_os_error(code)),
            _ => Ok(()),
        }
    }

    fn used(&self) -> u64 {
        let nodes = self.live.values();
        nodes
            .map(|node| match node {
                Node::File(index) => self.files[*index].live.len() as u64,
                Node::Folder => 0,
            })
            .sum()
    }

    fn needs_folder(&self, path: &Path) -> io::Result<()> {
        let folder = folder_of(path);
        if folder == Path::new("/") || self.live.get(&folder) == Some(&Node::Folder) {
            return Ok(());
        }
        Err(io::ErrorKind::NotFound.into())
    }
}

impl Change {
    fn apply(self, names: &mut BTreeMap<PathBuf, Node>) {
        if let Some(path) = self.remove {
            names.remove(&path);
        }
        if let Some((path, node)) = self.add {
            names.insert(path, node);
        }
    }
}

impl SimDisk {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    /// Changing operations so far: the places where power can be cut.
    pub(crate) fn operations(&self) -> u64 {
        self.state().operations
    }

    /// Bytes written so far.
    pub(crate) fn bytes_written(&self) -> u64 {
        self.state().bytes_written
    }

    /// Lets `more` operations succeed, then cuts power.
    pub(crate) fn cut_after(&self, more: u64) {
        let mut state = self.state();
        state.cut_at_operation = Some(state.operations + more);
    }

    /// Lets `more` bytes be written, then cuts power in the middle of the write.
    pub(crate) fn cut_after_bytes(&self, more: u64) {
        let mut state = self.state();
        state.cut_at_byte = Some(state.bytes_written + more);
    }

    /// Lets `more` operations succeed and the next one fail with this `errno`.
    pub(crate) fn fail_after(&self, more: u64, errno: i32) {
        let mut state = self.state();
        state.fail_at = Some((state.operations + more + 1, errno));
    }

    /// Bytes that all files together can take.
    pub(crate) fn set_capacity(&self, capacity: Option<u64>) {
        self.state().capacity = capacity;
    }

    /// Bytes that all files take.
    pub(crate) fn used(&self) -> u64 {
        self.state().used()
    }

    /// Power comes back; what was not durable is gone as `survival` says.
    pub(crate) fn reboot(&self, survival: Survival) {
        let mut state = self.state();
        let state = &mut *state;
        let mut random = match survival {
            Survival::Random(seed) => fastrand::Rng::with_seed(seed),
            _ => fastrand::Rng::with_seed(0),
        };
        let pending = std::mem::take(&mut state.pending);
        let kept = match survival {
            Survival::Synced => 0,
            Survival::Everything => pending.len(),
            Survival::Random(_) => random.usize(..=pending.len()),
        };
        for change in pending.into_iter().take(kept) {
            change.apply(&mut state.durable);
        }
        for file in &mut state.files {
            file.live = match survival {
                Survival::Synced => file.synced.clone(),
                Survival::Everything => file.live.clone(),
                Survival::Random(_) => mixed(file, &mut random),
            };
            file.synced = file.live.clone();
        }
        state.live = state.durable.clone();
        state.off = false;
        state.cut_at_operation = None;
        state.cut_at_byte = None;
        state.fail_at = None;
        state.boot += 1;
    }

    /// Whole content of a file, as programs see it.
    pub(crate) fn content(&self, path: &Path) -> Option<Vec<u8>> {
        let state = self.state();
        match state.live.get(path) {
            Some(Node::File(index)) => Some(state.files[*index].live.clone()),
            _ => None,
        }
    }

    /// Every path, sorted.
    pub(crate) fn paths(&self) -> Vec<PathBuf> {
        self.state().live.keys().cloned().collect()
    }
}

fn mixed(file: &Content, random: &mut fastrand::Rng) -> Vec<u8> {
    let (short, long) = (
        file.live.len().min(file.synced.len()),
        file.live.len().max(file.synced.len()),
    );
    let mut out = vec![0; random.usize(short..=long)];
    for start in (0..out.len()).step_by(SECTOR) {
        let end = (start + SECTOR).min(out.len());
        let from = if random.bool() { &file.live } else { &file.synced };
        let available = from.len().min(end);
        if available > start {
            out[start..available].copy_from_slice(&from[start..available]);
        }
    }
    out
}

impl Disk for SimDisk {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Box<dyn DiskFile>> {
        let mut state = self.state();
        if state.off {
            return Err(power_lost());
        }
        let found = state.live.get(path).copied();
        let index = match (found, mode) {
            (Some(Node::Folder), _) => return Err(io::ErrorKind::IsADirectory.into()),
            (Some(Node::File(index)), OpenMode::Create) => {
                state.step()?;
                state.files[index].live.clear();
                index
            }
            (Some(Node::File(index)), _) => index,
            (None, OpenMode::Read | OpenMode::ReadWrite) => return Err(io::ErrorKind::NotFound.into()),
            (None, OpenMode::OpenOrCreate | OpenMode::Create) => {
                state.step()?;
                state.needs_folder(path)?;
                if state.capacity.is_some_and(|capacity| state.used() >= capacity) {
                    return Err(io::ErrorKind::StorageFull.into());
                }
                state.files.push(Content::default());
                let index = state.files.len() - 1;
                state.live.insert(path.into(), Node::File(index));
                state.pending.push(Change {
                    folder: folder_of(path),
                    remove: None,
                    add: Some((path.into(), Node::File(index))),
                });
                index
            }
        };
        Ok(Box::new(SimFile {
            disk: self.clone(),
            index,
            boot: state.boot,
            writable: mode != OpenMode::Read,
        }))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut state = self.state();
        state.step()?;
        state.needs_folder(to)?;
        let node = state.live.remove(from).ok_or(io::ErrorKind::NotFound)?;
        state.live.insert(to.into(), node);
        let (old, new) = (folder_of(from), folder_of(to));
        if old == new {
            state.pending.push(Change {
                folder: new,
                remove: Some(from.into()),
                add: Some((to.into(), node)),
            });
        } else {
            state.pending.push(Change {
                folder: new,
                remove: None,
                add: Some((to.into(), node)),
            });
            state.pending.push(Change {
                folder: old,
                remove: Some(from.into()),
                add: None,
            });
        }
        Ok(())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let mut state = self.state();
        state.step()?;
        match state.live.get(path) {
            Some(Node::File(_)) => {}
            Some(Node::Folder) => return Err(io::ErrorKind::IsADirectory.into()),
            None => return Err(io::ErrorKind::NotFound.into()),
        }
        state.live.remove(path);
        state.pending.push(Change {
            folder: folder_of(path),
            remove: Some(path.into()),
            add: None,
        });
        Ok(())
    }

    fn make_folder(&self, path: &Path) -> io::Result<()> {
        let mut state = self.state();
        state.step()?;
        state.needs_folder(path)?;
        if state.live.contains_key(path) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        state.live.insert(path.into(), Node::Folder);
        state.pending.push(Change {
            folder: folder_of(path),
            remove: None,
            add: Some((path.into(), Node::Folder)),
        });
        Ok(())
    }

    fn sync_folder(&self, path: &Path) -> io::Result<()> {
        let mut state = self.state();
        state.step()?;
        let (done, rest): (Vec<_>, Vec<_>) = std::mem::take(&mut state.pending)
            .into_iter()
            .partition(|change| change.folder == path);
        state.pending = rest;
        for change in done {
            change.apply(&mut state.durable);
        }
        Ok(())
    }

    fn names(&self, folder: &Path, visit: &mut dyn FnMut(&str)) -> io::Result<()> {
        let state = self.state();
        if state.off {
            return Err(power_lost());
        }
        if state.live.get(folder) != Some(&Node::Folder) {
            return Err(io::ErrorKind::NotFound.into());
        }
        for path in state.live.keys().filter(|path| path.parent() == Some(folder)) {
            if let Some(name) = path.file_name().and_then(|name| name.to_str()) {
                visit(name);
            }
        }
        Ok(())
    }

    fn look(&self, path: &Path) -> io::Result<Option<Found>> {
        let state = self.state();
        if state.off {
            return Err(power_lost());
        }
        Ok(match state.live.get(path) {
            Some(Node::File(index)) => Some(Found::File(Bytes::from(state.files[*index].live.len()))),
            Some(Node::Folder) => Some(Found::Folder),
            None => (path == Path::new("/")).then_some(Found::Folder),
        })
    }

    fn room(&self, _: &Path) -> io::Result<Room> {
        let state = self.state();
        let capacity = state.capacity.unwrap_or(1 << 40);
        Ok(Room {
            free: Bytes(capacity.saturating_sub(state.used())),
            total: Bytes(capacity),
        })
    }
}

impl SimFile {
    fn with<T>(&self, work: impl FnOnce(&mut State, usize) -> io::Result<T>) -> io::Result<T> {
        let mut state = self.disk.state();
        if state.off || state.boot != self.boot {
            return Err(power_lost());
        }
        work(&mut state, self.index)
    }
}

impl DiskFile for SimFile {
    fn length(&self) -> io::Result<u64> {
        self.with(|state, index| Ok(state.files[index].live.len() as u64))
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.with(|state, index| {
            let content = &state.files[index].live;
            let start = (offset as usize).min(content.len());
            let count = buffer.len().min(content.len() - start);
            buffer[..count].copy_from_slice(&content[start..start + count]);
            Ok(count)
        })
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        if !self.writable {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        self.with(|state, index| {
            state.step()?;
            let mut fits = bytes.len();
            let mut error = None;
            let growth = |count: usize, state: &State| {
                (offset + count as u64).saturating_sub(state.files[index].live.len() as u64)
            };
            if let Some(capacity) = state.capacity {
                let room = capacity.saturating_sub(state.used());
                let excess = growth(fits, state).saturating_sub(room);
                if excess > 0 {
                    fits -= (excess as usize).min(fits);
                    error = Some(io::Error::from(io::ErrorKind::StorageFull));
                }
            }
            if let Some(at) = state.cut_at_byte {
                let left = at.saturating_sub(state.bytes_written) as usize;
                if left < fits {
                    fits = left;
                    state.off = true;
                    error = Some(power_lost());
                }
            }
            state.bytes_written += fits as u64;
            let content = &mut state.files[index].live;
            let end = offset as usize + fits;
            if fits > 0 {
                content.resize(content.len().max(end), 0);
                content[offset as usize..end].copy_from_slice(&bytes[..fits]);
            }
            error.map_or(Ok(()), Err)
        })
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        self.with(|state, index| {
            state.step()?;
            state.files[index].live.resize(length as usize, 0);
            Ok(())
        })
    }

    fn sync(&self) -> io::Result<()> {
        self.with(|state, index| {
            state.step()?;
            let file = &mut state.files[index];
            file.synced = file.live.clone();
            Ok(())
        })
    }

    fn try_lock(&self) -> io::Result<bool> {
        Ok(true)
    }
}
