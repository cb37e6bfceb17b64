use std::collections::BTreeMap;

use super::*;
use crate::disk::Survival;

fn survivals() -> impl Iterator<Item = Survival> {
    [Survival::Synced, Survival::Everything]
        .into_iter()
        .chain((0..12).map(Survival::Random))
}

#[test]
fn a_cut_at_every_byte_of_an_append_leaves_a_complete_prefix() {
    let prepared = |disk: &SimDisk| {
        let mut spool = open(disk, small());
        append(&mut spool, 0).unwrap();
        append(&mut spool, 1).unwrap();
        spool
    };
    let length = record::size("models/a/result", &payload(2, 100)) as u64;
    for cut in 0..=length {
        for survival in survivals() {
            let disk = SimDisk::default();
            let mut spool = prepared(&disk);
            let before = disk.bytes_written();
            disk.cut_after_bytes(cut);
            let appended = append(&mut spool, 2);
            assert_eq!(disk.bytes_written() - before, cut);
            assert_eq!(appended.is_ok(), cut == length);
            kill(spool);
            disk.reboot(survival);
            let mut spool = open(&disk, small());
            let found = numbers(&drain(&mut spool));
            if cut == length {
                assert_eq!(found, [0, 1, 2]);
            } else {
                assert_eq!(found, [0, 1], "cut {cut}, {survival:?}");
            }
            let counters = spool.counters();
            assert_eq!(counters.corrupt_places, 0, "a torn end is no damage");
            if matches!(survival, Survival::Everything) && cut < length {
                assert_eq!(counters.torn_bytes, cut);
            }
            let next = append(&mut spool, 3).unwrap().sequence;
            assert!(next > 3, "sequence 3 may be known to somebody");
            assert_eq!(numbers(&drain(&mut spool)).last(), Some(&3));
        }
    }
}

/// Runs appends and acknowledgements until an operation fails; gives what was appended and what acknowledged.
fn script(spool: &mut Spool, known: &mut Known) -> Result<()> {
    for number in 0..24 {
        // Before the call: the record may be there though it was not reported.
        let appended = append(spool, number)?;
        known.appended.insert(appended.sequence, number);
        if number % 3 == 2 {
            for record in spool.read_after(None, 2, 10_000)? {
                known.acknowledged.push(record.sequence);
                spool.acknowledge(record.sequence)?;
            }
        }
    }
    Ok(())
}

#[derive(Default)]
struct Known {
    appended: BTreeMap<u64, u64>,
    acknowledged: Vec<u64>,
}

fn operations_of_script(options: SpoolOptions) -> u64 {
    let disk = SimDisk::default();
    let mut spool = open(&disk, options);
    let before = disk.operations();
    script(&mut spool, &mut Known::default()).unwrap();
    disk.operations() - before
}

fn cut_everywhere(options: SpoolOptions) {
    let total = operations_of_script(options);
    assert!(total > 40, "{total}");
    for cut in 0..total {
        for survival in survivals() {
            let disk = SimDisk::default();
            let mut spool = open(&disk, options);
            let mut known = Known::default();
            disk.cut_after(cut);
            script(&mut spool, &mut known).unwrap_err();
            kill(spool);
            disk.reboot(survival);
            let mut spool = open(&disk, options);
            let case = format!("cut at {cut}, {survival:?}");
            let records = drain(&mut spool);
            let numbers = numbers(&records);
            for (record, number) in records.iter().zip(&numbers) {
                let expected = known.appended.get(&record.sequence);
                assert!(expected.is_none_or(|expected| expected == number), "{case}");
            }
            assert!(numbers.is_sorted_by(|a, b| a < b), "{case}: {numbers:?}");
            let all_kept = options.fsync == FsyncPolicy::Always || matches!(survival, Survival::Everything);
            if all_kept {
                for (sequence, number) in &known.appended {
                    let there = numbers.contains(number) || known.acknowledged.contains(sequence);
                    assert!(there, "{case}: {number} was accepted and is lost");
                }
                assert_eq!(spool.counters().corrupt_places, 0, "{case}");
            }
            // No sequence that anybody may have seen is given to another record.
            let highest = known.appended.keys().last().copied().unwrap_or(0);
            assert!(append(&mut spool, 99).unwrap().sequence > highest, "{case}");
            assert_eq!(drain(&mut spool).len(), records.len() + 1, "{case}");
        }
    }
}

