//! The bundle: what is packed is read back, what is wrong is refused by name, and damage is never taken for content.

#![allow(clippy::unwrap_used)] // helpers of tests, too

use std::alloc::{GlobalAlloc, Layout, System};
use std::collections::BTreeMap;
use std::io::Cursor;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use edgeopt_models::bundle::{
    BundleError, DimInfo, Limits, MANIFEST, Manifest, Member, Precision, PublicKey, SecretKey,
    SignatureError, TensorInfo, Trust, Trusted, extract, generate_keys, map_member, pack, read_manifest,
    read_member, sign_file, verify,
};
use edgeopt_models::{Bytes, DataType};

/// Counts live heap bytes, so that the stated memory bound is tested and not only stated.
struct Counting;
static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

#[allow(unsafe_code)]
// SAFETY: forwards to the system allocator unchanged; the counters do not allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let live = LIVE.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        PEAK.fetch_max(live, Ordering::Relaxed);
        // SAFETY: the caller's contract is the system allocator's.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn manifest() -> Manifest {
    Manifest::new("digits", "3", Precision::Int8)
}

fn members() -> BTreeMap<String, Member> {
    let model: Vec<u8> = (0..5000u32).map(|i| (i * 7 % 251) as u8).collect();
    BTreeMap::from([
        ("model.onnx".to_owned(), Member::Data(model)),
        ("golden/0.npz".to_owned(), Member::Data(vec![9; 300])),
    ])
}

fn packed(folder: &Path, key: Option<&SecretKey>) -> Vec<u8> {
    let path = folder.join("digits.edge");
    pack(manifest(), &members(), key, &path).unwrap();
    std::fs::read(path).unwrap()
}

/// Engines stand before the model and can be as large: what is passed over takes no memory.
#[cfg(target_os = "linux")]
#[test]
fn mapping_a_member_takes_no_memory_for_it_or_for_those_before() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("large.edge");
    let members = BTreeMap::from([
        ("engines/a.plan".to_owned(), Member::Data(vec![1; 8 << 20])),
        ("model.onnx".to_owned(), Member::Data(vec![2; 8 << 20])),
    ]);
    pack(manifest(), &members, None, &path).unwrap();
    let mapped = map_member(&path, "model.onnx").unwrap();
    let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let of_file = smaps.split_once("large.edge").unwrap().1;
    let resident = of_file
        .lines()
        .find_map(|line| line.strip_prefix("Rss:"))
        .unwrap();
    let kib: usize = resident.trim().trim_end_matches(" kB").parse().unwrap();
    assert!(kib < 1024, "{kib} KiB are resident");
    assert_eq!(mapped.bytes(), [2; 8 << 20]);
}

fn check(bytes: &[u8], trust: &Trust) -> Result<(Manifest, Trusted), BundleError> {
    verify(bytes, &Limits::default(), trust)
}

#[test]
fn what_is_packed_is_extracted_and_the_same_input_gives_the_same_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let bytes = packed(folder.path(), None);
    assert_eq!(bytes, packed(folder.path(), None));
    let target = folder.path().join("unpacked");
    let (manifest, trusted) =
        extract(bytes.as_slice(), &target, &Limits::default(), &Trust::Unchecked).unwrap();
    assert_eq!(trusted, Trusted::Unsigned);
    assert_eq!(manifest.members["model.onnx"].size, Bytes(5000));
    for (name, member) in members() {
        let Member::Data(expected) = member else {
            unreachable!()
        };
        assert_eq!(std::fs::read(target.join(&name)).unwrap(), expected, "{name}");
        assert_eq!(
            read_member(bytes.as_slice(), &name, Bytes::mib(1)).unwrap(),
            expected
        );
        let file = folder.path().join("whole.edge");
        std::fs::write(&file, &bytes).unwrap();
        assert_eq!(map_member(&file, &name).unwrap().bytes(), expected);
        let place = bytes
            .windows(expected.len())
            .position(|part| part == expected)
            .unwrap();
        let mut spoilt = bytes.clone();
        spoilt[place] ^= 1;
        std::fs::write(&file, spoilt).unwrap();
        let error = map_member(&file, &name).unwrap_err();
        assert!(matches!(error, BundleError::Digest { .. }), "{error}");
        std::fs::write(&file, &bytes[..place + 1]).unwrap();
        assert!(map_member(&file, &name).is_err(), "{name} is cut short");
    }
    let again = extract(bytes.as_slice(), &target, &Limits::default(), &Trust::Unchecked);
    assert!(
        matches!(again, Err(BundleError::Io { .. })),
        "an existing folder is never written into"
    );
}

