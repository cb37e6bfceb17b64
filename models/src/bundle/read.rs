use std::collections::BTreeSet;
use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;

use sha2::{Digest, Sha256};

use super::member::{MANIFEST, SIGNATURE, check_path};
use super::pack::hex;
use super::{BundleError, Manifest, MemberInfo, Trust, Trusted};
use crate::mapped_file::open_regular;
use crate::{Bytes, MappedFile, MappedPart};

/// The most a reader accepts.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Size of the manifest.
    pub manifest: Bytes,
    /// Size of all members together.
    pub total: Bytes,
}

impl Default for Limits {
    /// 1 MiB of manifest, 16 GiB in all.
    fn default() -> Self {
        Self {
            manifest: Bytes::mib(1),
            total: Bytes::mib(16 << 10),
        }
    }
}

/// Most values (numbers, texts, lists and objects) in a manifest. This bounds its parsed form, which for short values
/// takes tens of times the text.
const MANIFEST_VALUES: usize = 1 << 16;

/// A signature file is a few hundred bytes.
const SIGNATURE_LIMIT: Bytes = Bytes::kib(8);

fn archive_error(error: std::io::Error) -> BundleError {
    BundleError::Archive(error.to_string())
}

fn member_error(member: &str, problem: impl Into<String>) -> BundleError {
    BundleError::Member {
        member: member.to_owned(),
        problem: problem.into(),
    }
}

/// Reads a bundle to its end and checks everything: structure, signature, size and digest of every member.
///
/// # Errors
/// With the first thing that is wrong.
pub fn verify(reader: impl Read, limits: &Limits, trust: &Trust) -> Result<(Manifest, Trusted), BundleError> {
    stream(reader, limits, trust, |_, _, content| {
        copy(content, &mut std::io::sink())
    })
}

/// Unpacks a bundle into the folder `target`, which must not exist yet. Everything is checked first as in [`verify`];
/// the folder appears with all members or not at all.
///
/// # Errors
/// With the first thing that is wrong; nothing is left behind then.
pub fn extract(
    reader: impl Read,
    target: &Path,
    limits: &Limits,
    trust: &Trust,
) -> Result<(Manifest, Trusted), BundleError> {
    let io = |source| BundleError::Io {
        path: target.into(),
        source,
    };
    let parent = target
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty())
        .unwrap_or(Path::new("."));
    if target.exists() {
        return Err(io(std::io::Error::new(
            std::io::ErrorKind::AlreadyExists,
            "it exists already",
        )));
    }
    let staging = tempfile::Builder::new()
        .prefix(".edgeopt-")
        .tempdir_in(parent)
        .map_err(io)?;
    let root = staging.path().to_owned();
    let found = stream(reader, limits, trust, |name, _, content| {
        let path = root.join(name);
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder)?;
        }
        copy(content, &mut File::create_new(path)?)
    })?;
    for name in found.0.members.keys() {
        File::open(root.join(name))
            .and_then(|file| file.sync_all())
            .map_err(io)?;
    }
    // Names in folders are made durable by flushing the folders.
    let folders: BTreeSet<_> = found
        .0
        .members
        .keys()
        .flat_map(|name| Path::new(name).ancestors().skip(1))
        .collect();
    for folder in folders {
        File::open(root.join(folder))
            .and_then(|folder| folder.sync_all())
            .map_err(io)?;
    }
    std::fs::rename(&root, target).map_err(io)?;
    // Renamed away: there is nothing left for the guard to remove.
    drop(staging.keep());
    File::open(parent)
        .and_then(|folder| folder.sync_all())
        .map_err(io)?;
    Ok(found)
}

/// Reads only the manifest and checks its signature; members are not looked at.
///
/// # Errors
/// When the manifest is missing, malformed, or not trusted.
pub fn read_manifest(
    reader: impl Read,
    limits: &Limits,
    trust: &Trust,
) -> Result<(Manifest, Trusted), BundleError> {
    let mut archive = tar::Archive::new(reader);
    let mut entries = archive.entries().map_err(archive_error)?.raw(true);
    let raw = manifest_entry(&mut entries, limits)?;
    let mut signature = None;
    if let Some(entry) = entries.next() {
        let entry = entry.map_err(archive_error)?;
        if entry_name(&entry)? == SIGNATURE {
            signature = Some(read_all(entry, SIGNATURE, SIGNATURE_LIMIT)?);
        }
    }
    let trusted = trust.check(&raw, signature.as_deref())?;
    Ok((parse_manifest(&raw)?, trusted))
}

/// Reads one member into memory after the whole manifest was checked; only its own digest is verified.
///
/// # Errors
/// When the bundle has no such member, it is larger than `limit`, or it does not match its digest.
pub fn read_member(reader: impl Read, name: &str, limit: Bytes) -> Result<Vec<u8>, BundleError> {
    let mut archive = tar::Archive::new(reader);
    let mut entries = archive.entries().map_err(archive_error)?.raw(true);
    let manifest = parse_manifest(&manifest_entry(&mut entries, &Limits::default())?)?;
    let info = manifest
        .members
        .get(name)
        .ok_or_else(|| member_error(name, "the bundle has no such member"))?;
    for entry in entries {
        let entry = entry.map_err(archive_error)?;
        if entry_name(&entry)? == name {
            let data = read_all(entry, name, limit.min(info.size))?;
            let actual = hex(&Sha256::digest(&data));
            check_digest(name, info, actual, Bytes::from(data.len()))?;
            return Ok(data);
        }
    }
    Err(member_error(name, "the manifest lists it, but it is missing"))
}

