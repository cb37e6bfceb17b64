//! Commands: each is done once, however often it is seen.
//!
//! What was begun and how it ended is on disk before it is told, so that a restart neither repeats nor forgets it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, SyncSender, TrySendError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use edgeopt_models::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::mail::Mail;
use super::results::wall_ms;
use super::slots::{Slot, Slots};
use super::telemetry::Now;
use crate::clock::since_boot;
use crate::deploy::Event;
use crate::disk::{Disk, RealDisk};
use crate::durable;
use crate::link::WallClock;
use crate::protocol::{
    Action, Command, CommandReply, CommandState, DeviceId, EngineState, SlotName, Topic, TopicName,
};
use crate::pulse::{Pulse, Pulses};

/// Commands that may wait.
const QUEUE: usize = 64;
/// Commands whose end is remembered; their creators clear them long before.
const REMEMBERED: usize = 256;
/// Longest reason of a failure, in characters.
const LONGEST_REASON: usize = 500;
const JOURNAL_LIMIT: Bytes = Bytes::mib(4);
/// How long one command may take.
const STEP: Duration = Duration::from_secs(600);

/// Where commands are handed over.
#[derive(Clone)]
pub(super) struct Asked(SyncSender<(TopicName, Vec<u8>)>);

impl Asked {
    /// Never blocks: a retained command comes again at the next connect.
    pub(super) fn ask(&self, id: TopicName, message: Vec<u8>) {
        if let Err(TrySendError::Full((id, _))) = self.0.try_send((id, message)) {
            tracing::warn!("command {id}: {QUEUE} commands wait already; it is taken at the next connect");
        }
    }
}

/// The thread that does them; it ends when nobody can ask any more.
pub(super) struct Commands {
    pub(super) asked: Asked,
    pub(super) thread: JoinHandle<()>,
}

/// What they need.
pub(super) struct Means {
    pub(super) device: DeviceId,
    pub(super) slots: Arc<Slots>,
    pub(super) mail: Mail,
    pub(super) report: Now,
    pub(super) wall: Arc<dyn WallClock>,
    /// The file of the journal.
    pub(super) journal: PathBuf,
}

/// Commands seen, by id, with their last reply; `number` orders them.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Journal {
    number: u64,
    entries: BTreeMap<TopicName, Entry>,
    /// Slots that do not answer until `resume`, restarts or not.
    #[serde(default)]
    paused: BTreeSet<SlotName>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Entry {
    number: u64,
    reply: CommandReply,
}

impl Commands {
    /// Starts the thread; what an earlier one left unfinished is told as failed.
    ///
    /// # Errors
    /// When the system gives no thread. A journal that cannot be read is set aside with a warning.
    pub(super) fn start(means: Means, pulses: &Pulses) -> std::io::Result<Self> {
        let (asked, received) = mpsc::sync_channel(QUEUE);
        let pulse = pulses.join("commands");
        let mut worker = Worker {
            journal: read(&means.journal),
            means,
        };
        // Before any input can come.
        for slot in &worker.journal.paused {
            if let Some(slot) = worker.means.slots.get(slot) {
                tracing::warn!(slot = %slot.name, "slot {} is paused until the operator resumes it", slot.name);
                slot.server.pause(true);
            }
        }
        let thread = thread::Builder::new()
            .name("commands".into())
            .spawn(move || worker.run(&received, &pulse))?;
        Ok(Self {
            asked: Asked(asked),
            thread,
        })
    }
}

fn read(path: &std::path::Path) -> Journal {
    let disk: &dyn Disk = &RealDisk;
    let found = durable::read(disk, path, JOURNAL_LIMIT).map_err(|error| error.to_string());
    let parsed = found.and_then(|bytes| match bytes {
        None => Ok(Journal::default()),
        Some(bytes) => serde_json::from_slice(&bytes).map_err(|error| error.to_string()),
    });
    parsed.unwrap_or_else(|problem| {
        let aside = path.with_extension("unreadable");
        tracing::error!(
            "{}: {problem}; it is set aside as {}: commands that were done may be done again, slots that were paused answer",
            path.display(),
            aside.display()
        );
        if let Err(error) = std::fs::rename(path, &aside) {
            tracing::warn!("{}: {error}", aside.display());
        }
        Journal::default()
    })
}

struct Worker {
    means: Means,
    journal: Journal,
}

impl Worker {
    fn run(&mut self, received: &Receiver<(TopicName, Vec<u8>)>, pulse: &Pulse) {
        let interrupted: Vec<TopicName> = self
            .journal
            .entries
            .iter()
            .filter(|(_, entry)| entry.reply.state == CommandState::Running)
            .map(|(id, _)| id.clone())
            .collect();
        for id in interrupted {
            self.end(&id, Err("the daemon was restarted meanwhile".into()));
        }
        while let Ok((id, message)) = received.recv() {
            pulse.beat(STEP);
            self.take(&id, &message);
            pulse.rest();
        }
    }

