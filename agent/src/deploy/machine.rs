//! The decisions. Pure: a record and what happened in, the new record and what to do out.

use super::engine::{self, Missing};
use super::record::{Installed, SlotRecord};
use crate::protocol::{EngineState, Generation, Phase, SlotSpec};

/// Starts of the daemon that a watched model gets: one that is still being watched at the next start is suspected to
/// have brought it down.
pub const MOST_STARTS: u32 = 3;

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The daemon has started; nothing is in memory.
    Started,
    /// The operator wants this.
    Desired {
        /// Of the whole desired state.
        generation: Generation,
        /// `None` = an empty slot.
        spec: Option<SlotSpec>,
    },
    /// The bundle is in the store, digest and signature are right.
    Fetched,
    /// Its engine is loaded, beside the active one or instead of it.
    Staged,
    /// The golden outputs were reproduced.
    SelfTested,
    /// Requests go to the new model.
    Switched,
    /// The new model has behaved.
    WatchPassed,
    /// Fetching, staging, the self-test or the switch failed; it makes no sense to try again.
    Failed(String),
    /// The model that answers has not behaved while it was watched.
    WatchFailed(String),
    /// The active model of the record could not be loaded at a start.
    ActiveUnusable(String),
    /// The operator asks for the previous model.
    RollbackAsked,
    /// The slot is empty now.
    Emptied,
    /// A model has no engine at hand.
    EngineMissing {
        /// Digest of its bundle.
        sha256: String,
        /// What is missing.
        missing: Missing,
        /// Whether it answers meanwhile, on another backend; otherwise it is not loaded.
        stand_in: bool,
    },
    /// The engine was built, and is at hand.
    EngineBuilt,
    /// Requests of the active model go to the new engine.
    EngineSwitched,
    /// The active model was loaded with its engine, of which something is noted.
    EngineServes,
    /// The engine cannot be built, or does not pass its test.
    EngineFailed(String),
    /// The operator asks to build an engine again that has failed.
    RebuildAsked,
}

/// What to do. Every effect may be begun again after a power cut.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Bring the bundle into the store and verify it; answer `Fetched` or `Failed`.
    Fetch(SlotSpec),
    /// Load its engine, or let another backend stand in for it; answer `Staged`, `EngineMissing` or `Failed`.
    Stage(Installed),
    /// Run the golden inputs; answer `SelfTested` or `Failed`.
    SelfTest,
    /// Let it answer; answer `Switched`.
    Switch,
    /// Watch it; answer `WatchPassed` or `WatchFailed`.
    Watch,
    /// Load a model that answered before and let it answer; nothing is answered, or `ActiveUnusable`, `EngineMissing`,
    /// `EngineServes`.
    Restore(Installed),
    /// Build its engine on another thread; `EngineBuilt` or `EngineFailed` come later.
    Build(Installed),
    /// Load and test the engine of the active model, and let it answer; answer `EngineSwitched` or `EngineFailed`.
    Upgrade(Installed),
    /// Let another backend answer for the active model again; nothing is answered, or `ActiveUnusable`.
    StandIn(Installed),
    /// If another backend stands in for the active model's, answer `EngineMissing`.
    LookForEngine,
    /// Give up what was staged.
    Discard,
    /// Give up what was staged and stop answering; answer `Emptied`.
    Empty,
    /// Tell the operator.
    Report,
    /// Remove what no slot needs.
    Collect,
}

