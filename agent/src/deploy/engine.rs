//! Engines that are built while something else answers. Pure, like [`super::machine`], which this belongs to.
//!
//! ```text
//! missing ──▶ building ──▶ trying ──▶ (nothing is noted: it is trusted)
//!                 └──────────┴──▶ failed: not built again for this key, unless the operator asks
//! ```
//! The note is on disk before a build begins: one that brings the daemon down is given up, one that a power cut
//! interrupted begins again.

use serde::{Deserialize, Serialize};

use super::machine::{Effect, MOST_STARTS};
use super::record::{Installed, SlotRecord};
use crate::protocol::{EngineState, Phase, ReportedEngine};

/// An engine that is not at hand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    /// Names what it depends on: library, GPU, model, ranges, the limit of memory.
    pub key: String,
    /// Why there is none.
    pub why: String,
}

/// What is known of an engine that is not trusted yet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EngineRecord {
    /// Digest of the bundle it is for.
    pub sha256: String,
    /// See [`Missing::key`].
    pub key: String,
    /// How far it has come.
    pub state: EngineState,
    /// Why it is built, or why it is not built again.
    pub reason: String,
    /// Whether the model answers meanwhile, on another backend.
    pub stand_in: bool,
    /// Starts of the daemon since the build began.
    pub starts: u32,
}

impl EngineRecord {
    pub(super) fn reported(&self) -> ReportedEngine {
        let mut reason = self.reason.clone();
        if self.state == EngineState::Failed {
            reason +=
                "; it is built again when library, GPU or [memory] limit change, or at the command `rebuild`";
        }
        ReportedEngine {
            state: self.state,
            reason,
        }
    }
}

/// The engine's note, if it is about `model`.
fn of<'a>(record: &'a mut SlotRecord, model: &Option<Installed>) -> Option<&'a mut EngineRecord> {
    let sha256 = &model.as_ref()?.sha256;
    record.engine.as_mut().filter(|engine| &engine.sha256 == sha256)
}

fn active(record: &mut SlotRecord) -> Option<&mut EngineRecord> {
    let active = record.active.clone();
    of(record, &active)
}

/// The desired model, if it waits for its engine.
fn waiting(record: &SlotRecord) -> Option<Installed> {
    let (spec, engine) = (record.desired.as_ref()?, record.engine.as_ref()?);
    (record.phase == Phase::Verified && spec.sha256 == engine.sha256).then(|| Installed::of(spec))
}

/// Whether the model that answers does so on an engine that has not proven itself.
pub(super) fn is_tried(record: &SlotRecord) -> bool {
    let (active, engine) = (record.active.as_ref(), record.engine.as_ref());
    active
        .zip(engine)
        .is_some_and(|(active, engine)| active.sha256 == engine.sha256 && engine.state == EngineState::Trying)
}

/// What else there is to do for the engine when something came in between.
pub(super) fn go_on(record: &SlotRecord) -> Option<Effect> {
    let engine = record.engine.as_ref()?;
    waiting(record)
        .filter(|_| engine.state == EngineState::Building)
        .map(Effect::Build)
}

/// The daemon has started: what was under way begins again, unless it is suspected to have ended the daemon.
pub(super) fn started(record: &mut SlotRecord) {
    let Some(engine) = record
        .engine
        .as_mut()
        .filter(|engine| engine.state != EngineState::Failed)
    else {
        return;
    };
    engine.starts += 1;
    engine.state = EngineState::Building;
    if engine.starts > MOST_STARTS {
        engine.state = EngineState::Failed;
        engine.reason = format!("the daemon started {MOST_STARTS} times while the engine was built or tried");
    }
}

/// There is no engine for the model of digest `sha256`, which answers on another backend or waits for it.
pub(super) fn missing(
    record: &mut SlotRecord,
    sha256: String,
    missing: Missing,
    stand_in: bool,
) -> Vec<Effect> {
    let known = record.engine.take();
    let mut engine = match known {
        Some(known) if known.sha256 == sha256 && known.key == missing.key => known,
        _ => EngineRecord {
            sha256,
            key: missing.key,
            state: EngineState::Building,
            reason: missing.why.clone(),
            stand_in,
            starts: 0,
        },
    };
    engine.stand_in = stand_in;
    let state = engine.state;
    record.engine = Some(engine);
    match state {
        EngineState::Building => {
            let model = waiting(record).or_else(|| {
                let active = record.active.clone();
                of(record, &active).is_some().then_some(active).flatten()
            });
            match model {
                Some(model) => vec![Effect::Report, Effect::Build(model)],
                None => {
                    record.engine = None;
                    Vec::new()
                }
            }
        }
        EngineState::Trying => failed(
            record,
            format!("it was built and does not serve: {}", missing.why),
        ),
        EngineState::Failed => without(record),
    }
}