    fn take(&mut self, id: &TopicName, message: &[u8]) {
        if message.is_empty() {
            // Cleared by its creator: so is our reply.
            if self.journal.entries.remove(id).is_some() {
                self.write();
                self.say(id, Vec::new());
            }
            return;
        }
        if let Some(entry) = self.journal.entries.get(id) {
            let reply = entry.reply.clone();
            self.publish(id, &reply);
            return;
        }
        let command: Command = match serde_json::from_slice(message) {
            Ok(command) => command,
            Err(error) => return self.end(id, Err(format!("not a command: {error}"))),
        };
        let now = wall_ms(self.means.wall.as_ref());
        match (command.expires_ms, now) {
            (Some(expires), Some(now)) if now > expires => {
                return self.end(id, Err(format!("it expired {} ms ago", now - expires)));
            }
            (Some(_), None) => {
                return self.end(
                    id,
                    Err("it may have expired: this device's clock is not set".into()),
                );
            }
            _ => {}
        }
        tracing::info!(%id, action = ?command.action, "command {id}: {:?}", command.action);
        self.note(
            id,
            CommandReply {
                state: CommandState::Running,
                reason: None,
                detail: None,
            },
        );
        let result = self.perform(&command.action);
        self.end(id, result);
    }

    fn perform(&mut self, action: &Action) -> Result<Option<serde_json::Value>, String> {
        match action {
            Action::Ping {} => Ok(Some(json!({ "uptime_s": since_boot().as_secs() }))),
            Action::SelfTest { slot } => {
                let model = self.slot(slot)?.server.model();
                let model = model.ok_or_else(|| format!("no model is active in slot {slot}"))?;
                let samples = model.self_test()?;
                Ok(Some(
                    json!({ "version": model.manifest.version, "samples": samples }),
                ))
            }
            Action::Rollback { slot } => {
                let keeper = &self.slot(slot)?.keeper;
                let Some(previous) = keeper.report().slot.previous_version else {
                    return Err(format!("slot {slot} has no previous model to return to"));
                };
                keeper.send(Event::RollbackAsked);
                Ok(Some(json!({ "previous_version": previous })))
            }
            Action::Pause { slot } => {
                let slot = self.slot(slot)?;
                slot.server.pause(true);
                slot.machine.fault(&slot.name);
                self.journal.paused.insert(slot.name.clone());
                Ok(None)
            }
            Action::Resume { slot } => {
                self.slot(slot)?.server.pause(false);
                self.journal.paused.remove(slot);
                Ok(None)
            }
            Action::Rebuild { slot } => {
                let keeper = &self.slot(slot)?.keeper;
                let engine = keeper.report().slot.engine;
                if engine.is_none_or(|engine| engine.state != EngineState::Failed) {
                    return Err(format!(
                        "no engine of slot {slot} has failed: there is nothing to build again"
                    ));
                }
                keeper.send(Event::RebuildAsked);
                Ok(None)
            }
            Action::Report {} => {
                self.means.report.ask();
                Ok(None)
            }
        }
    }

    fn slot(&self, name: &SlotName) -> Result<&Slot, String> {
        self.means
            .slots
            .get(name)
            .ok_or_else(|| format!("this device has no slot {name}"))
    }

    fn end(&mut self, id: &TopicName, result: Result<Option<serde_json::Value>, String>) {
        let reply = match result {
            Ok(detail) => CommandReply {
                state: CommandState::Succeeded,
                reason: None,
                detail,
            },
            Err(reason) => CommandReply {
                state: CommandState::Failed,
                // One that quotes a whole message would fill the journal.
                reason: Some(reason.chars().take(LONGEST_REASON).collect()),
                detail: None,
            },
        };
        self.note(id, reply);
    }

    /// To disk, then to the operator.
    fn note(&mut self, id: &TopicName, reply: CommandReply) {
        self.journal.number += 1;
        let number = self.journal.number;
        self.journal.entries.insert(
            id.clone(),
            Entry {
                number,
                reply: reply.clone(),
            },
        );
        while self.journal.entries.len() > REMEMBERED {
            let oldest = self.journal.entries.iter().min_by_key(|(_, entry)| entry.number);
            let Some(oldest) = oldest.map(|(id, _)| id.clone()) else {
                break;
            };
            self.journal.entries.remove(&oldest);
        }
        self.write();
        self.publish(id, &reply);
    }

    fn write(&self) {
        let written = serde_json::to_vec(&self.journal)
            .map_err(|error| error.to_string())
            .and_then(|json| {
                durable::write(&RealDisk, &self.means.journal, &json).map_err(|error| error.to_string())
            });
        if let Err(error) = written {
            tracing::error!("commands that were done may be done again after a restart: {error}");
        }
    }

    fn publish(&self, id: &TopicName, reply: &CommandReply) {
        match serde_json::to_vec(reply) {
            Ok(json) => self.say(id, json),
            Err(error) => tracing::error!("command {id}: {error}"),
        }
    }

    fn say(&self, id: &TopicName, payload: Vec<u8>) {
        let topic = Topic::CommandReply(id.clone()).of(&self.means.device);
        if let Err(error) = self.means.mail.say(topic, payload, true) {
            tracing::error!("command {id}: {error}");
        }
    }
}