/// The next record, which has to be on disk before the effects begin, and the effects in order.
pub fn next(record: &SlotRecord, event: Event) -> (SlotRecord, Vec<Effect>) {
    let mut record = record.clone();
    let effects = match event {
        Event::Started => started(&mut record),
        Event::Desired { generation, spec } => desired(&mut record, generation, spec),
        Event::Fetched if record.phase == Phase::Downloading => {
            advance(&mut record, Phase::Verified, |wanted| {
                vec![Effect::Report, Effect::Stage(wanted)]
            })
        }
        Event::Staged if record.phase == Phase::Verified => advance(&mut record, Phase::Staged, |_| {
            vec![Effect::Report, Effect::SelfTest]
        }),
        Event::SelfTested if record.phase == Phase::Staged => {
            advance(&mut record, Phase::SelfTested, |_| vec![Effect::Switch])
        }
        Event::Switched if record.phase == Phase::SelfTested => switched(&mut record),
        Event::WatchPassed if record.watching || engine::is_tried(&record) => {
            if engine::is_tried(&record) {
                record.engine = None;
            }
            record.watching = false;
            record.starts = 0;
            go_on(&record, vec![Effect::Report, Effect::Collect])
        }
        Event::Failed(reason) if is_under_way(record.phase) => deployment_failed(&mut record, reason),
        Event::WatchFailed(reason) if record.watching || engine::is_tried(&record) => {
            watch_failed(&mut record, reason)
        }
        Event::ActiveUnusable(reason) => active_unusable(&mut record, reason),
        Event::RollbackAsked => {
            let effects = rolled_back(&mut record, "asked for by the operator".into());
            go_on(&record, effects)
        }
        Event::Emptied if record.desired.is_none() => {
            record.phase = Phase::Absent;
            record.active = None;
            record.previous = None;
            record.watching = false;
            record.reason = None;
            record.engine = None;
            vec![Effect::Report, Effect::Collect]
        }
        Event::EngineMissing {
            sha256,
            missing,
            stand_in,
        } => engine::missing(&mut record, sha256, missing, stand_in),
        Event::EngineBuilt => {
            let effects = engine::built(&mut record);
            // What comes of an upgrade goes on.
            match effects.last() {
                Some(Effect::Upgrade(_)) => effects,
                _ => go_on(&record, effects),
            }
        }
        Event::EngineSwitched if engine::is_tried(&record) => {
            go_on(&record, vec![Effect::Report, Effect::Watch])
        }
        Event::EngineServes => engine::serves(&mut record),
        Event::EngineFailed(reason) => {
            let effects = engine::failed(&mut record, reason);
            go_on(&record, effects)
        }
        Event::RebuildAsked => {
            let effects = engine::asked_again(&mut record);
            go_on(&record, effects)
        }
        // Late answers to effects that a newer event has made pointless.
        Event::Fetched
        | Event::Staged
        | Event::SelfTested
        | Event::Switched
        | Event::Failed(_)
        | Event::WatchPassed
        | Event::WatchFailed(_)
        | Event::EngineSwitched
        | Event::Emptied => Vec::new(),
    };
    (record, effects)
}

fn advance(
    record: &mut SlotRecord,
    phase: Phase,
    effects: impl FnOnce(Installed) -> Vec<Effect>,
) -> Vec<Effect> {
    let Some(spec) = &record.desired else {
        return Vec::new();
    };
    record.phase = phase;
    effects(Installed::of(spec))
}

/// Nothing is in memory: what answered must answer again first, then what was under way begins again at the last step
/// that left something on disk.
fn started(record: &mut SlotRecord) -> Vec<Effect> {
    let mut effects = Vec::new();
    engine::started(record);
    record.starts += u32::from(record.watching);
    if record.watching && record.starts > MOST_STARTS {
        let reason = format!(
            "the daemon started {} times while this model was watched",
            record.starts - 1
        );
        effects = rolled_back(record, reason);
    } else if let Some(active) = &record.active {
        effects.push(Effect::Restore(active.clone()));
        if record.watching {
            effects.push(Effect::Watch);
        }
    }
    match (&record.desired, record.phase) {
        (None, Phase::Absent) => {}
        (None, _) => effects.push(Effect::Empty),
        (
            Some(spec),
            Phase::Absent | Phase::Downloading | Phase::Verified | Phase::Staged | Phase::SelfTested,
        ) => {
            // The bundle may have gone with a disk that was cleaned: fetching finds it in the store or brings it.
            let spec = spec.clone();
            record.phase = Phase::Downloading;
            effects.push(Effect::Fetch(spec));
        }
        (Some(_), Phase::Active | Phase::Failed) => {}
    }
    effects.push(Effect::Report);
    effects
}

