//! Changing what many devices run: a few at a time, and no further when too many fail.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use super::survey::{self, DeviceView};
use super::way::{Verdict, Way, wish};
use super::{BundleFile, Heard, Operator, OperatorError};
use crate::protocol::{
    BlobRequest, DesiredState, DeviceId, Generation, ReportedSlot, SlotName, SlotSpec, Topic, TopicName,
};

/// How long the broker's kept messages may pause before all are there.
const QUIET: Duration = Duration::from_millis(500);
/// How often devices are looked at that say nothing.
const TICK: Duration = Duration::from_millis(200);

/// What is to become of a slot.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// It gets this model.
    Install(SlotSpec),
    /// It becomes empty.
    Empty,
}

/// Which devices, and how.
pub struct Rollout<'a> {
    /// The devices, in this order.
    pub devices: Vec<DeviceId>,
    /// The slot, the same on each.
    pub slot: SlotName,
    /// What is to become of it.
    pub change: Change,
    /// The bundle and the name under which devices ask for it, where this process hands it out over MQTT.
    pub blob: Option<(TopicName, &'a BundleFile)>,
    /// Devices under way at a time.
    pub wave: usize,
    /// Failures after which no further device is begun.
    pub failures: usize,
    /// How long one device may take.
    pub patience: Duration,
    /// Whether a device has it only when its new model has been watched, and not already when it answers.
    pub watched: bool,
    /// Whether a device may be asked although that empties slots of which the broker has lost what they should hold.
    pub forget_other_slots: bool,
}

/// Why a device does not have it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// It says why.
    Refused(String),
    /// It has not finished in time; its last word.
    Late(Option<Box<ReportedSlot>>),
    /// Somebody else changed what it should run meanwhile.
    Superseded(Generation),
    /// The broker has lost what these slots should hold, and a desired state without them would empty them. The device
    /// is not asked, unless [`Rollout::forget_other_slots`] allows it.
    WouldEmpty(Vec<SlotName>),
}

/// What happens to one device.
#[derive(Clone, Debug, PartialEq)]
pub enum DeviceProgress {
    /// It is asked to change.
    Asked(Generation),
    /// It says how far it is.
    Reports(ReportedSlot),
    /// It has taken this share of the bundle from here.
    Sent(f64),
    /// It runs it, or is empty.
    Done,
    /// It does not.
    Failed(Failure),
}

/// How a rollout ended.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RolloutEnd {
    /// Devices that have it.
    pub done: Vec<DeviceId>,
    /// Devices that do not, and why.
    pub failed: BTreeMap<DeviceId, Failure>,
    /// Devices that were not asked because too many had failed.
    pub untouched: Vec<DeviceId>,
}

/// Rolls out, telling `progress` what happens.
///
/// # Errors
/// When the broker refuses or is gone, or the bundle's file cannot be read. What was asked of devices stays asked.
pub fn roll_out(
    operator: &mut Operator,
    rollout: &Rollout<'_>,
    progress: &mut dyn FnMut(&DeviceId, &DeviceProgress),
) -> Result<RolloutEnd, OperatorError> {
    let mut once = BTreeSet::new();
    let devices = rollout.devices.iter().filter(|device| once.insert(*device));
    let mut course = Course {
        waiting: devices.cloned().collect(),
        operator,
        rollout,
        progress,
        known: BTreeMap::new(),
        collecting: Vec::new(),
        under_way: BTreeMap::new(),
        end: RolloutEnd::default(),
    };
    loop {
        course.begin()?;
        if course.collecting.is_empty() && course.under_way.is_empty() {
            course.operator.settle()?;
            course.end.untouched = course.waiting.into();
            return Ok(course.end);
        }
        let heard = course.operator.next(course.pause())?;
        match heard {
            Some(heard) => course.take(&heard)?,
            // Only when nothing waits to be read: a kept message may stand behind others.
            None => course.ask_the_quiet()?,
        }
        course.give_up_the_late();
    }
}

/// A rollout in progress.
struct Course<'a, 'b> {
    operator: &'a mut Operator,
    rollout: &'a Rollout<'b>,
    progress: &'a mut dyn FnMut(&DeviceId, &DeviceProgress),
    waiting: VecDeque<DeviceId>,
    /// What is known of the devices that were begun.
    known: BTreeMap<DeviceId, DeviceView>,
    /// Devices of which the broker's kept messages are awaited, and when the last one came.
    collecting: Vec<(DeviceId, Instant)>,
    under_way: BTreeMap<DeviceId, Way>,
    end: RolloutEnd,
}

