use std::collections::BTreeMap;

use edgeopt_models::bundle::{Member, Precision, PublicKey, SecretKey, generate_keys, pack};

use super::*;
use crate::deploy::{Installed, SlotRecord};
use crate::disk::{SimDisk, Survival};
use crate::protocol::{Generation, Phase, SlotName, SlotSpec};

const ROOT: &str = "/var/models";

/// A real bundle with a member of `length` bytes: its content and digest.
pub(crate) fn bundle(version: &str, length: usize, key: Option<&SecretKey>) -> (Vec<u8>, BundleDigest) {
    let manifest = Manifest::new("m", version, Precision::Fp32);
    let content: Vec<u8> = (0..length).map(|i| (i * i % 251) as u8).collect();
    let members = BTreeMap::from([("model.onnx".to_owned(), Member::Data(content))]);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("b.edge");
    pack(manifest, &members, key, &path).unwrap();
    let bytes = std::fs::read(path).unwrap();
    let digest = BundleDigest::finish(Sha256::new().chain_update(&bytes));
    (bytes, digest)
}

pub(crate) fn unsigned() -> Acceptance {
    Acceptance {
        trust: Trust::Unchecked,
        limits: Limits::default(),
    }
}

fn signed_by(key: PublicKey) -> Acceptance {
    Acceptance {
        trust: Trust::Require(vec![key]),
        limits: Limits::default(),
    }
}

fn open(disk: &SimDisk) -> Store {
    Store::open_on(Arc::new(disk.clone()), Path::new(ROOT), Bytes(1000)).unwrap()
}

/// Writes a partial file, unsynced, as a download would.
fn put_partial(store: &Store, digest: BundleDigest, bytes: &[u8]) {
    let file = store
        .disk()
        .open(&store.partial_path(digest), OpenMode::Create)
        .unwrap();
    file.write_at(bytes, 0).unwrap();
}

fn adopt(store: &Store, bytes: &[u8], digest: BundleDigest) -> Result<Stored, StoreError> {
    let reservation = store.reserve(digest, Bytes::from(bytes.len()))?;
    put_partial(store, digest, bytes);
    store.adopt(&reservation, &unsigned())
}

fn installed(sha256: BundleDigest) -> Installed {
    Installed {
        model: "m".into(),
        version: "1".into(),
        sha256: sha256.to_string(),
    }
}

fn wanted(sha256: BundleDigest) -> SlotSpec {
    SlotSpec {
        model: "m".into(),
        version: "1".into(),
        sha256: sha256.to_string(),
        size: 1,
        sources: Vec::new(),
    }
}

fn record(active: Option<BundleDigest>) -> SlotRecord {
    SlotRecord {
        generation: Generation(1),
        phase: Phase::Active,
        active: active.map(installed),
        ..SlotRecord::default()
    }
}

fn slot(name: &str) -> SlotName {
    name.parse().unwrap()
}

#[test]
fn an_adopted_bundle_is_found_again_and_says_what_it_is() {
    let disk = SimDisk::default();
    let (bytes, digest) = bundle("7", 5000, None);
    let stored = adopt(&open(&disk), &bytes, digest).unwrap();
    assert_eq!(stored.manifest.version, "7");
    assert_eq!(stored.trusted, Trusted::Unsigned);
    assert_eq!(disk.content(&stored.path).unwrap(), bytes);
    drop(stored);
    disk.reboot(Survival::Synced);
    let store = open(&disk);
    assert!(store.check(digest, &unsigned()).unwrap().is_some());
    let (_, other) = bundle("8", 10, None);
    assert!(store.check(other, &unsigned()).unwrap().is_none());
}

