use std::path::{Path, PathBuf};

use crate::pipeline::preprocess::ImageError;

/// Why samples or labels cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DatasetError {
    /// A file cannot be read.
    #[error("cannot read {path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// Not a kind of file that holds samples.
    #[error("{path}: samples are a folder of images, .npy or .npz files, or one stacked .npy or .npz file")]
    Kind {
        /// The file.
        path: PathBuf,
    },
    /// There are none.
    #[error("{path}: no samples in it (images: png, jpg, bmp; arrays: npy, npz; {ignored} other files)")]
    Empty {
        /// The file or folder.
        path: PathBuf,
        /// Files of other kinds.
        ignored: usize,
    },
    /// An image, but nothing says how it becomes a tensor.
    #[error("{path}: it is an image, and no preprocessing says how it becomes the model's input")]
    NoPreprocessing {
        /// The file.
        path: PathBuf,
    },
    /// One tensor for a model of several inputs.
    #[error(
        "{path}: it holds one tensor, and the model takes {}: give .npz files with arrays of these names",
        inputs.join(", ")
    )]
    SeveralInputs {
        /// The file.
        path: PathBuf,
        /// Names of the model's inputs.
        inputs: Vec<String>,
    },
    /// An image cannot be used.
    #[error("{path}: {source}")]
    Image {
        /// The file.
        path: PathBuf,
        /// Why.
        source: ImageError,
    },
    /// An array does not fit the input.
    #[error("{path}: input {input:?}: {problem}")]
    Shape {
        /// The file.
        path: PathBuf,
        /// The model's input.
        input: String,
        /// What is expected and what is there.
        problem: String,
    },
    /// An array file is malformed or of an unsupported kind.
    #[error("{path}: {problem}")]
    Array {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// Labels of objects cannot be used.
    #[error("{path}: {problem}")]
    Labels {
        /// The file or folder.
        path: PathBuf,
        /// What is wrong, and where.
        problem: String,
    },
    /// A line of a label file is malformed.
    #[error("{path}, line {line}: {problem}")]
    Label {
        /// The file.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
        /// What is wrong.
        problem: String,
    },
}

impl DatasetError {
    pub(super) fn io(path: &Path, source: std::io::Error) -> Self {
        Self::Io {
            path: path.into(),
            source,
        }
    }

    pub(super) fn array(path: &Path, problem: impl ToString) -> Self {
        Self::Array {
            path: path.into(),
            problem: problem.to_string(),
        }
    }
}