/// Finds one member in the file at `path`, which is mapped, after the whole manifest was checked; only the member's own
/// digest is verified. The file must not be changed in place afterwards.
///
/// # Errors
/// When the file cannot be read or mapped, the bundle has no such member, or it does not match its digest.
pub fn map_member(path: &Path, name: &str) -> Result<MappedPart, BundleError> {
    let io = |source| BundleError::Io {
        path: path.into(),
        source,
    };
    // Read, not mapped: a medium that fails is an error here, where a mapping would end the program; and members that
    // stand before this one are passed over.
    let file = open_regular(path).map_err(io)?;
    let mut archive = tar::Archive::new(&file);
    let mut entries = archive.entries_with_seek().map_err(archive_error)?.raw(true);
    let manifest = parse_manifest(&manifest_entry(&mut entries, &Limits::default())?)?;
    let info = manifest
        .members
        .get(name)
        .ok_or_else(|| member_error(name, "the bundle has no such member"))?;
    for entry in entries {
        let entry = entry.map_err(archive_error)?;
        if entry_name(&entry)? != name {
            continue;
        }
        let cut_short = || member_error(name, "the file is cut short");
        let range = usize::try_from(entry.raw_file_position())
            .ok()
            .zip(usize::try_from(entry.size()).ok())
            .and_then(|(start, size)| Some(start..start.checked_add(size)?))
            .ok_or_else(cut_short)?;
        let mut content = Hashed {
            inner: entry,
            hash: Sha256::new(),
            size: 0,
        };
        copy(&mut content, &mut std::io::sink()).map_err(io)?;
        if content.size != range.len() as u64 {
            return Err(cut_short());
        }
        check_digest(name, info, hex(&content.hash.finalize()), Bytes(content.size))?;
        let file = MappedFile::of(&file, path).map_err(io).and_then(|file| {
            if range.end <= file.len() {
                Ok(file)
            } else {
                Err(cut_short())
            }
        })?;
        return Ok(MappedPart { file, range });
    }
    Err(member_error(name, "the manifest lists it, but it is missing"))
}

/// The manifest's bytes as they stand in the file: what a signature covers.
pub(super) fn raw_manifest(reader: impl Read, limits: &Limits) -> Result<Vec<u8>, BundleError> {
    let mut archive = tar::Archive::new(reader);
    let mut entries = archive.entries().map_err(archive_error)?.raw(true);
    manifest_entry(&mut entries, limits)
}

/// A member's content on its way to whoever takes it, counted and hashed.
struct Hashed<R> {
    inner: R,
    hash: Sha256,
    size: u64,
}

impl<R: Read> Read for Hashed<R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let count = self.inner.read(buffer)?;
        self.hash.update(&buffer[..count]);
        self.size += count as u64;
        Ok(count)
    }
}

/// Reads a bundle to its end and checks everything. `take` is given each member and must read it whole; what it read
/// has not been checked yet when it returns.
pub(super) fn stream(
    reader: impl Read,
    limits: &Limits,
    trust: &Trust,
    mut take: impl FnMut(&str, &MemberInfo, &mut dyn Read) -> std::io::Result<()>,
) -> Result<(Manifest, Trusted), BundleError> {
    let mut archive = tar::Archive::new(reader);
    // Raw: extension headers (GNU long names, PAX) are not interpreted but refused below as no regular files.
    let mut entries = archive.entries().map_err(archive_error)?.raw(true);
    let raw = manifest_entry(&mut entries, limits)?;
    let manifest = parse_manifest(&raw)?;
    let total: Bytes = manifest.members.values().map(|info| info.size).sum();
    if total > limits.total {
        return Err(BundleError::TooLarge {
            what: "the bundle's content".into(),
            size: total,
            limit: limits.total,
        });
    }
    let mut trusted = None;
    let mut seen = BTreeSet::new();
    for entry in entries {
        let entry = entry.map_err(archive_error)?;
        let name = entry_name(&entry)?;
        if name == SIGNATURE && trusted.is_none() {
            let signature = read_all(entry, SIGNATURE, SIGNATURE_LIMIT)?;
            trusted = Some(trust.check(&raw, Some(&signature))?);
            continue;
        }
        // The signature stands before the members: from here on there is none.
        if trusted.is_none() {
            trusted = Some(trust.check(&raw, None)?);
        }
        let info = manifest
            .members
            .get(&name)
            .ok_or_else(|| member_error(&name, "the manifest does not list it"))?;
        if !seen.insert(name.clone()) {
            return Err(member_error(&name, "it is there twice"));
        }
        if entry.size() != info.size.0 {
            let problem = format!("it has {} bytes, the manifest says {}", entry.size(), info.size.0);
            return Err(member_error(&name, problem));
        }
        let io = |source| BundleError::Io {
            path: (&name).into(),
            source,
        };
        let mut content = Hashed {
            inner: entry,
            hash: Sha256::new(),
            size: 0,
        };
        take(&name, info, &mut content).map_err(io)?;
        check_digest(&name, info, hex(&content.hash.finalize()), Bytes(content.size))?;
    }
    nothing_follows(archive.into_inner())?;
    if let Some(missing) = manifest.members.keys().find(|name| !seen.contains(*name)) {
        return Err(member_error(
            missing,
            "the manifest lists it, but it is missing: the file is cut short?",
        ));
    }
    let trusted = match trusted {
        Some(trusted) => trusted,
        None => trust.check(&raw, None)?,
    };
    Ok((manifest, trusted))
}

