//! Samples on disk: folders of images, `.npy` and `.npz`, read one at a time, so that memory does not depend on how
//! many there are.

mod array;
mod coco;
mod error;
mod labels;
mod objects;
mod yolo;

use std::fs::File;
use std::path::{Path, PathBuf};

use edgeopt_models::bundle::Preprocessing;
use edgeopt_models::{Dim, Tensor};

pub use array::{decode_arrays, write_npz};
pub use error::DatasetError;
pub use labels::Labels;
pub use objects::{KnownObject, ModelClasses, ObjectLabels};

use crate::TensorSpec;
use crate::pipeline::{Geometry, preprocess};

/// Samples for one model.
#[derive(Debug)]
pub struct Dataset {
    source: Source,
    inputs: Vec<TensorSpec>,
    preprocessing: Option<Preprocessing>,
    /// Places of the samples in the source, in order.
    places: Vec<usize>,
    /// Files of the folder that are no samples.
    ignored: usize,
}

#[derive(Debug)]
enum Source {
    /// One sample a file: an image, an `.npy` or an `.npz`.
    Files(Vec<PathBuf>),
    /// An `.npy` whose first axis counts the samples.
    StackedNpy(PathBuf),
    /// An `.npz` whose arrays' first axes count the samples; held in memory.
    StackedNpz { path: PathBuf, arrays: Vec<Tensor> },
}

/// One sample, ready to run.
#[derive(Clone, Debug)]
pub struct Sample {
    /// File name, or index in a stacked array.
    pub id: String,
    /// Tensors in the order of the model's inputs, with a batch of one.
    pub inputs: Vec<Tensor>,
    /// How an image became the input; none for arrays.
    pub geometry: Option<Geometry>,
}

impl Dataset {
    /// Opens the samples at `path` for a model with `inputs`. With `limit`, that many samples spread evenly over all
    /// of them; the choice is the same every time.
    ///
    /// # Errors
    /// When there are none, or they cannot belong to this model.
    pub fn open(
        path: &Path,
        inputs: &[TensorSpec],
        preprocessing: Option<&Preprocessing>,
        limit: Option<usize>,
    ) -> Result<Self, DatasetError> {
        let metadata = std::fs::metadata(path).map_err(|source| DatasetError::io(path, source))?;
        let mut ignored = 0;
        let (source, count) = if metadata.is_dir() {
            let (files, others) = sample_files(path)?;
            ignored = others;
            let count = files.len();
            (Source::Files(files), count)
        } else {
            match extension(path).as_deref() {
                Some("npy") => {
                    let count = array::stacked_len(path, single(inputs, path)?)?;
                    (Source::StackedNpy(path.into()), count)
                }
                Some("npz") => {
                    let arrays = array::read_npz(path, inputs)?;
                    let count = stacked_count(path, inputs, &arrays)?;
                    (
                        Source::StackedNpz {
                            path: path.into(),
                            arrays,
                        },
                        count,
                    )
                }
                Some(image) if IMAGES.contains(&image) => (Source::Files(vec![path.into()]), 1),
                _ => return Err(DatasetError::Kind { path: path.into() }),
            }
        };
        if count == 0 {
            return Err(DatasetError::Empty {
                path: path.into(),
                ignored,
            });
        }
        let wanted = limit.unwrap_or(count).min(count);
        let places = (0..wanted).map(|i| i * count / wanted).collect();
        Ok(Self {
            source,
            inputs: inputs.to_vec(),
            preprocessing: preprocessing.cloned(),
            places,
            ignored,
        })
    }

    /// How many samples there are.
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Whether there are none (never, once opened).
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Files of the folder that are neither images nor arrays.
    pub fn ignored(&self) -> usize {
        self.ignored
    }

    /// The id of a sample: its file's name, or its index in a stacked array.
    pub fn id(&self, index: usize) -> String {
        let place = self.places[index];
        match &self.source {
            Source::Files(files) => files[place]
                .file_name()
                .map_or_else(String::new, |name| name.to_string_lossy().into_owned()),
            _ => place.to_string(),
        }
    }

    /// The file a sample comes from.
    pub fn path(&self, index: usize) -> &Path {
        match &self.source {
            Source::Files(files) => &files[self.places[index]],
            Source::StackedNpy(path) | Source::StackedNpz { path, .. } => path,
        }
    }

    /// Reads the sample at `index`, which must be below [`Self::len`].
    ///
    /// # Errors
    /// When its file is broken or does not fit the model; the error names it.
    pub fn sample(&self, index: usize) -> Result<Sample, DatasetError> {
        let place = self.places[index];
        let mut geometry = None;
        let inputs = match &self.source {
            Source::Files(files) => {
                let (inputs, of_image) = self.read_file(&files[place])?;
                geometry = of_image;
                inputs
            }
            Source::StackedNpy(path) => vec![array::read_row(path, single(&self.inputs, path)?, place)?],
            Source::StackedNpz { path, arrays } => arrays
                .iter()
                .zip(&self.inputs)
                .map(|(array, spec)| array::row(path, spec, array, place))
                .collect::<Result<_, _>>()?,
        };
        Ok(Sample {
            id: self.id(index),
            inputs,
            geometry,
        })
    }

