use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::member::{MANIFEST, SIGNATURE, check_path};
use super::{BundleError, Limits, Manifest, MemberInfo, SecretKey, Trust, read};
use crate::Bytes;

/// Content of one member to be packed.
#[derive(Debug)]
pub enum Member {
    /// From memory.
    Data(Vec<u8>),
    /// From a file.
    File(PathBuf),
}

/// Packs a bundle. Digests and sizes are computed here and replace `manifest.members`; the same input gives the same
/// bytes. The file appears under `path` whole or not at all.
///
/// # Errors
/// When a member cannot be read, has an unusable path, or the file cannot be written.
pub fn pack(
    mut manifest: Manifest,
    members: &BTreeMap<String, Member>,
    key: Option<&SecretKey>,
    path: &Path,
) -> Result<Manifest, BundleError> {
    manifest.members.clear();
    for (name, member) in members {
        check_path(name)?;
        if name == MANIFEST || name == SIGNATURE {
            let problem = "this name is reserved".to_owned();
            return Err(BundleError::Member {
                member: name.clone(),
                problem,
            });
        }
        let (sha256, size) = match member {
            Member::Data(data) => digest_of(data.as_slice()),
            Member::File(file) => File::open(file).and_then(digest_of),
        }
        .map_err(|source| BundleError::Io {
            path: member.path(name),
            source,
        })?;
        manifest.members.insert(name.clone(), MemberInfo { sha256, size });
    }
    manifest.validate()?;
    let encoded = encode(&manifest)?;
    let signature = key.map(|key| key.sign(&encoded)).transpose()?;
    replace_file(path, |file| {
        let mut archive = tar::Builder::new(file);
        append(&mut archive, MANIFEST, encoded.len() as u64, encoded.as_slice())?;
        if let Some(signature) = &signature {
            append(
                &mut archive,
                SIGNATURE,
                signature.len() as u64,
                signature.as_bytes(),
            )?;
        }
        for (name, member) in members {
            match member {
                Member::Data(data) => append(&mut archive, name, data.len() as u64, data.as_slice())?,
                Member::File(source) => {
                    let source = File::open(source)?;
                    append(&mut archive, name, source.metadata()?.len(), source)?;
                }
            }
        }
        archive.finish()
    })
    .map_err(|source| BundleError::Io {
        path: path.into(),
        source,
    })?;
    Ok(manifest)
}

/// Signs a bundle that exists, replacing a signature it may have. The bundle is verified first.
///
/// # Errors
/// When the bundle is damaged or cannot be written.
pub fn sign_file(path: &Path, key: &SecretKey) -> Result<Manifest, BundleError> {
    let io = |source| BundleError::Io {
        path: path.into(),
        source,
    };
    let mut source = File::open(path).map_err(io)?;
    let (manifest, _) = read::verify(&source, &Limits::default(), &Trust::Unchecked)?;
    source.rewind().map_err(io)?;
    let raw = read::raw_manifest(&source, &Limits::default())?;
    let signature = key.sign(&raw)?;
    source.rewind().map_err(io)?;
    replace_file(path, |file| {
        let mut archive = tar::Builder::new(file);
        append(&mut archive, MANIFEST, raw.len() as u64, raw.as_slice())?;
        append(
            &mut archive,
            SIGNATURE,
            signature.len() as u64,
            signature.as_bytes(),
        )?;
        for entry in tar::Archive::new(&source).entries()?.raw(true) {
            let entry = entry?;
            let name = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
            if name != MANIFEST && name != SIGNATURE {
                append(&mut archive, &name, entry.size(), entry)?;
            }
        }
        archive.finish()
    })
    .map_err(io)?;
    Ok(manifest)
}

impl Member {
    fn path(&self, name: &str) -> PathBuf {
        match self {
            Self::Data(_) => name.into(),
            Self::File(path) => path.clone(),
        }
    }
}

fn encode(manifest: &Manifest) -> Result<Vec<u8>, BundleError> {
    let mut encoded =
        serde_json::to_vec_pretty(manifest).map_err(|error| BundleError::Manifest(error.to_string()))?;
    encoded.push(b'\n');
    let (size, limit) = (Bytes::from(encoded.len()), Limits::default().manifest);
    if size > limit {
        return Err(BundleError::TooLarge {
            what: MANIFEST.into(),
            size,
            limit,
        });
    }
    // What a reader would refuse must not be written.
    read::parse_manifest(&encoded)?;
    Ok(encoded)
}

fn append(
    archive: &mut tar::Builder<impl Write>,
    name: &str,
    size: u64,
    data: impl Read,
) -> std::io::Result<()> {
    let mut header = tar::Header::new_ustar();
    header.set_path(name)?;
    header.set_size(size);
    header.set_mode(0o644);
    header.set_mtime(0);
    header.set_uid(0);
    header.set_gid(0);
    header.set_entry_type(tar::EntryType::Regular);
    header.set_cksum();
    archive.append(&header, data.take(size))
}

/// SHA-256 (lower-case hex) and length of a stream.
///
/// # Errors
/// When the stream fails.
pub fn digest_of(mut data: impl Read) -> std::io::Result<(String, Bytes)> {
    let mut hash = Sha256::new();
    let mut buffer = vec![0u8; 1 << 16];
    let mut size = 0u64;
    loop {
        let count = data.read(&mut buffer)?;
        if count == 0 {
            return Ok((hex(&hash.finalize()), Bytes(size)));
        }
        hash.update(&buffer[..count]);
        size += count as u64;
    }
}

pub(super) fn hex(digest: &[u8]) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Writes beside `path`, makes it durable, and renames it into place.
fn replace_file(path: &Path, write: impl FnOnce(&mut File) -> std::io::Result<()>) -> std::io::Result<()> {
    let folder = path
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty())
        .unwrap_or(Path::new("."));
    let mut file = tempfile::Builder::new().prefix(".edgeopt-").tempfile_in(folder)?;
    write(file.as_file_mut())?;
    file.as_file().sync_all()?;
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        file.as_file()
            .set_permissions(std::fs::Permissions::from_mode(0o644))?;
    }
    file.persist(path).map_err(|error| error.error)?;
    File::open(folder)?.sync_all()
}
