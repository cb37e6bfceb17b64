//! How a camera is: for status, metrics and telemetry.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::pace::Meter;
use super::source::Mode;
use crate::protocol::{Camera, CameraState};

/// A bad frame is logged no more often than this; those between are counted.
const BAD_PAUSE: Duration = Duration::from_secs(60);

/// A camera at one moment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CameraView {
    /// The device file, as configured.
    pub device: String,
    /// Counters, and what it is doing.
    #[serde(flatten)]
    pub camera: Camera,
    /// Name of the pixel format; absent before it was opened for the first time.
    pub format: Option<String>,
    /// Width and height in pixels; likewise.
    pub size: Option<(u32, u32)>,
    /// Milliseconds since the last good frame was captured; absent before the first.
    pub age_ms: Option<u64>,
}

/// What is known of a camera, written by its thread and read by any.
pub(crate) struct Monitor {
    device: String,
    begun: Instant,
    state: Mutex<State>,
}

struct State {
    camera: Camera,
    mode: Option<(String, (u32, u32))>,
    meter: Meter,
    last: Option<Instant>,
    told_bad: Option<Instant>,
    untold_bad: u64,
}

impl Monitor {
    pub(crate) fn new(device: String) -> Self {
        Self {
            device,
            begun: Instant::now(),
            state: Mutex::new(State {
                camera: Camera::default(),
                mode: None,
                meter: Meter::default(),
                last: None,
                told_bad: None,
                untold_bad: 0,
            }),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn view(&self) -> CameraView {
        let state = self.lock();
        let (format, size) = state.mode.clone().unzip();
        let mut camera = state.camera.clone();
        camera.fps = state.meter.fps(self.begun.elapsed());
        CameraView {
            device: self.device.clone(),
            camera,
            format,
            size,
            age_ms: state
                .last
                .map(|last| u64::try_from(last.elapsed().as_millis()).unwrap_or(u64::MAX)),
        }
    }

    pub(super) fn opened(&self, mode: &Mode) {
        let mut state = self.lock();
        state.mode = Some((mode.format.name().to_owned(), (mode.width, mode.height)));
        state.meter.clear();
    }

    pub(super) fn failed(&self, problem: String) {
        let mut state = self.lock();
        state.camera.state = CameraState::Failed;
        state.camera.problem = Some(problem);
        state.meter.clear();
    }

    /// A good frame came.
    pub(super) fn frame(&self, captured: Instant) {
        let mut state = self.lock();
        state.camera.state = CameraState::Streaming;
        state.camera.problem = None;
        state.last = Some(captured);
        let moment = captured.saturating_duration_since(self.begun);
        state.meter.note(moment);
    }

    pub(super) fn taken(&self) {
        self.lock().camera.taken += 1;
    }

    pub(super) fn skipped(&self, count: u64) {
        self.lock().camera.skipped += count;
    }

    pub(super) fn lost(&self, count: u64) {
        self.lock().camera.lost += count;
    }

    /// A bad frame came. A bad cable makes many: the log gets one now and then.
    pub(super) fn bad(&self, problem: &str) {
        let now = Instant::now();
        let mut state = self.lock();
        state.camera.bad += 1;
        if state
            .told_bad
            .is_some_and(|told| now.duration_since(told) < BAD_PAUSE)
        {
            state.untold_bad += 1;
            return;
        }
        state.told_bad = Some(now);
        let suppressed = std::mem::take(&mut state.untold_bad);
        drop(state);
        tracing::warn!(suppressed, "camera {}: a bad frame: {problem}", self.device);
    }
}
