//! What must hold of a model for the rest of the project to work on it.
