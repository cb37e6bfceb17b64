//! A bundle made ready to answer.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use edgeopt_models::bundle::{self, BundleError, DimInfo, Limits, Manifest, Precision, Preprocessing, Trust};
use edgeopt_models::{Bytes, MappedPart, Tensor};
use edgeopt_runtime::dataset::decode_arrays;
use edgeopt_runtime::memory::BudgetError;
use edgeopt_runtime::pipeline::{Geometry, preprocess};
use edgeopt_runtime::{
    AtHand, Backend, BundleEngines, CompileOptions, Engine, ModelSource, RuntimeError, TensorSpec,
    compile_declared, declared_options,
};

use image::RgbImage;

use super::non_finite::NonFinite;

/// The largest golden file read into memory.
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
    /// An error in this program.
    #[error("it ended unexpectedly; the log says where: please report this")]
    Panicked,
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
    /// What executes it: `tensorrt`, `cpu`.
    pub backend: &'static str,
    path: PathBuf,
    /// By output: what its golden outputs hold; read when it is first asked for.
    expected: OnceLock<Vec<NonFinite>>,
}

/// A bundle that was read, whose digest and signature were checked when it came into the store.
pub(super) struct Opened {
    manifest: Manifest,
    onnx: MappedPart,
    pub(super) path: PathBuf,
}

impl Opened {
    pub(super) fn read(path: &Path) -> Result<Self, LoadError> {
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
        let onnx = bundle::map_member(path, bundle::MODEL).map_err(bad)?;
        Ok(Self {
            manifest,
            onnx,
            path: path.into(),
        })
    }

    fn options(&self, options: &CompileOptions) -> CompileOptions {
        CompileOptions {
            engines: Some(BundleEngines::of(&self.path, &self.manifest)),
            ..options.clone()
        }
    }

    /// Whether its engine is at hand.
    pub(super) fn look_up(
        &self,
        backend: &dyn Backend,
        options: &CompileOptions,
    ) -> Result<AtHand, LoadError> {
        let options = declared_options(&self.manifest, &self.options(options));
        Ok(backend.look_up(ModelSource::Mapped(&self.onnx), &options)?)
    }

    /// Builds its engine, so that loading finds it.
    pub(super) fn build(&self, backend: &dyn Backend, options: &CompileOptions) -> Result<(), LoadError> {
        let options = declared_options(&self.manifest, &self.options(options));
        Ok(backend.build(ModelSource::Mapped(&self.onnx), &options)?)
    }

    pub(super) fn load(
        &self,
        backend: &dyn Backend,
        options: &CompileOptions,
    ) -> Result<LoadedModel, LoadError> {
        let options = self.options(options);
        let engine = compile_declared(&self.manifest, ModelSource::Mapped(&self.onnx), backend, &options)?;
        Ok(LoadedModel {
            output_names: engine
                .outputs()
                .iter()
                .map(|spec| spec.name.to_string())
                .collect(),
            backend: backend.name(),
            manifest: self.manifest.clone(),
            engine,
            path: self.path.clone(),
            expected: OnceLock::new(),
        })
    }
}

impl LoadedModel {
    /// Loads the bundle at `path`, whose digest and signature were checked when it came into the store.
    ///
    /// # Errors
    /// See [`LoadError`].
    pub fn load(path: &Path, backend: &dyn Backend, options: &CompileOptions) -> Result<Self, LoadError> {
        Opened::read(path)?.load(backend, options)
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

    /// NaN and infinities in `outputs` that no golden output of the same name holds, in words; `None` if there are none.
    pub(super) fn unexpected(&self, outputs: &[Tensor]) -> Option<String> {
        let mut words = Vec::new();
        for (index, (name, output)) in self.output_names.iter().zip(outputs).enumerate() {
            let found = NonFinite::of(output);
            if found.any() {
                let expected = self.expected().get(index).copied().unwrap_or_default();
                let unexpected = found.besides(expected);
                if unexpected.any() {
                    words.push(format!("{unexpected} in output {name:?}"));
                }
            }
        }
        (!words.is_empty()).then(|| words.join(", "))
    }

    fn expected(&self) -> &[NonFinite] {
        self.expected.get_or_init(|| {
            self.read_expected().unwrap_or_else(|problem| {
                tracing::warn!("golden outputs: {problem}; NaN and infinities count as unexpected");
                Vec::new()
            })
        })
    }

    fn read_expected(&self) -> Result<Vec<NonFinite>, String> {
        let mut expected = vec![NonFinite::default(); self.output_names.len()];
        let mut sample = 0;
        while let Some(outputs) =
            self.golden(&format!("golden/{sample}-outputs.npz"), self.engine.outputs())?
        {
            for (all, output) in expected.iter_mut().zip(&outputs) {
                *all = all.and(NonFinite::of(output));
            }
            sample += 1;
        }
        Ok(expected)
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
        let unexpected = NonFinite::of(actual).besides(NonFinite::of(expected));
        if unexpected.any() {
            return Err(format!(
                "output {name:?} holds {unexpected}, the expected one does not"
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
