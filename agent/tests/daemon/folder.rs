//! Watched folders: whole files are taken, half ones are not, none is lost.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::time::Duration;

use edgeopt_agent::protocol::ResultMessage;

use crate::bundles::{Computes, input, make};
use crate::device::{Device, Settings, deployed, from_file, operator};
use crate::http::first;
use crate::observer::Observer;
use crate::support::eventually;
use crate::support::mosquitto::Mosquitto;

struct Place {
    _folder: tempfile::TempDir,
    broker: Mosquitto,
    observer: Observer,
    unit: Device,
}

fn place(keep: bool) -> Place {
    let folder = tempfile::tempdir().unwrap();
    let broker = Mosquitto::start(folder.path(), "allow_anonymous true");
    let unit_settings = Settings {
        slots: format!(
            "[slots.main]\nthreads = 1\ninputs = [{{ kind = \"folder\", path = \"FOLDER/in\", keep = {keep} }}]\n"
        ),
        ..Settings::new(broker.port)
    };
    let mut unit = Device::new(&unit_settings);
    fs::create_dir(unit.folder().join("in")).unwrap();
    let observer = Observer::start(broker.port);
    unit.run();
    let one = make(folder.path(), "1", Computes::Times(2.0), Some(2.0));
    deployed(&mut operator(broker.port), from_file(&one));
    unit.until_active("1");
    Place {
        _folder: folder,
        broker,
        observer,
        unit,
    }
}

impl Place {
    fn inside(&self) -> std::path::PathBuf {
        self.unit.folder().join("in")
    }

    fn result_of(&self, name: &str) -> ResultMessage {
        let stream = format!("in/{name}");
        let mut found = None;
        eventually(&format!("the result of {name}"), || {
            let all = self.observer.results("main");
            found = all.into_iter().find(|result| result.stream == stream);
            found.is_some()
        });
        found.unwrap()
    }

    fn count_of(&self, name: &str) -> usize {
        let stream = format!("in/{name}");
        let all = self.observer.results("main");
        all.iter().filter(|result| result.stream == stream).count()
    }
}

fn files(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(folder)
        .map(|entries| {
            entries
                .map(|entry| entry.unwrap())
                .filter(|entry| entry.file_type().unwrap().is_file())
                .map(|entry| entry.file_name().into_string().unwrap())
                .collect()
        })
        .unwrap_or_default();
    names.sort();
    names
}

#[test]
fn complete_files_are_answered_and_removed_and_half_ones_wait() {
    let place = place(false);
    let inside = place.inside();
    // Renamed into place, as a careful producer does: from a hidden name, and from elsewhere.
    fs::write(inside.join(".hidden"), input([1.0; 4])).unwrap();
    fs::rename(inside.join(".hidden"), inside.join("renamed.npy")).unwrap();
    let beside = place.unit.folder().join("beside");
    fs::write(&beside, input([2.0; 4])).unwrap();
    fs::rename(&beside, inside.join("moved.npy")).unwrap();
    // Written in place: complete when it is closed.
    fs::write(inside.join("written.npy"), input([3.0; 4])).unwrap();
    for (name, value) in [("renamed.npy", 2.0), ("moved.npy", 4.0), ("written.npy", 6.0)] {
        assert_eq!(first(&place.result_of(name)), value);
    }

    // Half written, with pauses, and still open: not touched.
    let bytes = input([4.0; 4]);
    let mut open = File::create(inside.join("slow.npy")).unwrap();
    for piece in bytes.chunks(bytes.len() / 5) {
        open.write_all(piece).unwrap();
        std::thread::sleep(Duration::from_millis(700));
        assert_eq!(place.count_of("slow.npy"), 0);
        assert!(!inside.join("failed").exists(), "half a file was taken");
    }
    drop(open);
    assert_eq!(first(&place.result_of("slow.npy")), 8.0);

    // What is no input goes aside, with the reason in the log; folders and hidden files stay.
    fs::write(inside.join("bad.npy"), b"no array").unwrap();
    fs::create_dir(inside.join("folder")).unwrap();
    fs::write(inside.join(".secret"), input([5.0; 4])).unwrap();
    eventually("it is put aside", || files(&inside.join("failed")) == ["bad.npy"]);
    assert!(place.unit.logged("bad.npy") > 0, "{}", place.unit.log());
    eventually("the others are gone", || files(&inside) == [".secret"]);
    std::thread::sleep(Duration::from_millis(2500));
    assert_eq!(files(&inside), [".secret"]);
    assert!(!inside.join("done").exists());

    // The same name again is another input.
    fs::write(inside.join("written.npy"), input([7.0; 4])).unwrap();
    eventually("the second one is answered", || {
        place.count_of("written.npy") == 2
    });
}

