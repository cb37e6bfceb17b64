//! Start, reload, stop.

use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::device::Device;
use crate::files;

#[test]
fn it_says_when_it_is_ready_feeds_the_watchdog_and_ends_when_asked() {
    let device = Device::new();
    device.configure(&["main"], "");
    let limit = Duration::from_secs(2);
    let mut daemon = device.start(Some(limit));
    device.manager.wait("READY=1", 1);
    let since = Instant::now();
    thread::sleep(Duration::from_secs(5));
    let gap = device.manager.longest_gap("WATCHDOG=1", since);
    assert!(gap < limit, "not fed for {gap:?}");
    daemon.signal(Signal::TERM);
    device.manager.wait("STOPPING=1", 1);
    let status = daemon.ended_within(Duration::from_secs(10));
    assert_eq!(status.code(), Some(0), "{}", daemon.log());
    assert_eq!(device.manager.saying("READY=1").len(), 1);
    assert_eq!(device.manager.saying("STOPPING=1").len(), 1);
    // More time was asked for before anything else, and not once it was ready.
    let all = device.manager.all();
    assert!(all[0].value("EXTEND_TIMEOUT_USEC").is_some(), "{all:#?}");
    let ready = device.manager.saying("READY=1")[0].at;
    assert!(
        device
            .manager
            .with("EXTEND_TIMEOUT_USEC")
            .iter()
            .all(|told| told.at < ready)
    );
}

#[test]
fn a_changed_configuration_is_taken_and_a_broken_one_is_not() {
    let device = Device::new();
    device.configure(&["main"], "");
    let mut daemon = device.start(None);
    device.manager.wait("READY=1", 1);

    device.configure(&["main", "other"], "");
    daemon.signal(Signal::HUP);
    let reloading = device.manager.wait("RELOADING=1", 1);
    // Both in one datagram, as sd_notify(3) demands.
    let moment: u64 = reloading.value("MONOTONIC_USEC").unwrap().parse().unwrap();
    assert!(moment > 0);
    let ready = device.manager.wait("READY=1", 2);
    assert!(ready.at > reloading.at);
    assert!(device.ask("GET /v1/status", b"").contains("\"other\""));

    // It cannot be read: nothing happens.
    let good = std::fs::read_to_string(device.path("agent.toml")).unwrap();
    std::fs::write(
        device.path("agent.toml"),
        good.replace("[store]", "[store]\nnonsense = 1"),
    )
    .unwrap();
    daemon.signal(Signal::HUP);
    daemon.logs("unknown field `nonsense`");
    // It can be read, but nothing can be started with it: the daemon goes back.
    let store = format!("{}/store", device.folder.path().display());
    std::fs::write(device.path("file"), "").unwrap();
    let elsewhere = format!("{}/file/store", device.folder.path().display());
    std::fs::write(device.path("agent.toml"), good.replace(&store, &elsewhere)).unwrap();
    daemon.signal(Signal::HUP);
    device.manager.wait("RELOADING=1", 2);
    device.manager.wait("READY=1", 3);
    daemon.logs("going back to the configuration before");
    assert!(device.ask("GET /v1/status", b"").contains("\"other\""));

    // Without a watchdog nothing is fed.
    assert!(device.manager.saying("WATCHDOG=1").is_empty());
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.ended_within(Duration::from_secs(10)).code(), Some(0));
    assert_eq!(device.manager.saying("RELOADING=1").len(), 2);
    assert_eq!(device.manager.saying("READY=1").len(), 3);
}

/// With the code for which the unit does not start it again.
#[test]
fn a_bad_configuration_ends_it_at_once() {
    let unit = files::Unit::shipped();
    let code: i32 = unit.one("RestartPreventExitStatus").parse().unwrap();
    let broken = |more: &str, says: &str| {
        let device = Device::new();
        device.configure(&["main"], more);
        let mut daemon = device.start(None);
        let status = daemon.ended_within(Duration::from_secs(10));
        assert_eq!(status.code(), Some(code), "{}", daemon.log());
        assert!(daemon.log().contains(says), "{}", daemon.log());
        assert!(device.manager.saying("READY=1").is_empty());
    };
    broken("nonsense = 1\n", "unknown field `nonsense`");
    let device = Device::new();
    device.configure(&["main"], "");
    let text = std::fs::read_to_string(device.path("agent.toml")).unwrap();
    std::fs::write(device.path("key"), "not a key\n").unwrap();
    let keys = format!(
        "require_signature = true\nkey_files = [\"{}/key\"]",
        device.folder.path().display()
    );
    std::fs::write(
        device.path("agent.toml"),
        text.replace("require_signature = false", &keys),
    )
    .unwrap();
    let mut daemon = device.start(None);
    let status = daemon.ended_within(Duration::from_secs(10));
    assert_eq!(status.code(), Some(code), "{}", daemon.log());
}

#[test]
fn the_watchdog_of_another_process_is_not_fed() {
    let device = Device::new();
    device.configure(&["main"], "");
    let mut command = std::process::Command::new(crate::device::AGENT);
    command
        .arg("--config")
        .arg(device.path("agent.toml"))
        .env("WATCHDOG_USEC", "400000")
        .env("WATCHDOG_PID", "1");
    let _daemon = device.spawn(&mut command);
    device.manager.wait("READY=1", 1);
    thread::sleep(Duration::from_secs(1));
    assert!(device.manager.saying("WATCHDOG=1").is_empty());
}
