use super::*;
use crate::disk::Survival;

#[test]
fn the_bound_holds_the_oldest_go_first_and_every_loss_is_counted() {
    let disk = SimDisk::default();
    let mut spool = open(&disk, small());
    let mut dropped = Dropped::default();
    for number in 0..500 {
        dropped += append(&mut spool, number).unwrap().dropped;
        assert!(spool.bytes_on_disk() <= small().max_bytes);
        assert_eq!(spool.bytes_on_disk().0, disk.used());
    }
    let found = numbers(&drain(&mut spool));
    assert_eq!(found, (dropped.records..500).collect::<Vec<_>>());
    assert!(found.len() > 90, "{} of about 113 that fit", found.len());
    assert_eq!(dropped.bytes, dropped.records * 115);
    let counters = spool.counters();
    assert_eq!(
        (counters.dropped_records, counters.dropped_bytes),
        (dropped.records, dropped.bytes)
    );
    assert_eq!(spool.len(), found.len() as u64);
    kill(spool);
    disk.reboot(Survival::Synced);
    assert_eq!(open(&disk, small()).counters(), counters);
}

#[test]
fn acknowledged_records_in_a_dropped_segment_are_not_counted_as_lost() {
    let disk = SimDisk::default();
    let mut spool = open(&disk, small());
    append(&mut spool, 0).unwrap();
    append(&mut spool, 1).unwrap();
    append(&mut spool, 2).unwrap();
    // One in order, one not.
    spool.acknowledge(1).unwrap();
    spool.acknowledge(3).unwrap();
    let mut dropped = Dropped::default();
    let mut number = 3;
    while dropped.records == 0 {
        dropped += append(&mut spool, number).unwrap().dropped;
        number += 1;
    }
    let first_left = numbers(&drain(&mut spool))[0];
    assert_eq!(dropped.records, first_left - 2);
    assert_eq!(dropped.bytes, dropped.records * 115);
    assert!(!spool.acknowledge(2).unwrap(), "it is gone");
}

#[test]
fn refusing_keeps_the_oldest_and_counts_what_was_refused() {
    let disk = SimDisk::default();
    let options = SpoolOptions {
        full: DropPolicy::RefuseNew,
        ..small()
    };
    let mut spool = open(&disk, options);
    let mut accepted = 0;
    for number in 0..200 {
        match append(&mut spool, number) {
            Ok(appended) => {
                assert_eq!(appended.dropped, Dropped::default());
                assert_eq!(number, accepted, "nothing fits after the first refusal");
                accepted += 1;
            }
            Err(error) => assert!(matches!(error, SpoolError::Full { .. }), "{error}"),
        }
    }
    assert!(spool.bytes_on_disk() <= options.max_bytes);
    assert_eq!(numbers(&drain(&mut spool)), (0..accepted).collect::<Vec<_>>());
    let refused = 200 - accepted;
    assert_eq!(spool.counters().refused_records, refused);
    assert_eq!(spool.counters().refused_bytes, refused * 115);
    // Delivery makes room again.
    for record in spool.read_after(None, 20, 100_000).unwrap() {
        spool.acknowledge(record.sequence).unwrap();
    }
    append(&mut spool, 999).unwrap();
}

#[test]
fn after_a_long_time_offline_a_drained_spool_is_back_at_its_baseline() {
    let disk = SimDisk::default();
    let mut spool = open(&disk, small());
    append(&mut spool, 0).unwrap();
    spool.acknowledge(1).unwrap();
    let baseline = spool.bytes_on_disk();
    for number in 0..2000 {
        append(&mut spool, number).unwrap();
    }
    assert!(spool.bytes_on_disk() > Bytes::kib(20));
    for record in drain(&mut spool) {
        spool.acknowledge(record.sequence).unwrap();
    }
    assert!(spool.is_empty());
    assert!(
        spool.bytes_on_disk() <= baseline + small().segment_bytes,
        "{}",
        spool.bytes_on_disk()
    );
    assert_eq!(spool.bytes_on_disk().0, disk.used());
    assert!(spool.segments.len() <= 1);
    // The sequences go on.
    assert_eq!(append(&mut spool, 0).unwrap().sequence, 2002);
}

#[test]
fn a_full_disk_costs_the_oldest_records_and_nothing_else() {
    let disk = SimDisk::default();
    let options = SpoolOptions {
        max_bytes: Bytes::mib(1),
        ..small()
    };
    let mut spool = open(&disk, options);
    disk.set_capacity(Some(disk.used() + 5000));
    for number in 0..300 {
        append(&mut spool, number).unwrap();
    }
    assert!(disk.used() <= state::FILE_BYTES + 5000);
    let found = numbers(&drain(&mut spool));
    let dropped = spool.counters().dropped_records;
    assert_eq!(found, (dropped..300).collect::<Vec<_>>());
    assert!(found.len() >= 20, "{found:?}");
    assert_eq!(spool.counters().corrupt_places, 0);
    kill(spool);
    let mut spool = open(&disk, options);
    assert_eq!(numbers(&drain(&mut spool)), found);
    assert_eq!(spool.counters().dropped_records, dropped);
    for record in drain(&mut spool) {
        spool.acknowledge(record.sequence).unwrap();
    }
    assert!(disk.used() < state::FILE_BYTES + 1100);
}

