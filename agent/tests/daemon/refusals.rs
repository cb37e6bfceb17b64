//! What a device does not run, and what it says about it.

use std::time::Duration;

use edgeopt_agent::protocol::{DesiredState, Generation, Phase, Topic};
use edgeopt_models::bundle::{self, generate_keys};

use crate::bundles::{Computes, Made, input, make_with};
use crate::device::{
    Device, Settings, deployed, desire, device, from_file, from_url, main_slot, operator, refused,
};
use crate::observer::Observer;
use crate::range_server::RangeServer;
use crate::support::eventually;
use crate::support::mosquitto::Mosquitto;

/// What is announced after somebody changed the file.
fn announced_anew(made: &mut Made) {
    let (sha256, size) = bundle::digest_of(std::fs::File::open(&made.path).unwrap()).unwrap();
    (made.spec.sha256, made.spec.size) = (sha256, size.0);
}

#[test]
fn bundles_that_nobody_trusted_signed_or_that_are_damaged_never_answer() {
    let folder = tempfile::tempdir().unwrap();
    let broker = Mosquitto::start(folder.path(), "allow_anonymous true");
    let server = RangeServer::start(folder.path());
    let (public, secret) = generate_keys(None).unwrap();
    let (_, foreign) = generate_keys(None).unwrap();
    let key_file = folder.path().join("trusted.pub");
    std::fs::write(&key_file, public.to_file().unwrap()).unwrap();
    let unit = Device::start(&Settings {
        trust: format!("key_files = [\"{}\"]", key_file.display()),
        ..Settings::new(broker.port)
    });
    let mut desk = operator(broker.port);
    let made = |version: &str, key| {
        make_with(
            folder.path(),
            version,
            Computes::Times(2.0),
            Some(2.0),
            200_000,
            key,
        )
    };
    let good = made("1", Some(&secret));
    deployed(&mut desk, from_file(&good));
    let still_right = |what: &str| {
        assert_eq!(unit.http().predict(21.0).unwrap().number(), 42.0, "{what}");
        assert_eq!(unit.record().unwrap().active.unwrap().version, "1", "{what}");
    };

    let reason = refused(&mut desk, "main", from_file(&made("unsigned", None)));
    assert!(
        reason.contains("signature") || reason.contains("signed"),
        "{reason}"
    );
    still_right("unsigned");
    let reason = refused(&mut desk, "main", from_file(&made("foreign", Some(&foreign))));
    assert!(reason.contains("sign"), "{reason}");
    still_right("signed by somebody else");

    // Changed after it was signed, and announced as it is now.
    let mut changed = made("changed", Some(&secret));
    let mut bytes = std::fs::read(&changed.path).unwrap();
    let at = bytes.len() - 150_000;
    bytes[at] ^= 1;
    std::fs::write(&changed.path, &bytes).unwrap();
    announced_anew(&mut changed);
    let reason = refused(&mut desk, "main", from_file(&changed));
    assert!(reason.contains("ballast.bin"), "it names the member: {reason}");
    still_right("changed");

    // The server's file is not what was announced: shorter, longer, other bytes of the same length.
    let whole = made("cut", Some(&secret));
    let bytes = std::fs::read(&whole.path).unwrap();
    std::fs::write(&whole.path, &bytes[..bytes.len() / 2]).unwrap();
    let url = server.url(&whole.path);
    let reason = refused(&mut desk, "main", from_url(&whole, url.clone()));
    assert!(reason.contains("announced"), "{reason}");
    let reason = refused(&mut desk, "main", from_file(&whole));
    assert!(reason.contains(&whole.path.display().to_string()), "{reason}");
    let mut other = bytes.clone();
    other[70_000] ^= 1;
    std::fs::write(&whole.path, &other).unwrap();
    let reason = refused(&mut desk, "main", from_url(&whole, url));
    assert!(reason.contains("SHA-256"), "{reason}");
    still_right("not what was announced");

    // Cut, with a header that is right, and announced as it is: the digest is right, the content is not.
    let mut cut = made("truncated", Some(&secret));
    let bytes = std::fs::read(&cut.path).unwrap();
    std::fs::write(&cut.path, &bytes[..bytes.len() - 100_000]).unwrap();
    announced_anew(&mut cut);
    let reason = refused(&mut desk, "main", from_file(&cut));
    assert!(!reason.is_empty());
    still_right("truncated");

    // It calls itself something else; and a file that is not there.
    let mut named = made("named", Some(&secret));
    named.spec.version = "9".into();
    let reason = refused(&mut desk, "main", from_file(&named));
    assert!(reason.contains("announced was small 9"), "{reason}");
    let mut gone = made("gone", Some(&secret));
    std::fs::remove_file(&gone.path).unwrap();
    gone.spec.sha256 = "ab".repeat(32);
    let url = server.url(&gone.path);
    let reason = refused(&mut desk, "main", from_url(&gone, url));
    assert!(reason.contains("404"), "{reason}");
    still_right("gone");

    // Nothing of all that is kept, but for what the last one may be resumed from.
    let kept = std::fs::read_dir(unit.folder().join("store/bundles"))
        .unwrap()
        .count();
    let parts = std::fs::read_dir(unit.folder().join("store/partial"))
        .unwrap()
        .count();
    assert!(kept <= 2 && parts <= 1, "{kept} bundles, {parts} parts");
}

