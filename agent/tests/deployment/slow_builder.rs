//! A backend that needs engines, and takes as long to build one as the test says. Its engines are files; what executes them
//! is the CPU.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use edgeopt_models::bundle::digest_of;
use edgeopt_models::{Bytes, Tensor};
use edgeopt_runtime::backends::cpu::CpuBackend;
use edgeopt_runtime::{
    AtHand, Backend, CompileOptions, Engine, MemoryUse, ModelSource, RuntimeError, Session, TensorSpec,
};

/// What comes of an engine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Comes {
    /// It computes what it should.
    Right,
    /// It cannot be built.
    Never,
    /// Building it panics.
    Panic,
    /// It is built, and its numbers are wrong.
    Wrong,
    /// It passes its test, and gives NaN for negative inputs.
    NaN,
}

pub(crate) struct SlowBuilder {
    cpu: CpuBackend,
    folder: PathBuf,
    identity: String,
    comes: Comes,
    /// Scratch memory that a build must be allowed.
    needs: Bytes,
    /// A build ends when it is open.
    open: AtomicBool,
    begun: AtomicU32,
    cancelled: AtomicU32,
}

impl SlowBuilder {
    /// Engines are kept in `folder`. Builds do not end before [`SlowBuilder::open`].
    pub(crate) fn new(folder: &Path, library: &str, comes: Comes) -> Self {
        fs::create_dir_all(folder).unwrap();
        Self {
            cpu: CpuBackend::new().unwrap(),
            folder: folder.into(),
            identity: library.into(),
            comes,
            needs: Bytes::ZERO,
            open: AtomicBool::new(false),
            begun: AtomicU32::new(0),
            cancelled: AtomicU32::new(0),
        }
    }

    pub(crate) fn needing(mut self, needs: Bytes) -> Self {
        self.needs = needs;
        self
    }

    /// Lets builds end, those under way and those to come.
    pub(crate) fn open(&self) {
        self.open.store(true, Ordering::Relaxed);
    }

    pub(crate) fn begun(&self) -> u32 {
        self.begun.load(Ordering::Relaxed)
    }

    pub(crate) fn cancelled(&self) -> u32 {
        self.cancelled.load(Ordering::Relaxed)
    }

    /// The engines that are kept.
    pub(crate) fn kept(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.folder).unwrap();
        let mut names: Vec<String> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    /// Beginning of the names of the engines of a model, and the name of the one that serves.
    fn names(&self, model: ModelSource<'_>) -> (String, String) {
        let ModelSource::Mapped(part) = model else {
            panic!("the daemon compiles from the bundle's file")
        };
        let digest = digest_of(part.bytes()).unwrap().0;
        (format!("{digest} by "), format!("{digest} by {}", self.identity))
    }

    fn fits(&self, options: &CompileOptions) -> Result<(), RuntimeError> {
        let needs = MemoryUse {
            workspace: self.needs,
            ..MemoryUse::default()
        };
        if let Some(budget) = &options.budget {
            drop(budget.reserve("the build", needs)?);
        }
        Ok(())
    }
}

impl Backend for SlowBuilder {
    fn name(&self) -> &'static str {
        "slow-builder"
    }

    fn description(&self) -> String {
        self.identity.clone()
    }

    fn compile(
        &self,
        model: ModelSource<'_>,
        options: &CompileOptions,
    ) -> Result<Arc<dyn Engine>, RuntimeError> {
        if let Some(why) = self.look_up(model, options)?.missing {
            if options.at_hand_only {
                return Err(RuntimeError::NotAtHand { why });
            }
            self.build(model, options)?;
        }
        Ok(Arc::new(Spoilt {
            engine: self.cpu.compile(model, options)?,
            comes: self.comes,
        }))
    }

    fn look_up(&self, model: ModelSource<'_>, options: &CompileOptions) -> Result<AtHand, RuntimeError> {
        self.fits(options)?;
        let (of_model, own) = self.names(model);
        let kept = self.kept();
        let missing = if kept.contains(&own) {
            None
        } else {
            let other = kept.iter().find_map(|name| name.strip_prefix(&of_model));
            Some(match other {
                Some(other) => format!("built by {other}, here {}", self.identity),
                None => "none was built".into(),
            })
        };
        Ok(AtHand { key: own, missing })
    }

    fn build(&self, model: ModelSource<'_>, options: &CompileOptions) -> Result<(), RuntimeError> {
        if self.look_up(model, options)?.missing.is_none() {
            return Ok(());
        }
        self.begun.fetch_add(1, Ordering::Relaxed);
        loop {
            options.on_step.as_ref().unwrap().done();
            if options.cancel.as_ref().is_some_and(|cancel| cancel.is_asked()) {
                self.cancelled.fetch_add(1, Ordering::Relaxed);
                return Err(RuntimeError::Cancelled);
            }
            if self.open.load(Ordering::Relaxed) {
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_ne!(self.comes, Comes::Panic, "for the test");
        if self.comes == Comes::Never {
            return Err(RuntimeError::Compile {
                backend: "slow-builder",
                message: "no tactic was good enough".into(),
            });
        }
        let (of_model, own) = self.names(model);
        for old in self.kept().iter().filter(|name| name.starts_with(&of_model)) {
            fs::remove_file(self.folder.join(old)).unwrap();
        }
        fs::write(self.folder.join(own), b"engine").unwrap();
        Ok(())
    }
}

struct Spoilt {
    engine: Arc<dyn Engine>,
    comes: Comes,
}

impl Engine for Spoilt {
    fn inputs(&self) -> &[TensorSpec] {
        self.engine.inputs()
    }
    fn outputs(&self) -> &[TensorSpec] {
        self.engine.outputs()
    }
    fn memory(&self) -> MemoryUse {
        self.engine.memory()
    }
    fn session(self: Arc<Self>) -> Result<Box<dyn Session>, RuntimeError> {
        Ok(Box::new(SpoiltSession {
            session: Arc::clone(&self.engine).session()?,
            comes: self.comes,
            outputs: Vec::new(),
        }))
    }
}

struct SpoiltSession {
    session: Box<dyn Session>,
    comes: Comes,
    outputs: Vec<Tensor>,
}

impl Session for SpoiltSession {
    fn run(&mut self, inputs: &[Tensor]) -> Result<&[Tensor], RuntimeError> {
        let negative = inputs[0].to_f32().unwrap().iter().any(|value| *value < 0.0);
        let outputs = self.session.run(inputs)?.iter();
        let spoil = |value: f32| match self.comes {
            Comes::Wrong => value + 100.0,
            Comes::NaN if negative => f32::NAN,
            _ => value,
        };
        self.outputs = outputs
            .map(|output| {
                let values: Vec<f32> = output
                    .to_f32()
                    .unwrap()
                    .iter()
                    .map(|value| spoil(*value))
                    .collect();
                Tensor::new(output.dims(), &values).unwrap()
            })
            .collect();
        Ok(&self.outputs)
    }
}
