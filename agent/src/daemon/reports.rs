//! What the device says about its slots: the whole of it, at each change.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use super::mail::Mail;
use super::slots::Slots;
use crate::protocol::{DeviceId, Generation, ReportedSlot, ReportedState, SlotName, Topic};

/// Publishes the reported state. Clones share it.
#[derive(Clone)]
pub(crate) struct Reports(Arc<Shared>);

struct Shared {
    mail: Mail,
    topic: String,
    slots: OnceLock<Arc<Slots>>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The newest that was taken.
    generation: Generation,
    /// Slots that are desired and that this device does not have.
    unknown: BTreeMap<SlotName, ReportedSlot>,
    last: Option<ReportedState>,
}

impl Reports {
    pub(super) fn new(mail: Mail, device: &DeviceId) -> Self {
        Self(Arc::new(Shared {
            mail,
            topic: Topic::Reported.of(device),
            slots: OnceLock::new(),
            state: Mutex::default(),
        }))
    }

    /// Whose state it is; nothing is published before.
    pub(super) fn of(&self, slots: Arc<Slots>) {
        let generation = slots.all().map(|slot| slot.keeper.report().generation).max();
        self.change(|state| state.generation = generation.unwrap_or_default());
        // Once, at the start.
        let _ = self.0.slots.set(slots);
        self.publish();
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.0.state.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// A new desired state was taken.
    pub(super) fn taken(&self, generation: Generation, unknown: BTreeMap<SlotName, ReportedSlot>) {
        self.change(|state| {
            state.generation = generation;
            state.unknown = unknown;
        });
        self.publish();
    }

    /// The newest generation that was taken.
    pub(super) fn generation(&self) -> Generation {
        self.0
            .state
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .generation
    }

    /// Publishes the state even if it is the last one: the broker, or the operator, may not have it any more.
    pub(super) fn again(&self) {
        self.change(|state| state.last = None);
        self.publish();
    }

    /// Publishes the state if it has changed.
    pub(super) fn publish(&self) {
        let Some(slots) = self.0.slots.get() else {
            return;
        };
        // Held while it is handed over, so that states are published in the order in which they were.
        let mut state = self.0.state.lock().unwrap_or_else(PoisonError::into_inner);
        // A slot that is still busy with an older generation answers that one: its phase must not be read as the answer
        // to a newer one. A slot that never had any has nothing to answer.
        let (mut generation, mut reported) = (state.generation, state.unknown.clone());
        for slot in slots.all() {
            let report = slot.keeper.report();
            if report.generation > Generation::default() {
                generation = generation.min(report.generation);
            }
            reported.insert(slot.name.clone(), report.slot);
        }
        let report = ReportedState {
            generation,
            slots: reported,
        };
        if state.last.as_ref() == Some(&report) {
            return;
        }
        match self.0.mail.say_message(self.0.topic.clone(), &report, true) {
            Ok(()) => state.last = Some(report),
            Err(error) => tracing::error!("the state is not reported: {error}"),
        }
    }
}
