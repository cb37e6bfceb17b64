//! Where inputs come from besides the broker and the local interface.

pub mod camera;
mod folder;

pub use folder::{FolderError, FolderWatch};