#[test]
fn kept_files_go_to_done_and_those_that_came_before_the_start_are_found() {
    let mut place = place(true);
    let inside = place.inside();
    for index in 0..40 {
        fs::write(inside.join(format!("{index}.npy")), input([index as f32; 4])).unwrap();
    }
    eventually("all are done", || files(&inside.join("done")).len() == 40);
    for index in 0..40 {
        let name = format!("{index}.npy");
        assert_eq!(first(&place.result_of(&name)), f64::from(index) * 2.0);
        assert_eq!(place.count_of(&name), 1);
    }
    place.unit.stop();
    for index in 40..60 {
        fs::write(inside.join(format!("{index}.npy")), input([index as f32; 4])).unwrap();
    }
    place.unit.run();
    eventually("those that waited are done", || {
        files(&inside.join("done")).len() == 60
    });
    for index in 40..60 {
        let result = place.result_of(&format!("{index}.npy"));
        assert_eq!(first(&result), f64::from(index) * 2.0);
    }
    // A name that a kept file has is no reason to lose either.
    fs::write(inside.join("0.npy"), input([50.0; 4])).unwrap();
    eventually("it is kept beside the first", || {
        inside.join("done/0.npy.1").exists()
    });
    assert_ne!(
        fs::read(inside.join("done/0.npy")).unwrap(),
        fs::read(inside.join("done/0.npy.1")).unwrap()
    );
    assert_eq!(files(&inside), [""; 0]);
}

#[test]
fn without_a_model_and_while_paused_files_wait() {
    let place = place(false);
    let inside = place.inside();
    let mut desk = operator(place.broker.port);
    crate::commands::ask(
        &mut desk,
        "p1",
        r#"{"action": {"kind": "pause", "slot": "main"}}"#,
    );
    eventually("paused", || place.observer.on("/command/p1/reply").len() >= 2);
    fs::write(inside.join("a.npy"), input([1.0; 4])).unwrap();
    std::thread::sleep(Duration::from_millis(2500));
    assert_eq!(
        (place.count_of("a.npy"), files(&inside)),
        (0, vec!["a.npy".to_owned()])
    );
    crate::commands::ask(
        &mut desk,
        "p2",
        r#"{"action": {"kind": "resume", "slot": "main"}}"#,
    );
    assert_eq!(first(&place.result_of("a.npy")), 2.0);

    crate::device::desire(&mut desk, 9, None);
    place.unit.until("the slot is empty", |overview| {
        overview.slots[&crate::device::main_slot()].model.is_none()
    });
    fs::write(inside.join("b.npy"), input([2.0; 4])).unwrap();
    std::thread::sleep(Duration::from_millis(2500));
    assert_eq!(
        (place.count_of("b.npy"), files(&inside)),
        (0, vec!["b.npy".to_owned()])
    );
    let two = make(place.unit.folder(), "2", Computes::Times(3.0), Some(3.0));
    crate::device::desire(&mut desk, 10, Some(two.spec));
    assert_eq!(first(&place.result_of("b.npy")), 6.0);
    eventually("it is gone", || files(&inside).is_empty());
}