#[test]
fn models_that_compute_something_else_are_refused_and_those_that_turn_bad_are_rolled_back() {
    let folder = tempfile::tempdir().unwrap();
    let broker = Mosquitto::start(folder.path(), "allow_anonymous true");
    let observer = Observer::start(broker.port);
    let mut desk = operator(broker.port);
    let mut unit = Device::start(&Settings {
        watch: "answers = 20\nlongest_s = 60".into(),
        ..Settings::new(broker.port)
    });
    let made = |version: &str, computes, golden| make_with(folder.path(), version, computes, golden, 0, None);
    deployed(&mut desk, from_file(&made("1", Computes::Times(2.0), Some(2.0))));
    for _ in 0..20 {
        unit.http().predict(1.0).unwrap();
    }
    eventually("it is trusted", || !unit.record().unwrap().watching);

    let reason = refused(
        &mut desk,
        "main",
        from_file(&made("2", Computes::Times(3.0), Some(2.0))),
    );
    assert!(reason.contains("output \"y\" reaches"), "{reason}");
    assert_eq!(unit.http().predict(21.0).unwrap().number(), 42.0);

    // Its golden outputs are right; on real inputs it gives NaN.
    deployed(&mut desk, from_file(&made("3", Computes::Root, None)));
    assert_eq!(unit.http().predict(9.0).unwrap().number(), 3.0);
    assert!(unit.http().predict(-1.0).unwrap().number().is_nan());
    let back = observer.report(|generation, slot| generation == 3 && slot.phase == Phase::Failed);
    assert_eq!(back.active_version.as_deref(), Some("1"));
    assert!(back.reason.unwrap().contains("NaN"));
    assert_eq!(unit.http().predict(21.0).unwrap().number(), 42.0);

    // A restart does not try it again, nor forget why.
    unit.stop();
    unit.run();
    unit.until_active("1");
    let record = unit.record().unwrap();
    assert_eq!((record.phase, record.generation), (Phase::Failed, Generation(3)));
    assert!(record.reason.unwrap().contains("NaN"));
    assert_eq!(unit.logged("phase=Downloading"), 3, "{}", unit.log());
}

