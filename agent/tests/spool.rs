//! The spool on real files: killed, on a full file system, and how much memory and time it takes.
#![allow(clippy::unwrap_used)] // helpers of tests, too

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

use edgeopt_agent::spool::{DropPolicy, FsyncPolicy, Record, Spool, SpoolOptions};
use edgeopt_models::Bytes;

const CHILD: &str = "EDGEOPT_TEST_SPOOL";

fn options() -> SpoolOptions {
    SpoolOptions {
        fsync: FsyncPolicy::Never,
        ..SpoolOptions::default()
    }
}

/// Not a test: what the child process of the next one does.
#[test]
#[ignore = "started by another test"]
fn child_appends_until_it_is_killed() {
    let Some(folder) = std::env::var_os(CHILD) else {
        return;
    };
    let mut spool = Spool::open(Path::new(&folder), options()).unwrap();
    // Ends the line that the test runner has begun.
    println!();
    for number in 0u64.. {
        let mut payload = number.to_le_bytes().to_vec();
        payload.resize(8 + (number % 500) as usize, number as u8);
        let appended = spool.append("t", &payload, SystemTime::now()).unwrap();
        println!("appended {number} {}", appended.sequence);
    }
}

fn drain(spool: &mut Spool, mut each: impl FnMut(Record)) {
    let mut after = None;
    loop {
        let batch = spool.read_after(after, 100, 64 << 10).unwrap();
        let Some(last) = batch.last() else { return };
        after = Some(last.sequence);
        batch.into_iter().for_each(&mut each);
    }
}

#[test]
fn a_killed_process_loses_nothing_that_it_was_told_was_kept() {
    let folder = tempfile::tempdir().unwrap();
    let mut highest = 0;
    for round in 1..=5u64 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "child_appends_until_it_is_killed",
                "--ignored",
                "--nocapture",
            ])
            .env(CHILD, folder.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut acknowledged = Vec::new();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let told = |line: &str| {
            let (number, sequence) = line.strip_prefix("appended ")?.split_once(' ')?;
            Some((number.parse::<u64>().unwrap(), sequence.parse::<u64>().unwrap()))
        };
        // What the test runner says itself does not count.
        let said = lines.by_ref().map_while(Result::ok);
        let wanted = 300 * round as usize;
        acknowledged.extend(said.filter_map(|line| told(&line)).take(wanted));
        assert_eq!(acknowledged.len(), wanted, "the child ended early");
        child.kill().unwrap();
        child.wait().unwrap();
        // What it still said before it died; the last line may be cut.
        let rest: Vec<String> = lines.map_while(Result::ok).collect();
        acknowledged.extend(rest.iter().rev().skip(1).filter_map(|line| told(line)));
        let mut spool = Spool::open(folder.path(), options()).unwrap();
        assert_eq!(spool.counters().corrupt_places, 0);
        let mut found = Vec::new();
        drain(&mut spool, |record| {
            let number = u64::from_le_bytes(*record.payload.first_chunk().unwrap());
            assert_eq!(record.payload.len(), 8 + (number % 500) as usize);
            assert!(record.payload[8..].iter().all(|byte| *byte == number as u8));
            found.push((number, record.sequence));
        });
        for told in &acknowledged {
            assert!(found.contains(told), "round {round}: {told:?} is lost");
        }
        assert!(
            found.len() <= acknowledged.len() + 2,
            "{} {}",
            found.len(),
            acknowledged.len()
        );
        assert!(found[0].1 > highest, "sequences go on after a crash");
        highest = found.last().unwrap().1;
        for (_, sequence) in found {
            assert!(spool.acknowledge(sequence).unwrap());
        }
        spool.close().unwrap();
    }
}

/// A file system of its own that takes 1 MiB.
struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    fn mount() -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=1m", "tmpfs"])
            .arg(folder.path())
            .stderr(Stdio::null())
            .status();
        mounted
            .is_ok_and(|status| status.success())
            .then_some(Self(folder))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.0.path()).status();
    }
}