#[test]
fn another_content_a_cut_file_or_a_foreign_signature_is_refused() {
    let disk = SimDisk::default();
    let store = open(&disk);
    let (bytes, digest) = bundle("1", 5000, None);
    let mut changed = bytes.clone();
    changed[3000] ^= 1;
    let mut longer = bytes.clone();
    longer.push(0);
    for wrong in [&changed[..], &bytes[..bytes.len() - 512], &longer, b""] {
        let error = adopt(&store, wrong, digest).unwrap_err();
        assert!(matches!(error, StoreError::Digest { .. }), "{error}");
        assert!(store.check(digest, &unsigned()).unwrap().is_none());
    }
    // The digest is right, and it is no bundle.
    let garbage = b"no bundle at all".repeat(100);
    let garbage_digest = BundleDigest::finish(Sha256::new().chain_update(&garbage));
    let error = adopt(&store, &garbage, garbage_digest).unwrap_err();
    assert!(matches!(error, StoreError::Bundle { .. }), "{error}");

    let (ours, secret) = generate_keys(None).unwrap();
    let (theirs, _) = generate_keys(None).unwrap();
    let (bytes, digest) = bundle("1", 10, Some(&secret));
    let reservation = store.reserve(digest, Bytes::from(bytes.len())).unwrap();
    put_partial(&store, digest, &bytes);
    let error = store.adopt(&reservation, &signed_by(theirs)).unwrap_err();
    assert!(
        error.to_string().contains("not among the trusted keys"),
        "{error}"
    );
    let stored = store.adopt(&reservation, &signed_by(ours.clone())).unwrap();
    assert_eq!(stored.trusted, Trusted::By(ours.id()));
}

#[test]
fn a_bundle_that_was_damaged_in_the_store_is_noticed() {
    let disk = SimDisk::default();
    let store = open(&disk);
    let (bytes, digest) = bundle("1", 5000, None);
    let path = adopt(&store, &bytes, digest).unwrap().path;
    disk.open(&path, OpenMode::ReadWrite)
        .unwrap()
        .write_at(b"x", 4000)
        .unwrap();
    let error = store.check(digest, &unsigned()).unwrap_err();
    assert!(matches!(error, StoreError::Digest { .. }), "{error}");
    // Fetched again, it takes the damaged one's place.
    adopt(&store, &bytes, digest).unwrap();
    assert!(store.check(digest, &unsigned()).unwrap().is_some());
}

#[test]
fn a_power_cut_while_adopting_leaves_no_bundle_that_is_not_whole() {
    let (bytes, digest) = bundle("1", 5000, None);
    let mut finished = false;
    for cut in 0.. {
        for survival in [Survival::Synced, Survival::Everything]
            .into_iter()
            .chain((0..20).map(Survival::Random))
        {
            let disk = SimDisk::default();
            let store = open(&disk);
            disk.cut_after(cut);
            let reservation = store.reserve(digest, Bytes::from(bytes.len())).unwrap();
            let result = disk
                .open(&store.partial_path(digest), OpenMode::Create)
                .and_then(|file| file.write_at(&bytes, 0))
                .map(|()| store.adopt(&reservation, &unsigned()));
            finished = matches!(result, Ok(Ok(_)));
            disk.reboot(survival);
            let store = open(&disk);
            let found = store.check(digest, &unsigned()).unwrap();
            assert!(found.is_some() || !finished, "{cut} {survival:?}");
        }
        if finished {
            assert!(cut >= 6, "create, write, sync, rename, two folders");
            return;
        }
    }
}

