//! The watchdog is fed, and more time to start is asked for, only while every thread makes progress.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::device::Device;
use crate::files;
use crate::manager::PATIENCE;
use crate::model::{counter, input, install};

/// More turns than any machine makes within a test.
const FOR_EVER: f32 = 1e15;

fn predict(slot: &str) -> String {
    format!("POST /v1/slots/{slot}/predict")
}

#[test]
fn an_inference_that_hangs_stops_the_watchdog_while_everything_else_goes_on() {
    let device = Device::new();
    device.configure(&["main", "other"], "");
    let bundle = counter(device.folder.path(), "1");
    install(&bundle, &device.path("store"), &["main", "other"]);
    let limit = Duration::from_secs(2);
    let mut daemon = device.start(Some(limit));
    device.manager.wait("READY=1", 1);

    // Work in itself is no hang.
    let since = Instant::now();
    while since.elapsed() < Duration::from_secs(4) {
        let answer = device.ask(&predict("main"), &input(1000.0));
        assert!(answer.contains("1000.0"), "{answer}");
    }
    let gap = device.manager.longest_gap("WATCHDOG=1", since);
    assert!(gap < limit, "not fed for {gap:?}");

    let asked = Instant::now();
    let _waits = device.send(&predict("main"), &input(FOR_EVER));
    let hangs = "STATUS=hangs: inference 0 of slot main";
    device.manager.wait(hangs, 1);
    // `hang_after_s` is 2.
    assert!(asked.elapsed() >= Duration::from_secs(2));
    daemon.logs("inference 0 of slot main hangs");
    let since = Instant::now();
    thread::sleep(Duration::from_secs(4));
    let fed = device.manager.saying("WATCHDOG=1");
    assert!(
        fed.iter().all(|told| told.at < since),
        "fed although a thread hangs: {fed:#?}"
    );
    // The others live: another slot answers, and the daemon tells what is wrong.
    let answer = device.ask(&predict("other"), &input(7.0));
    assert!(answer.contains("7.0"), "{answer}");
    let health = device.ask("GET /healthz", b"");
    assert!(
        health.starts_with("HTTP/1.1 503") && health.contains("inference 0 of slot main hangs"),
        "{health}"
    );

    // Even so it ends when asked, in the time that the unit gives.
    daemon.signal(Signal::TERM);
    device.manager.wait("STOPPING=1", 1);
    let status = daemon.ended_within(files::Unit::shipped().seconds("TimeoutStopSec"));
    assert_eq!(status.code(), Some(0), "{}", daemon.log());
}

/// A disk that is slow: whoever opens the file waits until it is let go, then reads the bundle.
struct SlowFile {
    released: Arc<AtomicBool>,
}

impl SlowFile {
    fn in_place_of(path: &Path, bundle: &Path) -> Self {
        std::fs::remove_file(path).unwrap();
        let made = Command::new("mkfifo").arg(path).status().unwrap();
        assert!(made.success(), "mkfifo {}", path.display());
        let released = Arc::new(AtomicBool::new(false));
        let (bytes, path, go) = (
            std::fs::read(bundle).unwrap(),
            PathBuf::from(path),
            Arc::clone(&released),
        );
        thread::spawn(move || {
            while !go.load(Ordering::Relaxed) {
                thread::sleep(Duration::from_millis(20));
            }
            // Blocks until a reader has opened it. Whoever comes next finds an ordinary file: two readers of one pipe
            // would each get a part.
            let mut pipe = OpenOptions::new().write(true).open(&path).unwrap();
            let whole = path.with_extension("whole");
            std::fs::write(&whole, &bytes).unwrap();
            std::fs::rename(&whole, &path).unwrap();
            // A reader that has read enough closes it.
            drop(pipe.write_all(&bytes));
        });
        Self { released }
    }

    fn release(&self) {
        self.released.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_start_that_takes_long_asks_for_more_time_until_the_model_answers() {
    let device = Device::new();
    device.configure(&["main"], "");
    let bundle = counter(device.folder.path(), "1");
    let kept = install(&bundle, &device.path("store"), &["main"]);
    let slow = SlowFile::in_place_of(&kept, &bundle);
    let begun = Instant::now();
    let mut daemon = device.start(Some(Duration::from_secs(4)));
    thread::sleep(Duration::from_secs(12));
    assert!(device.manager.saying("READY=1").is_empty());
    let extended = device.manager.with("EXTEND_TIMEOUT_USEC");
    // As systemd reckons: each datagram allows for so much from its arrival on.
    let mut until = begun + Duration::from_secs(5);
    for told in &extended {
        assert!(told.at < until, "{extended:#?}");
        let microseconds = told.value("EXTEND_TIMEOUT_USEC").unwrap().parse().unwrap();
        until = told.at + Duration::from_micros(microseconds);
    }
    assert!(until > Instant::now());
    assert!(
        extended.last().unwrap().at - begun > Duration::from_secs(8),
        "only asked in the beginning: {extended:#?}"
    );
    slow.release();
    device.manager.wait("READY=1", 1);
    let answer = device.ask(&predict("main"), &input(5.0));
    assert!(answer.contains("5.0"), "{answer}");
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.ended_within(Duration::from_secs(10)).code(), Some(0));
}

#[test]
fn a_start_in_which_a_thread_hangs_gets_no_more_time() {
    let device = Device::new();
    device.configure(&["quick", "slow"], "");
    let (one, two) = (
        counter(device.folder.path(), "1"),
        counter(device.folder.path(), "2"),
    );
    install(&one, &device.path("store"), &["quick"]);
    let kept = install(&two, &device.path("store"), &["slow"]);
    let _slow = SlowFile::in_place_of(&kept, &two);
    let mut daemon = device.start(None);
    // The quick slot answers although the start is not over.
    let begun = Instant::now();
    while !device.path("http").exists() {
        assert!(begun.elapsed() < PATIENCE, "{}", daemon.log());
        thread::sleep(Duration::from_millis(20));
    }
    while !device.ask(&predict("quick"), &input(3.0)).contains("3.0") {
        assert!(begun.elapsed() < PATIENCE, "{}", daemon.log());
        thread::sleep(Duration::from_millis(20));
    }
    let _waits = device.send(&predict("quick"), &input(FOR_EVER));
    device.manager.wait("STATUS=hangs: inference 0 of slot quick", 1);
    let since = Instant::now();
    thread::sleep(Duration::from_secs(8));
    let extended = device.manager.with("EXTEND_TIMEOUT_USEC");
    assert!(
        !extended.is_empty() && extended.iter().all(|told| told.at < since),
        "{extended:#?}"
    );
    assert!(device.manager.saying("READY=1").is_empty());

    // Neither thread can be interrupted; the daemon ends nevertheless.
    daemon.signal(Signal::TERM);
    let status = daemon.ended_within(files::Unit::shipped().seconds("TimeoutStopSec"));
    assert_eq!(status.code(), Some(0), "{}", daemon.log());
}
