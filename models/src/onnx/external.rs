//! External data: tensors whose bytes lie in files beside the model.

use std::collections::HashMap;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use memmap2::Mmap;
use onnx_protobuf::TensorProto;

/// The files beside a model, each mapped once, when first needed.
pub(super) struct ExternalFiles {
    folder: PathBuf,
    maps: HashMap<PathBuf, Arc<Mmap>>,
}

/// A part of a mapped file.
pub(super) struct MappedPart {
    pub(super) file: Arc<Mmap>,
    pub(super) offset: usize,
    pub(super) len: usize,
}

impl ExternalFiles {
    /// Files beside the model at `path`.
    pub(super) fn beside(path: &Path) -> Self {
        Self {
            folder: folder_of(path).into(),
            maps: HashMap::new(),
        }
    }

    /// The part of a file that holds the tensor's `expected` bytes; the error says what is wrong with it.
    pub(super) fn locate(&mut self, proto: &TensorProto, expected: usize) -> Result<MappedPart, String> {
        let entry = |key: &str| {
            let found = proto.external_data.iter().find(|entry| entry.key == key);
            found.map(|entry| entry.value.as_str())
        };
        let number = |key: &str| {
            let parse = |text: &str| {
                let number = text.trim().parse::<usize>();
                number
                    .map_err(|_| format!("the {key} {text:?} of its external data is not a number of bytes"))
            };
            entry(key).map(parse).transpose()
        };
        let location = entry("location")
            .filter(|location| !location.is_empty())
            .ok_or("its data is external, but no location is given")?;
        let offset = number("offset")?.unwrap_or(0);
        let len = number("length")?.unwrap_or(expected);
        if len != expected {
            return Err(format!(
                "type and shape ask for {expected} bytes, but its external data in {location:?} has length {len}"
            ));
        }
        let file = self.map(location)?;
        if offset.checked_add(len).is_none_or(|end| end > file.len()) {
            return Err(format!(
                "its {len} bytes at offset {offset} lie outside {location:?}, which has {} bytes",
                file.len()
            ));
        }
        Ok(MappedPart { file, offset, len })
    }

    fn map(&mut self, location: &str) -> Result<Arc<Mmap>, String> {
        let relative = Path::new(location);
        let inside = relative
            .components()
            .all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
        if !inside || location.contains('\\') {
            return Err(format!(
                "its external data {location:?} is not inside the model's folder; absolute paths and '..' are refused"
            ));
        }
        let failed = |error: std::io::Error| {
            format!(
                "its external data {location:?} cannot be read in {}: {error}",
                self.folder.display()
            )
        };
        let folder = self.folder.canonicalize().map_err(failed)?;
        let path = folder.join(relative).canonicalize().map_err(failed)?;
        if !path.starts_with(&folder) {
            return Err(format!(
                "its external data {location:?} is a link out of the model's folder; put the file itself there"
            ));
        }
        if let Some(map) = self.maps.get(&path) {
            return Ok(map.clone());
        }
        let map = Arc::new(map_file(&path).map_err(failed)?);
        self.maps.insert(path, map.clone());
        Ok(map)
    }
}

/// The folder that holds the file at `path`.
pub(super) fn folder_of(path: &Path) -> &Path {
    path.parent()
        .filter(|folder| !folder.as_os_str().is_empty())
        .unwrap_or(Path::new("."))
}

/// Maps a file for reading. Only regular files: opening a pipe would wait for ever.
pub(super) fn map_file(path: &Path) -> std::io::Result<Mmap> {
    if !std::fs::metadata(path)?.is_file() {
        return Err(std::io::Error::other("it is not a regular file"));
    }
    let file = std::fs::File::open(path)?;
    // SAFETY: the mapping is private to reading and never handed out for writing. What remains is that
    // another process truncates or rewrites the file while the model is in use; `read_file` documents that
    // it must not, and all of our own writers replace files by renaming, which leaves mapped ones intact.
    #[allow(unsafe_code)]
    unsafe {
        Mmap::map(&file)
    }
}