fn desired(record: &mut SlotRecord, generation: Generation, spec: Option<SlotSpec>) -> Vec<Effect> {
    // Replays of the retained message, and what an operator with an old view sends.
    if !generation.supersedes(record.generation) {
        return Vec::new();
    }
    record.generation = generation;
    let Some(spec) = spec else {
        record.desired = None;
        record.reason = None;
        record.engine = None;
        let nothing = record.active.is_none() && record.phase == Phase::Absent;
        return if nothing {
            vec![Effect::Report]
        } else {
            // Without bringing a model back that gave way: it would go at once.
            vec![Effect::Empty]
        };
    };
    let same = |installed: &Option<Installed>| {
        installed
            .as_ref()
            .is_some_and(|other| other.sha256 == spec.sha256)
    };
    if same(&record.active) {
        // A generation that changed something else, or that returns to what answers anyway.
        let under_way = record.phase != Phase::Active;
        let resumed = engine::resume(record);
        engine::forget_others(record, &spec.sha256);
        record.desired = Some(spec);
        record.phase = Phase::Active;
        record.reason = None;
        return if under_way {
            [Effect::Discard, Effect::Report]
                .into_iter()
                .chain(resumed)
                .collect()
        } else {
            vec![Effect::Report]
        };
    }
    // Another slot was changed: a model that had to be given up does not come back with that.
    if record.phase == Phase::Failed
        && record.given_up.as_ref() == Some(&spec.sha256)
        && record.desired.as_ref() == Some(&spec)
    {
        return vec![Effect::Report];
    }
    // The operator wants it anew: an engine that could not be built for it is tried again.
    let failed = |engine: &mut engine::EngineRecord| {
        engine.sha256 == spec.sha256 && engine.state == EngineState::Failed
    };
    record.engine.take_if(failed);
    engine::forget_others(record, &spec.sha256);
    record.desired = Some(spec.clone());
    record.phase = Phase::Downloading;
    record.reason = None;
    record.given_up = None;
    vec![Effect::Discard, Effect::Report, Effect::Fetch(spec)]
}

fn switched(record: &mut SlotRecord) -> Vec<Effect> {
    let Some(spec) = &record.desired else {
        return Vec::new();
    };
    let new = Installed::of(spec);
    // A model that was still being watched has not proven itself: what it replaced stays the one to return to.
    if !record.watching || record.previous.is_none() {
        record.previous = record.active.take();
    }
    // It has passed the test of the deployment, and is watched with the model.
    record
        .engine
        .take_if(|engine| engine.sha256 != new.sha256 || engine.state != EngineState::Failed);
    record.active = Some(new);
    record.phase = Phase::Active;
    record.watching = true;
    record.starts = 0;
    record.reason = None;
    vec![Effect::Report, Effect::Watch, Effect::LookForEngine]
}

fn watch_failed(record: &mut SlotRecord, reason: String) -> Vec<Effect> {
    let effects = match engine::misbehaved(record, &reason) {
        Some(effects) => effects,
        None if record.watching => rolled_back(record, reason),
        // Nothing to return to: a model that answers badly is better than none.
        None => {
            record.engine = None;
            vec![Effect::Report]
        }
    };
    go_on(record, effects)
}

/// What is desired does not come; what answers, answers on.
pub(super) fn deployment_failed(record: &mut SlotRecord, reason: String) -> Vec<Effect> {
    record.phase = Phase::Failed;
    record.reason = Some(reason);
    let mut effects = vec![Effect::Discard, Effect::Report, Effect::Collect];
    effects.extend(engine::resume(record));
    effects
}

/// The effects, and the download that they interrupted: a newer generation may be on its way, perhaps for as long as its
/// server is away.
fn go_on(record: &SlotRecord, mut effects: Vec<Effect>) -> Vec<Effect> {
    if let (Some(spec), Phase::Downloading) = (&record.desired, record.phase) {
        effects.push(Effect::Fetch(spec.clone()));
    }
    effects.extend(engine::go_on(record));
    effects
}

/// Between the wish and its end.
fn is_under_way(phase: Phase) -> bool {
    matches!(
        phase,
        Phase::Downloading | Phase::Verified | Phase::Staged | Phase::SelfTested
    )
}