#[test]
fn signatures_satisfy_only_the_keys_that_made_them() {
    let folder = tempfile::tempdir().unwrap();
    let (public, secret) = generate_keys(None).unwrap();
    let (other, _) = generate_keys(None).unwrap();
    let signed = packed(folder.path(), Some(&secret));
    let require = |key: &PublicKey| Trust::Require(vec![key.clone()]);
    assert_eq!(
        check(&signed, &require(&public)).unwrap().1,
        Trusted::By(public.id())
    );
    let both = Trust::Require(vec![other.clone(), public.clone()]);
    assert_eq!(check(&signed, &both).unwrap().1, Trusted::By(public.id()));
    let refused = check(&signed, &require(&other)).unwrap_err();
    assert!(
        matches!(refused, BundleError::Signature(SignatureError::UnknownKey { .. })),
        "{refused}"
    );
    let unsigned = packed(folder.path(), None);
    let refused = check(&unsigned, &require(&public)).unwrap_err();
    assert!(
        matches!(refused, BundleError::Signature(SignatureError::Unsigned)),
        "{refused}"
    );
    assert_eq!(
        check(&unsigned, &Trust::IfSigned(vec![public.clone()]))
            .unwrap()
            .1,
        Trusted::Unsigned
    );
    let altered = String::from_utf8_lossy(&signed[..512 + 200]).replace("\"digits\"", "\"digitz\"");
    let altered: Vec<u8> = altered
        .bytes()
        .chain(signed[512 + 200..].iter().copied())
        .collect();
    let refused = check(&altered, &require(&public)).unwrap_err();
    assert!(
        matches!(refused, BundleError::Signature(SignatureError::Mismatch { .. })),
        "{refused}"
    );
}

#[test]
fn signing_in_place_keeps_every_member_and_replaces_an_older_signature() {
    let folder = tempfile::tempdir().unwrap();
    packed(folder.path(), None);
    let path = folder.path().join("digits.edge");
    for _ in 0..2 {
        let (public, secret) = generate_keys(None).unwrap();
        sign_file(&path, &secret).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        let (manifest, trusted) = check(&bytes, &Trust::Require(vec![public.clone()])).unwrap();
        assert_eq!((manifest.members.len(), trusted), (2, Trusted::By(public.id())));
        assert!(
            read_manifest(
                bytes.as_slice(),
                &Limits::default(),
                &Trust::Require(vec![public])
            )
            .is_ok()
        );
    }
}

#[test]
fn keys_survive_their_file_format_with_and_without_password() {
    let (public, secret) = generate_keys(None).unwrap();
    assert_eq!(
        PublicKey::parse(&public.to_file().unwrap()).unwrap().id(),
        public.id()
    );
    assert!(SecretKey::parse(&secret.to_file().unwrap(), None).is_ok());
    assert!(SecretKey::parse("not a key", None).is_err());
    assert!(PublicKey::parse("not a key").is_err());
    let (_, encrypted) = generate_keys(Some("secret")).unwrap();
    let encrypted = encrypted.to_file().unwrap();
    assert!(SecretKey::parse(&encrypted, Some("secret")).is_ok());
    let refused = |text: &str, password| SecretKey::parse(text, password).err().unwrap().to_string();
    assert!(refused(&encrypted, None).contains("if it is encrypted, give its password"));
    let given = refused(&secret.to_file().unwrap(), Some("secret"));
    assert!(
        given.contains("is not encrypted, but a password was given"),
        "{given}"
    );
}

#[test]
fn nothing_but_padding_may_stand_behind_the_archive() {
    let folder = tempfile::tempdir().unwrap();
    let mut bytes = packed(folder.path(), None);
    let end = bytes.len();
    // Other programs fill up to a record of 10 KiB.
    bytes.resize(end + 9000, 0);
    assert!(check(&bytes, &Trust::Unchecked).is_ok());
    let mut hidden = bytes.clone();
    hidden.push(1);
    let mut inside = bytes.clone();
    inside[end + 600] = 1;
    let mut second = packed(folder.path(), None);
    second.extend(packed(folder.path(), None));
    bytes.resize(end + 100_000, 0);
    for bytes in [hidden, inside, second, bytes] {
        let error = check(&bytes, &Trust::Unchecked).unwrap_err().to_string();
        assert!(error.contains("behind the archive's end"), "{error}");
        let target = folder.path().join("refused");
        assert!(extract(bytes.as_slice(), &target, &Limits::default(), &Trust::Unchecked).is_err());
        assert!(!target.exists());
        let path = folder.path().join("unsigned.edge");
        std::fs::write(&path, &bytes).unwrap();
        let (_, secret) = generate_keys(None).unwrap();
        assert!(sign_file(&path, &secret).is_err());
        assert_eq!(std::fs::read(&path).unwrap(), bytes);
    }
}

