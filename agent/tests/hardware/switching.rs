use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

use edgeopt_agent::clock::{Clock, SystemClock};
use edgeopt_agent::hardware::{Hardware, Window};
use edgeopt_agent::protocol::SlotName;
use embedded_hal_mock::eh1::MockError;
use embedded_hal_mock::eh1::digital::{State, Transaction as Level};
use serde_json::{Value, json};

use crate::config;
use crate::devices::Scripted;
use crate::tree::Tree;

const LAMP_AND_HORN: &str = "[hardware.outputs.lamp]\nkind = 'gpio'\nchip = '/dev/gpiochip0'\nline = 'PQ.05'\n\
    active_low = true\n\
    [hardware.outputs.horn]\nkind = 'pwm'\nchip = '32f0000.pwm'\nchannel = 0\nfrequency_hz = 440.0\nduty = 0.5\n\
    [[hardware.rules]]\nslot = 'detector'\nwhen = 'person > 0.8'\nframes = 3\noutput = 'lamp'\nhold_ms = 2000\n\
    [[hardware.rules]]\nslot = 'detector'\nwhen = 'fire > 0.5'\noutput = 'horn'\nhold_ms = 500\n";

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn detector() -> SlotName {
    "detector".parse().unwrap()
}

fn seen(label: &str) -> Value {
    json!({"kind": "classes", "classes": [{"index": 0, "label": label, "score": 0.9}]})
}

#[test]
fn results_switch_outputs_and_holds_end_at_their_time() {
    let mut devices = Scripted::default();
    let mut lamp = devices.pin("hardware.outputs.lamp", &[true, false, true]);
    let mut horn = devices.pwm("hardware.outputs.horn", &[0, 500, 0]);
    let mut hardware =
        Hardware::open_with(&config(LAMP_AND_HORN).unwrap(), Path::new("/"), &mut devices).unwrap();
    for (at, label) in [(0, "person"), (100, "person"), (200, "person"), (300, "fire")] {
        hardware.on_result(&detector(), &seen(label), ms(at));
    }
    assert_eq!(hardware.next_tick(ms(300)), Some(ms(800)));
    hardware.tick(ms(800));
    assert_eq!(hardware.next_tick(ms(800)), Some(ms(2200)));
    hardware.tick(ms(2199));
    hardware.tick(ms(2200));
    assert_eq!(hardware.next_tick(ms(2200)), None);
    drop(hardware);
    lamp.done();
    horn.done();
    // An output that is active when low is high from the moment it is opened.
    assert!(
        devices
            .opened
            .contains(&("hardware.outputs.lamp".into(), Some(true)))
    );
}

#[test]
fn a_fault_a_stop_and_the_end_release_outputs() {
    type Release = fn(Hardware<&mut Scripted>);
    let ways: [Release; 3] = [
        |mut hardware| {
            hardware.on_fault(&detector(), ms(10));
            assert_eq!(hardware.next_tick(ms(10)), None);
        },
        |mut hardware| {
            hardware.stop();
            hardware.on_result(&detector(), &seen("fire"), ms(20));
        },
        |hardware| drop(hardware),
    ];
    for release in ways {
        let mut devices = Scripted::default();
        let mut lamp = devices.pin("hardware.outputs.lamp", &[true]);
        let mut horn = devices.pwm("hardware.outputs.horn", &[0, 500, 0]);
        let mut hardware =
            Hardware::open_with(&config(LAMP_AND_HORN).unwrap(), Path::new("/"), &mut devices).unwrap();
        hardware.on_result(&detector(), &seen("fire"), ms(0));
        release(hardware);
        lamp.done();
        horn.done();
    }
}

#[test]
fn a_pin_that_refuses_is_tried_again() {
    let refused = Level::set(State::High).with_error(MockError::Io(std::io::ErrorKind::TimedOut));
    let mut devices = Scripted::default();
    let mut lamp = devices.pin_with(
        "hardware.outputs.lamp",
        &[
            Level::set(State::High),
            Level::set(State::Low),
            refused.clone(),
            refused,
            Level::set(State::High),
        ],
    );
    let mut horn = devices.pwm("hardware.outputs.horn", &[0]);
    let mut hardware =
        Hardware::open_with(&config(LAMP_AND_HORN).unwrap(), Path::new("/"), &mut devices).unwrap();
    for _ in 0..3 {
        hardware.on_result(&detector(), &seen("person"), ms(0));
    }
    hardware.tick(ms(2000));
    assert_eq!(hardware.next_tick(ms(2000)), Some(ms(3000)));
    hardware.tick(ms(3000));
    hardware.tick(ms(4000));
    assert_eq!(hardware.next_tick(ms(4000)), None);
    drop(hardware);
    lamp.done();
    horn.done();
}

#[test]
fn sensors_fill_windows_on_their_own_threads() {
    let mut devices = Scripted::default();
    devices.counter("hardware.sensors.thermometer");
    let config = config(
        "[hardware.sensors.thermometer]\nbus = '/dev/i2c-1'\naddress = 0x48\nslot = 'anomaly'\ninterval_us = 1000\n\
         window = 4\nchannels = [{ register = 0, format = 'u8', scale = 2.0, offset = -1.0 }]\n",
    )
    .unwrap();
    let tree = Tree::empty();
    let mut hardware = Hardware::open_with(&config, tree.root(), &mut devices).unwrap();
    let (sender, windows) = mpsc::channel();
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
    let sink: Arc<dyn Fn(Window) + Send + Sync> = Arc::new(move |window| {
        sender.send(window).ok();
    });
    hardware.start_sensors(&clock, &sink).unwrap();
    let window = windows.recv_timeout(Duration::from_secs(20)).unwrap();
    hardware.stop();
    assert_eq!(
        (window.sensor.as_str(), window.slot.as_str()),
        ("thermometer", "anomaly")
    );
    let file = npyz::NpyFile::new(window.bytes.as_slice()).unwrap();
    assert_eq!(file.shape(), [1, 4, 1]);
    let values: Vec<f32> = file.into_vec().unwrap();
    // Each sample is 2 above the one before, so none is missing and none comes twice.
    assert!(
        values.windows(2).all(|pair| pair[1] - pair[0] == 2.0),
        "{values:?}"
    );
    // The threads are gone, and with them the sink.
    while windows.try_recv().is_ok() {}
    drop(sink);
    assert_eq!(windows.try_recv(), Err(mpsc::TryRecvError::Disconnected));
}

#[test]
fn hardware_may_live_on_a_thread() {
    fn movable<T: Send>() {}
    movable::<Hardware>();
}
