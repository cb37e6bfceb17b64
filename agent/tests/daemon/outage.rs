//! The broker is away, or the disk is full: what waits is kept within bounds, and arrives.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use edgeopt_agent::protocol::{Phase, ResultMessage, Sample};

use crate::bundles::{Computes, make};
use crate::device::{Device, Settings, deployed, from_file, operator};
use crate::http::first;
use crate::observer::Observer;
use crate::support::eventually;
use crate::support::mosquitto::Mosquitto;

/// The numbers in results, each result once, in the order in which they first arrived.
fn arrived(observer: &Observer) -> Vec<u64> {
    let mut seen = std::collections::BTreeSet::new();
    let fresh = |result: &ResultMessage| seen.insert(result.id.clone());
    let all = observer.results("main").into_iter();
    all.filter(fresh).map(|result| first(&result) as u64).collect()
}

/// Asks for these numbers one after the other; the model doubles.
fn ask(unit: &Device, numbers: std::ops::Range<u64>) {
    for number in numbers {
        let reply = unit.http().predict(number as f32).unwrap();
        assert_eq!(reply.status, 200, "{number}: {}", reply.body);
        assert_eq!(reply.number() as u64, number * 2);
    }
}

fn doubled(numbers: std::ops::Range<u64>) -> Vec<u64> {
    numbers.map(|number| number * 2).collect()
}

#[test]
fn results_outlast_the_broker_and_restarts_and_arrive_in_order() {
    let folder = tempfile::tempdir().unwrap();
    let mut broker = Mosquitto::start(folder.path(), "allow_anonymous true");
    let observer = Observer::start(broker.port);
    let mut unit = Device::start(&Settings {
        max_packet: "160KiB",
        spool: "segment = \"192KiB\"\nmax = \"4MiB\"".into(),
        ..Settings::new(broker.port)
    });
    let one = make(folder.path(), "1", Computes::Times(2.0), Some(2.0));
    deployed(&mut operator(broker.port), from_file(&one));
    ask(&unit, 0..50);
    eventually("all have arrived", || arrived(&observer) == doubled(0..50));
    unit.until("nothing waits", |overview| overview.spool.waiting == 0);
    let baseline = unit.spool_size();

    broker.stop();
    unit.until("it notices", |overview| !overview.link.connected);
    ask(&unit, 50..800);
    let overview = unit.overview().unwrap();
    assert!(overview.spool.waiting >= 750, "{overview:?}");
    let full = unit.spool_size();
    // Ended in order, then by force; each time it finds the model and what waits.
    unit.stop();
    unit.run();
    unit.until_active("1");
    assert!(unit.overview().unwrap().spool.waiting >= 750);
    ask(&unit, 800..1000);
    unit.kill();
    unit.run();
    unit.until_active("1");
    ask(&unit, 1000..1020);

    broker.start_again();
    eventually("all have arrived", || arrived(&observer).len() >= 1020);
    assert_eq!(arrived(&observer), doubled(0..1020), "all, and in order");
    unit.until("nothing waits", |overview| overview.spool.waiting == 0);
    let after = unit.spool_size();
    println!("spool: {baseline} bytes before, {full} at most seen, {after} after");
    assert!(full > baseline + 150_000, "{full}");
    // No more than one file, as before; its content is what has been delivered since.
    assert!(
        after <= baseline.max(192 << 10) + 1024,
        "{after} bytes, {baseline} before"
    );
    assert_eq!(unit.overview().unwrap().spool.dropped, 0);
}

