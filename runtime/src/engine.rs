use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use edgeopt_models::bundle::{Manifest, MemoryPlan, TensorInfo};
use edgeopt_models::{Bytes, DataType, MappedPart, Model, Shape, Tensor, ValueInfo, ValueName};

use crate::memory::{Budget, BudgetError};
use crate::{AtHand, Cancel};

/// A way to execute models on some hardware.
pub trait Backend: Send + Sync {
    /// Short name, as given on the command line: `cpu`, `cuda`, `tensorrt`.
    fn name(&self) -> &'static str;

    /// The library behind it and its version, for people.
    fn description(&self) -> String;

    /// Compiles a model for execution. Memory is reserved from the options' budget before anything is loaded.
    ///
    /// # Errors
    /// When the budget does not allow it, or the library cannot execute the model.
    fn compile(
        &self,
        model: ModelSource<'_>,
        options: &CompileOptions,
    ) -> Result<Arc<dyn Engine>, RuntimeError>;

    /// Whether [`Backend::compile`] would find an engine, or build one first. Nothing is built, loaded or reserved.
    /// Backends that compile in one go always have what they need.
    ///
    /// # Errors
    /// When the model cannot be read, or the kept engines cannot.
    fn look_up(&self, _: ModelSource<'_>, _: &CompileOptions) -> Result<AtHand, RuntimeError> {
        Ok(AtHand::default())
    }

    /// Builds the engine of a model and keeps it, so that [`Backend::compile`] finds it at hand; returns at once if one
    /// is. What the options' budget leaves is the limit of the build, and of the engine. A build that is cancelled, or
    /// fails, leaves nothing.
    ///
    /// # Errors
    /// When the budget does not allow it, the library cannot build it, or it cannot be kept.
    fn build(&self, _: ModelSource<'_>, _: &CompileOptions) -> Result<(), RuntimeError> {
        Ok(())
    }
}

/// Where the model to compile is.
#[derive(Clone, Copy, Debug)]
pub enum ModelSource<'a> {
    /// A graph in memory.
    Model(&'a Model),
    /// An encoded ONNX model without external data.
    Bytes(&'a [u8]),
    /// An encoded ONNX model in a mapped file, such as a bundle: its weights need not be read into memory.
    Mapped(&'a MappedPart),
    /// An ONNX file, with external data beside it if it has any.
    File(&'a std::path::Path),
}

/// How to compile.
#[derive(Clone, Debug)]
pub struct CompileOptions {
    /// Threads one `run` may use; 0 = all cores.
    pub threads: usize,
    /// Where memory is reserved. `None` = no limit.
    pub budget: Option<Budget>,
    /// Activations, inputs and outputs as planned; `None` = not known, and not reserved. What weights and the library
    /// itself take, the backend knows.
    pub plan: Option<MemoryPlan>,
    /// Inputs as a bundle declares them, for backends that tune for ranges of lengths; empty = from the model alone.
    pub declared: Vec<TensorInfo>,
    /// Engines that came with the model: one that serves here saves building it.
    pub engines: Option<BundleEngines>,
    /// Compute quantized models exactly as their Q/DQ graph says (slower): the reference for verification.
    pub exact_quantization: bool,
    /// Let the library fuse and rewrite the graph (`true` for use; `false` to observe every intermediate).
    pub optimize: bool,
    /// Take little memory at the price of slower runs: no copy of the weights in the order that kernels like best, and
    /// nothing kept from one run to the next. For models that are run only to be observed.
    pub frugal: bool,
    /// With `frugal`: the model runs often enough for what halves the time of a run, as long as nothing is held twice:
    /// weights in the order that kernels like best, and what activations took kept from one run to the next.
    pub many_runs: bool,
    /// Told whenever a step of the compilation is done: a build of minutes shows by it that it does not hang.
    pub on_step: Option<OnStep>,
    /// Stops the compilation at its next step.
    pub cancel: Option<Cancel>,
    /// Fail with [`RuntimeError::NotAtHand`] rather than build an engine for minutes.
    pub at_hand_only: bool,
}

/// What is told of a compilation's steps, from any thread. Backends and libraries that compile in one go never call it.
#[derive(Clone)]
pub struct OnStep(Arc<dyn Fn() + Send + Sync>);

impl OnStep {
    /// Calls `told` at each step.
    pub fn new(told: impl Fn() + Send + Sync + 'static) -> Self {
        Self(Arc::new(told))
    }

    /// A step is done.
    pub fn done(&self) {
        (self.0)();
    }
}

impl fmt::Debug for OnStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OnStep")
    }
}

/// Engines in a bundle, which are read only by a backend that has use for them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BundleEngines {
    /// The bundle's file.
    pub bundle: PathBuf,
    /// The members that are engines.
    pub members: Vec<String>,
}