#[test]
fn a_declared_range_must_be_one() {
    let folder = tempfile::tempdir().unwrap();
    let with = |min, opt, max| {
        let mut manifest = manifest();
        manifest.inputs.push(TensorInfo {
            name: "x".into(),
            dtype: DataType::Float32,
            shape: vec![DimInfo::Range {
                name: "N".into(),
                min,
                opt,
                max,
            }],
        });
        pack(manifest, &members(), None, &folder.path().join("ranges.edge"))
    };
    assert!(with(1, 1, 1).is_ok() && with(1, 4, 8).is_ok());
    for (min, opt, max) in [(2, 1, 8), (1, 9, 8), (8, 4, 1), (0, 1, 1)] {
        let error = with(min, opt, max).unwrap_err().to_string();
        assert!(
            error.contains("\"N\" of \"x\"") && error.contains("min ≤ opt ≤ max"),
            "{error}"
        );
    }
}

#[test]
fn a_bundle_without_a_model_is_not_packed() {
    let folder = tempfile::tempdir().unwrap();
    let mut members = members();
    members.remove("model.onnx");
    let path = folder.path().join("empty.edge");
    let error = pack(manifest(), &members, None, &path).unwrap_err().to_string();
    assert!(error.contains("there is no model.onnx"), "{error}");
    assert!(!path.exists());
    members = self::members();
    members.insert("golden".to_owned(), Member::Data(vec![1]));
    let error = pack(manifest(), &members, None, &path).unwrap_err().to_string();
    assert!(error.contains("cannot be a file and the folder"), "{error}");
}

#[test]
fn minisign_itself_verifies_the_signature() {
    let Ok(version) = std::process::Command::new("minisign").arg("-v").output() else {
        assert!(
            std::env::var_os("CI").is_none(),
            "minisign must be installed in continuous integration"
        );
        eprintln!("skipped: minisign is not installed");
        return;
    };
    assert!(version.status.success());
    let folder = tempfile::tempdir().unwrap();
    let (public, secret) = generate_keys(None).unwrap();
    let bytes = packed(folder.path(), Some(&secret));
    for entry in tar::Archive::new(bytes.as_slice()).entries().unwrap().take(2) {
        entry.unwrap().unpack_in(folder.path()).unwrap();
    }
    std::fs::write(folder.path().join("key.pub"), public.to_file().unwrap()).unwrap();
    let run = std::process::Command::new("minisign")
        .args(["-V", "-m", MANIFEST, "-p", "key.pub"])
        .current_dir(folder.path())
        .output()
        .unwrap();
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
}

/// Builds an archive by hand, so that it can be wrong.
fn archive(parts: &[(&str, &[u8], tar::EntryType)]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for (name, data, kind) in parts {
        let mut header = tar::Header::new_ustar();
        let bytes = name.as_bytes();
        header.as_old_mut().name[..bytes.len()].copy_from_slice(bytes);
        header.set_size(data.len() as u64);
        header.set_entry_type(*kind);
        header.set_cksum();
        builder.append(&header, *data).unwrap();
    }
    builder.into_inner().unwrap()
}

