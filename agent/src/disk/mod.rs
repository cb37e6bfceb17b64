//! The file system as the durable parts of the agent see it: a few operations with exactly known effects on a power
//! cut, behind a trait so that tests can let each of them fail or lose power.

mod error;
mod real;
#[cfg(test)]
mod sim;

use std::fmt;
use std::io;
use std::path::Path;

use edgeopt_models::Bytes;

pub(crate) use error::At;
pub use error::DiskError;
pub use real::RealDisk;
#[cfg(test)]
pub(crate) use sim::{SimDisk, Survival};

/// How a file is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenMode {
    /// It exists; only read.
    Read,
    /// It exists; read and written.
    ReadWrite,
    /// Read and written; created if absent, its content kept otherwise.
    OpenOrCreate,
    /// Read and written; created if absent, emptied otherwise.
    Create,
}

/// What lies under a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// A regular file of this length.
    File(Bytes),
    /// A folder.
    Folder,
    /// Neither (a device, a socket, a dangling link).
    Other,
}

/// Operations on names. None of them is durable before [`Disk::sync_folder`] of the folder that holds the name.
pub trait Disk: fmt::Debug + Send + Sync {
    /// Opens a file.
    ///
    /// # Errors
    /// As the system says.
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Box<dyn DiskFile>>;
    /// Gives a file another name, replacing what had it.
    ///
    /// # Errors
    /// As the system says.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Removes a file.
    ///
    /// # Errors
    /// As the system says.
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// Creates one folder, whose parent exists.
    ///
    /// # Errors
    /// As the system says.
    fn make_folder(&self, path: &Path) -> io::Result<()>;
    /// Makes the names in a folder durable.
    ///
    /// # Errors
    /// As the system says.
    fn sync_folder(&self, path: &Path) -> io::Result<()>;
    /// Shows every name in a folder, in no particular order; names that are not UTF-8 are left out.
    ///
    /// # Errors
    /// As the system says.
    fn names(&self, folder: &Path, visit: &mut dyn FnMut(&str)) -> io::Result<()>;
    /// What lies under a path; `None` if nothing does.
    ///
    /// # Errors
    /// As the system says.
    fn look(&self, path: &Path) -> io::Result<Option<Found>>;
    /// What an unprivileged program can write to the file system that holds `folder`.
    ///
    /// # Errors
    /// As the system says.
    fn room(&self, folder: &Path) -> io::Result<Room>;
}

/// Bytes of a file system, without those that only the administrator can use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// What is left now.
    pub free: Bytes,
    /// What there would be if it were empty.
    pub total: Bytes,
}

/// An open file. Writes survive the end of the process at once, a power cut only after [`DiskFile::sync`].
pub trait DiskFile: fmt::Debug + Send {
    /// Length in bytes.
    ///
    /// # Errors
    /// As the system says.
    fn length(&self) -> io::Result<u64>;
    /// Reads up to `buffer.len()` bytes from `offset`; 0 only at the end.
    ///
    /// # Errors
    /// As the system says.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize>;
    /// Writes all of `bytes` at `offset`. After an error some of them may be written.
    ///
    /// # Errors
    /// As the system says.
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;
    /// Cuts or extends (with zeros) to `length`.
    ///
    /// # Errors
    /// As the system says.
    fn set_len(&self, length: u64) -> io::Result<()>;
    /// Makes content and length durable. After an error the state on the medium is unknown, and a later success
    /// does not change that: the kernel reports a lost page once.
    ///
    /// # Errors
    /// As the system says.
    fn sync(&self) -> io::Result<()>;
    /// Locks the file against other processes until it is closed; `false` if another holds it.
    ///
    /// # Errors
    /// As the system says.
    fn try_lock(&self) -> io::Result<bool>;
}

/// Fills `buffer` from `offset`; gives how many bytes there were before the end.
pub(crate) fn read_full(file: &dyn DiskFile, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match file.read_at(&mut buffer[filled..], offset + filled as u64) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

/// Reads a file as a stream, from its start.
pub(crate) struct Stream<'a> {
    file: &'a dyn DiskFile,
    offset: u64,
}

impl<'a> Stream<'a> {
    pub(crate) fn new(file: &'a dyn DiskFile) -> Self {
        Self { file, offset: 0 }
    }
}

impl io::Read for Stream<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.file.read_at(buffer, self.offset)?;
        self.offset += count as u64;
        Ok(count)
    }
}
