//! Files that are there whole or not at all, whatever happens in between.
//!
//! The order of steps is what counts: content is synced under a temporary name before it gets its final name, and the
//! folder is synced before anybody is told that it is done.

use std::io;
use std::path::{Path, PathBuf};

use edgeopt_models::Bytes;

use crate::disk::{At, Disk, DiskError, Found, OpenMode, read_full};

/// What the temporary name of a file that is being written ends in.
const TEMPORARY: &str = ".new";

/// Replaces the content of `path`. On success it survives a power cut; on an error, or a power cut in between, either
/// the old or the new content is there, complete. Only one thread may write a path at a time.
///
/// # Errors
/// Naming the file or folder and the step that failed.
pub fn write(disk: &dyn Disk, path: &Path, bytes: &[u8]) -> Result<(), DiskError> {
    let beside = temporary(path);
    let placed = place(disk, &beside, path, bytes);
    if placed.is_err() {
        // A leftover does no harm (the next write empties it first), but it takes space.
        let _ = disk.remove(&beside);
    }
    placed?;
    sync_folder_of(disk, path)
}

fn place(disk: &dyn Disk, beside: &Path, path: &Path, bytes: &[u8]) -> Result<(), DiskError> {
    let file = disk.open(beside, OpenMode::Create).at("create", beside)?;
    file.write_at(bytes, 0).at("write", beside)?;
    file.sync().at("sync", beside)?;
    disk.rename(beside, path).at("replace", path)
}

/// Reads a whole file; `None` if it is not there.
///
/// # Errors
/// When it cannot be read or is longer than `limit`.
pub fn read(disk: &dyn Disk, path: &Path, limit: Bytes) -> Result<Option<Vec<u8>>, DiskError> {
    let file = match disk.open(path, OpenMode::Read) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened.at("open", path)?,
    };
    let length = file.length().at("read", path)?;
    if length > limit.0 {
        let problem = format!("it has {length} bytes, the limit is {}", limit.0);
        return Err(io::Error::new(io::ErrorKind::InvalidData, problem)).at("read", path);
    }
    let mut bytes = vec![0; length as usize];
    let count = read_full(file.as_ref(), &mut bytes, 0).at("read", path)?;
    bytes.truncate(count);
    Ok(Some(bytes))
}

/// Removes a file for good; it is no error if it is not there.
///
/// # Errors
/// Naming the file or folder and the step that failed.
pub fn remove(disk: &dyn Disk, path: &Path) -> Result<(), DiskError> {
    match disk.remove(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        removed => removed.at("remove", path)?,
    }
    // Also when it was not there: an earlier removal may not have become durable.
    sync_folder_of(disk, path)
}

/// Gives a synced file another name, also in another folder. After a power cut it has the old name, the new one, or
/// both; on success only the new one.
///
/// # Errors
/// Naming the file or folder and the step that failed.
pub fn rename(disk: &dyn Disk, from: &Path, to: &Path) -> Result<(), DiskError> {
    disk.rename(from, to).at("rename", from)?;
    sync_folder_of(disk, to)?;
    if from.parent() != to.parent() {
        sync_folder_of(disk, from)?;
    }
    Ok(())
}

/// Creates a folder with its parents, as far as they are missing.
///
/// # Errors
/// Naming the folder and the step that failed.
pub fn make_folders(disk: &dyn Disk, path: &Path) -> Result<(), DiskError> {
    match disk.look(path).at("look at", path)? {
        Some(Found::Folder) => return Ok(()),
        Some(_) => return Err(io::Error::from(io::ErrorKind::NotADirectory)).at("create folder", path),
        None => {}
    }
    if let Some(parent) = parent(path) {
        make_folders(disk, parent)?;
    }
    match disk.make_folder(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        made => made.at("create folder", path)?,
    }
    sync_folder_of(disk, path)
}

