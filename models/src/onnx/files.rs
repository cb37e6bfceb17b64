//! Models as files: written beside first, then renamed into place.

use std::fs::File;
use std::io::{BufWriter, Seek, SeekFrom, Write};
use std::path::Path;

use onnx_protobuf::Message;
use tempfile::NamedTempFile;

use super::external::folder_of;
use super::write::{Payload, WriteError, model_proto};
use crate::{Bytes, Graph, Model};

/// Where the weights of a model go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum ExternalData {
    /// Into the model, unless it would exceed 1.9 GB (a protobuf message ends at 2 GiB); then as `From(1 KiB)`.
    #[default]
    WhenNeeded,
    /// Into the model; an error if it exceeds protobuf's 2 GiB.
    Never,
    /// Initializers of this size and more into `<file name>.data` beside the model.
    From(Bytes),
}

/// How to write a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct WriteOptions {
    /// Where the weights go.
    pub external_data: ExternalData,
}

/// Writes a model to a file, with its weights inside unless they are too large for that.
///
/// # Errors
/// As [`write_file_with`].
pub fn write_file(model: &Model, path: &Path) -> Result<(), WriteError> {
    write_file_with(model, path, WriteOptions::default())
}

/// Writes a model to a file and, as `options` ask, its weights to `<file name>.data` beside it.
///
/// Each file is written under another name, flushed to the disk and then renamed into place, the data first:
/// no file is ever half-written, and a model read from the same files earlier stays intact. When an existing
/// model with external data is replaced and power is cut between the two renames, the old model stands
/// beside the new data; write to a new name where that matters.
///
/// # Errors
/// When a file cannot be written or the model exceeds protobuf's 2 GiB.
pub fn write_file_with(model: &Model, path: &Path, options: WriteOptions) -> Result<(), WriteError> {
    let io = |path: &Path| {
        let path = path.to_owned();
        move |source| WriteError::Io { path, source }
    };
    let from = match options.external_data {
        ExternalData::Never => None,
        ExternalData::From(size) => Some(size),
        ExternalData::WhenNeeded => (weights(&model.graph) > INSIDE_UP_TO).then_some(Bytes::kib(1)),
    };
    let file_name = path.file_name().and_then(|name| name.to_str());
    let data_name = match (from, file_name) {
        (Some(_), Some(name)) => format!("{name}.data"),
        (Some(_), None) => {
            let error = std::io::Error::other("external data needs a file name that is valid UTF-8");
            return Err(io(path)(error));
        }
        (None, _) => String::new(),
    };
    let mut payload = from.map_or_else(Payload::default, |from| Payload::external(&data_name, from.0));
    let proto = model_proto(model, &mut payload);
    let folder = folder_of(path);
    let mut file = new_file(folder).map_err(io(path))?;
    {
        let mut writer = BufWriter::new(file.as_file_mut());
        proto.write_to_writer(&mut writer).map_err(WriteError::Encode)?;
        writer.flush().map_err(io(path))?;
    }
    file.as_file().sync_all().map_err(io(path))?;
    if !payload.placed.is_empty() {
        let data_path = folder.join(&data_name);
        write_data(&payload, folder)
            .and_then(|data| data.persist(&data_path).map_err(|error| error.error))
            .map_err(io(&data_path))?;
    }
    file.persist(path).map_err(|error| io(path)(error.error))?;
    // a rename is durable once the folder is; some file systems cannot sync one, and need not
    if let Ok(folder) = File::open(folder) {
        folder.sync_all().ok();
    }
    Ok(())
}

/// Weights up to this go into the model: below protobuf's 2 GiB with room for the structure.
const INSIDE_UP_TO: Bytes = Bytes(1_900_000_000);

/// A temporary file with the permissions a new file would have, not those of a private one.
fn new_file(folder: &Path) -> std::io::Result<NamedTempFile> {
    let mut builder = tempfile::Builder::new();
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    builder.tempfile_in(folder)
}

fn write_data(payload: &Payload<'_>, folder: &Path) -> std::io::Result<NamedTempFile> {
    let mut file = new_file(folder)?;
    file.as_file().set_len(payload.end)?;
    for (tensor, offset) in &payload.placed {
        file.seek(SeekFrom::Start(*offset))?;
        file.write_all(tensor.as_bytes())?;
    }
    file.as_file().sync_all()?;
    Ok(file)
}

fn weights(graph: &Graph) -> Bytes {
    let inner = graph.nodes.iter().flat_map(|node| node.subgraphs()).map(weights);
    let own = graph
        .initializers
        .values()
        .map(|tensor| Bytes::from(tensor.as_bytes().len()));
    own.chain(inner).sum()
}
