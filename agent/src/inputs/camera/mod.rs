//! Cameras: the newest frame of a V4L2 device is a slot's input.
//!
//! ```text
//!  v4l2 (edge) ──▶ feed: drains, passes over ──▶ newest: one frame ──▶ decoded when the slot's turn comes ──▶ model
//! ```
//!
//! No frame waits in a queue: what waits there is a place, and the frame that is newest when its turn comes takes it.
//! So neither a slow model nor a lowered rate makes frames old.
#![cfg_attr(
    not(feature = "camera"),
    allow(dead_code, reason = "the edge that uses it is left out")
)]

mod colour;
mod feed;
mod format;
mod mjpeg;
mod monitor;
mod newest;
mod pace;
mod pixels;
mod settings;
mod source;
#[cfg(feature = "camera")]
mod v4l2;
#[cfg(not(feature = "camera"))]
#[path = "without.rs"]
mod v4l2;

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use feed::{Demand, Feed};
pub use format::PixelFormat;
pub use monitor::CameraView;
pub(crate) use monitor::Monitor;
use newest::Newest;
pub use settings::{CameraSettings, FormatChoice, InvalidFormat};
pub use source::CameraError;
use source::Frame;
use v4l2::V4l2;

use crate::clock::SystemClock;
use crate::daemon::slots::Slots;
use crate::protocol::SlotName;
use crate::pulse::Pulses;
use crate::serve::ServeError;

/// How long a step may take: a driver that hangs is noticed.
const STEP: Duration = Duration::from_secs(30);
/// How long the thread is waited for when it is to end.
const ENDING: Duration = Duration::from_secs(2);
/// A model that refuses frames is told of no more often than this.
const REFUSED_PAUSE: Duration = Duration::from_secs(60);

/// Feeds a slot from a camera until it is dropped.
pub struct CameraFeed {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    device: String,
}

impl Drop for CameraFeed {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let Some(thread) = self.thread.take() else {
            return;
        };
        let begun = Instant::now();
        while !thread.is_finished() {
            if begun.elapsed() > ENDING {
                // In the kernel, where nothing can interrupt it.
                tracing::error!("camera {}: its driver hangs; it is left behind", self.device);
                return;
            }
            thread::sleep(Duration::from_millis(2));
        }
        // A panic there has been reported by its thread already.
        drop(thread.join());
    }
}

impl CameraFeed {
    /// Starts a thread that feeds `slot`. Whatever is wrong with the camera, it is tried again until it works.
    ///
    /// # Errors
    /// When the system gives no thread.
    pub(crate) fn start(
        settings: &CameraSettings,
        workers: u32,
        slot: SlotName,
        slots: Arc<Slots>,
        monitor: Arc<Monitor>,
        pulses: &Pulses,
    ) -> std::io::Result<Self> {
        let device = settings.device.display().to_string();
        let source = V4l2::new(settings.clone(), workers);
        let pulse = pulses.join(format!("camera of slot {slot}"));
        let name = format!("camera-{slot}");
        let wanted = SlotDemand {
            name: format!("camera {device}"),
            slot,
            slots,
            refused: Arc::default(),
        };
        let mut feed = Feed::new(source, wanted, device.clone(), settings.rate, monitor);
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = thread::Builder::new().name(name).spawn(move || {
            let clock = SystemClock::default();
            while !stopped.load(Ordering::Relaxed) {
                pulse.beat(STEP);
                feed.turn(&clock);
            }
            pulse.beat(STEP);
            feed.end();
        })?;
        Ok(Self {
            stop,
            thread: Some(thread),
            device,
        })
    }
}

/// What is wrong with a camera now, for a check of the configuration.
pub(crate) fn problem(settings: &CameraSettings) -> Option<String> {
    let error = V4l2::check(settings).err()?;
    let device = settings.device.display();
    let others = match error {
        CameraError::Absent | CameraError::NoCapture(_) => there_are(),
        _ => String::new(),
    };
    Some(format!("{device}: {error}{others}"))
}

/// Device files of cameras, by names that stay the same.
fn there_are() -> String {
    let mut names: Vec<String> = ["/dev/v4l/by-id", "/dev/v4l/by-path"]
        .into_iter()
        .filter_map(|folder| fs::read_dir(folder).ok())
        .flat_map(|entries| entries.flatten())
        .map(|entry| entry.path().display().to_string())
        .collect();
    names.sort();
    match names.is_empty() {
        true => String::new(),
        false => format!(" (there are {})", names.join(", ")),
    }
}

/// A slot that wants frames.
struct SlotDemand {
    /// For messages.
    name: String,
    slot: SlotName,
    slots: Arc<Slots>,
    /// When the model last refused one, and the log was told.
    refused: Arc<std::sync::Mutex<Option<Instant>>>,
}

impl<F: Frame> Demand<F> for SlotDemand {
    fn is_closed(&self) -> bool {
        let slot = self.slots.get(&self.slot);
        slot.is_none_or(|slot| slot.server.is_closed())
    }

    fn ask(&self, newest: &Arc<Newest<F>>) {
        let Some(slot) = self.slots.get(&self.slot) else {
            return newest.withdraw();
        };
        let (take, waiting) = (Arc::clone(newest), Arc::clone(newest));
        let (name, refused) = (self.name.clone(), Arc::clone(&self.refused));
        slot.submit_live(
            self.name.clone(),
            "camera",
            move |spare| take.take(spare),
            move |result| match result {
                Ok(_) | Err(ServeError::Withdrawn) => {}
                // It was not its turn yet.
                Err(ServeError::QueueFull | ServeError::NoModel | ServeError::Paused) => waiting.withdraw(),
                Err(error @ (ServeError::Input(_) | ServeError::Model(_))) => {
                    let mut told = refused.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                    if told.is_none_or(|told| told.elapsed() >= REFUSED_PAUSE) {
                        *told = Some(Instant::now());
                        tracing::warn!("{name}: a frame without an answer: {error}");
                    }
                }
            },
        );
    }

    fn lost(&self) {
        if let Some(slot) = self.slots.get(&self.slot) {
            slot.machine.fault(&slot.name);
        }
    }
}
