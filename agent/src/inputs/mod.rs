//! Where inputs come from besides the broker and the local interface.

mod folder;

pub use folder::{FolderError, FolderWatch};
