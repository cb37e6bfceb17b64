//! The slots of a device: for each one a server that answers and a keeper that brings its model.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::machine::Machine;
use super::results::{Arrival, Results};
use crate::config;
use crate::deploy::{Keeper, KeeperHandle};
use crate::protocol::{Prediction, ResultMessage, SlotName};
use crate::serve::{Answer, BuildProgress, Content, Job, LiveInput, ServeError, Server, Submitted};

/// One slot.
pub(crate) struct Slot {
    pub(crate) name: SlotName,
    pub(crate) settings: config::Slot,
    pub(crate) server: Server,
    pub(crate) keeper: KeeperHandle,
    pub(crate) build: BuildProgress,
    pub(crate) results: Results,
    pub(crate) machine: Machine,
}

impl Slot {
    /// Hands an input over. Its answer is published, then `reply` is told, with whether it waits for the broker.
    pub(crate) fn submit(
        &self,
        name: String,
        stream: String,
        bytes: Vec<u8>,
        reply: impl FnOnce(Result<(ResultMessage<Prediction>, bool), ServeError>) + Send + 'static,
    ) -> Submitted {
        let arrival: Arrival = self.results.arrival();
        self.hand_over(
            name,
            Content::Encoded(bytes),
            arrival.instant,
            move |results, answer| results.publish(&stream, &arrival, answer),
            reply,
        )
    }

    /// Hands over an input that is taken when its turn comes. Its result carries the time of its capture.
    pub(crate) fn submit_live(
        &self,
        name: String,
        stream: &'static str,
        take: impl FnOnce(Vec<u8>) -> Option<LiveInput> + Send + 'static,
        reply: impl FnOnce(Result<(ResultMessage<Prediction>, bool), ServeError>) + Send + 'static,
    ) -> Submitted {
        self.hand_over(
            name,
            Content::Live(Box::new(take)),
            Instant::now(),
            move |results, answer| results.publish(stream, &results.arrived(answer.received), answer),
            reply,
        )
    }

    fn hand_over(
        &self,
        name: String,
        content: Content,
        received: Instant,
        publish: impl FnOnce(&Results, Answer) -> (ResultMessage<Prediction>, bool) + Send + 'static,
        reply: impl FnOnce(Result<(ResultMessage<Prediction>, bool), ServeError>) + Send + 'static,
    ) -> Submitted {
        let (results, machine, slot) = (self.results.clone(), self.machine.clone(), self.name.clone());
        self.server.submit(Job {
            name,
            content,
            received,
            reply: Box::new(move |result: Result<Answer, ServeError>| {
                match &result {
                    Ok(answer) => machine.result(&slot, &answer.prediction),
                    Err(ServeError::Model(_) | ServeError::NoModel | ServeError::Paused) => {
                        machine.fault(&slot);
                    }
                    Err(ServeError::QueueFull | ServeError::Input(_) | ServeError::Withdrawn) => {}
                }
                reply(result.map(|answer| publish(&results, answer)));
            }),
        })
    }
}

/// All slots.
pub(crate) struct Slots {
    slots: BTreeMap<SlotName, Slot>,
    keepers: Mutex<Vec<Keeper>>,
}

impl Slots {
    pub(super) fn new(slots: BTreeMap<SlotName, Slot>, keepers: Vec<Keeper>) -> Self {
        Self {
            slots,
            keepers: Mutex::new(keepers),
        }
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &Slot> {
        self.slots.values()
    }

    pub(crate) fn get(&self, name: &SlotName) -> Option<&Slot> {
        self.slots.get(name)
    }

    /// Waits until nothing waits in any queue.
    pub(super) fn drain(&self, limit: Duration) {
        let begun = Instant::now();
        while begun.elapsed() < limit && self.all().any(|slot| slot.server.waiting() > 0) {
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Ends the keepers.
    pub(super) fn end(&self) {
        let keepers = std::mem::take(&mut *self.keepers.lock().unwrap_or_else(PoisonError::into_inner));
        drop(keepers);
    }
}
