//! Reconnects: paced, spread, and aware of the clock.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use edgeopt_agent::config::Tls;
use edgeopt_agent::link::{DisconnectReason, Environment, LinkState, WallClock};

use crate::support::PATIENCE;
use crate::support::authority::Authority;
use crate::support::mosquitto::Mosquitto;
use crate::support::packet;
use crate::support::scripted::ScriptedBroker;
use crate::{Device, options};

/// A clock that the test sets.
#[derive(Clone, Debug)]
struct SetClock(Arc<Mutex<SystemTime>>);

impl SetClock {
    fn at(time: SystemTime) -> Self {
        Self(Arc::new(Mutex::new(time)))
    }

    fn set(&self, time: SystemTime) {
        *self.0.lock().unwrap() = time;
    }
}

impl WallClock for SetClock {
    fn now(&self) -> SystemTime {
        *self.0.lock().unwrap()
    }
}

fn day(year: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs((year - 1970) * 31_557_600 + 86_400)
}

#[test]
fn a_clock_at_1970_is_waited_for_with_a_clear_reason() {
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::new(folder.path(), "ca");
    let server = authority.issue("localhost", 2026);
    let lines = format!(
        "allow_anonymous true\ncertfile {}\nkeyfile {}",
        server.certificate.display(),
        server.key.display()
    );
    let broker = Mosquitto::start(folder.path(), &lines);
    let mut options = options("d", broker.port);
    options.broker.host = "localhost".into();
    options.broker.tls = Some(Tls {
        ca: Some(folder.path().join("ca.pem")),
        ..Tls::default()
    });
    // Were it not for the clock, the next attempt would be ten minutes away.
    options.backoff.base = Duration::from_secs(600);
    options.backoff.cap = Duration::from_secs(600);
    let clock = SetClock::at(UNIX_EPOCH + Duration::from_secs(100));
    let environment = Environment {
        wall: Arc::new(clock.clone()),
        random: Box::new(|| 1.0),
    };
    let device = Device::start_in(options, environment);
    let watch = device.link.watch();

    let reason = |state: &LinkState| match state {
        LinkState::Disconnected { reason, .. } => Some(reason.clone()),
        _ => None,
    };
    let waiting = watch.wait(PATIENCE, |view| {
        reason(&view.state) == Some(DisconnectReason::ClockNotSet)
    });
    let text = waiting.unwrap().state.to_string();
    assert!(text.contains("clock to be set"), "{text}");

    // Set, but to a day before the certificate's first.
    clock.set(day(2025));
    let early =
        |state: &LinkState| matches!(reason(state), Some(DisconnectReason::CertificateNotYetValid(_)));
    assert!(
        watch.wait(PATIENCE, |view| early(&view.state)).is_ok(),
        "{:?}",
        device.link.view()
    );

    clock.set(day(2041));
    let expired = |state: &LinkState| matches!(reason(state), Some(DisconnectReason::CertificateExpired(_)));
    assert!(
        watch.wait(PATIENCE, |view| expired(&view.state)).is_ok(),
        "{:?}",
        device.link.view()
    );

    clock.set(day(2030));
    let connected = watch.wait(PATIENCE, |view| view.state.is_connected()).unwrap();
    let LinkState::Connected { since, .. } = connected.state else {
        unreachable!()
    };
    assert!(since.elapsed() < PATIENCE, "durations do not follow the clock");
}

#[test]
fn attempts_are_paced_when_nobody_listens() {
    let mut options = options("d", 1);
    options.backoff.base = Duration::from_millis(100);
    options.backoff.cap = Duration::from_millis(100);
    let environment = Environment {
        random: Box::new(|| 1.0),
        ..Environment::default()
    };
    let start = Instant::now();
    let device = Device::start_in(options, environment);
    let view = device
        .link
        .watch()
        .wait(PATIENCE, |view| view.counters.failures >= 5)
        .unwrap();
    assert!(
        start.elapsed() >= Duration::from_millis(400),
        "five attempts have four waits between them"
    );
    assert_eq!(view.counters.connects, 0);
    let LinkState::Disconnected {
        reason: DisconnectReason::Unreachable(_),
        since,
        ..
    } = view.state
    else {
        panic!("{view:?}")
    };
    assert!(
        since <= start + Duration::from_millis(200),
        "offline since the start, not since the last attempt"
    );
}

#[test]
fn two_hundred_devices_come_back_spread_over_the_window() {
    const DEVICES: usize = 200;
    const WINDOW: Duration = Duration::from_millis(1500);
    let broker = ScriptedBroker::start();
    let devices: Vec<Device> = (0..DEVICES)
        .map(|number| {
            let mut options = options(&format!("d{number}"), broker.port());
            options.backoff.base = WINDOW;
            options.backoff.cap = WINDOW;
            Device::start(options)
        })
        .collect();
    let mut peers: Vec<_> = (0..DEVICES).map(|_| broker.accept_session(false)).collect();
    for device in &devices {
        assert!(
            device
                .link
                .watch()
                .wait(PATIENCE, |view| view.state.is_connected())
                .is_ok()
        );
    }
    // The broker restarts: all connections end at one moment.
    let cut = Instant::now();
    peers.clear();
    let mut quarters = [0usize; 4];
    let mut returned = Vec::new();
    while returned.len() < DEVICES {
        let mut peer = broker.accept();
        let quarter = cut.elapsed().as_millis() * 4 / WINDOW.as_millis();
        quarters[usize::try_from(quarter).unwrap().min(3)] += 1;
        peer.send(&packet::connack(true, 0));
        returned.push(peer);
    }
    // Evenly would be 50 each. What a loaded machine delays moves to the right, so the first quarter proves that they
    // are not all there at once, and the others that they do come.
    assert!(quarters[0] < DEVICES / 2, "{quarters:?}");
    assert!(
        quarters.iter().filter(|count| **count >= 10).count() >= 3,
        "{quarters:?}"
    );
}
