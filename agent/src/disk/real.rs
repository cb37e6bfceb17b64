use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use edgeopt_models::Bytes;

use super::{Disk, DiskFile, Found, OpenMode, Room};

/// The system's own file system.
#[derive(Clone, Copy, Debug, Default)]
pub struct RealDisk;

impl Disk for RealDisk {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Box<dyn DiskFile>> {
        let mut options = OpenOptions::new();
        options.read(true);
        match mode {
            OpenMode::Read => &mut options,
            OpenMode::ReadWrite => options.write(true),
            OpenMode::OpenOrCreate => options.write(true).create(true).truncate(false),
            OpenMode::Create => options.write(true).create(true).truncate(true),
        };
        let file = options.open(path)?;
        // Opening a folder for reading succeeds on Linux; reading it does not.
        if file.metadata()?.is_dir() {
            return Err(io::ErrorKind::IsADirectory.into());
        }
        Ok(Box::new(file))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn make_folder(&self, path: &Path) -> io::Result<()> {
        fs::create_dir(path)
    }

    fn sync_folder(&self, path: &Path) -> io::Result<()> {
        File::open(path)?.sync_all()
    }

    fn names(&self, folder: &Path, visit: &mut dyn FnMut(&str)) -> io::Result<()> {
        for entry in fs::read_dir(folder)? {
            if let Some(name) = entry?.file_name().to_str() {
                visit(name);
            }
        }
        Ok(())
    }

    fn look(&self, path: &Path) -> io::Result<Option<Found>> {
        match fs::metadata(path) {
            Ok(data) if data.is_file() => Ok(Some(Found::File(Bytes(data.len())))),
            Ok(data) if data.is_dir() => Ok(Some(Found::Folder)),
            Ok(_) => Ok(Some(Found::Other)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn room(&self, folder: &Path) -> io::Result<Room> {
        let found = rustix::fs::statvfs(folder)?;
        let bytes = |blocks: u64| Bytes(blocks.saturating_mul(found.f_frsize));
        let set_aside = found.f_bfree.saturating_sub(found.f_bavail);
        Ok(Room {
            free: bytes(found.f_bavail),
            total: bytes(found.f_blocks.saturating_sub(set_aside)),
        })
    }
}

impl DiskFile for File {
    fn length(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        FileExt::read_at(self, buffer, offset)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        FileExt::write_all_at(self, bytes, offset)
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        File::set_len(self, length)
    }

    fn sync(&self) -> io::Result<()> {
        // Includes the length; leaves out times, which nothing here needs.
        self.sync_data()
    }

    fn try_lock(&self) -> io::Result<bool> {
        match File::try_lock(self) {
            Ok(()) => Ok(true),
            Err(TryLockError::WouldBlock) => Ok(false),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }
}
