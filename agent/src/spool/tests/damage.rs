use proptest::prelude::*;

use super::*;

/// A spool of several segments on disk, its process killed; gives the number of records in the first one.
fn filled(disk: &SimDisk) -> u64 {
    let mut spool = open(disk, small());
    for number in 0..30 {
        append(&mut spool, number).unwrap();
    }
    let count = spool.segments[0].next - spool.segments[0].first;
    assert!(spool.segments.len() > 3 && count > 3);
    kill(spool);
    count
}

fn overwrite(disk: &SimDisk, path: &Path, offset: u64, bytes: &[u8]) {
    let file = disk.open(path, OpenMode::ReadWrite).unwrap();
    file.write_at(bytes, offset).unwrap();
}

#[test]
fn a_damaged_record_costs_the_rest_of_its_segment_and_is_counted_once() {
    let path = segment::path(Path::new(FOLDER), 1);
    let size = record::size("models/a/result", &payload(0, 100)) as u64;
    // In each part of the second record: length, checksum, sequence, topic, payload.
    for place in [0, 5, 9, 30, 80] {
        let disk = SimDisk::default();
        let count = filled(&disk);
        overwrite(&disk, &path, segment::START + size + place, &[0xee]);
        let mut spool = open(&disk, small());
        let expected: Vec<u64> = [0].into_iter().chain(count..30).collect();
        assert_eq!(numbers(&drain(&mut spool)), expected);
        let counters = spool.counters();
        assert_eq!(counters.corrupt_places, 1);
        assert_eq!(counters.corrupt_bytes, (count - 1) * size);
        assert_eq!(counters.torn_bytes, 0);
        assert_eq!(spool.len(), expected.len() as u64);
        kill(spool);
        assert_eq!(open(&disk, small()).counters(), counters, "counted again");
    }
}

#[test]
fn damage_that_appears_while_running_is_skipped_too() {
    let path = segment::path(Path::new(FOLDER), 1);
    let size = record::size("models/a/result", &payload(0, 100)) as u64;
    type Damage = fn(&SimDisk, &Path, u64);
    let kinds: [(Damage, u64); 4] = [
        (
            |disk, path, size| overwrite(disk, path, segment::START + size + 50, &[0xee]),
            1,
        ),
        (
            |disk, path, size| {
                let file = disk.open(path, OpenMode::ReadWrite).unwrap();
                file.set_len(segment::START + size + 7).unwrap();
            },
            1,
        ),
        (|disk, path, _| overwrite(disk, path, 3, &[0xee]), 0),
        (|disk, path, _| disk.remove(path).unwrap(), 0),
    ];
    for (damage, left) in kinds {
        let disk = SimDisk::default();
        let count = filled(&disk);
        let mut spool = open(&disk, small());
        damage(&disk, &path, size);
        let records = drain(&mut spool);
        let expected: Vec<u64> = (0..left).chain(count..30).collect();
        assert_eq!(numbers(&records), expected);
        assert_eq!(spool.counters().corrupt_places, 1);
        assert_eq!(spool.len(), expected.len() as u64);
        for record in records {
            assert!(spool.acknowledge(record.sequence).unwrap());
        }
        assert!(spool.is_empty());
        append(&mut spool, 40).unwrap();
        assert_eq!(numbers(&drain(&mut spool)), [40]);
    }
}

#[test]
fn damage_in_the_segment_that_grows_ends_it() {
    let disk = SimDisk::default();
    let mut spool = open(&disk, small());
    for number in 0..3 {
        append(&mut spool, number).unwrap();
    }
    overwrite(
        &disk,
        &segment::path(Path::new(FOLDER), 1),
        segment::START + 20,
        &[0xee],
    );
    assert_eq!(drain(&mut spool), []);
    append(&mut spool, 3).unwrap();
    assert_eq!(numbers(&drain(&mut spool)), [3]);
    kill(spool);
    assert_eq!(numbers(&drain(&mut open(&disk, small()))), [3]);
}

#[test]
fn a_lost_state_delivers_again_and_gives_no_sequence_twice() {
    let disk = SimDisk::default();
    let mut spool = open(&disk, small());
    for number in 0..30 {
        append(&mut spool, number).unwrap();
    }
    for sequence in 1..=10 {
        spool.acknowledge(sequence).unwrap();
    }
    kill(spool);
    overwrite(&disk, &Path::new(FOLDER).join("state"), 0, &[0xee; 8192]);
    let mut spool = open(&disk, small());
    let found = numbers(&drain(&mut spool));
    assert!(found[0] <= 10 && found.last() == Some(&29), "{found:?}");
    assert!(append(&mut spool, 30).unwrap().sequence > 30);
}

#[test]
fn foreign_files_are_left_alone() {
    let disk = SimDisk::default();
    filled(&disk);
    let names = [
        "notes.txt",
        "1.log",
        "0000000000000000000x.log",
        "99999999999999999999.log.bak",
    ];
    for name in names {
        let path = Path::new(FOLDER).join(name);
        disk.open(&path, OpenMode::Create)
            .unwrap()
            .write_at(b"mine", 0)
            .unwrap();
    }
    assert_eq!(drain(&mut open(&disk, small())).len(), 30);
    for name in names {
        assert_eq!(disk.content(&Path::new(FOLDER).join(name)).unwrap(), b"mine");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]
    #[test]
    fn any_content_opens_without_panic_and_then_works(
        files in prop::collection::vec((0u64..60, prop::collection::vec(any::<u8>(), 0..200), any::<bool>()), 1..6),
        patches in prop::collection::vec((0usize..6, 0u64..1200, any::<u8>()), 0..8),
        state in prop::option::of(prop::collection::vec(any::<u8>(), 0..9000)),
    ) {
        let disk = SimDisk::default();
        filled(&disk);
        for (first, bytes, with_header) in files {
            let path = segment::path(Path::new(FOLDER), first);
            let mut content = if with_header { record::header(first).to_vec() } else { Vec::new() };
            content.extend(bytes);
            disk.open(&path, OpenMode::Create).unwrap().write_at(&content, 0).unwrap();
        }
        let logs: Vec<_> = disk.paths().into_iter().filter(|path| path.extension().is_some()).collect();
        for (which, offset, byte) in patches {
            overwrite(&disk, &logs[which % logs.len()], offset, &[byte]);
        }
        if let Some(bytes) = state {
            let path = Path::new(FOLDER).join("state");
            disk.open(&path, OpenMode::Create).unwrap().write_at(&bytes, 0).unwrap();
        }
        let mut spool = open(&disk, small());
        let found = drain(&mut spool);
        prop_assert!(found.is_sorted_by(|a, b| a.sequence < b.sequence));
        prop_assert_eq!(found.len() as u64, spool.len());
        let highest = found.last().map_or(0, |record| record.sequence);
        let appended = append(&mut spool, 77).unwrap();
        prop_assert!(appended.sequence > highest);
        for record in drain(&mut spool) {
            spool.acknowledge(record.sequence).unwrap();
        }
        prop_assert!(spool.is_empty());
        drop(spool);
        let mut again = open(&disk, small());
        prop_assert_eq!(drain(&mut again), vec![]);
    }
}