impl Course<'_, '_> {
    /// Begins as many devices as may be under way.
    fn begin(&mut self) -> Result<(), OperatorError> {
        if self.end.failed.len() > self.rollout.failures {
            for (device, _) in self.collecting.drain(..).rev() {
                self.waiting.push_front(device);
            }
            return Ok(());
        }
        while self.collecting.len() + self.under_way.len() < self.rollout.wave.max(1) {
            let Some(device) = self.waiting.pop_front() else {
                break;
            };
            self.known.entry(device.clone()).or_default();
            survey::subscribe(self.operator, Some(&device))?;
            if let Some((id, _)) = &self.rollout.blob {
                self.operator
                    .subscribe(&Topic::BlobRequest(id.clone()).of(&device))?;
            }
            self.collecting.push((device, Instant::now()));
        }
        Ok(())
    }

    /// How long to wait for a message.
    fn pause(&self) -> Duration {
        let quiet = self.collecting.iter();
        quiet
            .map(|(_, heard_at)| QUIET.saturating_sub(heard_at.elapsed()))
            .fold(TICK, Duration::min)
    }

    fn take(&mut self, heard: &Heard) -> Result<(), OperatorError> {
        let Ok((device, topic)) = Topic::parse(&heard.topic) else {
            return Ok(());
        };
        if let Topic::BlobRequest(id) = &topic {
            return self.send(&device, id, &heard.payload);
        }
        let Some(view) = self.known.get_mut(&device) else {
            return Ok(());
        };
        if view.take(&topic, &heard.payload)
            && heard.retained
            && let Some((_, heard_at)) = self.collecting.iter_mut().find(|(own, _)| *own == device)
        {
            *heard_at = Instant::now();
        }
        let Some(way) = self.under_way.get_mut(&device) else {
            return Ok(());
        };
        let progress = &mut *self.progress;
        match way.judge(self.rollout, view, &mut |step| progress(&device, &step)) {
            None => Ok(()),
            Some(Verdict::Ask(state)) => self.publish(&device, &state),
            Some(Verdict::Ended(ended)) => {
                self.under_way.remove(&device);
                self.finish(device, ended);
                Ok(())
            }
        }
    }

    /// Asks the devices of which everything kept has come.
    fn ask_the_quiet(&mut self) -> Result<(), OperatorError> {
        let is_quiet = |(_, heard_at): &(DeviceId, Instant)| heard_at.elapsed() >= QUIET;
        while self.end.failed.len() <= self.rollout.failures
            && let Some(index) = self.collecting.iter().position(is_quiet)
        {
            let (device, _) = self.collecting.remove(index);
            let view = self.known.entry(device.clone()).or_default();
            match wish(self.rollout, view) {
                Ok(state) => {
                    let way = Way::new(view.desired.clone(), state.clone());
                    self.publish(&device, &state)?;
                    self.under_way.insert(device, way);
                }
                Err(failure) => self.finish(device, Err(failure)),
            }
        }
        Ok(())
    }

    fn publish(&mut self, device: &DeviceId, state: &DesiredState) -> Result<(), OperatorError> {
        let topic = Topic::Desired.of(device);
        self.operator.publish(&topic, serde_json::to_vec(state)?, true)?;
        (self.progress)(device, &DeviceProgress::Asked(state.generation));
        Ok(())
    }

    fn give_up_the_late(&mut self) {
        let patience = self.rollout.patience;
        let late = |(_, way): &(&DeviceId, &Way)| way.since.elapsed() > patience;
        while let Some((device, _)) = self.under_way.iter().find(late) {
            let device = device.clone();
            let last = self.under_way.remove(&device).and_then(|way| way.last);
            self.finish(device, Err(Failure::Late(last.map(Box::new))));
        }
    }

    fn finish(&mut self, device: DeviceId, ended: Result<(), Failure>) {
        match ended {
            Ok(()) => {
                (self.progress)(&device, &DeviceProgress::Done);
                self.end.done.push(device);
            }
            Err(failure) => {
                (self.progress)(&device, &DeviceProgress::Failed(failure.clone()));
                self.end.failed.insert(device, failure);
            }
        }
    }

    /// Hands out the part of the bundle that a device asks for.
    fn send(&mut self, device: &DeviceId, id: &TopicName, payload: &[u8]) -> Result<(), OperatorError> {
        let (Some((own, bundle)), Ok(request)) =
            (&self.rollout.blob, serde_json::from_slice::<BlobRequest>(payload))
        else {
            return Ok(());
        };
        if own != id {
            return Ok(());
        }
        let chunks = bundle.answer(&request).map_err(|error| OperatorError::Broker {
            broker: bundle.path.display().to_string(),
            problem: error.to_string(),
        })?;
        let sent: usize = chunks.iter().map(Vec::len).sum();
        let topic = Topic::BlobChunk(id.clone()).of(device);
        for chunk in chunks {
            self.operator.publish(&topic, chunk, false)?;
        }
        if bundle.size.0 > 0 {
            let share = (request.offset as f64 + sent as f64) / bundle.size.0 as f64;
            (self.progress)(device, &DeviceProgress::Sent(share.min(1.0)));
        }
        Ok(())
    }
}
