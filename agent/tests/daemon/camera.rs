//! A camera that is not there, or is none. What a real one does is tested in the virtual machine (`tests/vm`).

use std::process::Command;
use std::time::{Duration, Instant};

use edgeopt_agent::protocol::{CameraState, Sample};

use crate::bundles::{Computes, make};
use crate::device::{Device, Settings, deployed, from_file, main_slot, operator};
use crate::observer::Observer;
use crate::support::eventually;
use crate::support::mosquitto::Mosquitto;

const ABSENT: &str = "/dev/edgeopt-no-camera";

#[test]
fn without_its_camera_the_daemon_says_so_once_and_does_the_rest() {
    let folder = tempfile::tempdir().unwrap();
    let broker = Mosquitto::start(folder.path(), "allow_anonymous true");
    let observer = Observer::start(broker.port);
    let mut unit = Device::start(&Settings {
        slots: format!(
            "[slots.main]\nthreads = 1\ninputs = [{{ kind = \"http\" }}]\n[slots.main.camera]\ndevice = \"{ABSENT}\"\n\
             [slots.other.camera]\ndevice = \"/dev/null\"\n"
        ),
        ..Settings::new(broker.port)
    });
    let one = make(folder.path(), "1", Computes::Times(2.0), Some(2.0));
    deployed(&mut operator(broker.port), from_file(&one));
    unit.until_active("1");
    assert_eq!(unit.http().predict(4.0).unwrap().number(), 8.0);

    let overview = unit.until("both have failed", |overview| {
        let cameras = overview.slots.values().filter_map(|slot| slot.camera.as_ref());
        let failed = cameras.filter(|view| view.camera.state == CameraState::Failed);
        failed.count() == 2
    });
    assert!(overview.ready && overview.hanging.is_empty(), "{overview:?}");
    let view = overview.slots[&main_slot()].camera.clone().unwrap();
    assert_eq!(
        (view.device.as_str(), view.format, view.age_ms),
        (ABSENT, None, None)
    );
    let problem = view.camera.problem.unwrap();
    assert!(problem.starts_with("it is not there"), "{problem}");
    let other = overview
        .slots
        .iter()
        .find(|(slot, _)| slot.as_str() == "other")
        .unwrap()
        .1;
    let problem = other.camera.clone().unwrap().camera.problem.unwrap();
    assert_eq!(problem, "it is no camera: it is no V4L2 device");

    // For people, for metrics, for the operator.
    let status = Command::new(env!("CARGO_BIN_EXE_edgeopt-agent"))
        .arg("--config")
        .arg(unit.folder().join("agent.toml"))
        .arg("status")
        .output()
        .unwrap();
    let page = String::from_utf8(status.stdout).unwrap();
    let line =
        format!("  camera {ABSENT}  failed, 0.0 frames/s: 0 taken, 0 skipped, 0 bad, 0 lost, no frame yet\n");
    assert!(
        page.contains(&line) && page.contains("  ! it is not there"),
        "{page}"
    );
    let metrics = unit.http().get("/metrics").unwrap().body;
    for line in [
        "edgeopt_camera_streaming{slot=\"main\"} 0",
        "edgeopt_camera_taken_total{slot=\"other\"} 0",
        "edgeopt_camera_frame_rate{slot=\"main\"} 0",
    ] {
        assert!(
            metrics.lines().any(|found| found.starts_with(line)),
            "{line}:\n{metrics}"
        );
    }
    assert!(
        !metrics.contains("camera_frame_age_seconds{"),
        "there was no frame:\n{metrics}"
    );
    eventually("telemetry tells of both", || {
        observer
            .telemetry("camera")
            .iter()
            .any(|telemetry| matches!(&telemetry.sample, Sample::Camera(cameras) if cameras.len() == 2))
    });

    // Tried again and again, and told of once.
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(unit.logged("(tried again until it works)"), 2, "{}", unit.log());
    assert!(unit.log().contains(&format!(
        "camera {ABSENT}: it is not there: is the camera plugged in"
    )));
    let begun = Instant::now();
    unit.stop();
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
}