#[test]
fn at_its_bound_the_oldest_give_way_and_are_counted() {
    let folder = tempfile::tempdir().unwrap();
    let mut broker = Mosquitto::start(folder.path(), "allow_anonymous true");
    let observer = Observer::start(broker.port);
    let max = 400 << 10;
    let unit = Device::start(&Settings {
        max_packet: "160KiB",
        spool: "segment = \"180KiB\"\nmax = \"400KiB\"\ndrop = \"oldest\"".into(),
        ..Settings::new(broker.port)
    });
    let one = make(folder.path(), "1", Computes::Times(2.0), Some(2.0));
    deployed(&mut operator(broker.port), from_file(&one));
    broker.stop();
    unit.until("it notices", |overview| !overview.link.connected);
    let total = 2500;
    for begin in (0..total).step_by(250) {
        ask(&unit, begin..begin + 250);
        let size = unit.spool_size();
        assert!(size <= max, "{size} bytes of {max}");
    }
    let overview = unit.overview().unwrap();
    assert!(overview.spool.dropped > 100, "{overview:?}");
    broker.start_again();
    // Telemetry waits there too, so what arrives is told apart by being a result.
    eventually("the newest has arrived", || {
        arrived(&observer).last() == Some(&((total - 1) * 2))
    });
    let arrived = arrived(&observer);
    assert!(arrived.is_sorted());
    assert_eq!(arrived, doubled(arrived[0] / 2..total), "no hole");
    eventually("telemetry tells the loss", || {
        observer.telemetry("link").iter().any(|telemetry| {
            matches!(telemetry.sample, Sample::Link { dropped, .. } if dropped >= overview.spool.dropped)
        })
    });
    println!("{} of {total} kept", arrived.len());
}

/// A file system of its own.
struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    fn mount(size: &str) -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={size}"), "tmpfs"])
            .arg(folder.path())
            .stderr(Stdio::null())
            .status();
        mounted
            .is_ok_and(|status| status.success())
            .then_some(Self(folder))
    }

    fn path(&self) -> PathBuf {
        self.0.path().into()
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0.path()).status();
    }
}

/// Takes all that is left.
fn fill(path: &Path) {
    use std::io::Write;
    let mut file = fs::File::create(path).unwrap();
    let mut size = 64 << 10;
    while size > 0 {
        if file.write_all(&vec![1; size]).is_err() {
            size /= 2;
        }
    }
}

