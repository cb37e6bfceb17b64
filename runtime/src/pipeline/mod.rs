//! What happens before and after the model: images into tensors, tensors into results.

pub mod ctc;
pub mod postprocess;
pub mod preprocess;
pub mod presets;
