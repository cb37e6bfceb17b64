//! What waits for the broker: results in the spool, and the latest word on each of a few topics in memory.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::SystemTime;

use edgeopt_models::Bytes;
use serde::Serialize;

use crate::link::{Nudge, Outbox, OutboxError, Outgoing, PacketLimit, Refusal};
use crate::protocol::{EncodeError, Encoding, Prediction, ResultMessage};
use crate::spool::{Counters, Spool, SpoolError};

/// Topics whose latest word is kept.
const MOST_TOPICS: usize = 4096;
/// Most bytes read ahead from the spool at a time.
const READ_AHEAD: usize = 256 << 10;

/// Why a message does not wait.
#[derive(Debug, thiserror::Error)]
pub enum MailError {
    /// It could never be sent.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The spool does not take it.
    #[error(transparent)]
    Spool(#[from] SpoolError),
    /// It cannot be written.
    #[error(transparent)]
    Encode(#[from] EncodeError),
    /// There are too many topics.
    #[error("{MOST_TOPICS} topics have a word that waits for the broker; {0} has to come again later")]
    TooManyTopics(String),
}

/// The mail as others see it.
#[derive(Clone, Copy, Debug, Default)]
pub struct MailView {
    /// What the spool delivered, lost and refused since its folder was created.
    pub spool: Counters,
    /// Records that wait in it.
    pub waiting: u64,
    /// What its files take.
    pub on_disk: Bytes,
    /// Messages that could never be sent, since the start.
    pub oversize: u64,
}

/// Takes messages, and is the link's outbox. Clones share the content.
#[derive(Clone, Debug)]
pub struct Mail {
    state: Arc<Mutex<State>>,
    nudge: Arc<OnceLock<Nudge>>,
    limit: PacketLimit,
}

#[derive(Debug)]
struct State {
    spool: Spool,
    latest: BTreeMap<String, Word>,
    /// Where each message that the link has comes from, by the number that the link knows.
    handed: BTreeMap<u64, Origin>,
    next: u64,
    /// The last record taken from the spool in this round.
    cursor: Option<u64>,
    versions: u64,
    oversize: u64,
}

/// The latest word on a topic.
#[derive(Debug)]
struct Word {
    version: u64,
    payload: Vec<u8>,
    retain: bool,
    handed: bool,
}

#[derive(Clone, Debug)]
enum Origin {
    Spool(u64),
    Latest(String, u64),
}

impl Mail {
    /// Mail over a spool, each message within `limit`.
    pub fn new(spool: Spool, limit: PacketLimit) -> Self {
        let state = State {
            spool,
            latest: BTreeMap::new(),
            handed: BTreeMap::new(),
            next: 0,
            cursor: None,
            versions: 0,
            oversize: 0,
        };
        Self {
            state: Arc::new(Mutex::new(state)),
            nudge: Arc::default(),
            limit,
        }
    }

    /// Whom to tell that there is more.
    pub(super) fn tell(&self, nudge: Nudge) {
        // Once for each mail; a second link would be a second owner of the outbox.
        let _ = self.nudge.set(nudge);
    }

    // Every change is complete before anything in it can panic.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn nudge(&self) {
        if let Some(nudge) = self.nudge.get() {
            nudge.outbox_changed();
        }
    }

    fn check(&self, state: &mut State, topic: &str, payload: &[u8]) -> Result<(), MailError> {
        self.limit.check(topic, payload.len()).map_err(|refusal| {
            state.oversize += 1;
            refusal.into()
        })
    }

    /// Adds a message that must arrive, however long the broker is away.
    ///
    /// # Errors
    /// See [`MailError`].
    pub fn keep(&self, topic: &str, payload: &[u8]) -> Result<(), MailError> {
        let mut state = self.state();
        self.check(&mut state, topic, payload)?;
        let appended = state.spool.append(topic, payload, SystemTime::now())?;
        drop(state);
        if appended.dropped.records > 0 {
            tracing::warn!(
                records = appended.dropped.records,
                bytes = appended.dropped.bytes,
                "the spool is full: the oldest results were given up"
            );
        }
        self.nudge();
        Ok(())
    }

    /// Says the latest word on a topic, in place of an earlier one that has not been sent yet.
    ///
    /// # Errors
    /// See [`MailError`].
    pub fn say(&self, topic: String, payload: Vec<u8>, retain: bool) -> Result<(), MailError> {
        let mut state = self.state();
        self.check(&mut state, &topic, &payload)?;
        if state.latest.len() >= MOST_TOPICS && !state.latest.contains_key(&topic) {
            return Err(MailError::TooManyTopics(topic));
        }
        state.versions += 1;
        let version = state.versions;
        state.latest.insert(
            topic,
            Word {
                version,
                payload,
                retain,
                handed: false,
            },
        );
        drop(state);
        self.nudge();
        Ok(())
    }

    /// [`Mail::keep`] for a message of the protocol.
    ///
    /// # Errors
    /// See [`MailError`].
    pub fn keep_message(&self, topic: &str, message: &impl Serialize) -> Result<(), MailError> {
        self.keep(topic, &json(message)?)
    }

    /// [`Mail::keep`] for a result.
    ///
    /// # Errors
    /// See [`MailError`].
    pub fn keep_result(
        &self,
        topic: &str,
        result: &ResultMessage<Prediction>,
        encoding: Encoding,
    ) -> Result<(), MailError> {
        self.keep(topic, &result.encode(encoding)?)
    }

    /// [`Mail::say`] for a message of the protocol.
    ///
    /// # Errors
    /// See [`MailError`].
    pub fn say_message(
        &self,
        topic: String,
        message: &impl Serialize,
        retain: bool,
    ) -> Result<(), MailError> {
        self.say(topic, json(message)?, retain)
    }

    /// What is due by time; to be called every second or so.
    ///
    /// # Errors
    /// When the file system fails.
    pub fn maintain(&self, now: SystemTime) -> Result<(), SpoolError> {
        let dropped = self.state().spool.maintain(now)?;
        if dropped.records > 0 {
            tracing::warn!(records = dropped.records, "results became too old to be sent");
        }
        Ok(())
    }

    /// Makes what waits durable.
    ///
    /// # Errors
    /// When the file system fails.
    pub fn sync(&self) -> Result<(), SpoolError> {
        self.state().spool.sync()
    }

    /// Counts.
    pub fn view(&self) -> MailView {
        let state = self.state();
        MailView {
            spool: state.spool.counters(),
            waiting: state.spool.len(),
            on_disk: state.spool.bytes_on_disk(),
            oversize: state.oversize,
        }
    }
}

fn json(message: &impl Serialize) -> Result<Vec<u8>, EncodeError> {
    Ok(serde_json::to_vec(message)?)
}

impl State {
    fn hand(&mut self, origin: Origin) -> u64 {
        let sequence = self.next;
        self.next += 1;
        self.handed.insert(sequence, origin);
        sequence
    }
}

impl Outbox for Mail {
    fn next(&mut self, after: Option<u64>, max: usize) -> Result<Vec<Outgoing>, OutboxError> {
        let mut state = self.state();
        let state = &mut *state;
        if after.is_none() {
            // A new connection: whatever was under way may be lost.
            state.handed.clear();
            state.cursor = None;
            for word in state.latest.values_mut() {
                word.handed = false;
            }
        }
        let mut out = Vec::new();
        let fresh: Vec<(String, u64, Vec<u8>, bool)> = state
            .latest
            .iter_mut()
            .filter(|(_, word)| !word.handed)
            .take(max)
            .map(|(topic, word)| {
                word.handed = true;
                (topic.clone(), word.version, word.payload.clone(), word.retain)
            })
            .collect();
        for (topic, version, payload, retain) in fresh {
            let sequence = state.hand(Origin::Latest(topic.clone(), version));
            out.push(Outgoing {
                sequence,
                topic,
                payload,
                retain,
            });
        }
        if out.len() < max {
            let records = match state.spool.read_after(state.cursor, max - out.len(), READ_AHEAD) {
                Ok(records) => records,
                // The words go out all the same; the next call meets the error again.
                Err(_) if !out.is_empty() => Vec::new(),
                Err(error) => return Err(OutboxError(error.to_string())),
            };
            for record in records {
                state.cursor = Some(record.sequence);
                let sequence = state.hand(Origin::Spool(record.sequence));
                out.push(Outgoing {
                    sequence,
                    topic: record.topic,
                    payload: record.payload,
                    retain: false,
                });
            }
        }
        Ok(out)
    }

