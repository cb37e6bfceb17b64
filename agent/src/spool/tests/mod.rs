//! The spool against disks that are cut from power, full, or damaged, and against a simple model of it.

mod bounds;
mod damage;
mod model;
mod power;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use edgeopt_models::Bytes;

use super::*;
use crate::clock::ManualClock;
use crate::disk::SimDisk;

const FOLDER: &str = "/var/spool";

/// 2025-01-01 and `seconds`.
fn at(seconds: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_735_689_600 + seconds)
}

/// Segments of 1 KiB, 16 KiB in all beside the state, no age limit.
fn small() -> SpoolOptions {
    SpoolOptions {
        max_bytes: Bytes::kib(24),
        max_age: None,
        segment_bytes: Bytes::kib(1),
        max_record: Bytes(512),
        fsync: FsyncPolicy::Always,
        full: DropPolicy::DropOldest,
    }
}

fn try_open(disk: &SimDisk, options: SpoolOptions) -> Result<Spool> {
    let clock = Arc::new(ManualClock::default());
    Spool::open_on(Arc::new(disk.clone()), clock, Path::new(FOLDER), options)
}

fn open(disk: &SimDisk, options: SpoolOptions) -> Spool {
    try_open(disk, options).unwrap()
}

/// A payload that says whose it is, `length` long.
fn payload(number: u64, length: usize) -> Vec<u8> {
    let mut bytes = number.to_le_bytes().to_vec();
    bytes.resize(length.max(8), number as u8);
    bytes
}

fn append(spool: &mut Spool, number: u64) -> Result<Appended> {
    spool.append("models/a/result", &payload(number, 100), at(number))
}

/// The process ends without a chance to tidy up.
fn kill(spool: Spool) {
    std::mem::forget(spool);
}

/// Everything that waits, read in batches.
fn drain(spool: &mut Spool) -> Vec<Record> {
    let mut records: Vec<Record> = Vec::new();
    loop {
        let after = records.last().map(|record| record.sequence);
        let batch = spool.read_after(after, 7, 1000).unwrap();
        if batch.is_empty() {
            return records;
        }
        records.extend(batch);
    }
}

fn numbers(records: &[Record]) -> Vec<u64> {
    let number = |record: &Record| {
        let number = u64::from_le_bytes(*record.payload.first_chunk().unwrap());
        assert_eq!(
            record.payload,
            payload(number, record.payload.len()),
            "content changed"
        );
        number
    };
    records.iter().map(number).collect()
}

#[test]
fn records_are_read_in_order_and_gone_when_acknowledged() {
    let disk = SimDisk::default();
    let mut spool = open(&disk, small());
    for number in 0..30 {
        append(&mut spool, number).unwrap();
    }
    let records = drain(&mut spool);
    assert_eq!(numbers(&records), (0..30).collect::<Vec<_>>());
    assert_eq!(records[0].topic, "models/a/result");
    assert_eq!(records[7].time_ms, 1_735_689_607_000);
    assert_eq!(spool.len(), 30);
    // The second half first.
    for record in records[15..].iter().chain(&records[..15]) {
        assert!(spool.acknowledge(record.sequence).unwrap());
        assert!(!spool.acknowledge(record.sequence).unwrap(), "once is enough");
    }
    assert!(
        !spool.acknowledge(31).unwrap() && !spool.acknowledge(0).unwrap(),
        "unknown"
    );
    assert_eq!((spool.len(), drain(&mut spool)), (0, vec![]));
    assert_eq!(spool.counters().acknowledged, 30);
}

#[test]
fn reading_is_bounded_but_a_long_record_gets_through() {
    let disk = SimDisk::default();
    let mut spool = open(&disk, small());
    for (number, length) in [10, 10, 400, 10].into_iter().enumerate() {
        spool.append("t", &payload(number as u64, length), at(0)).unwrap();
    }
    let mut read = |after, records, bytes| numbers(&spool.read_after(after, records, bytes).unwrap());
    assert_eq!(read(None, 3, 1000), [0, 1, 2]);
    assert_eq!(read(None, 9, 25), [0, 1]);
    assert_eq!(read(Some(2), 9, 25), [2], "longer than asked for, and alone");
    assert_eq!(read(Some(3), 9, 25), [3]);
    assert_eq!(read(None, 0, 25), [] as [u64; 0]);
    assert_eq!(read(Some(u64::MAX), 9, 25), [] as [u64; 0]);
}

#[test]
fn acknowledgements_and_counters_survive_a_restart() {
    let disk = SimDisk::default();
    let mut spool = open(&disk, small());
    for number in 0..20 {
        append(&mut spool, number).unwrap();
    }
    for sequence in (1..=12).chain([15]) {
        spool.acknowledge(sequence).unwrap();
    }
    spool.append("t", &[0; 600], at(0)).unwrap_err();
    let counters = spool.counters();
    assert_eq!((counters.acknowledged, counters.oversize_records), (13, 1));
    kill(spool);
    let mut spool = open(&disk, small());
    assert_eq!(spool.counters(), counters);
    // The one out of order was only remembered in memory.
    assert_eq!(numbers(&drain(&mut spool)), (12..20).collect::<Vec<_>>());
    assert_eq!(spool.len(), 8);
}

#[test]
fn a_clean_restart_continues_the_sequences_and_the_segment() {
    let disk = SimDisk::default();
    let mut spool = open(&disk, small());
    append(&mut spool, 0).unwrap();
    spool.close().unwrap();
    let mut spool = open(&disk, small());
    assert_eq!(append(&mut spool, 1).unwrap().sequence, 2);
    assert_eq!(spool.segments.len(), 1);
}

#[test]
fn options_that_cannot_work_are_refused_with_the_reason() {
    let refused = |change: &dyn Fn(&mut SpoolOptions), word: &str| {
        let mut options = small();
        change(&mut options);
        let error = try_open(&SimDisk::default(), options).unwrap_err().to_string();
        assert!(error.contains(word), "{error}");
    };
    refused(&|o| o.max_bytes = Bytes::kib(9), "max_bytes");
    refused(&|o| o.segment_bytes = Bytes(500), "segment_bytes");
    refused(&|o| o.max_record = Bytes::mib(5), "max_record");
    SpoolOptions::default().check().unwrap();
}

#[test]
fn a_folder_serves_one_spool_at_a_time() {
    let folder = tempfile::tempdir().unwrap();
    let first = Spool::open(folder.path(), small()).unwrap();
    let error = Spool::open(folder.path(), small()).unwrap_err();
    assert!(matches!(error, SpoolError::InUse(_)), "{error}");
    drop(first);
    Spool::open(folder.path(), small()).unwrap();
}
