//! A bundle made ready to answer.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use edgeopt_models::bundle::{self, BundleError, DimInfo, Limits, Manifest, Precision, Preprocessing, Trust};
use edgeopt_models::{Bytes, Tensor};
use edgeopt_runtime::dataset::decode_arrays;
use edgeopt_runtime::memory::{Budget, BudgetError};
use edgeopt_runtime::pipeline::{Geometry, preprocess};
use edgeopt_runtime::{
    Backend, BundleEngines, CompileOptions, Engine, ModelSource, OnStep, RuntimeError, TensorSpec,
    compile_declared,
};

use image::RgbImage;

use super::answer::has_non_finite;

/// The largest model and golden file read into memory.
const MEMBER_LIMIT: Bytes = Bytes::mib(4 << 10);

/// Why a bundle cannot answer.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The file cannot be opened.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// It is no good bundle.
    #[error("{path}: {source}")]
    Bundle {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: BundleError,
    },
    /// It does not fit beside what is loaded.
    #[error(transparent)]
    Budget(BudgetError),
    /// The backend refuses the model.
    #[error(transparent)]
    Runtime(RuntimeError),
}

impl From<RuntimeError> for LoadError {
    fn from(error: RuntimeError) -> Self {
        match error {
            RuntimeError::Budget(error) => Self::Budget(error),
            error => Self::Runtime(error),
        }
    }
}

/// What one request brings.
#[derive(Clone, Debug)]
pub struct Input {
    /// In the order of the model's inputs.
    pub tensors: Vec<Tensor>,
    /// How an image became the input; none for arrays.
    pub geometry: Option<Geometry>,
}

/// A model with its engine.
pub struct LoadedModel {
    /// What its bundle says.
    pub manifest: Manifest,
    pub(super) engine: Arc<dyn Engine>,
    pub(super) output_names: Vec<String>,
    path: PathBuf,
}

impl LoadedModel {
    /// Loads the bundle at `path`, whose digest and signature were checked when it came into the store.
    ///
    /// # Errors
    /// See [`LoadError`].
    pub fn load(path: &Path, backend: &dyn Backend, options: &CompileOptions) -> Result<Self, LoadError> {
        let open = || {
            File::open(path).map_err(|source| LoadError::Io {
                path: path.into(),
                source,
            })
        };
        let bad = |source| LoadError::Bundle {
            path: path.into(),
            source,
        };
        let (manifest, _) =
            bundle::read_manifest(open()?, &Limits::default(), &Trust::Unchecked).map_err(bad)?;
        let onnx = bundle::read_member(open()?, bundle::MODEL, MEMBER_LIMIT).map_err(bad)?;
        let options = CompileOptions {
            engines: Some(BundleEngines::of(path, &manifest)),
            ..options.clone()
        };
        let engine = compile_declared(&manifest, ModelSource::Bytes(&onnx), backend, &options)?;
        Ok(Self {
            output_names: engine
                .outputs()
                .iter()
                .map(|spec| spec.name.to_string())
                .collect(),
            manifest,
            engine,
            path: path.into(),
        })
    }

    /// The inputs of one request: an image as the bundle declares, or arrays in NumPy's formats.
    ///
    /// # Errors
    /// When the bytes are neither, or do not fit; `name` is for messages.
    pub fn read_input(&self, name: &str, bytes: &[u8]) -> Result<Input, String> {
        if bytes.starts_with(b"PK") || bytes.starts_with(b"\x93NUMPY") {
            let tensors =
                decode_arrays(name, bytes, self.engine.inputs()).map_err(|error| error.to_string())?;
            return Ok(Input {
                tensors,
                geometry: None,
            });
        }
        // Before it is decoded: that takes time, and memory.
        self.preprocessing(name)?;
        let image = preprocess::decode_bytes(bytes).map_err(|error| format!("{name}: {error}"))?;
        self.prepare(name, &image)
    }

    fn preprocessing(&self, name: &str) -> Result<&Preprocessing, String> {
        self.manifest.preprocessing.as_ref().ok_or_else(|| {
            format!(
                "{name}: {} takes arrays (.npy, .npz); its bundle does not say how an image becomes its input",
                self.manifest.name
            )
        })
    }

    /// The input that an image becomes, as the bundle declares.
    ///
    /// # Errors
    /// When the bundle declares nothing of the kind, or it does not fit; `name` is for messages.
    pub fn prepare(&self, name: &str, image: &RgbImage) -> Result<Input, String> {
        let prepared = preprocess::prepare(image, self.preprocessing(name)?)
            .map_err(|error| format!("{name}: {error}"))?;
        Ok(Input {
            tensors: vec![prepared.tensor],
            geometry: Some(prepared.geometry),
        })
    }