#[test]
fn a_power_cut_at_any_operation_loses_nothing_that_was_synced() {
    cut_everywhere(small());
}

#[test]
fn a_power_cut_without_syncs_loses_records_but_never_invents_or_mixes_them() {
    cut_everywhere(SpoolOptions {
        fsync: FsyncPolicy::Never,
        ..small()
    });
    cut_everywhere(SpoolOptions {
        fsync: FsyncPolicy::Interval(Duration::from_secs(1)),
        ..small()
    });
}

#[test]
fn any_failing_operation_is_reported_and_leaves_a_spool_that_works() {
    let total = operations_of_script(small());
    let (eio, enospc) = (5, 28);
    for errno in [eio, enospc] {
        for failing in 0..total {
            let disk = SimDisk::default();
            let mut spool = open(&disk, small());
            let mut known = Known::default();
            disk.fail_after(failing, errno);
            let result = script(&mut spool, &mut known);
            let case = format!("operation {failing} fails with {errno}: {result:?}");
            append(&mut spool, 50).unwrap();
            let before = numbers(&drain(&mut spool));
            for reopened in [false, true] {
                if reopened {
                    kill(spool);
                    disk.reboot(Survival::Synced);
                    spool = open(&disk, small());
                }
                let found = numbers(&drain(&mut spool));
                assert!(found.is_sorted_by(|a, b| a < b), "{case}: {found:?}");
                assert!(found.contains(&50), "{case}");
                let dropped = spool.counters().dropped_records as usize;
                let lost = known.appended.iter().filter(|(sequence, number)| {
                    !found.contains(number) && !known.acknowledged.contains(sequence)
                });
                assert!(lost.count() <= dropped, "{case}: lost without a count");
                assert!(before.iter().all(|number| found.contains(number)), "{case}");
            }
        }
    }
}

#[test]
fn a_failing_sync_is_never_followed_by_records_in_the_same_file() {
    let disk = SimDisk::default();
    let options = SpoolOptions {
        fsync: FsyncPolicy::Interval(Duration::from_secs(1)),
        ..small()
    };
    let clock = Arc::new(ManualClock::default());
    let mut spool =
        Spool::open_on(Arc::new(disk.clone()), clock.clone(), Path::new(FOLDER), options).unwrap();
    append(&mut spool, 0).unwrap();
    clock.advance(Duration::from_secs(2));
    disk.fail_after(1, 5);
    append(&mut spool, 1).unwrap();
    assert_eq!(spool.counters().sync_failures, 1);
    append(&mut spool, 2).unwrap();
    assert_eq!(spool.segments.len(), 2);
    assert_eq!(numbers(&drain(&mut spool)), [0, 1, 2]);
}

#[test]
fn the_interval_bounds_what_a_power_cut_takes() {
    let disk = SimDisk::default();
    let options = SpoolOptions {
        fsync: FsyncPolicy::Interval(Duration::from_secs(1)),
        segment_bytes: Bytes::kib(8),
        ..small()
    };
    let clock = Arc::new(ManualClock::default());
    let mut spool =
        Spool::open_on(Arc::new(disk.clone()), clock.clone(), Path::new(FOLDER), options).unwrap();
    for number in 0..10 {
        clock.advance(Duration::from_millis(300));
        append(&mut spool, number).unwrap();
    }
    // Nothing more is appended; the tick does it.
    clock.advance(Duration::from_millis(100));
    append(&mut spool, 10).unwrap();
    clock.advance(Duration::from_secs(1));
    spool.maintain(at(0)).unwrap();
    append(&mut spool, 11).unwrap();
    kill(spool);
    disk.reboot(Survival::Synced);
    let found = numbers(&drain(&mut open(&disk, options)));
    assert_eq!(
        found,
        (0..11).collect::<Vec<_>>(),
        "only what came after the last sync is lost"
    );
}