    /// How the image at `index`, which must be below [`Self::len`], becomes the input, without reading its pixels; `None`
    /// for arrays.
    ///
    /// # Errors
    /// When the file is no image; the error names it.
    pub fn geometry(&self, index: usize) -> Result<Option<Geometry>, DatasetError> {
        let path = self.path(index);
        let image = extension(path).is_some_and(|extension| IMAGES.contains(&extension.as_str()));
        let Some(preprocessing) = self.preprocessing.as_ref().filter(|_| image) else {
            return Ok(None);
        };
        let geometry = preprocess::read_geometry(path, preprocessing);
        geometry.map(Some).map_err(|source| DatasetError::Image {
            path: path.into(),
            source,
        })
    }

    /// All samples in order.
    pub fn iter(&self) -> impl Iterator<Item = Result<Sample, DatasetError>> + '_ {
        (0..self.len()).map(|index| self.sample(index))
    }

    fn read_file(&self, path: &Path) -> Result<(Vec<Tensor>, Option<Geometry>), DatasetError> {
        match extension(path).as_deref() {
            Some("npy") => {
                let spec = single(&self.inputs, path)?;
                let file = File::open(path).map_err(|source| DatasetError::io(path, source))?;
                let array = array::with_batch(path, spec, array::read_npy(path, file, u64::MAX)?)?;
                Ok((vec![array], None))
            }
            Some("npz") => {
                let arrays = array::read_npz(path, &self.inputs)?.into_iter();
                let arrays = arrays
                    .zip(&self.inputs)
                    .map(|(array, spec)| array::with_batch(path, spec, array));
                Ok((arrays.collect::<Result<_, _>>()?, None))
            }
            _ => {
                let spec = single(&self.inputs, path)?;
                let preprocessing = self
                    .preprocessing
                    .as_ref()
                    .ok_or_else(|| DatasetError::NoPreprocessing { path: path.into() })?;
                let prepared =
                    preprocess::read_image(path, preprocessing).map_err(|source| DatasetError::Image {
                        path: path.into(),
                        source,
                    })?;
                array::check(path, spec, &prepared.tensor)?;
                Ok((vec![prepared.tensor], Some(prepared.geometry)))
            }
        }
    }
}

const IMAGES: [&str; 4] = ["png", "jpg", "jpeg", "bmp"];

fn extension(path: &Path) -> Option<String> {
    Some(path.extension()?.to_str()?.to_ascii_lowercase())
}

/// The sample files of a folder by name, and how many other files it has.
fn sample_files(folder: &Path) -> Result<(Vec<PathBuf>, usize), DatasetError> {
    let io = |source| DatasetError::io(folder, source);
    let mut files = Vec::new();
    let mut others = 0;
    for entry in std::fs::read_dir(folder).map_err(io)? {
        let path = entry.map_err(io)?.path();
        if !path.is_file() {
            continue;
        }
        match extension(&path).as_deref() {
            Some("npy" | "npz") => files.push(path),
            Some(image) if IMAGES.contains(&image) => files.push(path),
            _ => others += 1,
        }
    }
    files.sort();
    Ok((files, others))
}

/// The model's only input; a file that holds one tensor cannot feed more.
fn single<'a>(inputs: &'a [TensorSpec], path: &Path) -> Result<&'a TensorSpec, DatasetError> {
    match inputs {
        [only] => Ok(only),
        _ => Err(DatasetError::SeveralInputs {
            path: path.into(),
            inputs: inputs.iter().map(|input| input.name.to_string()).collect(),
        }),
    }
}

fn stacked_count(path: &Path, inputs: &[TensorSpec], arrays: &[Tensor]) -> Result<usize, DatasetError> {
    let mut counts = arrays
        .iter()
        .map(|array| array.dims().first().copied().unwrap_or(0));
    let first = counts.next().unwrap_or(0);
    if let Some((spec, count)) = inputs
        .iter()
        .skip(1)
        .zip(counts)
        .find(|(_, count)| *count != first)
    {
        return Err(DatasetError::Shape {
            path: path.into(),
            input: spec.name.to_string(),
            problem: format!("it has {count} samples, {:?} has {first}", inputs[0].name),
        });
    }
    Ok(first)
}

/// Whether `dims` may be fed to an input of this shape.
fn fits(dims: &[usize], spec: &TensorSpec) -> bool {
    if !spec.ranked {
        return true;
    }
    dims.len() == spec.shape.len()
        && dims.iter().zip(spec.shape.iter()).all(|(length, dim)| match dim {
            Dim::Known(expected) => length == expected,
            _ => true,
        })
}

#[cfg(test)]
mod tests;