#[test]
fn an_infinity_that_a_golden_output_holds_is_no_fault_and_nan_beside_it_is_one() {
    let folder = tempfile::tempdir().unwrap();
    let broker = Mosquitto::start(folder.path(), "allow_anonymous true");
    let observer = Observer::start(broker.port);
    let mut desk = operator(broker.port);
    let mut unit = Device::start(&Settings {
        watch: "answers = 20\nlongest_s = 60".into(),
        ..Settings::new(broker.port)
    });
    let made = |version: &str, computes, golden| make_with(folder.path(), version, computes, golden, 0, None);
    let ask = |unit: &Device, value: f32, times: usize| {
        for _ in 0..times {
            unit.http().predict(value).unwrap();
        }
    };
    deployed(&mut desk, from_file(&made("1", Computes::Times(2.0), Some(2.0))));
    ask(&unit, 1.0, 20);
    eventually("it is trusted", || !unit.record().unwrap().watching);
    // Also after a restart in the middle of the watch, when no self-test has been run.
    deployed(&mut desk, from_file(&made("2", Computes::LogAboveOne, None)));
    ask(&unit, 1.0, 10);
    unit.stop();
    unit.run();
    unit.until_active("2");
    // The watch may begin after the first answers.
    eventually("it is trusted", || {
        ask(&unit, 1.0, 1);
        !unit.record().unwrap().watching
    });
    let metrics = unit.http().get("/metrics").unwrap().body;
    let counted = "edgeopt_slot_non_finite_total{slot=\"main\"} 0";
    assert!(metrics.lines().any(|line| line == counted), "{metrics}");

    unit.http().predict(0.0).unwrap();
    let metrics = unit.http().get("/metrics").unwrap().body;
    let counted = "edgeopt_slot_non_finite_total{slot=\"main\"} 1";
    assert!(metrics.lines().any(|line| line == counted), "{metrics}");
    let again = make_with(folder.path(), "3", Computes::LogAboveOne, None, 1, None);
    deployed(&mut desk, from_file(&again));
    unit.http().predict(0.0).unwrap();
    let back = observer.report(|generation, slot| generation == 3 && slot.phase == Phase::Failed);
    assert_eq!(back.active_version.as_deref(), Some("2"));
    let reason = back.reason.unwrap();
    assert!(reason.contains("hold NaN in output \"y\""), "{reason}");
}

#[test]
fn a_watched_model_is_judged_while_the_next_one_is_on_its_way() {
    let folder = tempfile::tempdir().unwrap();
    let broker = Mosquitto::start(folder.path(), "allow_anonymous true");
    let server = RangeServer::start(folder.path());
    let mut desk = operator(broker.port);
    let unit = Device::start(&Settings {
        watch: "answers = 20\nlongest_s = 60".into(),
        ..Settings::new(broker.port)
    });
    let made =
        |version: &str, computes, golden| make_with(folder.path(), version, computes, golden, 200_000, None);
    deployed(&mut desk, from_file(&made("1", Computes::Times(2.0), Some(2.0))));
    for _ in 0..20 {
        unit.http().predict(1.0).unwrap();
    }
    eventually("it is trusted", || !unit.record().unwrap().watching);
    deployed(&mut desk, from_file(&made("2", Computes::Root, None)));
    let three = made("3", Computes::Times(3.0), Some(3.0));
    server.pause(500);
    desire(&mut desk, 3, Some(from_url(&three, server.url(&three.path))));
    eventually("the next one is being fetched", || {
        !server.asked().is_empty() && unit.record().unwrap().phase == Phase::Downloading
    });
    assert!(unit.http().predict(-1.0).unwrap().number().is_nan());
    unit.until_active("1");
    assert_eq!(unit.http().predict(21.0).unwrap().number(), 42.0);
    let record = unit.record().unwrap();
    assert_eq!((record.phase, record.reason), (Phase::Downloading, None));
    server.pause(0);
    unit.until_active("3");
    assert_eq!(unit.http().predict(14.0).unwrap().number(), 42.0);
}

