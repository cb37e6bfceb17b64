//! A real sentence encoder: its graph around trained weights, its tokenizer, and sentences to feed it.

mod encoder;
mod phrases;
mod safetensors;
mod wordpiece;

pub use encoder::encoder;
pub use phrases::sentence;
pub use wordpiece::Tokenizer;
