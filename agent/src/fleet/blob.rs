//! Giving a bundle to devices in chunks, as they ask for them.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use edgeopt_models::Bytes;
use edgeopt_models::bundle::{self, BundleError, Limits, Manifest, Trust};

use crate::protocol::{BlobChunk, BlobRequest, MAX_CHUNK};

/// Chunks sent for one request, at most: a device that asks for more asks again.
const MOST_CHUNKS: u16 = 64;

/// A bundle as an operator has it.
#[derive(Debug)]
pub struct BundleFile {
    /// Where it is.
    pub path: PathBuf,
    /// SHA-256 of the file.
    pub sha256: String,
    /// Its size.
    pub size: Bytes,
    /// What it says about its model.
    pub manifest: Manifest,
    file: File,
}

impl BundleFile {
    /// Reads a bundle whole and checks its digests; its signature is for the devices to judge.
    ///
    /// # Errors
    /// When it is none, or damaged.
    pub fn open(path: &Path) -> Result<Self, BundleError> {
        let failed = |source| BundleError::Io {
            path: path.into(),
            source,
        };
        let open = || File::open(path).map_err(failed);
        let (manifest, _) = bundle::verify(open()?, &Limits::default(), &Trust::Unchecked)?;
        let (sha256, size) = bundle::digest_of(open()?).map_err(failed)?;
        Ok(Self {
            path: path.into(),
            sha256,
            size,
            manifest,
            file: open()?,
        })
    }

    /// The chunks that a request asks for.
    ///
    /// # Errors
    /// When the file cannot be read. A request for another bundle, or beyond the end, gets none.
    pub fn answer(&self, request: &BlobRequest) -> std::io::Result<Vec<Vec<u8>>> {
        if request.sha256 != self.sha256 {
            return Ok(Vec::new());
        }
        let length = u64::from(request.length.clamp(1, MAX_CHUNK));
        let mut chunks = Vec::new();
        for index in 0..u64::from(request.chunks.min(MOST_CHUNKS)) {
            let Some(offset) = request.offset.checked_add(index * length) else {
                break;
            };
            let count = length.min(self.size.0.saturating_sub(offset));
            if count == 0 {
                break;
            }
            let mut bytes = vec![0; count as usize];
            self.file.read_exact_at(&mut bytes, offset)?;
            let header = BlobChunk {
                sha256: self.sha256.clone(),
                offset,
                total: self.size.0,
            };
            chunks.push(header.encode(&bytes).map_err(std::io::Error::other)?);
        }
        Ok(chunks)
    }
}