/// Zeros that may stand behind the archive: programs fill up to a record of 20 blocks of 512 bytes.
const PADDING: u64 = 20 * 512;

/// Refuses anything but padding behind the archive's end: it would travel along unseen and unsigned.
fn nothing_follows(rest: impl Read) -> Result<(), BundleError> {
    let mut padding = Vec::new();
    rest.take(PADDING + 1)
        .read_to_end(&mut padding)
        .map_err(archive_error)?;
    if padding.len() as u64 > PADDING || padding.iter().any(|byte| *byte != 0) {
        return Err(BundleError::Archive(
            "there is data behind the archive's end; it belongs to no member".into(),
        ));
    }
    Ok(())
}

fn copy(from: &mut dyn Read, to: &mut dyn Write) -> std::io::Result<()> {
    let mut buffer = vec![0u8; 1 << 16];
    loop {
        let count = from.read(&mut buffer)?;
        if count == 0 {
            return to.flush();
        }
        to.write_all(&buffer[..count])?;
    }
}

fn check_digest(name: &str, info: &MemberInfo, actual: String, size: Bytes) -> Result<(), BundleError> {
    if size != info.size {
        return Err(member_error(
            name,
            format!("it has {} bytes, the manifest says {}", size.0, info.size.0),
        ));
    }
    if actual != info.sha256 {
        return Err(BundleError::Digest {
            member: name.to_owned(),
            expected: info.sha256.clone(),
            actual,
        });
    }
    Ok(())
}

fn manifest_entry<R: Read>(
    entries: &mut tar::Entries<'_, R>,
    limits: &Limits,
) -> Result<Vec<u8>, BundleError> {
    let entry = entries
        .next()
        .ok_or_else(|| BundleError::Archive("the file is empty".into()))?
        .map_err(archive_error)?;
    let name = entry_name(&entry)?;
    if name != MANIFEST {
        return Err(BundleError::Archive(format!(
            "its first member is {name:?}, not {MANIFEST}"
        )));
    }
    read_all(entry, MANIFEST, limits.manifest)
}

fn entry_name<R: Read>(entry: &tar::Entry<'_, R>) -> Result<String, BundleError> {
    let name = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
    if entry.header().entry_type() != tar::EntryType::Regular {
        return Err(member_error(&name, "only regular files are allowed"));
    }
    check_path(&name)?;
    Ok(name)
}

fn read_all<R: Read>(entry: tar::Entry<'_, R>, name: &str, limit: Bytes) -> Result<Vec<u8>, BundleError> {
    let size = Bytes(entry.size());
    if size > limit {
        return Err(BundleError::TooLarge {
            what: name.to_owned(),
            size,
            limit,
        });
    }
    let mut data = Vec::new();
    entry
        .take(limit.0)
        .read_to_end(&mut data)
        .map_err(archive_error)?;
    if Bytes::from(data.len()) != size {
        return Err(member_error(name, "the file is cut short"));
    }
    Ok(data)
}

pub(super) fn parse_manifest(raw: &[u8]) -> Result<Manifest, BundleError> {
    if count_values(raw) > MANIFEST_VALUES {
        return Err(BundleError::Manifest(format!(
            "it has more than {MANIFEST_VALUES} values"
        )));
    }
    // The major version first: a newer format may have fields this version refuses.
    #[derive(serde::Deserialize)]
    struct Format {
        format: String,
    }
    let wrong = |error: serde_json::Error| BundleError::Manifest(error.to_string());
    let format: Format = serde_json::from_slice(raw).map_err(wrong)?;
    Manifest::check_format(&format.format)?;
    let manifest: Manifest = serde_json::from_slice(raw).map_err(wrong)?;
    manifest.validate()?;
    Ok(manifest)
}

/// An upper bound on the number of JSON values in `text`: each but the first follows one of `,` `[` `{` `:`.
fn count_values(text: &[u8]) -> usize {
    let (mut values, mut quoted, mut escaped) = (1, false, false);
    for byte in text {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if quoted => escaped = true,
            b'"' => quoted = !quoted,
            b',' | b'[' | b'{' | b':' if !quoted => values += 1,
            _ => {}
        }
    }
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_at_least_every_value_and_nothing_inside_texts() {
        assert_eq!(count_values(br#"{"a,[":[1,2,"\",{"]}"#), 1 + 1 + 1 + 1 + 2);
    }
}
