use super::super::machine::{Event, next};
use super::*;
use crate::protocol::{Generation, ModelSource, SlotSpec};

fn spec(version: &str) -> SlotSpec {
    SlotSpec {
        model: "net".into(),
        version: version.into(),
        sha256: format!("{version:0>64}"),
        size: 1,
        sources: vec![ModelSource::Url("file:/x".into())],
    }
}

fn wanted(generation: u64, version: &str) -> Event {
    Event::Desired {
        generation: Generation(generation),
        spec: Some(spec(version)),
    }
}

fn lacks(version: &str, key: &str, stand_in: bool) -> Event {
    Event::EngineMissing {
        sha256: spec(version).sha256,
        missing: Missing {
            key: key.into(),
            why: "none was built".into(),
        },
        stand_in,
    }
}

fn after(record: SlotRecord, events: impl IntoIterator<Item = Event>) -> (SlotRecord, Vec<Effect>) {
    let step = |(record, _): (SlotRecord, Vec<Effect>), event| next(&record, event);
    events.into_iter().fold((record, Vec::new()), step)
}

/// Version 1 answers on a stand-in, trusted, while its engine is built.
fn on_stand_in() -> SlotRecord {
    let events = [
        wanted(1, "1"),
        Event::Fetched,
        Event::Staged,
        Event::SelfTested,
        Event::Switched,
        lacks("1", "lib 1", true),
        Event::WatchPassed,
    ];
    let (record, _) = after(SlotRecord::default(), events);
    assert_eq!(state(&record), Some(EngineState::Building));
    record
}

fn state(record: &SlotRecord) -> Option<EngineState> {
    record.engine.as_ref().map(|engine| engine.state)
}

fn installed(version: &str) -> Installed {
    Installed::of(&spec(version))
}

#[test]
fn what_was_switched_is_asked_for_its_engine() {
    let events = [
        wanted(1, "1"),
        Event::Fetched,
        Event::Staged,
        Event::SelfTested,
        Event::Switched,
    ];
    let (record, effects) = after(SlotRecord::default(), events);
    assert_eq!(effects.last(), Some(&Effect::LookForEngine));
    let (record, effects) = next(&record, lacks("1", "lib 1", true));
    assert_eq!(effects, [Effect::Report, Effect::Build(installed("1"))]);
    assert_eq!(record.reported().engine.unwrap().reason, "none was built");
}

#[test]
fn an_engine_is_tried_before_it_is_trusted() {
    let (record, effects) = next(&on_stand_in(), Event::EngineBuilt);
    assert_eq!(
        (state(&record), effects.last()),
        (Some(EngineState::Trying), Some(&Effect::Upgrade(installed("1"))))
    );
    let (record, effects) = next(&record, Event::EngineSwitched);
    assert_eq!(effects, [Effect::Report, Effect::Watch]);
    let (trusted, _) = next(&record, Event::WatchPassed);
    assert_eq!(trusted.engine, None);
    // Otherwise the stand-in comes back, with the same version.
    let (record, effects) = next(&record, Event::WatchFailed("NaN".into()));
    assert_eq!(effects, [Effect::StandIn(installed("1")), Effect::Report]);
    assert_eq!(
        (state(&record), record.active, record.phase),
        (Some(EngineState::Failed), Some(installed("1")), Phase::Active)
    );
}

#[test]
fn what_failed_is_not_built_again_for_the_same_key() {
    let (failed, effects) = next(&on_stand_in(), Event::EngineFailed("no tactic".into()));
    assert_eq!(effects, [Effect::Report]);
    let (started, _) = next(&failed, Event::Started);
    let (same, effects) = next(&started, lacks("1", "lib 1", true));
    assert_eq!(
        (state(&same), effects),
        (Some(EngineState::Failed), vec![Effect::Report])
    );
    let (other, effects) = next(&started, lacks("1", "lib 2", true));
    assert_eq!(
        (state(&other), effects.last()),
        (Some(EngineState::Building), Some(&Effect::Build(installed("1"))))
    );
    let (asked, effects) = next(&failed, Event::RebuildAsked);
    assert_eq!(
        (state(&asked), effects.last()),
        (Some(EngineState::Building), Some(&Effect::Build(installed("1"))))
    );
    // While it is built there is nothing to ask for.
    assert_eq!(next(&asked, Event::RebuildAsked), (asked, Vec::new()));
}

#[test]
fn an_engine_that_is_missing_after_it_was_built_is_given_up() {
    let (record, _) = next(&on_stand_in(), Event::EngineBuilt);
    let (record, effects) = next(&record, lacks("1", "lib 1", true));
    assert_eq!(
        (state(&record), effects),
        (Some(EngineState::Failed), vec![Effect::Report])
    );
}

