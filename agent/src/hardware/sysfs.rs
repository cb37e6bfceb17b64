use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use super::HardwareError;

/// Largest file that is read: attributes are one page at most, `nvpmodel.conf` is some tens of KiB.
const MAX_FILE: u64 = 1 << 20;

/// The kernel's files below a root folder: `/` on a device, a made-up tree in tests.
#[derive(Clone, Debug)]
pub struct Sysfs {
    root: PathBuf,
}

impl Sysfs {
    /// Files below `root`.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// The path of a file, given from the root without a leading slash.
    pub fn path(&self, below: impl AsRef<Path>) -> PathBuf {
        self.root.join(below)
    }

    /// Whether a file or folder is there.
    pub fn exists(&self, below: impl AsRef<Path>) -> bool {
        self.path(below).exists()
    }

    /// The text of a file without surrounding white space; `None` where there is no such file.
    ///
    /// # Errors
    /// [`HardwareError::File`] when it is there and cannot be read.
    pub fn text(&self, below: impl AsRef<Path>) -> Result<Option<String>, HardwareError> {
        let path = self.path(below);
        let read = || -> io::Result<String> {
            let mut bytes = Vec::new();
            io::Read::read_to_end(&mut io::Read::take(fs::File::open(&path)?, MAX_FILE), &mut bytes)?;
            Ok(String::from_utf8_lossy(&bytes).trim().to_owned())
        };
        match read() {
            Ok(text) => Ok(Some(text)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(HardwareError::File {
                action: "read",
                path,
                source,
            }),
        }
    }

    /// The number in a file; `None` where there is no such file.
    ///
    /// # Errors
    /// [`HardwareError::File`] when it cannot be read, [`HardwareError::Content`] when it holds something else.
    pub fn number<T: FromStr>(&self, below: impl AsRef<Path>) -> Result<Option<T>, HardwareError> {
        let below = below.as_ref();
        let Some(text) = self.text(below)? else {
            return Ok(None);
        };
        match text.parse() {
            Ok(number) => Ok(Some(number)),
            Err(_) => Err(HardwareError::Content {
                path: self.path(below),
                text,
                expected: "a number",
            }),
        }
    }

    /// Names in a folder, those that end in numbers by number; empty where there is no such folder.
    ///
    /// # Errors
    /// [`HardwareError::File`] when it is there and cannot be listed.
    pub fn names(&self, below: impl AsRef<Path>) -> Result<Vec<String>, HardwareError> {
        let path = self.path(below);
        let list = || -> io::Result<Vec<String>> {
            fs::read_dir(&path)?
                .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
                .collect()
        };
        let mut names = match list() {
            Ok(names) => names,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(source) => {
                return Err(HardwareError::File {
                    action: "list",
                    path,
                    source,
                });
            }
        };
        names.sort_by_cached_key(|name| {
            let stem = name.trim_end_matches(|c: char| c.is_ascii_digit());
            (stem.to_owned(), name[stem.len()..].parse::<u64>().unwrap_or(0))
        });
        Ok(names)
    }

    /// Writes a text to an attribute that is there.
    ///
    /// # Errors
    /// [`HardwareError::File`], also when there is no such file: nothing is ever created.
    pub fn write(&self, below: impl AsRef<Path>, text: &str) -> Result<(), HardwareError> {
        let path = self.path(below);
        let write = || -> io::Result<()> {
            let mut file = fs::OpenOptions::new().write(true).truncate(true).open(&path)?;
            io::Write::write_all(&mut file, text.as_bytes())
        };
        write().map_err(|source| HardwareError::File {
            action: "write",
            path,
            source,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absent_unreadable_and_wrong_are_three_things() {
        let folder = tempfile::tempdir().unwrap();
        let sysfs = Sysfs::new(folder.path());
        fs::write(folder.path().join("temp"), "41500\n").unwrap();
        fs::write(folder.path().join("type"), "cpu-thermal\n").unwrap();
        assert_eq!(sysfs.number::<i64>("temp").unwrap(), Some(41_500));
        assert_eq!(sysfs.number::<i64>("absent").unwrap(), None);
        assert!(matches!(
            sysfs.number::<i64>("type"),
            Err(HardwareError::Content { .. })
        ));
        // A folder opens, and reading it fails.
        assert!(matches!(
            sysfs.text(""),
            Err(HardwareError::File { action: "read", .. })
        ));
        assert!(sysfs.names("absent").unwrap().is_empty());
    }

    #[test]
    fn names_come_by_number_and_writing_creates_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let sysfs = Sysfs::new(folder.path());
        for name in ["hwmon10", "hwmon2", "hwmon1"] {
            fs::create_dir(folder.path().join(name)).unwrap();
        }
        assert_eq!(sysfs.names("").unwrap(), ["hwmon1", "hwmon2", "hwmon10"]);
        assert!(sysfs.write("absent", "1").is_err());
        assert!(!sysfs.exists("absent"));
    }
}
