//! Raising models to a newer operator set.