    /// How many samples one run may take together: the bundle's range of the first axis, if every input has one.
    pub(super) fn largest_batch(&self) -> usize {
        let first = |info: &bundle::TensorInfo| match info.shape.first() {
            Some(DimInfo::Range { max, .. }) => *max,
            _ => 1,
        };
        self.manifest.inputs.iter().map(first).min().unwrap_or(1).max(1)
    }

    /// Reproduces the golden outputs that the bundle carries. Backends round differently and fuse what the reference
    /// computes step by step, so outputs are compared by their ratio of signal to difference, with the least that each
    /// precision must reach. Returns how many samples there were.
    ///
    /// # Errors
    /// With the output that differs, and by how much.
    pub fn self_test(&self) -> Result<usize, String> {
        let mut session = Arc::clone(&self.engine)
            .session()
            .map_err(|error| error.to_string())?;
        let mut tested = 0;
        loop {
            let (Some(inputs), Some(expected)) = (
                self.golden(&format!("golden/{tested}-inputs.npz"), self.engine.inputs())?,
                self.golden(&format!("golden/{tested}-outputs.npz"), self.engine.outputs())?,
            ) else {
                break;
            };
            let outputs = session
                .run(&inputs)
                .map_err(|error| format!("golden input {tested}: {error}"))?;
            for ((name, actual), expected) in self.output_names.iter().zip(outputs).zip(&expected) {
                self.compare(name, actual, expected)
                    .map_err(|error| format!("golden input {tested}: {error}"))?;
            }
            tested += 1;
        }
        if tested == 0 {
            tracing::warn!(
                "{} {} carries no golden inputs: it was not tested",
                self.manifest.name,
                self.manifest.version
            );
        }
        Ok(tested)
    }

    fn golden(&self, member: &str, specs: &[TensorSpec]) -> Result<Option<Vec<Tensor>>, String> {
        if !self.manifest.members.contains_key(member) {
            return Ok(None);
        }
        let file = File::open(&self.path).map_err(|error| format!("{}: {error}", self.path.display()))?;
        let bytes = bundle::read_member(file, member, MEMBER_LIMIT).map_err(|error| error.to_string())?;
        decode_arrays(member, &bytes, specs)
            .map(Some)
            .map_err(|error| error.to_string())
    }

    fn compare(&self, name: &str, actual: &Tensor, expected: &Tensor) -> Result<(), String> {
        if actual.dims() != expected.dims() {
            return Err(format!(
                "output {name:?} has shape {:?}, expected {:?}",
                actual.dims(),
                expected.dims()
            ));
        }
        let (Ok(a), Ok(b)) = (actual.to_f32(), expected.to_f32()) else {
            return Ok(());
        };
        if has_non_finite(std::slice::from_ref(actual)) && !has_non_finite(std::slice::from_ref(expected)) {
            return Err(format!(
                "output {name:?} holds NaN or infinity, the expected one does not"
            ));
        }
        let (signal, noise) = a.iter().zip(b.iter()).filter(|(_, y)| y.is_finite()).fold(
            (0f64, 0f64),
            |(signal, noise), (x, y)| {
                let (x, y) = (f64::from(*x), f64::from(*y));
                (signal + y * y, noise + (x - y) * (x - y))
            },
        );
        let least = least_sqnr_db(self.manifest.precision);
        let sqnr = if noise == 0.0 {
            f64::INFINITY
        } else {
            10.0 * (signal / noise).log10()
        };
        // NaN, from infinities on both sides, is no pass.
        if sqnr.is_nan() || sqnr < least {
            return Err(format!(
                "output {name:?} reaches {sqnr:.1} dB against the expected one, {least} are needed"
            ));
        }
        Ok(())
    }
}

/// What the outputs of a precision must reach against those of the reference, dB: well below what backends differ by,
/// well above what a wrong model gives.
fn least_sqnr_db(precision: Precision) -> f64 {
    match precision {
        Precision::Fp32 => 40.0,
        Precision::Fp16 => 30.0,
        Precision::Int8 => 12.0,
    }
}

/// How models are compiled here.
pub(super) fn compile_options(threads: usize, budget: Option<Budget>, on_step: OnStep) -> CompileOptions {
    CompileOptions {
        threads,
        budget,
        on_step: Some(on_step),
        ..CompileOptions::default()
    }
}
