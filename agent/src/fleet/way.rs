//! What one device is asked to run, and what its answers mean.

use std::collections::BTreeMap;
use std::time::Instant;

use super::survey::DeviceView;
use super::{Change, DeviceProgress, Failure, Rollout};
use crate::protocol::{DesiredState, Generation, Phase, ReportedSlot, ReportedState, SlotName, SlotSpec};

/// How often a device is asked again that turns out to be at a newer generation than the one it was asked for.
const REPEATS: u32 = 3;

/// A device that was asked and has not ended.
pub(super) struct Way {
    /// What was desired when it was first asked.
    before: Option<DesiredState>,
    /// What it was asked last.
    asked: DesiredState,
    repeats: u32,
    /// When it was first asked.
    pub(super) since: Instant,
    /// The last it said of the slot.
    pub(super) last: Option<ReportedSlot>,
}

/// What follows from a message.
pub(super) enum Verdict {
    /// The device has it, or will not.
    Ended(Result<(), Failure>),
    /// It has to be asked this.
    Ask(DesiredState),
}

/// The new desired state: what the device should run already, with this slot changed.
pub(super) fn wish(rollout: &Rollout<'_>, view: &DeviceView) -> Result<DesiredState, Failure> {
    let desired = view.desired.as_ref().map(|state| state.generation.0);
    let reported = view.reported.as_ref().map(|state| state.generation.0);
    let mut slots = view.desired.clone().map(|state| state.slots).unwrap_or_default();
    match &rollout.change {
        Change::Install(spec) => slots.insert(rollout.slot.clone(), spec.clone()),
        Change::Empty => slots.remove(&rollout.slot),
    };
    // What was desired last is whole, and says of each slot whether it is to be empty; anything older is not the last,
    // nor is what the device has not taken because it was at that generation already.
    if let Some(state) = view.reported.as_ref()
        && (reported > desired
            || view
                .desired
                .as_ref()
                .is_some_and(|desired| took_another(desired, state)))
    {
        keeps_the_others(rollout, &slots, state)?;
    }
    Ok(DesiredState {
        generation: after(desired.max(reported).unwrap_or(0))?,
        slots,
    })
}

fn after(generation: u64) -> Result<Generation, Failure> {
    let next = generation.checked_add(1).map(Generation);
    next.ok_or_else(|| {
        Failure::Refused(format!(
            "no generation is newer than {generation}, which it has: empty its store and its retained messages"
        ))
    })
}

/// Refuses a state without slots that hold something on the device.
fn keeps_the_others(
    rollout: &Rollout<'_>,
    slots: &BTreeMap<SlotName, SlotSpec>,
    reported: &ReportedState,
) -> Result<(), Failure> {
    let emptied: Vec<SlotName> = reported
        .slots
        .iter()
        .filter(|(name, slot)| **name != rollout.slot && !slots.contains_key(*name) && holds_something(slot))
        .map(|(name, _)| name.clone())
        .collect();
    if emptied.is_empty() || rollout.forget_other_slots {
        Ok(())
    } else {
        Err(Failure::WouldEmpty(emptied))
    }
}

/// Whether the device got to the generation of `state` by another one, and has ignored this.
fn took_another(state: &DesiredState, reported: &ReportedState) -> bool {
    let mut slots = reported.slots.iter();
    reported.generation == state.generation && slots.any(|(name, slot)| state.contradicts(name, slot))
}

fn holds_something(slot: &ReportedSlot) -> bool {
    match slot.phase {
        Phase::Absent => false,
        // Of a model that was refused nothing is left.
        Phase::Failed => slot.active_version.is_some() || slot.previous_version.is_some(),
        _ => true,
    }
}

impl Way {
    /// A device that is being asked `asked`, where `before` was desired.
    pub(super) fn new(before: Option<DesiredState>, asked: DesiredState) -> Self {
        Self {
            before,
            asked,
            repeats: 0,
            since: Instant::now(),
            last: None,
        }
    }

    /// What follows from all that is known of the device; `None`: wait.
    pub(super) fn judge(
        &mut self,
        rollout: &Rollout<'_>,
        view: &DeviceView,
        progress: &mut dyn FnMut(DeviceProgress),
    ) -> Option<Verdict> {
        // Two operators that ask at the same time arrive at the same generation.
        if let Some(desired) = &view.desired
            && (desired.generation > self.asked.generation
                || desired.generation == self.asked.generation && *desired != self.asked)
        {
            return Some(Verdict::Ended(Err(Failure::Superseded(desired.generation))));
        }
        let reported = view.reported.as_ref()?;
        if reported.generation > self.asked.generation || took_another(&self.asked, reported) {
            return Some(match self.again(rollout, view, reported) {
                Ok(state) => Verdict::Ask(state),
                Err(failure) => Verdict::Ended(Err(failure)),
            });
        }
        if reported.generation < self.asked.generation {
            return None;
        }
        self.answered(rollout, reported, progress).map(Verdict::Ended)
    }

    /// The same for a device that has taken this generation with another content, or a newer one, which the broker did
    /// not know: it has ignored what it was asked.
    fn again(
        &mut self,
        rollout: &Rollout<'_>,
        view: &DeviceView,
        reported: &ReportedState,
    ) -> Result<DesiredState, Failure> {
        let foreign = |desired: &&DesiredState| {
            desired.slots != self.asked.slots && Some(*desired) != self.before.as_ref()
        };
        if let Some(desired) = view.desired.as_ref().filter(foreign) {
            return Err(Failure::Superseded(desired.generation));
        }
        if self.repeats >= REPEATS {
            return Err(Failure::Superseded(reported.generation));
        }
        keeps_the_others(rollout, &self.asked.slots, reported)?;
        self.repeats += 1;
        self.asked.generation = after(reported.generation.0)?;
        Ok(self.asked.clone())
    }

    /// Whether the device has ended, by its answer.
    fn answered(
        &mut self,
        rollout: &Rollout<'_>,
        reported: &ReportedState,
        progress: &mut dyn FnMut(DeviceProgress),
    ) -> Option<Result<(), Failure>> {
        let Some(slot) = reported.slots.get(&rollout.slot) else {
            return match rollout.change {
                Change::Empty => Some(Ok(())),
                Change::Install(_) => None,
            };
        };
        if self.last.as_ref() != Some(slot) {
            self.last = Some(slot.clone());
            progress(DeviceProgress::Reports(slot.clone()));
        }
        match (&rollout.change, slot.phase) {
            (Change::Empty, Phase::Absent) => Some(Ok(())),
            (Change::Install(spec), Phase::Active) if slot.active_version.as_ref() == Some(&spec.version) => {
                (!rollout.watched || !slot.watched).then_some(Ok(()))
            }
            (_, Phase::Failed) => {
                let reason = slot.reason.clone();
                Some(Err(Failure::Refused(
                    reason.unwrap_or_else(|| "without a reason".into()),
                )))
            }
            _ => None,
        }
    }
}