    fn acknowledged(&mut self, sequence: u64) -> Result<(), OutboxError> {
        let mut state = self.state();
        match state.handed.remove(&sequence) {
            Some(Origin::Spool(record)) => state
                .spool
                .acknowledge(record)
                .map(drop)
                .map_err(|error| OutboxError(error.to_string())),
            Some(Origin::Latest(topic, version)) => {
                if state
                    .latest
                    .get(&topic)
                    .is_some_and(|word| word.version == version)
                {
                    state.latest.remove(&topic);
                }
                Ok(())
            }
            None => Ok(()),
        }
    }

    fn refused(&mut self, sequence: u64, why: &Refusal) -> Result<(), OutboxError> {
        tracing::error!("{why}: given up");
        self.state().oversize += 1;
        self.acknowledged(sequence)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::SystemClock;
    use crate::disk::SimDisk;
    use crate::spool::SpoolOptions;

    fn mail(folder: &std::path::Path) -> Mail {
        Mail::new(
            Spool::open(folder, SpoolOptions::default()).unwrap(),
            PacketLimit::new(1000),
        )
    }

    fn texts(mail: &mut Mail, after: Option<u64>, max: usize) -> (Vec<String>, Option<u64>) {
        let messages = mail.next(after, max).unwrap();
        let last = messages.last().map(|message| message.sequence).or(after);
        let text = |message: &Outgoing| String::from_utf8(message.payload.clone()).unwrap();
        (messages.iter().map(text).collect(), last)
    }

    #[test]
    fn kept_messages_all_arrive_and_of_words_the_latest() {
        let folder = tempfile::tempdir().unwrap();
        let mut mail = mail(folder.path());
        for index in 0..3 {
            mail.keep("r", format!("result {index}").as_bytes()).unwrap();
            mail.say("s".into(), format!("state {index}").into_bytes(), true)
                .unwrap();
        }
        let (sent, last) = texts(&mut mail, None, 3);
        assert_eq!(sent, ["state 2", "result 0", "result 1"]);
        // A newer word while the older one is under way: both are sent, and the older one's acknowledgement does not
        // make the newer one disappear.
        mail.say("s".into(), b"state 3".to_vec(), true).unwrap();
        mail.acknowledged(0).unwrap();
        let (sent, _) = texts(&mut mail, last, 9);
        assert_eq!(sent, ["state 3", "result 2"]);
        // After a reconnect everything unacknowledged comes again.
        mail.acknowledged(1).unwrap();
        let (sent, _) = texts(&mut mail, None, 9);
        assert_eq!(sent, ["state 3", "result 1", "result 2"]);
        // Late acknowledgements of the connection before change nothing.
        mail.acknowledged(2).unwrap();
        assert_eq!(texts(&mut mail, None, 9).0, ["state 3", "result 1", "result 2"]);
        for sequence in 8..=10 {
            mail.acknowledged(sequence).unwrap();
        }
        assert_eq!(texts(&mut mail, None, 9).0, [""; 0]);
        assert_eq!(mail.view().waiting, 0);
    }

    #[test]
    fn words_go_out_although_the_spool_cannot_be_read() {
        let disk = SimDisk::default();
        let clock = Arc::new(SystemClock::default());
        let spool = Spool::open_on(
            Arc::new(disk.clone()),
            clock,
            "/spool".as_ref(),
            SpoolOptions::default(),
        );
        let mut mail = Mail::new(spool.unwrap(), PacketLimit::new(1000));
        mail.keep("r", b"result").unwrap();
        mail.say("s".into(), b"state".to_vec(), true).unwrap();
        disk.cut_after(0);
        mail.keep("r", b"lost").unwrap_err();
        let (sent, last) = texts(&mut mail, None, 9);
        assert_eq!(sent, ["state"]);
        // With nothing else to say, the problem is told.
        mail.next(last, 9).unwrap_err();
    }

    #[test]
    fn results_survive_a_restart_and_too_large_ones_are_counted() {
        let folder = tempfile::tempdir().unwrap();
        {
            let mail = mail(folder.path());
            mail.keep("r", b"one").unwrap();
            let error = mail.keep("r", &[0; 2000]).unwrap_err().to_string();
            assert!(error.contains("broker.max_packet"), "{error}");
            assert!(mail.say("a/+".into(), Vec::new(), false).is_err());
            assert_eq!(mail.view().oversize, 2);
        }
        let mut mail = mail(folder.path());
        assert_eq!(texts(&mut mail, None, 9).0, ["one"]);
    }
}
