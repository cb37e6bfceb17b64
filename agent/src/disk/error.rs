use std::io;
use std::path::{Path, PathBuf};

/// An operation on a file or folder that failed.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action} {path}: {source}")]
pub struct DiskError {
    /// What was tried, such as `write`.
    pub action: &'static str,
    /// The file or folder.
    pub path: PathBuf,
    /// What the system said.
    pub source: io::Error,
}

impl DiskError {
    /// Whether there was no room: the disk is full or a quota is reached.
    pub fn is_full(&self) -> bool {
        matches!(
            self.source.kind(),
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
        )
    }
}

/// Says of an [`io::Error`] what was tried, and on which path.
pub(crate) trait At<T> {
    fn at(self, action: &'static str, path: &Path) -> Result<T, DiskError>;
}

impl<T> At<T> for io::Result<T> {
    fn at(self, action: &'static str, path: &Path) -> Result<T, DiskError> {
        self.map_err(|source| DiskError {
            action,
            path: path.into(),
            source,
        })
    }
}