/// The model that answers gives way to the one before it. If it is what is desired, its generation has failed with it;
/// otherwise a newer generation is under way or has ended, and that is its own affair.
fn rolled_back(record: &mut SlotRecord, reason: String) -> Vec<Effect> {
    let previous = record.previous.take();
    let of_active = |engine: &mut engine::EngineRecord| {
        record
            .active
            .as_ref()
            .is_some_and(|active| active.sha256 == engine.sha256)
    };
    if previous.is_some() {
        record.engine.take_if(of_active);
    }
    if record.phase == Phase::Active {
        record.phase = Phase::Failed;
        record.given_up = record.active.as_ref().map(|active| active.sha256.clone());
        record.reason = Some(match previous {
            Some(_) => reason,
            None => format!("{reason}; there is no previous model to return to"),
        });
    }
    // With nothing to return to, a model that answers badly is better than none; one that brings the daemon down is not
    // loaded again.
    if previous.is_some() || record.starts > MOST_STARTS {
        record.active.clone_from(&previous);
    }
    record.watching = false;
    record.starts = 0;
    let mut effects = vec![Effect::Discard];
    effects.extend(previous.map(Effect::Restore));
    effects.extend([Effect::Report, Effect::Collect]);
    effects
}

pub(super) fn active_unusable(record: &mut SlotRecord, reason: String) -> Vec<Effect> {
    if record.previous.is_some() {
        return rolled_back(record, reason);
    }
    let Some(active) = record.active.take() else {
        return Vec::new();
    };
    record.watching = false;
    // Perhaps only the file is gone: the desired model is fetched again, once.
    match &record.desired {
        Some(spec) if spec.sha256 == active.sha256 && record.phase == Phase::Active => {
            let spec = spec.clone();
            record.phase = Phase::Downloading;
            vec![Effect::Report, Effect::Fetch(spec)]
        }
        // What is under way may still become a model.
        _ if is_under_way(record.phase) => vec![Effect::Report],
        _ => {
            record.phase = Phase::Failed;
            record.reason = Some(reason);
            vec![Effect::Report]
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::ModelSource;

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

    /// The record after a deployment of `version` that went well.
    fn active(record: &SlotRecord, generation: u64, version: &str) -> SlotRecord {
        let events = [
            wanted(generation, version),
            Event::Fetched,
            Event::Staged,
            Event::SelfTested,
            Event::Switched,
            Event::WatchPassed,
        ];
        events
            .into_iter()
            .fold(record.clone(), |record, event| next(&record, event).0)
    }

    #[test]
    fn a_deployment_goes_step_by_step_and_keeps_the_previous_model() {
        let first = active(&SlotRecord::default(), 1, "1");
        assert_eq!((first.phase, first.watching), (Phase::Active, false));
        let second = active(&first, 2, "2");
        assert_eq!(second.active, Some(Installed::of(&spec("2"))));
        assert_eq!(second.previous, Some(Installed::of(&spec("1"))));
        let bundles: Vec<String> = second.bundles().map(|digest| digest.to_string()).collect();
        assert_eq!(bundles, ["2", "2", "1"].map(|version| format!("{version:0>64}")));
    }

    #[test]
    fn replays_and_older_generations_do_nothing() {
        let record = active(&SlotRecord::default(), 5, "1");
        for generation in [5, 4, 0] {
            assert_eq!(
                next(&record, wanted(generation, "9")),
                (record.clone(), Vec::new())
            );
        }
    }

    #[test]
    fn a_failure_before_the_switch_leaves_the_active_model_alone() {
        let first = active(&SlotRecord::default(), 1, "1");
        let steps = [Event::Fetched, Event::Staged, Event::SelfTested];
        for done in 0..=steps.len() {
            let mut record = next(&first, wanted(2, "2")).0;
            for event in &steps[..done] {
                record = next(&record, event.clone()).0;
            }
            let (record, effects) = next(&record, Event::Failed("broken".into()));
            assert_eq!(record.phase, Phase::Failed);
            assert_eq!(record.active, first.active);
            assert_eq!(effects, [Effect::Discard, Effect::Report, Effect::Collect]);
            // The same generation is not tried again, not even after a restart.
            assert!(
                !next(&record, Event::Started)
                    .1
                    .iter()
                    .any(|effect| matches!(effect, Effect::Fetch(_)))
            );
        }
    }

    #[test]
    fn a_failure_while_watched_returns_to_the_previous_model() {
        let first = active(&SlotRecord::default(), 1, "1");
        let mut record = first.clone();
        for event in [
            wanted(2, "2"),
            Event::Fetched,
            Event::Staged,
            Event::SelfTested,
            Event::Switched,
        ] {
            record = next(&record, event).0;
        }
        assert!(record.watching);
        let (back, effects) = next(&record, Event::WatchFailed("3 of 20 answers are NaN".into()));
        assert_eq!((back.active.clone(), back.previous), (first.active.clone(), None));
        assert_eq!(back.reason.as_deref(), Some("3 of 20 answers are NaN"));
        assert!(effects.contains(&Effect::Restore(first.active.unwrap())));
    }

    #[test]
    fn a_watched_model_that_is_given_up_does_not_take_a_newer_generation_with_it() {
        let first = active(&SlotRecord::default(), 1, "1");
        let watched = [
            wanted(2, "2"),
            Event::Fetched,
            Event::Staged,
            Event::SelfTested,
            Event::Switched,
        ];
        let watched = watched
            .into_iter()
            .fold(first, |record, event| next(&record, event).0);
        // The newer generation is under way, while the watched model brings the daemon down again and again.
        let mut record = next(&watched, wanted(3, "3")).0;
        let mut effects = Vec::new();
        for _ in 0..=MOST_STARTS {
            (record, effects) = next(&record, Event::Started);
        }
        assert_eq!(record.active, Some(Installed::of(&spec("1"))));
        assert_eq!((record.phase, &record.reason), (Phase::Downloading, &None));
        let place = |wanted: &Effect| effects.iter().position(|effect| effect == wanted);
        let restored = place(&Effect::Restore(Installed::of(&spec("1"))));
        assert!(
            restored.is_some() && restored < place(&Effect::Fetch(spec("3"))),
            "{effects:?}"
        );

        // The watched model turns out to be bad while the newer one is fetched: that goes on.
        let record = next(&watched, wanted(3, "3")).0;
        let (record, effects) = next(&record, Event::WatchFailed("NaN".into()));
        assert_eq!(record.active, Some(Installed::of(&spec("1"))));
        assert_eq!(record.phase, Phase::Downloading);
        assert_eq!(effects.last(), Some(&Effect::Fetch(spec("3"))));

        // It has failed for its own reason; the watched model, still answering, turns out to be bad as well.
        let record = next(
            &next(&watched, wanted(3, "3")).0,
            Event::Failed("not signed".into()),
        )
        .0;
        let (record, effects) = next(&record, Event::WatchFailed("NaN".into()));
        assert_eq!(record.active, Some(Installed::of(&spec("1"))));
        assert_eq!(record.reason.as_deref(), Some("not signed"));
        assert!(effects.contains(&Effect::Restore(Installed::of(&spec("1")))));
    }

    #[test]
    fn without_any_model_a_deployment_that_is_under_way_goes_on() {
        let first = active(&SlotRecord::default(), 1, "1");
        let record = next(&first, wanted(2, "2")).0;
        let (record, _) = next(&record, Event::ActiveUnusable("gone".into()));
        assert_eq!((record.phase, &record.active), (Phase::Downloading, &None));
        assert_eq!(next(&record, Event::Fetched).0.phase, Phase::Verified);
    }

    #[test]
    fn a_model_that_takes_the_daemon_down_is_given_up() {
        let mut record = active(&SlotRecord::default(), 1, "1");
        for event in [
            wanted(2, "2"),
            Event::Fetched,
            Event::Staged,
            Event::SelfTested,
            Event::Switched,
        ] {
            record = next(&record, event).0;
        }
        for _ in 0..MOST_STARTS {
            record = next(&record, Event::Started).0;
            assert_eq!(record.active, Some(Installed::of(&spec("2"))));
        }
        record = next(&record, Event::Started).0;
        assert_eq!(record.active, Some(Installed::of(&spec("1"))));
        assert!(record.reason.unwrap().contains("3 times"));
    }

    #[test]
    fn a_model_that_was_given_up_stays_so_until_it_is_asked_for_anew() {
        let mut record = active(&SlotRecord::default(), 1, "1");
        record = active(&record, 2, "2");
        record = next(&record, Event::RollbackAsked).0;
        assert_eq!(record.phase, Phase::Failed);
        // The same specification again, because another slot was changed.
        let (same, effects) = next(&record, wanted(3, "2"));
        assert_eq!((same.phase, same.generation), (Phase::Failed, Generation(3)));
        assert_eq!(effects, [Effect::Report]);
        // Asked for anew, from somewhere else.
        let mut again = spec("2");
        again.sources.push(ModelSource::Blob("other".parse().unwrap()));
        let event = Event::Desired {
            generation: Generation(4),
            spec: Some(again),
        };
        assert_eq!(next(&same, event).0.phase, Phase::Downloading);
    }

    #[test]
    fn what_interrupts_a_download_is_followed_by_it() {
        let first = active(&active(&SlotRecord::default(), 1, "1"), 2, "2");
        let mut watched = first.clone();
        watched.watching = true;
        let downloading = next(&watched, wanted(3, "3")).0;
        for event in [
            Event::WatchPassed,
            Event::WatchFailed("bad".into()),
            Event::RollbackAsked,
        ] {
            let (record, effects) = next(&downloading, event.clone());
            assert_eq!(record.phase, Phase::Downloading, "{event:?}");
            assert_eq!(effects.last(), Some(&Effect::Fetch(spec("3"))), "{event:?}");
        }
    }

    #[test]
    fn emptying_removes_everything() {
        let record = active(&SlotRecord::default(), 1, "1");
        let (record, effects) = next(
            &record,
            Event::Desired {
                generation: Generation(2),
                spec: None,
            },
        );
        assert_eq!(effects, [Effect::Empty]);
        let (record, _) = next(&record, Event::Emptied);
        assert_eq!((record.phase, record.bundles().count()), (Phase::Absent, 0));
    }

    /// Whatever happens in whatever order, restarts included: once a model has answered, one always does, it is one that
    /// was desired, and what answers is never something that has not passed its self-test.
    #[test]
    fn random_events_never_leave_a_slot_without_a_model_that_has_proven_itself() {
        let mut state = 7u64;
        let mut random = |n: u64| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % n
        };
        for _ in 0..2000 {
            let mut record = active(&SlotRecord::default(), 1, "1");
            let (mut generation, mut tested) = (1, vec![spec("1").sha256]);
            for _ in 0..40 {
                let event = match random(17) {
                    0 => Event::Started,
                    1 => {
                        generation += random(2);
                        wanted(generation, &random(4).to_string())
                    }
                    2 => Event::Fetched,
                    3 => Event::Staged,
                    4 => Event::SelfTested,
                    5 => Event::Switched,
                    6 => Event::WatchPassed,
                    7 => Event::Failed("for a reason".into()),
                    8 => Event::RollbackAsked,
                    9 => Event::Emptied,
                    10 => Event::EngineMissing {
                        sha256: spec(&random(4).to_string()).sha256,
                        missing: Missing {
                            key: random(2).to_string(),
                            why: "none was built".into(),
                        },
                        // As the stage answers: what answers already goes on where nothing stands in.
                        stand_in: true,
                    },
                    11 => Event::EngineBuilt,
                    12 => Event::EngineSwitched,
                    13 => Event::EngineServes,
                    14 => Event::EngineFailed("no tactic".into()),
                    15 => Event::RebuildAsked,
                    _ => Event::Fetched,
                };
                let before = record.clone();
                let (after, effects) = next(&record, event.clone());
                record = after;
                if event == Event::SelfTested && before.phase == Phase::Staged {
                    tested.push(before.desired.clone().unwrap().sha256);
                }
                let active = record
                    .active
                    .clone()
                    .unwrap_or_else(|| panic!("{event:?} on {before:?} left nothing"));
                assert!(
                    tested.contains(&active.sha256),
                    "{event:?}: {active:?} was never tested"
                );
                if let Some(engine) = &record.engine {
                    let of_active = engine.sha256 == active.sha256;
                    let of_desired = record
                        .desired
                        .as_ref()
                        .is_some_and(|spec| spec.sha256 == engine.sha256);
                    assert!(of_active || of_desired, "{event:?} on {before:?}: {record:?}");
                }
                for effect in effects {
                    if let Effect::Upgrade(model) | Effect::StandIn(model) = &effect {
                        assert_eq!(Some(model), record.active.as_ref(), "of what does not answer");
                    }
                    if let Effect::Restore(model) = effect {
                        assert_eq!(
                            Some(&model),
                            record.active.as_ref(),
                            "restores what is not active"
                        );
                    }
                }
                assert_eq!(
                    record.phase == Phase::Failed,
                    record.reason.is_some(),
                    "{event:?}: {record:?}"
                );
            }
        }
    }
}