#[test]
fn on_a_full_file_system_the_oldest_go_and_the_rest_is_whole() {
    let Some(disk) = SmallDisk::mount() else {
        eprintln!(
            "not run: mounting a tmpfs is not allowed here; the simulated full disk is tested elsewhere"
        );
        return;
    };
    let folder = disk.0.path().join("spool");
    let options = SpoolOptions {
        segment_bytes: Bytes::kib(64),
        max_record: Bytes::kib(16),
        fsync: FsyncPolicy::Always,
        full: DropPolicy::DropOldest,
        ..SpoolOptions::default()
    };
    let mut spool = Spool::open(&folder, options).unwrap();
    // Something else takes a third of it.
    std::fs::write(disk.0.path().join("other"), vec![1; 300 << 10]).unwrap();
    let total = 2000u64;
    for number in 0..total {
        let payload = number.to_le_bytes().repeat(1 + (number % 300) as usize);
        spool.append("t", &payload, SystemTime::now()).unwrap();
    }
    let counters = spool.counters();
    assert!(counters.dropped_records > 1000, "{counters:?}");
    drop(spool);
    let mut spool = Spool::open(&folder, options).unwrap();
    assert_eq!(spool.counters(), counters);
    let mut expected = counters.dropped_records;
    drain(&mut spool, |record| {
        assert_eq!(
            record.payload,
            expected.to_le_bytes().repeat(1 + (expected % 300) as usize)
        );
        expected += 1;
    });
    assert_eq!(expected, total);
    assert_eq!(
        (
            counters.corrupt_places,
            counters.torn_bytes,
            counters.refused_records
        ),
        (0, 0, 0)
    );
    println!("{} of {total} kept in {}", spool.len(), spool.bytes_on_disk());
}

/// Resident memory of this process.
fn resident() -> Bytes {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = text.split(' ').nth(1).unwrap().parse().unwrap();
    Bytes(pages * 4096)
}

#[test]
fn memory_stays_small_whatever_is_on_disk() {
    let folder = tempfile::tempdir().unwrap();
    let mut spool = Spool::open(folder.path(), options()).unwrap();
    let payload = vec![7; 50_000];
    while spool.bytes_on_disk() < Bytes::mib(40) {
        spool.append("t", &payload, SystemTime::now()).unwrap();
    }
    drop(spool);
    let before = resident();
    let mut spool = Spool::open(folder.path(), options()).unwrap();
    let mut sequences = Vec::new();
    drain(&mut spool, |record| sequences.push(record.sequence));
    for sequence in &sequences {
        spool.acknowledge(*sequence).unwrap();
    }
    let grown = resident().saturating_sub(before);
    println!("{} records from 40 MiB with {grown} more memory", sequences.len());
    assert!(grown < Bytes::mib(4), "{grown}");
    assert!(spool.bytes_on_disk() < Bytes::mib(1));
}

#[test]
#[ignore = "prints how fast it is"]
fn throughput() {
    let folder = tempfile::tempdir().unwrap();
    let payload = vec![7; 200];
    for (name, fsync, count) in [
        ("never", FsyncPolicy::Never, 200_000u32),
        (
            "every second",
            FsyncPolicy::Interval(Duration::from_secs(1)),
            200_000,
        ),
        ("always", FsyncPolicy::Always, 2_000),
    ] {
        let options = SpoolOptions { fsync, ..options() };
        let mut spool = Spool::open(&folder.path().join(name), options).unwrap();
        let start = Instant::now();
        for _ in 0..count {
            spool
                .append("models/a/result", &payload, SystemTime::now())
                .unwrap();
        }
        let appended = f64::from(count) / start.elapsed().as_secs_f64();
        let start = Instant::now();
        let mut sequences = Vec::new();
        drain(&mut spool, |record| sequences.push(record.sequence));
        let read = f64::from(count) / start.elapsed().as_secs_f64();
        let start = Instant::now();
        for sequence in sequences {
            spool.acknowledge(sequence).unwrap();
        }
        let acknowledged = f64::from(count) / start.elapsed().as_secs_f64();
        println!(
            "sync {name}: {appended:.0} appends/s, {read:.0} reads/s, {acknowledged:.0} acknowledgements/s"
        );
    }
}