#[test]
fn a_build_that_ends_the_daemon_is_given_up_and_one_that_is_cut_off_begins_again() {
    let mut record = on_stand_in();
    for _ in 0..MOST_STARTS {
        let effects;
        (record, effects) = after(record, [Event::Started, lacks("1", "lib 1", true)]);
        assert_eq!(effects.last(), Some(&Effect::Build(installed("1"))));
    }
    let (record, effects) = after(record, [Event::Started, lacks("1", "lib 1", true)]);
    assert_eq!(
        (state(&record), effects),
        (Some(EngineState::Failed), vec![Effect::Report])
    );
}

#[test]
fn a_version_that_waits_for_its_engine_is_staged_when_it_is_there_and_fails_when_it_never_comes() {
    let (waits, effects) = after(
        on_stand_in(),
        [wanted(2, "2"), Event::Fetched, lacks("2", "lib 1", false)],
    );
    assert_eq!(
        (waits.phase, effects.last()),
        (Phase::Verified, Some(&Effect::Build(installed("2"))))
    );
    let (built, effects) = next(&waits, Event::EngineBuilt);
    assert_eq!(effects, [Effect::Report, Effect::Stage(installed("2"))]);
    let (switched, _) = after(built, [Event::Staged, Event::SelfTested, Event::Switched]);
    assert_eq!(
        (switched.active.clone(), &switched.engine),
        (Some(installed("2")), &None)
    );
    let (failed, effects) = next(&waits, Event::EngineFailed("no tactic".into()));
    assert_eq!(
        (failed.phase, failed.active),
        (Phase::Failed, Some(installed("1")))
    );
    // The engine of what answers was given up for it.
    assert_eq!(effects.last(), Some(&Effect::LookForEngine));
    // A roll-back in between ends the build, which begins again after it.
    let mut with_previous = waits;
    with_previous.previous = Some(installed("0"));
    let (_, effects) = next(&with_previous, Event::RollbackAsked);
    assert_eq!(effects.last(), Some(&Effect::Build(installed("2"))));
}

#[test]
fn a_newer_wish_forgets_engines_of_what_neither_answers_nor_is_wanted() {
    let (waits, _) = after(
        on_stand_in(),
        [wanted(2, "2"), Event::Fetched, lacks("2", "lib 1", false)],
    );
    let (record, _) = next(&waits, wanted(3, "3"));
    assert_eq!(record.engine, None);
    // One of what answers is remembered, as it goes on being built.
    let (record, effects) = next(&on_stand_in(), wanted(2, "2"));
    assert_eq!(state(&record), Some(EngineState::Building));
    assert!(matches!(effects.last(), Some(Effect::Fetch(_))));
    let (record, effects) = next(&record, Event::EngineBuilt);
    assert_eq!(effects.last(), Some(&Effect::Upgrade(installed("1"))));
    let (_, effects) = next(&record, Event::EngineSwitched);
    assert_eq!(effects.last(), Some(&Effect::Fetch(spec("2"))));
    // Removed, nothing is.
    let event = Event::Desired {
        generation: Generation(2),
        spec: None,
    };
    assert_eq!(next(&on_stand_in(), event).0.engine, None);
}

#[test]
fn without_a_stand_in_a_restart_waits_for_the_engine_and_goes_back_if_it_never_comes() {
    let mut record = on_stand_in();
    (record.engine, record.previous) = (None, Some(installed("0")));
    let (waits, effects) = after(record, [Event::Started, lacks("1", "lib 2", false)]);
    assert_eq!(effects.last(), Some(&Effect::Build(installed("1"))));
    let (record, effects) = next(&waits, Event::EngineBuilt);
    assert_eq!(effects.last(), Some(&Effect::Restore(installed("1"))));
    let (record, _) = after(record, [Event::EngineServes, Event::WatchPassed]);
    assert_eq!((record.active, record.engine), (Some(installed("1")), None));
    let (failed, effects) = next(&waits, Event::EngineFailed("no tactic".into()));
    // There may be memory for a stand-in now.
    assert_eq!(effects.first(), Some(&Effect::Restore(installed("1"))));
    let (answers, effects) = next(&failed, lacks("1", "lib 2", true));
    assert_eq!(
        (answers.active, effects),
        (Some(installed("1")), vec![Effect::Report])
    );
    let (record, effects) = next(&failed, lacks("1", "lib 2", false));
    assert_eq!(record.active, Some(installed("0")));
    assert!(effects.contains(&Effect::Restore(installed("0"))));
}

#[test]
fn records_of_earlier_versions_are_read() {
    let json = serde_json::to_string(&SlotRecord::default()).unwrap();
    assert!(!json.contains("engine"), "{json}");
    let record = on_stand_in();
    let again: SlotRecord = serde_json::from_str(&serde_json::to_string(&record).unwrap()).unwrap();
    assert_eq!(again, record);
}
