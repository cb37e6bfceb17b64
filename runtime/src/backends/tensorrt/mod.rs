//! The TensorRT backend: the primary path on Jetson.
//!
//! This program neither links TensorRT nor needs it to start. A small C++ plugin (`runtime/tensorrt-plugin`) compiled for
//! the family of TensorRT on the device translates between its classes and a C interface; [`Library::find`] opens both,
//! after making sure that they belong together. [`build_engine`] makes an engine from an ONNX model under memory limits,
//! [`EngineCache`] keeps it, [`plan_file`] says what a file holds before TensorRT sees it.
//!
//! (The crate `tensorrt-rs` binds TensorRT 5 to 7, which no supported JetPack has.)

mod abi;
mod backend;
mod builder;
mod cache;
mod context;
mod device;
mod engine;
mod failure;
#[cfg(test)]
mod gpu_tests;
mod identity;
mod layers;
mod library;
mod limits;
mod maker;
pub mod plan_file;
mod prepare;
mod session;
mod shapes;
mod watch;

pub use backend::TensorRtBackend;
pub use builder::{BuildEvents, BuiltEngine, EngineOptions, Watched, build_engine};
pub use cache::{Cached, EngineCache};
pub use device::gpu;
pub use failure::{ParserProblem, Stop, TensorRtError};
pub use identity::{Identity, Product};
pub use layers::EngineLayer;
pub use library::{LIBRARY_VARIABLE, Library, PLUGIN_VARIABLE, Places};
pub use limits::BuildLimits;
pub use maker::{BUILD_FLOOR, EngineMaker, Found, Wanted};
pub use shapes::{InputRange, ranges};
pub use watch::{MemoryWatch, Steps, StopRequest, Stoppable};
