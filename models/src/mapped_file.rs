use std::fmt;
use std::fs::File;
use std::io;
use std::ops::{Deref, Range};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use memmap2::Mmap;
use tempfile::TempPath;

/// A regular file mapped for reading. It must not be truncated or rewritten in place while it is mapped; replacing it by
/// renaming is fine.
pub struct MappedFile {
    map: Mmap,
    place: Place,
    identity: Option<Identity>,
}

enum Place {
    Kept(PathBuf),
    /// Goes from the disk with the mapping.
    Temporary(TempPath),
}

/// What tells a file from another that took its name. It is not given to a new file while the old one is mapped.
#[derive(PartialEq, Eq)]
struct Identity {
    device: u64,
    inode: u64,
}

impl Identity {
    #[cfg(unix)]
    fn of(metadata: &std::fs::Metadata) -> Option<Self> {
        use std::os::unix::fs::MetadataExt;
        Some(Self {
            device: metadata.dev(),
            inode: metadata.ino(),
        })
    }

    #[cfg(not(unix))]
    fn of(_: &std::fs::Metadata) -> Option<Self> {
        None
    }
}

impl MappedFile {
    /// Maps the file at `path`. Only regular files: opening a pipe would wait for ever.
    ///
    /// # Errors
    /// When it cannot be opened or is no regular file.
    pub fn open(path: &Path) -> io::Result<Arc<Self>> {
        Self::of(&open_regular(path)?, path)
    }

    /// Maps a file that is open already and lies at `path`.
    pub(crate) fn of(file: &File, path: &Path) -> io::Result<Arc<Self>> {
        Self::map(file, Place::Kept(path.canonicalize()?)).map(Arc::new)
    }

    /// Maps a temporary file, which is removed when nothing reads it any more.
    ///
    /// # Errors
    /// When it cannot be mapped.
    pub fn temporary(file: tempfile::NamedTempFile) -> io::Result<Arc<Self>> {
        let (file, path) = file.into_parts();
        Self::map(&file, Place::Temporary(path)).map(Arc::new)
    }

    fn map(file: &File, place: Place) -> io::Result<Self> {
        let identity = Identity::of(&file.metadata()?);
        // SAFETY: the mapping is private to reading and never handed out for writing. What remains is that another
        // process truncates or rewrites the file while it is mapped; the type documents that it must not, and all of our
        // own writers replace files by renaming, which leaves mapped ones intact.
        #[allow(unsafe_code)]
        let map = unsafe { Mmap::map(file)? };
        Ok(Self { map, place, identity })
    }

    /// Where the file is, for those who read it themselves; `None` when something else lies there now, or when the
    /// system cannot tell.
    pub fn path(&self) -> Option<&Path> {
        let path: &Path = match &self.place {
            Place::Kept(path) => path,
            Place::Temporary(path) => path,
        };
        let now = Identity::of(&std::fs::metadata(path).ok()?);
        (now.is_some() && now == self.identity).then_some(path)
    }

    /// Lets the system take back the memory of these bytes; they are read from the file again when they are next used.
    /// Does nothing for what does not lie in the file.
    pub fn release(&self, part: Range<usize>) {
        if self.map.get(part.clone()).is_none() {
            return;
        }
        #[cfg(unix)]
        // SAFETY: the part lies in the mapping, which is read-only and backed by a file, so that dropped pages come back
        // with the same content. A refusal costs nothing but memory.
        #[allow(unsafe_code)]
        let _ = unsafe {
            self.map
                .unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, part.start, part.len())
        };
    }
}

/// Opens a file for reading, if it is a regular one: opening a pipe would wait for ever.
pub(crate) fn open_regular(path: &Path) -> io::Result<File> {
    if !std::fs::metadata(path)?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    File::open(path)
}

impl Deref for MappedFile {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.map
    }
}

impl fmt::Debug for MappedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MappedFile({} bytes)", self.map.len())
    }
}

/// A part of a mapped file. Cloning shares the mapping.
#[derive(Clone, Debug)]
pub struct MappedPart {
    /// The file.
    pub file: Arc<MappedFile>,
    /// Where in it; inside its length.
    pub range: Range<usize>,
}

impl MappedPart {
    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        self.file.get(self.range.clone()).unwrap_or_default()
    }
}

#[cfg(all(test, unix))]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn its_path_is_known_as_long_as_it_is_the_same_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        std::fs::write(&path, "first").unwrap();
        let mapped = MappedFile::open(&path).unwrap();
        assert_eq!(mapped.path(), Some(&*path.canonicalize().unwrap()));
        std::fs::write(folder.path().join("b"), "later").unwrap();
        std::fs::rename(folder.path().join("b"), &path).unwrap();
        assert_eq!((mapped.path(), &mapped[..]), (None, &b"first"[..]));
        std::fs::remove_file(&path).unwrap();
        assert_eq!(mapped.path(), None);
        assert!(MappedFile::open(folder.path()).is_err());
    }

    #[test]
    fn nothing_behind_the_file_is_released() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        std::fs::write(&path, vec![7u8; 1 << 16]).unwrap();
        // Mapped one after the other they lie side by side, whichever way addresses go.
        let mut pairs = Vec::new();
        for _ in 0..32 {
            let mut block = memmap2::MmapMut::map_anon(1 << 16).unwrap();
            block.fill(1);
            pairs.push((MappedFile::open(&path).unwrap(), block));
        }
        for (file, _) in &pairs {
            file.release(1 << 16..2 << 16);
        }
        assert!(pairs.iter().all(|(_, block)| block.iter().all(|byte| *byte == 1)));
    }

    #[test]
    fn a_temporary_one_goes_with_its_last_reader() {
        let folder = tempfile::tempdir().unwrap();
        let mut file = tempfile::NamedTempFile::new_in(folder.path()).unwrap();
        file.write_all(b"weights").unwrap();
        let mapped = MappedFile::temporary(file).unwrap();
        let path = mapped.path().unwrap().to_owned();
        mapped.release(0..7);
        assert_eq!(&mapped[..], b"weights");
        assert!(path.exists());
        drop(mapped);
        assert!(!path.exists());
    }
}
