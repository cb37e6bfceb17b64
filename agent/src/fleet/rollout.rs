//! Changing what many devices run: a few at a time, and no further when too many fail.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use super::survey::DeviceView;
use super::{BundleFile, Operator, OperatorError, survey};
use crate::protocol::{
    BlobRequest, DesiredState, DeviceId, Generation, Phase, ReportedSlot, SlotName, SlotSpec, Topic,
    TopicName,
};

/// How long the broker's kept messages may pause before all are there.
const QUIET: Duration = Duration::from_millis(500);

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
}

/// Why a device does not have it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// It says why.
    Refused(String),
    /// It has not finished in time; its last word.
    Late(Option<ReportedSlot>),
    /// Somebody else changed what it should run meanwhile.
    Superseded(Generation),
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
    /// Devices that were not begun because too many had failed.
    pub untouched: Vec<DeviceId>,
}

struct UnderWay {
    generation: Generation,
    since: Instant,
    last: Option<ReportedSlot>,
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
    let mut waiting: VecDeque<DeviceId> = rollout.devices.iter().cloned().collect();
    let mut known: BTreeMap<DeviceId, DeviceView> = BTreeMap::new();
    let mut under_way: BTreeMap<DeviceId, UnderWay> = BTreeMap::new();
    let mut end = RolloutEnd::default();
    loop {
        while under_way.len() < rollout.wave.max(1) && end.failed.len() <= rollout.failures {
            let Some(device) = waiting.pop_front() else {
                break;
            };
            let view = survey(operator, Some(&device), QUIET)?.remove(&device);
            let view = view.unwrap_or_default();
            if let Some((id, _)) = &rollout.blob {
                operator.subscribe(&Topic::BlobRequest(id.clone()).of(&device))?;
            }
            let generation = ask(operator, rollout, &device, &view)?;
            progress(&device, &DeviceProgress::Asked(generation));
            known.insert(device.clone(), view);
            under_way.insert(
                device,
                UnderWay {
                    generation,
                    since: Instant::now(),
                    last: None,
                },
            );
        }
        if under_way.is_empty() {
            end.untouched = waiting.into();
            operator.settle()?;
            return Ok(end);
        }
        let heard = operator.next(Duration::from_millis(200))?;
        if let Some(heard) = heard
            && let Ok((device, topic)) = Topic::parse(&heard.topic)
        {
            if let Topic::BlobRequest(id) = &topic {
                send(operator, rollout, &device, id, &heard.payload, progress)?;
            } else if let Some(view) = known.get_mut(&device) {
                view.take(&topic, &heard.payload);
                if let Some(way) = under_way.get_mut(&device)
                    && let Some(ended) = judge(rollout, view, way, &mut |step| progress(&device, &step))
                {
                    under_way.remove(&device);
                    finish(device, ended, &mut end, progress);
                }
            }
        }
        let late: Vec<DeviceId> = under_way
            .iter()
            .filter(|(_, way)| way.since.elapsed() > rollout.patience)
            .map(|(device, _)| device.clone())
            .collect();
        for device in late {
            let last = under_way.remove(&device).and_then(|way| way.last);
            finish(device, Err(Failure::Late(last)), &mut end, progress);
        }
    }
}

fn finish(
    device: DeviceId,
    ended: Result<(), Failure>,
    end: &mut RolloutEnd,
    progress: &mut dyn FnMut(&DeviceId, &DeviceProgress),
) {
    match ended {
        Ok(()) => {
            progress(&device, &DeviceProgress::Done);
            end.done.push(device);
        }
        Err(failure) => {
            progress(&device, &DeviceProgress::Failed(failure.clone()));
            end.failed.insert(device, failure);
        }
    }
}

/// Publishes the new desired state: what the device should run already, with this slot changed.
fn ask(
    operator: &mut Operator,
    rollout: &Rollout<'_>,
    device: &DeviceId,
    view: &DeviceView,
) -> Result<Generation, OperatorError> {
    let desired = view.desired.as_ref().map(|state| state.generation.0);
    let reported = view.reported.as_ref().map(|state| state.generation.0);
    let generation = Generation(desired.max(reported).unwrap_or(0) + 1);
    let mut slots = view.desired.clone().map(|state| state.slots).unwrap_or_default();
    match &rollout.change {
        Change::Install(spec) => slots.insert(rollout.slot.clone(), spec.clone()),
        Change::Empty => slots.remove(&rollout.slot),
    };
    let state = DesiredState { generation, slots };
    operator.publish(&Topic::Desired.of(device), serde_json::to_vec(&state)?, true)?;
    Ok(generation)
}

/// Whether a device has ended, by what it last said.
fn judge(
    rollout: &Rollout<'_>,
    view: &DeviceView,
    way: &mut UnderWay,
    progress: &mut dyn FnMut(DeviceProgress),
) -> Option<Result<(), Failure>> {
    let newer = view.desired.as_ref().map(|state| state.generation);
    if let Some(newer) = newer.filter(|newer| *newer > way.generation) {
        return Some(Err(Failure::Superseded(newer)));
    }
    let reported = view.reported.as_ref()?;
    if reported.generation < way.generation {
        return None;
    }
    let Some(slot) = reported.slots.get(&rollout.slot) else {
        return match rollout.change {
            Change::Empty => Some(Ok(())),
            Change::Install(_) => None,
        };
    };
    if way.last.as_ref() != Some(slot) {
        way.last = Some(slot.clone());
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

fn send(
    operator: &mut Operator,
    rollout: &Rollout<'_>,
    device: &DeviceId,
    id: &TopicName,
    payload: &[u8],
    progress: &mut dyn FnMut(&DeviceId, &DeviceProgress),
) -> Result<(), OperatorError> {
    let (Some((own, bundle)), Ok(request)) = (&rollout.blob, serde_json::from_slice::<BlobRequest>(payload))
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
        operator.publish(&topic, chunk, false)?;
    }
    if bundle.size.0 > 0 {
        let share = (request.offset as f64 + sent as f64) / bundle.size.0 as f64;
        progress(device, &DeviceProgress::Sent(share.min(1.0)));
    }
    Ok(())
}