#[test]
fn every_trick_is_refused_with_the_member_named() {
    let folder = tempfile::tempdir().unwrap();
    let (manifest, _) = check(&packed(folder.path(), None), &Trust::Unchecked).unwrap();
    let json = serde_json::to_string(&manifest).unwrap();
    let model: Vec<u8> = (0..5000u32).map(|i| (i * 7 % 251) as u8).collect();
    let golden = [9u8; 300];
    let file = tar::EntryType::Regular;
    let edited = |from: &str, to: &str| json.replace(from, to);
    let cases: Vec<(&str, Vec<u8>)> = vec![
        (
            "golden/0.npz",
            archive(&[(MANIFEST, json.as_bytes(), file), ("model.onnx", &model, file)]),
        ),
        (
            "twice",
            archive(&[
                (MANIFEST, json.as_bytes(), file),
                ("model.onnx", &model, file),
                ("model.onnx", &model, file),
            ]),
        ),
        (
            "does not list",
            archive(&[(MANIFEST, json.as_bytes(), file), ("extra.bin", &golden, file)]),
        ),
        (
            "..",
            archive(&[(MANIFEST, json.as_bytes(), file), ("../model.onnx", &model, file)]),
        ),
        (
            "/etc/passwd",
            archive(&[(MANIFEST, json.as_bytes(), file), ("/etc/passwd", &model, file)]),
        ),
        (
            "regular",
            archive(&[
                (MANIFEST, json.as_bytes(), file),
                ("model.onnx", b"", tar::EntryType::Symlink),
            ]),
        ),
        (
            "regular",
            archive(&[
                (MANIFEST, json.as_bytes(), file),
                ("model.onnx", b"", tar::EntryType::GNULongName),
            ]),
        ),
        (
            "300 bytes",
            archive(&[(MANIFEST, json.as_bytes(), file), ("model.onnx", &golden, file)]),
        ),
        (
            "SHA-256",
            archive(&[
                (MANIFEST, json.as_bytes(), file),
                ("model.onnx", &[1; 5000], file),
            ]),
        ),
        ("first member", archive(&[("model.onnx", &model, file)])),
        (
            "major version 2",
            archive(&[(MANIFEST, edited("\"1.0\"", "\"2.0\"").as_bytes(), file)]),
        ),
        (
            "digitz",
            archive(&[(MANIFEST, edited("\"name\"", "\"digitz\"").as_bytes(), file)]),
        ),
        (
            "../up",
            archive(&[(MANIFEST, edited("model.onnx", "../up").as_bytes(), file)]),
        ),
        (
            "there is no model.onnx",
            archive(&[(MANIFEST, edited("model.onnx", "model.onny").as_bytes(), file)]),
        ),
        (
            "\"golden\" cannot be a file and the folder of \"golden/a/b\"",
            archive(&[(
                MANIFEST,
                edited(
                    "\"golden/0.npz\":",
                    &format!(
                        "\"golden/a/b\":{{\"sha256\":\"{}\",\"size\":1}},\"golden\":",
                        "0".repeat(64)
                    ),
                )
                .as_bytes(),
                file,
            )]),
        ),
        ("limit", archive(&[(MANIFEST, &vec![b' '; 2 << 20], file)])),
    ];
    for (expected, bytes) in cases {
        let error = check(&bytes, &Trust::Unchecked).unwrap_err().to_string();
        assert!(error.contains(expected), "expected {expected:?} in: {error}");
        let target = folder.path().join("refused");
        assert!(extract(bytes.as_slice(), &target, &Limits::default(), &Trust::Unchecked).is_err());
        assert!(!target.exists(), "{expected}: something was left behind");
    }
    assert!(check(b"", &Trust::Unchecked).is_err());
}

#[test]
fn ten_thousand_damaged_bundles_are_refused_or_unchanged_within_the_memory_bound() {
    let folder = tempfile::tempdir().unwrap();
    let (_, secret) = generate_keys(None).unwrap();
    let original = packed(folder.path(), Some(&secret));
    let (manifest, _) = check(&original, &Trust::Unchecked).unwrap();
    let mut state = 0x9E37_79B9_7F4A_7C15u64;
    let mut random = move |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % below as u64) as usize
    };
    let (mut accepted, mut refused) = (0, 0);
    let spoilt = folder.path().join("spoilt.edge");
    for round in 0..10_000 {
        let mut bytes = original.clone();
        match random(5) {
            0 => bytes.truncate(random(bytes.len())),
            1 => {
                // A number field of a tar header: sizes that lie.
                let block = random(bytes.len() / 512) * 512;
                bytes[block + 124 + random(12)] = b"01234567\x80\xff"[random(10)];
            }
            2 => {
                let (a, b) = (random(bytes.len() / 512) * 512, random(bytes.len() / 512) * 512);
                for i in 0..512 {
                    bytes.swap(a + i, b + i);
                }
            }
            _ => {
                for _ in 0..=random(4) {
                    let at = random(bytes.len());
                    bytes[at] ^= 1 << random(8);
                }
            }
        }
        let before = LIVE.load(Ordering::Relaxed);
        PEAK.store(before, Ordering::Relaxed);
        let result = check(&bytes, &Trust::Unchecked);
        let used = PEAK.load(Ordering::Relaxed).saturating_sub(before);
        assert!(used < 4 << 20, "{used} bytes of memory");
        match result {
            // Damage outside what is protected (padding, the unchecked signature) changes no content.
            Ok((found, _)) => {
                assert_eq!(found.members, manifest.members);
                accepted += 1;
            }
            Err(_) => refused += 1,
        }
        let _ = read_member(Cursor::new(&bytes), "model.onnx", Bytes::mib(1));
        if round % 50 == 0 {
            std::fs::write(&spoilt, &bytes).unwrap();
            let _ = map_member(&spoilt, "model.onnx");
        }
    }
    assert!(
        refused > 5_000 && accepted > 0,
        "{refused} refused, {accepted} accepted"
    );
}