#[test]
fn slots_the_device_lacks_are_reported_and_old_or_repeated_generations_change_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let broker = Mosquitto::start(folder.path(), "allow_anonymous true");
    let observer = Observer::start(broker.port);
    let mut desk = operator(broker.port);
    let mut unit = Device::start(&Settings::new(broker.port));
    let made = |version: &str, factor: f32| {
        make_with(
            folder.path(),
            version,
            Computes::Times(factor),
            Some(factor),
            0,
            None,
        )
    };
    let (one, two, three) = (made("1", 2.0), made("2", 3.0), made("3", 4.0));
    deployed(&mut desk, from_file(&one));
    let reason = refused(&mut desk, "attic", from_file(&two));
    assert!(
        reason.contains("no slot attic") && reason.contains("[slots.attic]"),
        "{reason}"
    );
    assert_eq!(
        unit.http().predict(21.0).unwrap().number(),
        42.0,
        "the other slot goes on"
    );

    for _ in 0..6 {
        unit.http().predict(1.0).unwrap();
    }
    desire(&mut desk, 7, Some(two.spec.clone()));
    unit.until_active("2");
    // Let it become trusted: from then on nothing is written about it.
    for _ in 0..6 {
        unit.http().predict(1.0).unwrap();
    }
    eventually("it is trusted", || !unit.record().unwrap().watching);
    let settled = unit.record();
    observer.report(|generation, slot| {
        generation == 7 && slot.active_version.as_deref() == Some("2") && !slot.watched
    });
    let reports = observer.reports();
    for (generation, spec) in [(7, &two), (7, &three), (6, &three), (1, &one), (0, &one)] {
        desire(&mut desk, generation, Some(spec.spec.clone()));
    }
    desire(&mut desk, 3, None);
    let topic = Topic::Desired.of(&device());
    desk.publish(&topic, Vec::new(), true).unwrap();
    desk.publish(&topic, "{\"generation\": 8", true).unwrap();
    desk.settle().unwrap();
    std::thread::sleep(Duration::from_millis(400));
    assert_eq!(unit.record(), settled);
    // Said again to whoever sent an older generation, but not changed.
    let said = observer.reports().split_off(reports.len());
    assert!(
        said.iter().all(|report| Some(report) == reports.last()),
        "{said:?}"
    );
    assert_eq!(unit.http().predict(14.0).unwrap().number(), 42.0);

    // Replayed at each start, because it is retained.
    desire(&mut desk, 7, Some(two.spec.clone()));
    let downloads = unit.logged("phase=Downloading");
    unit.stop();
    unit.run();
    unit.until_connected();
    unit.until_active("2");
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(unit.record(), settled);
    assert_eq!(unit.logged("phase=Downloading"), downloads);
}

#[test]
fn a_slot_that_is_added_later_gets_what_was_desired_before() {
    let folder = tempfile::tempdir().unwrap();
    let broker = Mosquitto::start(folder.path(), "allow_anonymous true");
    let mut desk = operator(broker.port);
    let mut unit = Device::start(&Settings::new(broker.port));
    unit.until_connected();
    let made = make_with(folder.path(), "1", Computes::Times(2.0), Some(2.0), 0, None);
    let slots = ["main", "second"].map(|slot| (slot.parse().unwrap(), made.spec.clone()));
    let state = DesiredState {
        generation: Generation(4),
        slots: slots.into(),
    };
    let json = serde_json::to_vec(&state).unwrap();
    desk.publish(&Topic::Desired.of(&device()), json, true).unwrap();
    unit.until_active("1");
    unit.until("the slot is reported as unknown", |overview| {
        overview.slots.len() == 1 && overview.slots[&main_slot()].model.is_some()
    });
    unit.stop();
    let path = unit.folder().join("agent.toml");
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(
        &path,
        text + "[slots.second]\nthreads = 1\ninputs = [{ kind = \"http\" }]\n",
    )
    .unwrap();
    unit.run();
    eventually("the new slot answers", || {
        unit.http()
            .predict_in("second", &input([21.0; 4]))
            .is_ok_and(|reply| reply.status == 200 && reply.number() == 42.0)
    });
    assert_eq!(unit.http().predict(21.0).unwrap().number(), 42.0);
}