#[test]
fn room_is_promised_once_and_given_back() {
    let disk = SimDisk::default();
    let store = open(&disk);
    disk.set_capacity(Some(disk.used() + 11_000));
    let digests: Vec<_> = (0..4).map(|n| bundle(&n.to_string(), 1, None).1).collect();
    // More than the whole disk without the margin.
    let most = disk.used() + 11_000 - 1000;
    let error = store.reserve(digests[0], Bytes(most + 1)).unwrap_err();
    assert!(matches!(error, StoreError::NeverFits { .. }), "{error}");
    let first = store.reserve(digests[0], Bytes(6000)).unwrap();
    let error = store.reserve(digests[1], Bytes(5000)).unwrap_err();
    match &error {
        StoreError::NoSpace {
            needed,
            free,
            margin,
            reserved,
            ..
        } => assert_eq!(
            (needed.0, free.0, margin.0, reserved.0),
            (5000, 11_000, 1000, 6000)
        ),
        other => panic!("{other}"),
    }
    assert!(matches!(
        store.reserve(digests[0], Bytes(1)),
        Err(StoreError::Busy(_))
    ));
    let second = store.clone().reserve(digests[1], Bytes(4000)).unwrap();
    // What is written counts as used, and no longer as promised.
    put_partial(&store, digests[0], &[1; 6000]);
    first.holds(Bytes(6000));
    store.reserve(digests[2], Bytes(1)).unwrap_err();
    drop(second);
    drop(store.reserve(digests[2], Bytes(4000)).unwrap());
    // A partial file counts for its own download, also after a restart.
    drop(first);
    let resumed = store.reserve(digests[0], Bytes(10_000)).unwrap();
    store.reserve(digests[3], Bytes(1)).unwrap_err();
    drop(resumed);
    store.reserve(digests[3], Bytes(4000)).unwrap();
}

#[test]
fn concurrent_downloads_never_get_more_room_than_there_is() {
    let disk = SimDisk::default();
    let store = open(&disk);
    disk.set_capacity(Some(disk.used() + 1000 + 10_000));
    let digests: Vec<_> = (0..16).map(|n| bundle(&n.to_string(), 1, None).1).collect();
    let granted: Vec<Reservation> = std::thread::scope(|scope| {
        let workers: Vec<_> = digests
            .iter()
            .map(|digest| scope.spawn(|| store.reserve(*digest, Bytes(3000)).ok()))
            .collect();
        workers
            .into_iter()
            .filter_map(|worker| worker.join().unwrap())
            .collect()
    });
    assert_eq!(granted.len(), 3);
}

#[test]
fn collection_removes_only_what_nobody_needs_and_says_so() {
    let disk = SimDisk::default();
    let store = open(&disk);
    let put = |version: &str| {
        let (bytes, digest) = bundle(version, 100, None);
        drop(adopt(&store, &bytes, digest).unwrap());
        digest
    };
    let [active, previous, target, held, unused] = ["1", "2", "3", "4", "5"].map(put);
    store
        .put_slot(
            &slot("a"),
            &SlotRecord {
                desired: Some(wanted(target)),
                previous: Some(installed(previous)),
                ..record(Some(active))
            },
        )
        .unwrap();
    let guard = store.hold(held);
    let second_guard = store.hold(held);
    let [running, target_only, stale] = ["6", "7", "8"].map(|version| bundle(version, 100, None).1);
    let reservation = store.reserve(running, Bytes(100)).unwrap();
    store
        .put_slot(
            &slot("b"),
            &SlotRecord {
                desired: Some(wanted(target_only)),
                ..record(None)
            },
        )
        .unwrap();
    for digest in [running, target_only, stale] {
        put_partial(&store, digest, b"some");
        let notes = store.partial_path(digest).with_extension("json");
        disk.open(&notes, OpenMode::Create)
            .unwrap()
            .write_at(b"{}", 0)
            .unwrap();
    }
    let others = [
        "slots/.a.json.new",
        "bundles/readme.txt",
        "partial/notes",
        "foreign",
    ];
    for name in others {
        disk.open(&Path::new(ROOT).join(name), OpenMode::Create).unwrap();
    }
    let removed = store.collect().unwrap();
    let found: Vec<_> = removed
        .iter()
        .map(|removed| {
            (
                removed.path.strip_prefix(ROOT).unwrap().to_str().unwrap(),
                removed.what,
            )
        })
        .collect();
    let bundle_name = format!("bundles/{unused}.edge");
    let partial = format!("partial/{stale}");
    let notes = format!("partial/{stale}.json");
    assert_eq!(
        found,
        [
            (bundle_name.as_str(), Garbage::Bundle),
            (partial.as_str(), Garbage::Partial),
            (notes.as_str(), Garbage::Partial),
            ("slots/.a.json.new", Garbage::Leftover),
        ]
    );
    assert!(removed[0].size > Bytes(100));
    assert_eq!(store.collect().unwrap(), []);
    // What was held for somebody goes when the last one lets go.
    drop((guard, reservation));
    assert_eq!(store.collect().unwrap().len(), 2, "the download's two files");
    drop(second_guard);
    assert_eq!(store.collect().unwrap().len(), 1);
    store.put_slot(&slot("a"), &SlotRecord::default()).unwrap();
    assert_eq!(store.collect().unwrap().len(), 3);
    for name in &others[1..] {
        assert!(disk.content(&Path::new(ROOT).join(name)).is_some(), "{name}");
    }
    disk.reboot(Survival::Synced);
    assert!(disk.content(&store.bundle_path(active)).is_none());
}