/// Makes the names in the folder of `path` durable.
///
/// # Errors
/// Naming the folder.
pub fn sync_folder_of(disk: &dyn Disk, path: &Path) -> Result<(), DiskError> {
    let folder = parent(path).unwrap_or(Path::new("."));
    disk.sync_folder(folder).at("sync folder", folder)
}

/// Whether a name is that of a file whose writing was interrupted.
pub fn is_temporary(name: &str) -> bool {
    name.starts_with('.') && name.ends_with(TEMPORARY)
}

fn temporary(path: &Path) -> PathBuf {
    let mut name = std::ffi::OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(TEMPORARY);
    path.with_file_name(name)
}

fn parent(path: &Path) -> Option<&Path> {
    path.parent().filter(|parent| !parent.as_os_str().is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::{RealDisk, SimDisk, Survival};

    const FOLDER: &str = "/state";
    const FILE: &str = "/state/record";
    const EIO: i32 = 5;

    fn survivals() -> impl Iterator<Item = Survival> {
        [Survival::Synced, Survival::Everything]
            .into_iter()
            .chain((0..40).map(Survival::Random))
    }

    fn disk_with_old() -> SimDisk {
        let disk = SimDisk::default();
        make_folders(&disk, Path::new(FOLDER)).unwrap();
        write(&disk, Path::new(FILE), b"old content").unwrap();
        disk
    }

    /// How many operations `work` takes on a disk made by `disk`.
    fn steps(disk: impl Fn() -> SimDisk, work: impl Fn(&SimDisk)) -> u64 {
        let disk = disk();
        let before = disk.operations();
        work(&disk);
        disk.operations() - before
    }

    #[test]
    fn a_power_cut_at_any_step_of_a_write_leaves_the_old_or_the_new_content() {
        let new = vec![7u8; 3000];
        let path = Path::new(FILE);
        let total = steps(disk_with_old, |disk| write(disk, path, &new).unwrap());
        assert_eq!(total, 5, "create, write, sync, rename, sync folder");
        for cut in 0..=total {
            for survival in survivals() {
                let disk = disk_with_old();
                disk.cut_after(cut);
                let result = write(&disk, path, &new);
                assert_eq!(result.is_ok(), cut == total);
                disk.reboot(survival);
                let found = read(&disk, path, Bytes::mib(1)).unwrap().unwrap();
                assert!(found == b"old content" || found == new, "{cut} {survival:?}");
                if cut == total {
                    assert_eq!(found, new, "reported done, then lost: {survival:?}");
                }
                // And the next write works in spite of leftovers.
                write(&disk, path, b"next").unwrap();
                assert_eq!(read(&disk, path, Bytes::mib(1)).unwrap().unwrap(), b"next");
            }
        }
    }

    #[test]
    fn a_failure_at_any_step_of_a_write_names_it_and_leaves_whole_content_and_no_leftover() {
        let path = Path::new(FILE);
        for (step, words) in [
            "cannot create /state/.record.new",
            "cannot write /state/.record.new",
            "cannot sync /state/.record.new",
            "cannot replace /state/record",
            "cannot sync folder /state",
        ]
        .iter()
        .enumerate()
        {
            let disk = disk_with_old();
            disk.fail_after(step as u64, EIO);
            let error = write(&disk, path, b"new").unwrap_err().to_string();
            assert!(error.starts_with(words), "{error}");
            let expected: &[u8] = if step == 4 { b"new" } else { b"old content" };
            assert_eq!(disk.content(path).unwrap(), expected);
            assert_eq!(disk.paths(), [Path::new(FOLDER), path]);
        }
    }

    #[test]
    fn a_full_disk_keeps_the_old_content() {
        let disk = disk_with_old();
        disk.set_capacity(Some(disk.used() + 10));
        let error = write(&disk, Path::new(FILE), &[1; 100]).unwrap_err();
        assert!(error.is_full(), "{error}");
        assert_eq!(disk.content(Path::new(FILE)).unwrap(), b"old content");
        assert_eq!(disk.used(), 11);
    }

    #[test]
    fn a_removal_that_was_reported_is_durable() {
        let path = Path::new(FILE);
        let total = steps(disk_with_old, |disk| remove(disk, path).unwrap());
        for cut in 0..=total {
            for survival in survivals() {
                let disk = disk_with_old();
                disk.cut_after(cut);
                let result = remove(&disk, path);
                disk.reboot(survival);
                match disk.content(path) {
                    Some(content) => {
                        assert!(result.is_err(), "came back");
                        assert_eq!(content, b"old content");
                    }
                    None => assert!(cut > 0),
                }
                remove(&disk, path).unwrap();
                remove(&disk, path).unwrap();
            }
        }
    }

    #[test]
    fn a_file_that_moves_between_folders_is_never_lost() {
        let (from, to) = (Path::new("/state/record"), Path::new("/other/record"));
        let make = || {
            let disk = disk_with_old();
            make_folders(&disk, Path::new("/other")).unwrap();
            disk
        };
        let total = steps(make, |disk| rename(disk, from, to).unwrap());
        for cut in 0..=total {
            for survival in survivals() {
                let disk = make();
                disk.cut_after(cut);
                let result = rename(&disk, from, to);
                disk.reboot(survival);
                let (old, new) = (disk.content(from), disk.content(to));
                assert!(old.is_some() || new.is_some(), "{cut} {survival:?}");
                for content in [&old, &new].into_iter().flatten() {
                    assert_eq!(content, b"old content");
                }
                if result.is_ok() {
                    assert!(old.is_none() && new.is_some());
                }
            }
        }
    }

    #[test]
    fn folders_that_were_reported_are_durable() {
        let disk = SimDisk::default();
        make_folders(&disk, Path::new("/a/b/c")).unwrap();
        disk.reboot(Survival::Synced);
        assert_eq!(disk.look(Path::new("/a/b/c")).unwrap(), Some(Found::Folder));
    }

    #[test]
    fn the_real_disk_does_the_same() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("deep/er/record");
        make_folders(&RealDisk, path.parent().unwrap()).unwrap();
        make_folders(&RealDisk, path.parent().unwrap()).unwrap();
        assert_eq!(read(&RealDisk, &path, Bytes(10)).unwrap(), None);
        write(&RealDisk, &path, b"one").unwrap();
        write(&RealDisk, &path, b"two").unwrap();
        assert_eq!(read(&RealDisk, &path, Bytes(10)).unwrap().unwrap(), b"two");
        let error = read(&RealDisk, &path, Bytes(2)).unwrap_err().to_string();
        assert!(error.contains("the limit is 2"), "{error}");
        let moved = folder.path().join("moved");
        rename(&RealDisk, &path, &moved).unwrap();
        let names: Vec<_> = std::fs::read_dir(path.parent().unwrap()).unwrap().collect();
        assert!(names.is_empty(), "{names:?}");
        remove(&RealDisk, &moved).unwrap();
        remove(&RealDisk, &moved).unwrap();
        assert!(RealDisk.room(folder.path()).unwrap().free > Bytes::ZERO);
        let error = write(&RealDisk, &folder.path().join("none/x"), b"").unwrap_err();
        assert!(error.to_string().contains("none/.x.new"), "{error}");
        let error = make_folders(&RealDisk, Path::new("/dev/null/x")).unwrap_err();
        assert!(error.to_string().contains("/dev/null"), "{error}");
    }

    #[test]
    fn a_lock_holds_until_the_file_is_closed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lock");
        let open = || RealDisk.open(&path, OpenMode::OpenOrCreate).unwrap();
        let first = open();
        assert!(first.try_lock().unwrap());
        assert!(!open().try_lock().unwrap());
        drop(first);
        assert!(open().try_lock().unwrap());
    }
}
