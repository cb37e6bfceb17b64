//! Over MQTT alone: the device asks for a few chunks, takes them, asks for the next. Whoever sends keeps no state, and a
//! slow device never fills the broker.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::partial::{Appending, Partial};
use super::{ASKS, Attempt, Job};
use crate::clock::Clock;
use crate::protocol::{BlobChunk, BlobRequest, InvalidChunk, MAX_CHUNK, TopicName};

/// Chunks asked for at a time.
const WINDOW: u16 = 8;
/// Silence after which a request is repeated.
const SILENCE: Duration = Duration::from_secs(5);
/// Requests in a row that bring nothing before the source counts as absent for now.
const TRIES: u32 = 3;

/// Downloads that wait for chunks, by source and digest.
type Waiting = BTreeMap<(TopicName, String), SyncSender<Vec<u8>>>;

/// Publishes a request.
type Publish = dyn Fn(&TopicName, &BlobRequest) + Send + Sync;

/// What messages with chunks are handed to, and what asks for them. Clones share it.
#[derive(Clone)]
pub struct Blobs {
    publish: Arc<Publish>,
    chunk: u32,
    waiting: Arc<Mutex<Waiting>>,
}

impl fmt::Debug for Blobs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Blobs")
            .field("chunk", &self.chunk)
            .finish_non_exhaustive()
    }
}

impl Blobs {
    /// Asks through `publish` for chunks of up to `chunk` bytes.
    pub fn new(chunk: u32, publish: impl Fn(&TopicName, &BlobRequest) + Send + Sync + 'static) -> Self {
        Self {
            publish: Arc::new(publish),
            chunk: chunk.clamp(1, MAX_CHUNK),
            waiting: Arc::default(),
        }
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hands over a message from the source `id`. Never blocks: a chunk for which there is no room is asked for again,
    /// and one that nobody waits for is dropped.
    ///
    /// # Errors
    /// When it is no chunk.
    pub fn deliver(&self, id: &TopicName, message: Vec<u8>) -> Result<(), InvalidChunk> {
        let (header, _) = BlobChunk::decode(&message)?;
        if let Some(sender) = self.waiting().get(&(id.clone(), header.sha256)) {
            // Full or gone: see above.
            drop(sender.try_send(message));
        }
        Ok(())
    }

    /// Receives what the partial file lacks.
    pub(super) fn receive(
        &self,
        id: &TopicName,
        job: &Job<'_>,
        partial: &mut Partial<'_>,
        clock: &dyn Clock,
    ) -> Attempt {
        let (sender, received) = mpsc::sync_channel(usize::from(WINDOW) * 2);
        let key = (id.clone(), job.spec.sha256.clone());
        self.waiting().insert(key.clone(), sender);
        let attempt = self.drive(id, job, partial, &received, clock);
        self.waiting().remove(&key);
        attempt
    }

    fn drive(
        &self,
        id: &TopicName,
        job: &Job<'_>,
        partial: &mut Partial<'_>,
        received: &Receiver<Vec<u8>>,
        clock: &dyn Clock,
    ) -> Attempt {
        let mut fruitless = 0;
        while !partial.is_complete() {
            let begin = partial.length().0;
            (self.publish)(
                id,
                &BlobRequest {
                    sha256: job.spec.sha256.clone(),
                    offset: begin,
                    length: self.chunk,
                    chunks: WINDOW,
                },
            );
            let wanted = partial
                .size()
                .0
                .min(begin + u64::from(self.chunk) * u64::from(WINDOW));
            let mut heard = clock.elapsed();
            while partial.length().0 < wanted && clock.elapsed().saturating_sub(heard) < SILENCE {
                if job.superseded() {
                    return Attempt::Superseded;
                }
                let message = match received.recv_timeout(ASKS) {
                    Ok(message) => message,
                    Err(RecvTimeoutError::Timeout) => continue,
                    Err(RecvTimeoutError::Disconnected) => {
                        return Attempt::Later(format!("blob {id}: given up for another download"));
                    }
                };
                // Checked when it was delivered; the rest cannot be otherwise.
                let Ok((header, bytes)) = BlobChunk::decode(&message) else {
                    continue;
                };
                if header.total != partial.size().0 {
                    return Attempt::Never(format!(
                        "blob {id}: the bundle there has {} bytes, announced were {}",
                        header.total,
                        partial.size().0
                    ));
                }
                if header.offset != partial.length().0 || bytes.is_empty() {
                    // A repetition, or what follows a lost chunk. The last one of the window ends the waiting.
                    if header.offset + bytes.len() as u64 >= wanted {
                        break;
                    }
                    continue;
                }
                heard = clock.elapsed();
                match partial.append(bytes) {
                    Ok(()) => {}
                    Err(error @ Appending::TooLong) => return Attempt::Never(format!("blob {id}: {error}")),
                    Err(error @ Appending::Disk(_)) => return Attempt::Later(error.to_string()),
                }
            }
            if partial.length().0 > begin {
                fruitless = 0;
                continue;
            }
            fruitless += 1;
            if fruitless >= TRIES {
                return Attempt::Later(format!("blob {id}: nobody answers"));
            }
        }
        Attempt::Complete
    }
}
