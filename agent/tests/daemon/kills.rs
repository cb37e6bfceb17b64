//! SIGKILL at random instants, while models are replaced, files come in and the broker comes and goes.
//!
//! A watched folder is the source that loses nothing: what was renamed into it is answered at least once, and its result
//! arrives. (An input over MQTT is the daemon's from its acknowledgement on; killed before it answers, it is gone.)

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use edgeopt_agent::deploy::SlotRecord;
use edgeopt_agent::protocol::{Phase, ReportedSlot, ResultMessage};

use crate::OnDrop;
use crate::bundles::{Computes, Made, input, make_with};
use crate::device::{Device, Settings, desire, from_url, operator};
use crate::http::first;
use crate::observer::Observer;
use crate::range_server::RangeServer;
use crate::support::eventually;
use crate::support::mosquitto::Mosquitto;

/// How many kills; 200 unless given.
const KILLS: &str = "EDGEOPT_TEST_KILLS";
/// Between two new generations.
const KILLS_PER_GENERATION: u32 = 4;

/// Numbers that look random, the same in each run.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.0 >> 33) % bound
    }
}

/// A generation of which the model is wrong on purpose.
fn is_bad(generation: u64) -> bool {
    generation % 3 == 2
}

/// Killed too often while its model was watched: what looks like a model that brings the daemon down.
fn given_up(reason: &Option<String>) -> bool {
    reason
        .as_deref()
        .is_some_and(|why| why.contains("daemon started"))
}

/// What every state on disk has to keep to, given those before.
#[derive(Default)]
struct History {
    terminal: BTreeMap<u64, (Phase, Option<String>)>,
    had_model: bool,
}

impl History {
    fn take(&mut self, record: &SlotRecord) {
        let generation = record.generation.0;
        assert!(
            record.active.is_some() || !self.had_model,
            "the slot lost its model: {record:?}"
        );
        self.had_model |= record.active.is_some();
        if let Some(active) = &record.active {
            assert!(!is_bad(active.version.parse().unwrap()), "{record:?}");
        }
        match (self.terminal.get(&generation), record.phase) {
            (Some((Phase::Active, _)), Phase::Active) => {}
            // Killed too often while it was watched: the one way back, and for good.
            (Some((Phase::Active, _)), Phase::Failed) => assert!(given_up(&record.reason), "{record:?}"),
            (Some(before), phase) => {
                assert_eq!((&before.0, &before.1), (&phase, &record.reason), "{record:?}")
            }
            (None, _) => {}
        }
        if matches!(record.phase, Phase::Active | Phase::Failed) {
            assert_eq!(
                record.phase == Phase::Failed,
                is_bad(generation) || given_up(&record.reason),
                "{record:?}"
            );
            self.terminal
                .insert(generation, (record.phase, record.reason.clone()));
        }
    }
}

fn right(message: &ResultMessage, number: f64) -> bool {
    first(message) == number * message.version.parse::<f64>().unwrap()
}