impl BundleEngines {
    /// The engines that the manifest of `bundle` names.
    pub fn of(bundle: &std::path::Path, manifest: &Manifest) -> Self {
        let members = manifest.members.keys();
        Self {
            bundle: bundle.into(),
            members: members
                .filter(|name| name.starts_with("engines/"))
                .cloned()
                .collect(),
        }
    }
}

impl Default for CompileOptions {
    fn default() -> Self {
        Self {
            threads: 0,
            budget: None,
            plan: None,
            declared: Vec::new(),
            engines: None,
            exact_quantization: false,
            optimize: true,
            frugal: false,
            many_runs: false,
            on_step: None,
            cancel: None,
            at_hand_only: false,
        }
    }
}

/// Memory an engine takes, by part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct MemoryUse {
    /// Constants.
    pub weights: Bytes,
    /// Intermediate tensors, at their peak.
    pub activations: Bytes,
    /// Scratch memory of kernels.
    pub workspace: Bytes,
    /// Inputs and outputs.
    pub io: Bytes,
    /// The backend's own libraries and bookkeeping.
    pub overhead: Bytes,
}

impl MemoryUse {
    /// All parts together.
    pub fn total(&self) -> Bytes {
        self.weights + self.activations + self.workspace + self.io + self.overhead
    }
}

/// Name, type and shape of an input or output.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorSpec {
    /// Name in the graph.
    pub name: ValueName,
    /// Element type.
    pub dtype: DataType,
    /// Lengths; a symbol or unknown may vary from run to run. Empty, and without meaning, when not `ranked`.
    pub shape: Shape,
    /// Whether the number of dimensions is known.
    pub ranked: bool,
}

impl TensorSpec {
    /// The specification of a graph's input or output; `None` if it is no tensor.
    pub fn of(info: &ValueInfo) -> Option<Self> {
        let dtype = info.ty.dtype()?;
        let shape = info.ty.shape();
        Some(Self {
            name: info.name.clone(),
            dtype,
            shape: shape.cloned().unwrap_or_default(),
            ranked: shape.is_some(),
        })
    }
}

/// A compiled model, shared by its sessions.
pub trait Engine: Send + Sync {
    /// Inputs in the order `Session::run` takes them.
    fn inputs(&self) -> &[TensorSpec];

    /// Outputs in the order `Session::run` returns them.
    fn outputs(&self) -> &[TensorSpec];

    /// Memory reserved for this engine.
    fn memory(&self) -> MemoryUse;

    /// Opens a session. Sessions of one engine can run at the same time on different threads.
    ///
    /// # Errors
    /// When the library cannot.
    fn session(self: Arc<Self>) -> Result<Box<dyn Session>, RuntimeError>;
}

/// One stream of runs.
pub trait Session: Send {
    /// Runs the model once. The outputs stay valid until the next run; their storage is reused when shapes
    /// repeat, so that the steady path allocates nothing where the library permits.
    ///
    /// # Errors
    /// When number, type or shape of an input differ from the engine's, or the library fails.
    fn run(&mut self, inputs: &[Tensor]) -> Result<&[Tensor], RuntimeError>;
}

/// Why a model cannot be compiled or run.
#[derive(Debug, thiserror::Error)]
pub enum RuntimeError {
    /// A library of the backend is missing.
    #[error("{library} was not found; tried: {}", tried.join(", "))]
    LibraryNotFound {
        /// The library.
        library: &'static str,
        /// Every place that was looked at, with what was wrong there.
        tried: Vec<String>,
    },
    /// The model does not fit.
    #[error(transparent)]
    Budget(#[from] BudgetError),
    /// The model file cannot be read.
    #[error("cannot read {path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The model cannot be encoded for the library.
    #[error(transparent)]
    Encode(#[from] edgeopt_models::onnx::WriteError),
    /// The model is not a well-formed ONNX model.
    #[error(transparent)]
    Decode(#[from] edgeopt_models::onnx::ReadError),
    /// The library refused the model.
    #[error("{backend} cannot compile the model: {message}")]
    Compile {
        /// The backend's name.
        backend: &'static str,
        /// What the library said.
        message: String,
    },
    /// There is no engine, and none may be built now.
    #[error("its engine has to be built first: {why}")]
    NotAtHand {
        /// Why there is none.
        why: String,
    },
    /// Somebody asked to stop.
    #[error("it was cancelled")]
    Cancelled,
    /// An input does not match.
    #[error("input {name:?}: {problem}")]
    Input {
        /// The input.
        name: String,
        /// What is wrong, with what was expected.
        problem: String,
    },
    /// The library failed while running.
    #[error("{backend} failed while running the model: {message}")]
    Run {
        /// The backend's name.
        backend: &'static str,
        /// What the library said.
        message: String,
    },
}
