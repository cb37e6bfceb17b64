use std::io;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tokio::runtime;
use tokio::sync::{Notify, watch};

use super::quarantine::Quarantine;
use super::supervisor::{self, Context, Stop};
use super::{Environment, Inbound, LinkOptions, LinkView, Outbox, Watch};
use crate::pulse::Pulse;

/// The link could not be started.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// The system gives no thread or no event queue.
    #[error("cannot start the link to the broker: {0}")]
    Start(#[from] io::Error),
}

/// How a stop went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stopped {
    /// Everything under way was acknowledged, or there was no connection.
    InTime,
    /// The time was over first. The thread ends by itself; what was not acknowledged is still in the outbox.
    Abandoned,
}

/// Tells the link that its outbox has more. Cheap, never blocks, can be cloned to any thread.
#[derive(Clone, Debug)]
pub struct Nudge(Arc<Notify>);

impl Nudge {
    /// Looks into the outbox soon.
    pub fn outbox_changed(&self) {
        self.0.notify_one();
    }
}

/// The running link. Dropped without [`Link::stop`], it says goodbye to the broker without anybody waiting for it.
#[derive(Debug)]
pub struct Link {
    view: Watch<LinkView>,
    nudge: Nudge,
    stop: watch::Sender<bool>,
    ended: Watch<bool>,
    runtime: runtime::Handle,
    thread: Option<JoinHandle<()>>,
}

impl Link {
    /// Starts a thread that connects, and reconnects for ever. Returns the link and the queue of inbound messages, which
    /// has to be read: see [`LinkOptions::stall_timeout`]. If its reader is dropped, the link ends at the next message.
    ///
    /// # Errors
    /// When the system gives no thread.
    pub fn start(
        options: LinkOptions,
        outbox: Box<dyn Outbox>,
        environment: Environment,
    ) -> Result<(Self, Receiver<Inbound>), LinkError> {
        let runtime = runtime::Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .build()?;
        let (inbound, received) = mpsc::sync_channel(options.inbound.max(1));
        let view = Watch::new(LinkView::default());
        let notify = Arc::new(Notify::new());
        let (stop, stop_seen) = watch::channel(false);
        let ended = Watch::new(false);
        let handle = runtime.handle().clone();
        let at_the_end = SetAtEnd(ended.clone());
        let context = Context {
            quarantine: Quarantine::new(options.quarantine),
            options,
            environment,
            outbox,
            inbound,
            view: view.clone(),
            nudge: Arc::clone(&notify),
            stop: Stop(stop_seen),
        };
        let thread = thread::Builder::new().name("mqtt-link".into()).spawn(move || {
            runtime.block_on(supervisor::run(context));
            // A look-up of the broker's name may still be under way and cannot be cancelled: do not wait for it.
            runtime.shutdown_background();
            drop(at_the_end);
        })?;
        Ok((
            Self {
                view,
                nudge: Nudge(notify),
                stop,
                ended,
                runtime: handle,
                thread: Some(thread),
            },
            received,
        ))
    }

    /// The link as it is now.
    pub fn view(&self) -> LinkView {
        self.view.get()
    }

    /// The link to watch from elsewhere.
    pub fn watch(&self) -> Watch<LinkView> {
        self.view.clone()
    }

    /// Shows by `pulse` that the link's thread goes on.
    pub(crate) fn show_progress(&self, pulse: Pulse) {
        // The task ends with the runtime, and its pulse with it.
        drop(self.runtime.spawn(pulse.beat_while_turning()));
    }

    /// What whoever fills the outbox needs.
    pub fn nudge(&self) -> Nudge {
        self.nudge.clone()
    }

    /// Takes no more from the outbox, waits for acknowledgements of what is under way, publishes the offline status and
    /// leaves; all within `limit`.
    pub fn stop(mut self, limit: Duration) -> Stopped {
        self.stop.send_replace(true);
        if self.ended.wait(limit, |ended| *ended).is_err() {
            return Stopped::Abandoned;
        }
        if let Some(thread) = self.thread.take() {
            // A panic there has been reported by its thread already.
            drop(thread.join());
        }
        Stopped::InTime
    }
}

/// Tells that the thread has ended, even by a panic.
struct SetAtEnd(Watch<bool>);

impl Drop for SetAtEnd {
    fn drop(&mut self) {
        self.0.change(|ended| *ended = true);
    }
}