#[test]
fn a_record_that_cannot_be_understood_stops_collection() {
    let disk = SimDisk::default();
    let store = open(&disk);
    let (bytes, digest) = bundle("1", 100, None);
    drop(adopt(&store, &bytes, digest).unwrap());
    let path = Path::new(ROOT).join("slots/a.json");
    store.put_slot(&slot("a"), &record(Some(digest))).unwrap();
    let good = disk.content(&path).unwrap();
    let text = String::from_utf8(good.clone()).unwrap();
    for (bad, word) in [
        (String::new(), "EOF"),
        (text.replace("\"format\": 1", "\"format\": 2"), "format 2"),
        (text.replace("generation", "genertion"), "genertion"),
    ] {
        disk.open(&path, OpenMode::Create)
            .unwrap()
            .write_at(bad.as_bytes(), 0)
            .unwrap();
        for error in [store.collect().unwrap_err(), store.slot(&slot("a")).unwrap_err()] {
            assert!(error.to_string().contains(word), "{error}");
            assert!(error.to_string().contains("slots/a.json"), "{error}");
        }
    }
    assert!(store.check(digest, &unsigned()).unwrap().is_some());
    disk.open(&path, OpenMode::Create)
        .unwrap()
        .write_at(&good, 0)
        .unwrap();
    assert_eq!(store.slot(&slot("a")).unwrap(), Some(record(Some(digest))));
    assert_eq!(store.slot(&slot("b")).unwrap(), None);
}

#[test]
fn a_power_cut_while_a_slot_changes_leaves_the_old_or_the_new_record() {
    let [old, new] = ["1", "2"].map(|version| record(Some(bundle(version, 1, None).1)));
    for cut in 0..=5 {
        for survival in [Survival::Synced, Survival::Everything]
            .into_iter()
            .chain((0..20).map(Survival::Random))
        {
            let disk = SimDisk::default();
            let store = open(&disk);
            store.put_slot(&slot("a"), &old).unwrap();
            disk.cut_after(cut);
            let done = store.put_slot(&slot("a"), &new);
            disk.reboot(survival);
            let found = open(&disk).slots().unwrap().remove(&slot("a")).unwrap();
            assert!(
                found == new || (found == old && done.is_err()),
                "{cut} {survival:?}"
            );
        }
    }
}

#[test]
fn a_real_folder_serves_one_store_at_a_time() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path(), Bytes::ZERO).unwrap();
    let error = Store::open(folder.path(), Bytes::ZERO).unwrap_err();
    assert!(matches!(error, StoreError::InUse(_)), "{error}");
    let (bytes, digest) = bundle("1", 100_000, None);
    adopt(&store, &bytes, digest).unwrap();
    drop(store);
    let store = Store::open(folder.path(), Bytes::ZERO).unwrap();
    assert!(store.check(digest, &unsigned()).unwrap().is_some());
    let error = store.reserve(digest, Bytes(u64::MAX)).unwrap_err();
    assert!(matches!(error, StoreError::NeverFits { .. }), "{error}");
}