#[test]
fn killed_at_any_instant_it_loses_no_file_and_always_has_a_model() {
    let kills: u32 = std::env::var(KILLS).map_or(200, |text| text.parse().unwrap());
    let folder = tempfile::tempdir().unwrap();
    let mut broker = Mosquitto::start(folder.path(), "allow_anonymous true");
    let server = RangeServer::start(folder.path());
    server.pause(2);
    let observer = Observer::start(broker.port);
    let mut unit = Device::new(&Settings {
        slots: "[slots.main]\nqueue = 64\nthreads = 1\n\
                inputs = [{ kind = \"folder\", path = \"FOLDER/in\" }, { kind = \"http\" }]\n"
            .into(),
        watch: "answers = 1\nlongest_s = 1\nslowdown = 10000.0".into(),
        ..Settings::new(broker.port)
    });
    let inside = unit.folder().join("in");
    let beside = unit.folder().join("beside");
    fs::create_dir(&inside).unwrap();
    // The version is the generation and the factor; a wrong one says that it computes something else.
    let made = |generation: u64| -> Made {
        let factor = generation as f32;
        let golden = if is_bad(generation) { factor + 1.0 } else { factor };
        make_with(
            folder.path(),
            &generation.to_string(),
            Computes::Times(factor),
            Some(golden),
            300_000,
            None,
        )
    };
    let wanted = |generation: u64| {
        let made = made(generation);
        let url = server.url(&made.path);
        from_url(&made, url)
    };
    let mut generation = 1;
    let mut desk = Some(operator(broker.port));
    desire(desk.as_mut().unwrap(), generation, Some(wanted(generation)));
    unit.run();
    unit.until_active("1");

    let (written, over) = (AtomicU32::new(0), AtomicBool::new(false));
    let mut history = History::default();
    let (mut dice, mut answered) = (Dice(20_260_101), 0);
    let begun = Instant::now();
    std::thread::scope(|scope| {
        let ends = OnDrop(&over);
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                let number = written.load(Ordering::Relaxed) + 1;
                fs::write(&beside, input([number as f32; 4])).unwrap();
                fs::rename(&beside, inside.join(format!("{number}.npy"))).unwrap();
                written.store(number, Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(15));
            }
        });
        for kill in 1..=kills {
            // For a tenth of the time, twice, the broker is away.
            let phase = kill * 20 / kills.max(1);
            match (phase, desk.is_some()) {
                (6 | 7 | 14 | 15, true) => {
                    desk = None;
                    broker.stop();
                }
                (0..=5 | 8..=13 | 16.., false) => {
                    broker.start_again();
                    desk = Some(operator(broker.port));
                }
                _ => {}
            }
            if let (Some(desk), true) = (&mut desk, kill % KILLS_PER_GENERATION == 0) {
                generation += 1;
                desire(desk, generation, Some(wanted(generation)));
            }
            let longest = if kill % 2 == 0 { 120 } else { 400 };
            std::thread::sleep(Duration::from_micros(dice.below(longest * 1000)));
            if kill % 10 == 0 {
                eventually("it answers again", || {
                    unit.http().get("/healthz").is_ok_and(|reply| reply.status == 200)
                });
            }
            if unit.http().get("/healthz").is_ok_and(|reply| reply.status == 200) {
                let reply = unit.http().predict(3.0).unwrap();
                assert_eq!(reply.status, 200, "{}", reply.body);
                assert!(
                    right(&serde_json::from_str(&reply.body).unwrap(), 3.0),
                    "{}",
                    reply.body
                );
                answered += 1;
            }
            unit.kill();
            history.take(&unit.record().unwrap());
            unit.run();
        }
        drop(ends);
    });
    let took = begun.elapsed();
    if desk.is_none() {
        broker.start_again();
    }

    // Left alone, it ends what was begun.
    let written = written.into_inner();
    eventually("all files are taken", || {
        fs::read_dir(&inside).unwrap().count() == 0
    });
    eventually("the last generation has ended", || {
        let record = unit.record().unwrap();
        record.generation.0 == generation && matches!(record.phase, Phase::Active | Phase::Failed)
    });
    let all: BTreeSet<String> = (1..=written).map(|number| format!("in/{number}.npy")).collect();
    let arrived = || -> BTreeSet<String> {
        let results = observer.distinct("main").into_values();
        results
            .map(|result| result.stream)
            .filter(|stream| stream != "http")
            .collect()
    };
    eventually("the result of every file has arrived", || arrived() == all);
    history.take(&unit.record().unwrap());
    let (mut twice, mut seen) = (0, BTreeSet::new());
    for result in observer
        .distinct("main")
        .values()
        .filter(|result| result.stream != "http")
    {
        let number = result.stream.trim_start_matches("in/").trim_end_matches(".npy");
        assert!(right(result, number.parse().unwrap()), "{result:?}");
        twice += u32::from(!seen.insert(&result.stream));
    }
    told_as_they_were(&observer, &history);
    let resumed = server.asked().iter().filter(|asked| asked.from.is_some()).count();
    println!(
        "{kills} kills in {:.1} s: {generation} generations, {} ended; {written} files, {twice} answered again; \
         {answered} requests answered; {resumed} downloads resumed",
        took.as_secs_f64(),
        history.terminal.len()
    );
    assert!(kills < 50 || (resumed > 0 && history.terminal.len() > 4));
}

/// A generation was reported to have failed for one reason, for good, and for that which is on disk.
fn told_as_they_were(observer: &Observer, history: &History) {
    let mut failures: BTreeMap<u64, Option<String>> = BTreeMap::new();
    for report in observer.reports() {
        let slot: &ReportedSlot = report.slots.values().next().unwrap();
        let generation = report.generation.0;
        match slot.phase {
            Phase::Failed => {
                let first = failures.entry(generation).or_insert_with(|| slot.reason.clone());
                assert_eq!(*first, slot.reason, "generation {generation}");
            }
            Phase::Active => {
                assert!(!is_bad(generation), "{report:?}");
                assert!(!failures.contains_key(&generation), "{report:?}");
            }
            _ => {}
        }
    }
    for (generation, reason) in failures {
        match history.terminal.get(&generation) {
            Some((Phase::Failed, on_disk)) => assert_eq!(*on_disk, reason, "generation {generation}"),
            // Given up after the last look at it.
            Some(_) => assert!(given_up(&reason), "generation {generation}: {reason:?}"),
            None => assert!(given_up(&reason) || is_bad(generation)),
        }
    }
}