#[test]
fn a_disk_without_any_room_refuses_and_recovers() {
    for full in [DropPolicy::DropOldest, DropPolicy::RefuseNew] {
        let disk = SimDisk::default();
        let options = SpoolOptions { full, ..small() };
        let mut spool = open(&disk, options);
        // Room for a segment's header, not for a record.
        for room in [0, 20, 40, 100] {
            disk.set_capacity(Some(disk.used() + room));
            let error = append(&mut spool, 0).unwrap_err();
            assert!(matches!(error, SpoolError::Full { .. }), "{error}");
        }
        assert_eq!(spool.counters().refused_records, 4);
        disk.set_capacity(None);
        append(&mut spool, 1).unwrap();
        assert_eq!(numbers(&drain(&mut spool)), [1]);
    }
}

#[test]
fn old_records_go_by_age_exact_to_an_eighth_and_are_counted_apart() {
    let disk = SimDisk::default();
    let options = SpoolOptions {
        max_age: Some(Duration::from_secs(80)),
        segment_bytes: Bytes::kib(8),
        ..small()
    };
    let mut spool = open(&disk, options);
    for number in 0..=70 {
        append(&mut spool, number).unwrap();
    }
    assert_eq!(spool.maintain(at(80)).unwrap(), Dropped::default());
    spool.maintain(at(110)).unwrap();
    let found = numbers(&drain(&mut spool));
    assert!((20..=30).contains(&found[0]), "{found:?}");
    assert_eq!(spool.counters().expired_records, found[0]);
    assert_eq!(spool.counters().dropped_records, 0);
    spool.maintain(at(500)).unwrap();
    assert!(spool.is_empty());
    assert_eq!(spool.counters().expired_records, 71);
    assert_eq!(spool.counters().expired_bytes, 71 * 115);
}

#[test]
fn a_clock_that_is_set_late_or_goes_back_expires_nothing() {
    let disk = SimDisk::default();
    let options = SpoolOptions {
        max_age: Some(Duration::from_secs(80)),
        ..small()
    };
    let mut spool = open(&disk, options);
    let unset = SystemTime::UNIX_EPOCH + Duration::from_secs(5);
    spool.append("t", &payload(0, 8), unset).unwrap();
    spool.append("t", &payload(1, 8), at(0)).unwrap();
    assert_eq!(spool.maintain(at(50)).unwrap(), Dropped::default());
    assert_eq!(spool.maintain(unset).unwrap(), Dropped::default());
    // A time before the epoch is no panic.
    spool
        .append(
            "t",
            &payload(2, 8),
            SystemTime::UNIX_EPOCH - Duration::from_secs(1),
        )
        .unwrap();
    assert_eq!(numbers(&drain(&mut spool)), [0, 1, 2]);
}

#[test]
fn a_smaller_bound_after_a_restart_is_enforced_at_once() {
    let disk = SimDisk::default();
    let mut spool = open(&disk, small());
    for number in 0..100 {
        append(&mut spool, number).unwrap();
    }
    kill(spool);
    let options = SpoolOptions {
        max_bytes: Bytes::kib(12),
        ..small()
    };
    let mut spool = open(&disk, options);
    assert!(spool.bytes_on_disk() <= options.max_bytes);
    let found = numbers(&drain(&mut spool));
    assert_eq!(found, (spool.counters().dropped_records..100).collect::<Vec<_>>());
}

#[test]
fn memory_does_not_grow_with_the_number_of_files() {
    let disk = SimDisk::default();
    let options = SpoolOptions {
        max_bytes: Bytes::mib(64),
        ..small()
    };
    drop(open(&disk, options));
    // As if a million restarts had each left a segment; a few more than are allowed suffice.
    let surplus = 5;
    let total = append::MAX_SEGMENTS as u64 + surplus;
    for first in 0..total {
        let path = segment::path(Path::new(FOLDER), 10 + first);
        let mut bytes = record::header(10 + first).to_vec();
        let mut encoded = Vec::new();
        record::encode(
            &mut encoded,
            record::Raw {
                sequence: 10 + first,
                time_ms: 0,
                topic: "t",
                payload: &payload(first, 8),
            },
        );
        bytes.extend(encoded);
        let file = disk.open(&path, OpenMode::Create).unwrap();
        file.write_at(&bytes, 0).unwrap();
    }
    let mut spool = open(&disk, options);
    assert_eq!(spool.segments.len(), append::MAX_SEGMENTS);
    assert_eq!(spool.counters().dropped_records, surplus);
    // The last one is continued, and after a crash is not.
    assert_eq!(append(&mut spool, 0).unwrap().dropped.records, 0);
    kill(spool);
    let mut spool = open(&disk, options);
    assert_eq!(append(&mut spool, 0).unwrap().dropped.records, 1);
    assert_eq!(spool.segments.len(), append::MAX_SEGMENTS);
}
