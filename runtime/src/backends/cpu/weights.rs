//! Handing weights to ONNX Runtime, so that it holds them once.
//!
//! The model is encoded with its large constants left out (declared as external data). Those that are mapped from a file
//! are named by their place in it: the library maps the file too, uses the constants where they are or rearranges them for
//! its kernels, and nothing else is held. All others are given to the library as tensors over our own storage, which is
//! shared with the model they came from. It copies them, but does not say so, and refuses memory that it would have to
//! free, so the storage stays until the session is gone.
#![allow(unsafe_code)]

use std::collections::{BTreeMap, HashMap};
use std::ffi::CString;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use edgeopt_models::onnx::Elsewhere;
use edgeopt_models::{Bytes, DataType, Graph, MappedFile, Tensor, ValueName};
use ort_sys::{OrtSessionOptions, OrtValue};

use super::api::{Owned, Runtime};
use super::tensor_value::over_memory;

/// Constants smaller than this (in bytes) stay in the encoded model: shape inference reads them there, and a copy
/// costs nothing.
const SMALLEST: usize = 4096;

/// The graph's constants that are given to the library apart from the encoded model.
fn apart(graph: &Graph) -> impl Iterator<Item = (&ValueName, &Tensor)> {
    graph.initializers.iter().filter(|(name, tensor)| {
        tensor.dtype() != DataType::String && tensor.as_bytes().len() >= SMALLEST && !graph.is_input(name)
    })
}

/// How a session gets its weights: must outlive it.
pub(super) struct Weights {
    /// Where the constants in files are looked for; all are in this one folder.
    folder: Option<PathBuf>,
    elsewhere: HashMap<ValueName, Elsewhere>,
    files: Vec<Arc<MappedFile>>,
    /// Storage that the session reads.
    given: Vec<(ValueName, Tensor)>,
}

impl Weights {
    /// Decides for each of the graph's large constants how it is handed over; with `from_files` false, none is read from
    /// a file.
    pub(super) fn of(graph: &Graph, from_files: bool) -> Self {
        let folder = from_files.then(|| fullest_folder(graph)).flatten();
        let mut weights = Self {
            folder,
            elsewhere: HashMap::new(),
            files: Vec::new(),
            given: Vec::new(),
        };
        for (name, tensor) in apart(graph) {
            let place = match (in_file(tensor), &weights.folder) {
                (Some(place), Some(folder)) if place.folder == *folder => place,
                _ => {
                    weights.elsewhere.insert(name.clone(), Elsewhere::Given);
                    weights.given.push((name.clone(), tensor.clone()));
                    continue;
                }
            };
            if !weights.files.iter().any(|file| Arc::ptr_eq(file, &place.file)) {
                weights.files.push(place.file);
            }
            let elsewhere = Elsewhere::File {
                name: place.name,
                offset: place.offset,
            };
            weights.elsewhere.insert(name.clone(), elsewhere);
        }
        weights
    }

    /// Where each constant is that the encoded model is to leave out.
    pub(super) fn elsewhere(&self) -> HashMap<ValueName, Elsewhere> {
        self.elsewhere.clone()
    }

    /// The folder of the files that the library reads; `None` if it reads none.
    pub(super) fn folder(&self) -> Option<&Path> {
        self.folder.as_deref()
    }

    /// Whether all files are still those that were mapped.
    pub(super) fn files_are_the_same(&self) -> bool {
        self.files.iter().all(|file| file.path().is_some())
    }

    /// Gives what is not in files to `options`.
    ///
    /// # Errors
    /// When the library refuses one; names it.
    pub(super) fn add_to(&self, runtime: &Runtime, options: &Owned<OrtSessionOptions>) -> Result<(), String> {
        if self.given.is_empty() {
            return Ok(());
        }
        let (mut names, mut values) = (Vec::new(), Vec::new());
        for (name, tensor) in &self.given {
            let describe = |message: String| format!("constant {name:?}: {message}");
            let bytes = tensor.as_bytes();
            // SAFETY: the tensor's storage is kept until after the session is gone; the library only reads constants.
            let value = unsafe {
                let data = bytes.as_ptr().cast_mut();
                over_memory(runtime, tensor.dtype(), tensor.dims(), data, bytes.len())
            };
            values.push(value.map_err(describe)?);
            names.push(CString::new(name.as_str()).map_err(|error| describe(error.to_string()))?);
        }
        let names: Vec<_> = names.iter().map(|name| name.as_ptr()).collect();
        let objects: Vec<*const OrtValue> = values.iter().map(|value| value.ptr().cast_const()).collect();
        // SAFETY: both arrays have the given length and hold valid C strings and values; the library copies the names and
        // takes its own references to the values.
        let status = unsafe {
            (runtime.api.AddExternalInitializers)(
                options.ptr(),
                names.as_ptr(),
                objects.as_ptr(),
                objects.len(),
            )
        };
        runtime.check(status)
    }

    /// The library has read everything: lets go of files and lets the system take back what is mapped.
    pub(super) fn release(&mut self) {
        self.files.clear();
        for (_, tensor) in &self.given {
            tensor.release_pages();
        }
    }
}

/// Bytes to reserve for the graph's weights: once for what the library reads from a file, as it has them for its kernels;
/// twice for what it is given, since it copies before it rearranges. Afterwards less is held: a ResNet-50 (98 MiB) in a bundle
/// takes 185 MiB above the library's own while it is loaded, and 115 MiB when it runs.
pub(super) fn held(graph: &Graph) -> Bytes {
    graph
        .initializers
        .values()
        .map(|tensor| {
            let size = Bytes::from(tensor.as_bytes().len());
            if in_file(tensor).is_some() {
                size
            } else {
                size + size
            }
        })
        .sum()
}

/// A constant's place in a file.
struct InFile {
    file: Arc<MappedFile>,
    folder: PathBuf,
    name: String,
    offset: usize,
}

/// Where the tensor lies, if the library can read it there: kernels want elements at multiples of their size.
fn in_file(tensor: &Tensor) -> Option<InFile> {
    let part = tensor.mapped()?;
    let element = tensor.dtype().size_of(1)?.max(1);
    let path = part.file.path().filter(|_| part.range.start % element == 0)?;
    Some(InFile {
        file: part.file.clone(),
        folder: path.parent()?.to_owned(),
        name: path.file_name()?.to_str()?.to_owned(),
        offset: part.range.start,
    })
}

/// The folder with most bytes of weights: the library looks in one only.
fn fullest_folder(graph: &Graph) -> Option<PathBuf> {
    let mut folders: BTreeMap<PathBuf, usize> = BTreeMap::new();
    for (_, tensor) in apart(graph) {
        if let Some(place) = in_file(tensor) {
            *folders.entry(place.folder).or_default() += tensor.as_bytes().len();
        }
    }
    let fullest = folders.into_iter().max_by_key(|(_, bytes)| *bytes);
    fullest
        .map(|(folder, _)| folder)
        .filter(|folder| folder.to_str().is_some())
}
