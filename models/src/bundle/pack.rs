use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Write};
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
    let io = |source| BundleError::Io {
        path: path.into(),
        source,
    };
    replace_file(path, |file| {
        let mut archive = tar::Builder::new(file);
        append(&mut archive, MANIFEST, encoded.len() as u64, encoded.as_slice()).map_err(io)?;
        if let Some(signature) = &signature {
            append(
                &mut archive,
                SIGNATURE,
                signature.len() as u64,
                signature.as_bytes(),
            )
            .map_err(io)?;
        }
        for (name, member) in members {
            match member {
                Member::Data(data) => append(&mut archive, name, data.len() as u64, data.as_slice()),
                Member::File(source) => File::open(source)
                    .and_then(|source| append(&mut archive, name, source.metadata()?.len(), source)),
            }
            .map_err(io)?;
        }
        archive.finish().map_err(io)
    })?;
    Ok(manifest)
}

/// Signs a bundle that exists, replacing a signature it may have. It is read once: what is checked is what is written,
/// even if somebody changes the file meanwhile.
///
/// # Errors
/// When the bundle is damaged or cannot be written; the file is as before then.
pub fn sign_file(path: &Path, key: &SecretKey) -> Result<Manifest, BundleError> {
    sign_from(|| File::open(path), path, key)
}

/// Signs what `open` opens (the manifest alone first, then everything) into `path`.
fn sign_from<R: Read>(
    open: impl Fn() -> std::io::Result<R>,
    path: &Path,
    key: &SecretKey,
) -> Result<Manifest, BundleError> {
    let io = |source| BundleError::Io {
        path: path.into(),
        source,
    };
    let limits = Limits::default();
    let raw = read::raw_manifest(open().map_err(io)?, &limits)?;
    let signature = key.sign(&raw)?;
    replace_file(path, |file| {
        let mut archive = tar::Builder::new(file);
        append(&mut archive, MANIFEST, raw.len() as u64, raw.as_slice()).map_err(io)?;
        append(
            &mut archive,
            SIGNATURE,
            signature.len() as u64,
            signature.as_bytes(),
        )
        .map_err(io)?;
        let source = open().map_err(io)?;
        let (manifest, _) = read::stream(source, &limits, &Trust::Unchecked, |name, info, content| {
            append(&mut archive, name, info.size.0, content)
        })?;
        if manifest != read::parse_manifest(&raw)? {
            return Err(BundleError::Archive(
                "the file was changed while it was being signed".into(),
            ));
        }
        archive.finish().map_err(io)?;
        Ok(manifest)
    })
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
fn replace_file<T>(
    path: &Path,
    write: impl FnOnce(&mut File) -> Result<T, BundleError>,
) -> Result<T, BundleError> {
    let io = |source| BundleError::Io {
        path: path.into(),
        source,
    };
    let folder = path
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty())
        .unwrap_or(Path::new("."));
    let mut file = tempfile::Builder::new()
        .prefix(".edgeopt-")
        .tempfile_in(folder)
        .map_err(io)?;
    let written = write(file.as_file_mut())?;
    file.as_file().sync_all().map_err(io)?;
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        file.as_file()
            .set_permissions(std::fs::Permissions::from_mode(0o644))
            .map_err(io)?;
    }
    file.persist(path).map_err(|error| io(error.error))?;
    File::open(folder)
        .and_then(|folder| folder.sync_all())
        .map_err(io)?;
    Ok(written)
}

/// Writes a file whole or not at all, as [`pack`] does: beside it first, then renamed into place, durable.
///
/// # Errors
/// When the file cannot be written.
pub fn write_file(path: &Path, content: &[u8]) -> Result<(), BundleError> {
    replace_file(path, |file| {
        file.write_all(content).map_err(|source| BundleError::Io {
            path: path.into(),
            source,
        })
    })
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::io::Cursor;

    use super::super::{generate_keys, verify};
    use super::*;

    fn bundle(folder: &Path) -> Vec<u8> {
        let manifest = serde_json::json!({
            "format": "1.0", "name": "digits", "version": "1", "precision": "fp32", "inputs": [], "outputs": [],
            "memory": [], "members": {},
            "provenance": {"source": "", "source_sha256": "", "tool": "", "options": {}},
        });
        let path = folder.join("digits.edge");
        let members = BTreeMap::from([("model.onnx".to_owned(), Member::Data(vec![7; 2000]))]);
        pack(serde_json::from_value(manifest).unwrap(), &members, None, &path).unwrap();
        std::fs::read(path).unwrap()
    }

    #[test]
    fn a_bundle_that_changes_while_it_is_signed_is_refused_and_the_file_stays() {
        let folder = tempfile::tempdir().unwrap();
        let (_, key) = generate_keys(None).unwrap();
        let good = bundle(folder.path());
        let path = folder.path().join("signed.edge");
        std::fs::write(&path, &good).unwrap();
        let at = good.iter().position(|byte| *byte == 7).unwrap();
        let mut altered = good.clone();
        altered[at] = 8;
        let renamed = String::from_utf8_lossy(&good)
            .replace("\"digits\"", "\"digitz\"")
            .into_bytes();
        for (changed, expected) in [(altered, "SHA-256"), (renamed, "changed while")] {
            let opened = Cell::new(0);
            let open = || {
                opened.set(opened.get() + 1);
                Ok(Cursor::new(if opened.get() == 1 {
                    good.clone()
                } else {
                    changed.clone()
                }))
            };
            let error = sign_from(open, &path, &key).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
            assert_eq!(std::fs::read(&path).unwrap(), good);
        }
        sign_file(&path, &key).unwrap();
        let (_, trusted) = verify(File::open(&path).unwrap(), &Limits::default(), &Trust::Unchecked).unwrap();
        assert_eq!(trusted, super::super::Trusted::NotChecked);
        // Nothing is left beside the files.
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2);
    }
}
