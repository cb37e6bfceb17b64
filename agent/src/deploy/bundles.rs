//! What a keeper needs of the store of bundles.

use std::path::PathBuf;
use std::time::Duration;

use crate::protocol::SlotSpec;

/// Why there is no bundle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FetchError {
    /// It makes no sense to try again; why.
    Permanent(String),
    /// Something newer is wanted.
    Superseded,
}

/// What a fetch asks and tells while it lasts.
pub struct Fetching<'a> {
    /// Whether something newer is wanted. To be asked at least every [`FETCH_SPEAKS`].
    pub superseded: &'a dyn Fn() -> bool,
    /// Told what the fetch waits for, and an empty text when it goes on.
    pub waits_for: &'a dyn Fn(&str),
}

/// How long a fetch may be silent before it counts as hanging.
pub const FETCH_SPEAKS: Duration = Duration::from_secs(300);

/// The store of bundles, and the ways into it.
pub trait Bundles: Send {
    /// Brings a bundle into the store, digest and signature checked. Waits and tries again as long as that may help,
    /// and gives up when it is superseded.
    ///
    /// # Errors
    /// See [`FetchError`].
    fn fetch(&mut self, spec: &SlotSpec, fetching: &Fetching<'_>) -> Result<(), FetchError>;

    /// Where the bundle of this digest is.
    fn path(&self, sha256: &str) -> PathBuf;

    /// Removes what no slot needs.
    fn collect(&mut self);
}
