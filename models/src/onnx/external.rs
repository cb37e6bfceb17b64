//! External data: tensors whose bytes lie in files beside the model.

use std::collections::HashMap;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use onnx_protobuf::TensorProto;

use crate::{MappedFile, MappedPart};

/// The files beside a model, each mapped once, when first needed.
pub(super) struct ExternalFiles {
    folder: PathBuf,
    maps: HashMap<PathBuf, Arc<MappedFile>>,
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
        let range = offset..offset + len;
        Ok(MappedPart { file, range })
    }

    fn map(&mut self, location: &str) -> Result<Arc<MappedFile>, String> {
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
        let map = MappedFile::open(&path).map_err(failed)?;
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