/// The engine was built, and lies where loading finds it.
pub(super) fn built(record: &mut SlotRecord) -> Vec<Effect> {
    let Some(engine) = record
        .engine
        .as_mut()
        .filter(|engine| engine.state == EngineState::Building)
    else {
        return Vec::new();
    };
    engine.state = EngineState::Trying;
    engine.reason = "it was built, and has to prove itself".into();
    let stand_in = engine.stand_in;
    if let Some(model) = waiting(record) {
        return vec![Effect::Report, Effect::Stage(model)];
    }
    let active = record.active.clone().filter(|_| is_tried(record));
    match active {
        Some(model) if stand_in => vec![Effect::Report, Effect::Upgrade(model)],
        Some(model) => vec![Effect::Report, Effect::Restore(model)],
        None => {
            record.engine = None;
            Vec::new()
        }
    }
}

/// The active model was loaded with an engine of which something is noted: by then it is there.
pub(super) fn serves(record: &mut SlotRecord) -> Vec<Effect> {
    let Some(engine) = active(record) else {
        return Vec::new();
    };
    engine.state = EngineState::Trying;
    engine.reason = "it was built, and has to prove itself".into();
    vec![Effect::Watch, Effect::Report]
}

/// The engine cannot be built, or did not pass its test; what answered meanwhile goes on.
pub(super) fn failed(record: &mut SlotRecord, reason: String) -> Vec<Effect> {
    let Some(engine) = record
        .engine
        .as_mut()
        .filter(|engine| engine.state != EngineState::Failed)
    else {
        return Vec::new();
    };
    engine.state = EngineState::Failed;
    engine.reason = reason;
    // Nothing is built any more: there may be memory for a stand-in now.
    let answers = engine.stand_in;
    let tried_again = match waiting(record) {
        Some(model) => record.active.is_none().then_some(Effect::Stage(model)),
        None => active(record)
            .filter(|_| !answers)
            .is_some()
            .then(|| record.active.clone().map(Effect::Restore))
            .flatten(),
    };
    match tried_again {
        Some(effect) => vec![effect, Effect::Report],
        None => without(record),
    }
}

/// The engine that answers misbehaves. `None`: there is no stand-in to return to.
pub(super) fn misbehaved(record: &mut SlotRecord, reason: &str) -> Option<Vec<Effect>> {
    if !is_tried(record) {
        return None;
    }
    let watching = record.watching;
    let model = record.active.clone()?;
    let engine = record.engine.as_mut().filter(|engine| engine.stand_in)?;
    engine.state = EngineState::Failed;
    engine.reason = format!("it answered for a while: {reason}");
    let mut effects = vec![Effect::StandIn(model)];
    effects.extend(watching.then_some(Effect::Watch));
    effects.push(Effect::Report);
    Some(effects)
}

/// There is no engine, and none is built.
fn without(record: &mut SlotRecord) -> Vec<Effect> {
    let (waits, reason) = (
        waiting(record),
        record.engine.as_ref().map(|engine| engine.reason.clone()),
    );
    let reason = reason.unwrap_or_default();
    if waits.is_some() {
        return super::machine::deployment_failed(record, format!("its engine cannot be built: {reason}"));
    }
    match active(record) {
        Some(engine) if !engine.stand_in => {
            super::machine::active_unusable(record, format!("its engine cannot be built: {reason}"))
        }
        _ => vec![Effect::Report],
    }
}

/// A deployment has ended without success: the engine of the model that answers on may have been given up for it.
pub(super) fn resume(record: &mut SlotRecord) -> Option<Effect> {
    let active = record.active.clone();
    match of(record, &active) {
        Some(engine) if engine.state == EngineState::Building => active.map(Effect::Build),
        Some(_) => None,
        None => record.engine.is_some().then_some(Effect::LookForEngine),
    }
}

/// A new wish: what was noted of a model that neither answers nor is wanted is of no use.
pub(super) fn forget_others(record: &mut SlotRecord, wanted: &str) {
    let active = record.active.as_ref().map(|active| active.sha256.clone());
    record
        .engine
        .take_if(|engine| Some(&engine.sha256) != active.as_ref() && engine.sha256 != wanted);
}

/// The operator asks for another try.
pub(super) fn asked_again(record: &mut SlotRecord) -> Vec<Effect> {
    let model = record.active.clone();
    match (active(record), model) {
        (Some(engine), Some(model)) if engine.state == EngineState::Failed => {
            engine.state = EngineState::Building;
            engine.reason = "asked for by the operator".into();
            engine.starts = 0;
            vec![Effect::Report, Effect::Build(model)]
        }
        _ => Vec::new(),
    }
}

#[cfg(test)]
#[path = "engine_tests.rs"]
mod tests;
