//! SIGHUP: the configuration is read again; what is wrong in it changes nothing.

use std::fs;
use std::process::Command;

use crate::bundles::{Computes, input, make};
use crate::device::{Device, Settings, deployed, from_file, operator};
use crate::observer::Observer;
use crate::support::eventually;
use crate::support::mosquitto::Mosquitto;

#[test]
fn a_changed_configuration_is_taken_and_a_broken_one_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let mut broker = Mosquitto::start(folder.path(), "allow_anonymous true");
    let observer = Observer::start(broker.port);
    let mut unit = Device::start(&Settings::new(broker.port));
    let one = make(folder.path(), "1", Computes::Times(2.0), Some(2.0));
    deployed(&mut operator(broker.port), from_file(&one));
    let hang_up = || {
        let id = unit.pid().to_string();
        let sent = Command::new("kill").args(["-HUP", &id]).status().unwrap();
        assert!(sent.success());
    };
    let path = unit.folder().join("agent.toml");
    let good = fs::read_to_string(&path).unwrap();

    hang_up();
    eventually("nothing has changed", || {
        unit.logged("the configuration is the same") == 1
    });
    fs::write(&path, good.replace("queue = 256", "queue = -1")).unwrap();
    hang_up();
    eventually("it is refused", || unit.logged("stays as it was") == 1);
    assert_eq!(unit.http().predict(21.0).unwrap().number(), 42.0);

    // It can be read, but a daemon does not start with it: back to the one before, with all that waits.
    broker.stop();
    unit.until("it notices", |overview| !overview.link.connected);
    for number in 0..20 {
        unit.http().predict(number as f32).unwrap();
    }
    let elsewhere = good.replace("http.sock", "none/http.sock");
    fs::write(&path, &elsewhere).unwrap();
    hang_up();
    eventually("it goes back", || {
        unit.logged("going back to the configuration before") == 1
    });
    unit.until_active("1");
    assert_eq!(unit.http().predict(21.0).unwrap().number(), 42.0);

    let added = format!("{good}[slots.second]\nthreads = 1\ninputs = [{{ kind = \"http\" }}]\n");
    fs::write(&path, &added).unwrap();
    hang_up();
    eventually("the new slot is there", || {
        let reply = unit.http().predict_in("second", &input([1.0; 4]));
        reply.is_ok_and(|reply| reply.status == 503 && reply.error().contains("no model"))
    });
    unit.until_active("1");
    assert_eq!(unit.http().predict(21.0).unwrap().number(), 42.0);
    broker.start_again();
    // 1 + 20 + 1 + 1 answers, each once.
    eventually("all results arrive", || observer.distinct("main").len() == 23);
    unit.stop();
}
