//! What happens before and after the model: images into tensors, tensors into results.

mod class_names;
pub mod ctc;
pub mod detection;
mod fit;
mod geometry;
pub mod postprocess;
pub mod preprocess;
pub mod presets;
pub mod text_detection;

pub use geometry::Geometry;