#[test]
fn on_a_full_disk_it_goes_on_answering_and_recovers() {
    let Some(disk) = SmallDisk::mount("3m") else {
        eprintln!(
            "not run: mounting a tmpfs is not allowed here; the spool's own tests have simulated full disks"
        );
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let mut broker = Mosquitto::start(folder.path(), "allow_anonymous true");
    let observer = Observer::start(broker.port);
    let mut unit = Device::start(&Settings {
        max_packet: "160KiB",
        spool: "segment = \"180KiB\"\nmax = \"64MiB\"".into(),
        state: Some(disk.path()),
        ..Settings::new(broker.port)
    });
    let mut desk = operator(broker.port);
    let one = make(folder.path(), "1", Computes::Times(2.0), Some(2.0));
    deployed(&mut desk, from_file(&one));
    drop(desk);
    broker.stop();
    unit.until("it notices", |overview| !overview.link.connected);
    ask(&unit, 0..1500);
    let other = disk.path().join("other");
    fill(&other);
    ask(&unit, 1500..3000);
    assert!(unit.is_running());
    let overview = unit.overview().unwrap();
    assert!(overview.spool.dropped > 0, "{overview:?}");
    assert!(overview.hanging.is_empty());

    // The operator wants another model meanwhile: there is no room, and that is said.
    broker.start_again();
    let mut desk = operator(broker.port);
    let two = crate::bundles::make_with(
        folder.path(),
        "2",
        Computes::Times(3.0),
        Some(3.0),
        4_000_000,
        None,
    );
    let reason = crate::device::refused(&mut desk, "main", from_file(&two));
    assert!(reason.contains("never fits"), "{reason}");
    // One that would fit waits; the model before answers.
    let waiting = crate::bundles::make_with(
        folder.path(),
        "2b",
        Computes::Times(2.0),
        Some(2.0),
        900_000,
        None,
    );
    crate::device::desire(&mut desk, 3, Some(from_file(&waiting)));
    let slot = observer.report(|generation, slot| generation == 3 && slot.reason.is_some());
    assert_eq!(
        (slot.phase, slot.active_version.as_deref()),
        (Phase::Downloading, Some("1"))
    );
    let reason = slot.reason.unwrap();
    assert!(
        reason.contains("waits for room") && reason.contains("more are needed"),
        "{reason}"
    );
    ask(&unit, 3000..3010);
    eventually("the newest has arrived", || {
        arrived(&observer).last() == Some(&(3009 * 2))
    });

    // Room again: what waited comes, and everything is as before.
    fs::remove_file(&other).unwrap();
    unit.until_active("2b");
    let three = make(folder.path(), "3", Computes::Times(2.0), Some(2.0));
    deployed(&mut desk, from_file(&three));
    ask(&unit, 3010..3020);
    eventually("they arrive", || {
        arrived(&observer).ends_with(&doubled(3000..3020))
    });
    assert!(arrived(&observer).is_sorted());
    unit.stop();
}

#[test]
fn after_the_broker_lost_everything_the_same_generation_with_another_content_is_noticed() {
    let folder = tempfile::tempdir().unwrap();
    let mut broker = Mosquitto::start(folder.path(), "allow_anonymous true");
    let mut unit = Device::start(&Settings::new(broker.port));
    let one = make(folder.path(), "1", Computes::Times(2.0), Some(2.0));
    deployed(&mut operator(broker.port), from_file(&one));
    unit.stop();
    broker.stop();
    fs::remove_file(folder.path().join("mosquitto.db")).unwrap();
    broker.start_again();
    // Under the same version: only the digest tells that the device has something else.
    fs::remove_file(&one.path).unwrap();
    let other = make(folder.path(), "1", Computes::Times(3.0), Some(3.0));
    assert_ne!(one.spec.sha256, other.spec.sha256);
    let observer = Observer::start(broker.port);
    std::thread::scope(|scope| {
        let port = broker.port;
        let deploying = scope.spawn(move || deployed(&mut operator(port), from_file(&other)));
        eventually("the first generation is asked", || {
            !observer.on("/desired").is_empty()
        });
        unit.run();
        deploying.join().unwrap();
    });
    assert_eq!(unit.record().unwrap().generation.0, 2);
    assert_eq!(unit.http().predict(21.0).unwrap().number(), 63.0);
    assert_eq!(
        unit.logged("was taken before with another content"),
        1,
        "{}",
        unit.log()
    );
}

#[test]
fn a_broker_that_has_lost_everything_is_told_again_and_serves_the_next_deployment() {
    let folder = tempfile::tempdir().unwrap();
    let mut broker = Mosquitto::start(folder.path(), "allow_anonymous true");
    let before = Observer::start(broker.port);
    let unit = Device::start(&Settings::new(broker.port));
    for (version, factor) in [("1", 2.0), ("2", 3.0)] {
        let made = make(folder.path(), version, Computes::Times(factor), Some(factor));
        deployed(&mut operator(broker.port), from_file(&made));
    }
    // Trusted: nothing new will have to be said.
    for _ in 0..20 {
        assert_eq!(unit.http().predict(1.0).unwrap().number(), 3.0);
    }
    before.report(|generation, slot| generation == 2 && !slot.watched);
    drop(before);
    broker.stop();
    unit.until("it notices", |overview| !overview.link.connected);
    fs::remove_file(folder.path().join("mosquitto.db")).unwrap();
    broker.start_again();
    unit.until("it is back", |overview| overview.link.connected);
    let observer = Observer::start(broker.port);
    let report = observer.report(|generation, _| generation == 2);
    assert_eq!(report.active_version.as_deref(), Some("2"));
    let made = make(folder.path(), "3", Computes::Times(4.0), Some(4.0));
    deployed(&mut operator(broker.port), from_file(&made));
    observer.report(|generation, slot| generation == 3 && slot.active_version.as_deref() == Some("3"));
}
