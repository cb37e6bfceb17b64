//! The parts put together: what runs on a device.
//!
//! ```text
//!  broker ──▶ link ──▶ inbound ──▶ keepers (one per slot) ──▶ store, engines
//!                         │  └────▶ commands
//!  cameras, folders, HTTP ┴──────▶ servers (one per slot) ──▶ results ──▶ mail (spool) ──▶ link ──▶ broker
//!                                                reports, telemetry ──────▶ mail (latest) ─┘
//! ```
//!
//! Every thread has a [`crate::pulse::Pulse`]; [`Daemon::hanging`] says which of them does not keep its word.

mod backend;
mod commands;
mod inbound;
pub(crate) mod machine;
mod mail;
pub(crate) mod overview;
mod quiet;
mod reports;
pub(crate) mod results;
pub(crate) mod slots;
mod start;
mod telemetry;

use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

pub use mail::{Mail, MailError, MailView};
pub use overview::{BuildOverview, LinkOverview, MemoryOverview, Overview, SlotOverview, SpoolOverview};
pub use start::StartError;

use crate::http::HttpServer;
use crate::inputs::FolderWatch;
use crate::inputs::camera::CameraFeed;
use crate::link::{Link, Stopped};
use crate::pulse::{Overdue, Pulse, Pulses};
use machine::Board;
use overview::Observer;
use slots::Slots;
use telemetry::Ticker;

/// What takes part in a running daemon; ends with [`Daemon::stop`].
pub struct Daemon {
    folders: Vec<FolderWatch>,
    cameras: Vec<CameraFeed>,
    http: Option<HttpServer>,
    ticker: Ticker,
    slots: Arc<Slots>,
    board: Board,
    link: Link,
    /// Threads that end when nobody can ask them for anything any more: after the link.
    behind: Vec<JoinHandle<()>>,
    mail: Mail,
    pulses: Pulses,
    overview: Arc<Observer>,
}

impl Daemon {
    /// Whether every slot answers again that did before, or cannot.
    pub fn is_ready(&self) -> bool {
        self.slots.all().all(|slot| slot.keeper.settled())
    }

    /// Threads that hang.
    pub fn hanging(&self) -> Vec<Overdue> {
        self.pulses.overdue()
    }

    /// A new thread's pulse, watched like those of the daemon's own.
    pub fn pulse(&self, name: &str) -> Pulse {
        self.pulses.join(name)
    }

    /// How everything is.
    pub fn overview(&self) -> Overview {
        self.overview.look()
    }

    /// Takes no more work, lets what is under way end, and says goodbye to the broker; all within about `limit`. What
    /// the broker has not acknowledged by then waits on disk.
    pub fn stop(self, limit: Duration) -> Stopped {
        let begun = Instant::now();
        let part = || (limit / 4).min(limit.saturating_sub(begun.elapsed()));
        drop(self.folders);
        drop(self.cameras);
        self.slots.drain(part());
        // Requests under way have their answers now.
        drop(self.http);
        // A step that cannot be interrupted, such as loading an engine or an inference, may last longer than anybody
        // waits: whoever drops the last reference to the slots waits for their threads.
        let (slots, ticker, overview) = (self.slots, self.ticker, self.overview);
        let ending = thread::spawn(move || {
            drop((ticker, overview));
            slots.end();
        });
        let mut in_time = ended_within(&ending, part());
        let hardware = self.board.stop();
        let stopped = self.link.stop(part());
        for thread in self.behind.iter().chain(&hardware) {
            in_time &= ended_within(thread, part());
        }
        if let Err(error) = self.mail.sync() {
            tracing::error!("the last results may not survive a power cut: {error}");
        }
        if in_time { stopped } else { Stopped::Abandoned }
    }
}

fn ended_within(thread: &JoinHandle<()>, limit: Duration) -> bool {
    let begun = Instant::now();
    while !thread.is_finished() {
        if begun.elapsed() > limit {
            return false;
        }
        thread::sleep(Duration::from_millis(2));
    }
    true
}
