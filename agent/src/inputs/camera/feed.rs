//! The loop of a camera: opens it, keeps only the newest frame, hands it over when the slot wants one. Time and camera
//! are arguments.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::monitor::Monitor;
use super::newest::Newest;
use super::pace::{Pacer, Retry};
use super::source::{CameraError, Frame, Next, Source, Stream};
use crate::clock::Clock;

/// Longest wait for a frame or for the next attempt: the thread ends no later after it was asked to.
const WAIT: Duration = Duration::from_millis(250);
/// A camera that gives no frame for this long is opened anew: webcams take some seconds for the first one.
const STALL: Duration = Duration::from_secs(5);
/// The same in frames, for those that give fewer than one per second.
const STALL_FRAMES: f64 = 5.0;
/// Bad frames in a row after which a camera is opened anew: it may have changed its format by itself.
const MOST_BAD: u32 = 30;
/// Frames that are drained at once, at most: one that gives more than can be counted must not hold the thread.
const BURST: usize = 64;

/// Who wants frames.
pub(super) trait Demand<F> {
    /// Whether an input would be refused now, whatever it is.
    fn is_closed(&self) -> bool;
    /// Queues an input that stands for the newest frame at the time of its turn.
    fn ask(&self, newest: &Arc<Newest<F>>);
    /// There will be no frames for some time.
    fn lost(&self);
}

type FrameOf<S> = <<S as Source>::Stream as Stream>::Frame;

/// A camera and who wants its frames.
pub(super) struct Feed<S: Source, D> {
    source: S,
    demand: D,
    newest: Arc<Newest<FrameOf<S>>>,
    monitor: Arc<Monitor>,
    device: String,
    pacer: Pacer,
    retry: Retry,
    open: Option<Open<S::Stream>>,
    /// When it is opened again, while it is not open.
    next_try: Duration,
    /// What was logged last and has not been resolved.
    told: Option<String>,
}

struct Open<S> {
    stream: S,
    stall: Duration,
    /// When the first and the last good frame came; the last is the time of opening at first.
    first: Option<Duration>,
    last: Duration,
    sequence: Option<u32>,
    bad: u32,
    problem: String,
}

impl<S: Source, D: Demand<FrameOf<S>>> Feed<S, D> {
    pub(super) fn new(
        source: S,
        demand: D,
        device: String,
        rate: Option<f64>,
        monitor: Arc<Monitor>,
    ) -> Self {
        Self {
            source,
            demand,
            newest: Arc::new(Newest::new(Arc::clone(&monitor))),
            monitor,
            device,
            pacer: Pacer::new(rate),
            retry: Retry::default(),
            open: None,
            next_try: Duration::ZERO,
            told: None,
        }
    }

    /// One step, of 250 ms at most besides what the camera's driver takes.
    pub(super) fn turn(&mut self, clock: &dyn Clock) {
        let now = clock.elapsed();
        if self.open.is_some() {
            if let Err(problem) = self.receive(clock) {
                self.close(&problem, clock.elapsed());
            }
        } else if now < self.next_try {
            clock.sleep((self.next_try - now).min(WAIT));
        } else {
            match self.source.open() {
                Ok(stream) => self.opened(stream, clock.elapsed()),
                Err(problem) => self.close(&problem, clock.elapsed()),
            }
        }
    }

    fn opened(&mut self, stream: S::Stream, now: Duration) {
        let mode = stream.mode();
        for differs in &mode.differs {
            tracing::warn!("camera {}: {differs}", self.device);
        }
        self.monitor.opened(mode);
        let slow = mode
            .fps
            .and_then(|fps| Duration::try_from_secs_f64(STALL_FRAMES / fps).ok());
        self.open = Some(Open {
            stall: slow.unwrap_or_default().max(STALL),
            stream,
            first: None,
            last: now,
            sequence: None,
            bad: 0,
            problem: String::new(),
        });
    }

    /// Takes what the driver has, and hands the newest over.
    fn receive(&mut self, clock: &dyn Clock) -> Result<(), CameraError> {
        let Some(open) = &mut self.open else {
            return Ok(());
        };
        let (mut newest, mut wait) = (None, WAIT);
        for _ in 0..BURST {
            let next = open.stream.next(wait)?;
            wait = Duration::ZERO;
            let frame = match next {
                Next::Nothing => break,
                Next::Damaged { sequence } => {
                    let problem = "the driver marks it as damaged".to_owned();
                    open.bad(sequence, problem, &self.monitor)?;
                    continue;
                }
                Next::Frame(frame) => frame,
            };
            if let Err(problem) = frame.layout().check(frame.bytes()) {
                open.bad(frame.sequence(), problem, &self.monitor)?;
                continue;
            }
            open.count(frame.sequence(), &self.monitor);
            open.bad = 0;
            let captured = Instant::now()
                .checked_sub(frame.age())
                .unwrap_or_else(Instant::now);
            self.monitor.frame(captured);
            let moment = clock.elapsed().saturating_sub(frame.age());
            if newest.replace((frame, captured, moment)).is_some() {
                self.monitor.skipped(1);
            }
        }
        let now = clock.elapsed();
        let Some((frame, captured, moment)) = newest else {
            let silent = now.saturating_sub(open.last);
            return match silent >= open.stall {
                true => Err(CameraError::Stalled(silent)),
                false => Ok(()),
            };
        };
        open.last = now;
        if open.first.is_none() {
            open.first = Some(now);
            let mode = open.stream.mode().clone();
            self.told = None;
            tracing::info!(
                fps = mode.fps,
                "camera {}: {} {}x{}",
                self.device,
                mode.format,
                mode.width,
                mode.height
            );
        }
        self.offer(frame, captured, moment);
        Ok(())
    }

    fn offer(&mut self, frame: FrameOf<S>, captured: Instant, moment: Duration) {
        // Something waits for its turn: it gets this frame then.
        let Some(frame) = self.newest.renew(frame, captured) else {
            return;
        };
        if self.newest.was_spoilt() {
            self.pacer.again();
        }
        if self.demand.is_closed() || !self.pacer.is_due(moment) {
            self.monitor.skipped(1);
            return;
        }
        self.pacer.taken(moment);
        self.newest.put(frame, captured);
        self.demand.ask(&self.newest);
    }

    fn close(&mut self, problem: &CameraError, now: Duration) {
        let worked = self.open.take().map_or(Duration::ZERO, |open| {
            open.first
                .map_or(Duration::ZERO, |first| open.last.saturating_sub(first))
        });
        self.newest.clear();
        self.demand.lost();
        let wait = self.retry.after(worked);
        self.next_try = now + wait;
        let problem = problem.to_string();
        self.monitor.failed(problem.clone());
        // Each problem once, until there are frames again.
        if self.told.as_ref() != Some(&problem) {
            tracing::error!("camera {}: {problem} (tried again until it works)", self.device);
            self.told = Some(problem);
        }
    }

    /// Ends it.
    pub(super) fn end(mut self) {
        self.open = None;
        self.newest.clear();
    }
}

impl<S> Open<S> {
    /// Frames that the driver counted and never gave.
    fn count(&mut self, sequence: u32, monitor: &Monitor) {
        if let Some(before) = self.sequence.replace(sequence) {
            let missing = sequence.wrapping_sub(before).wrapping_sub(1);
            // Drivers that do not count, or count anew, say nothing about what was lost.
            if missing < u32::MAX / 2 {
                monitor.lost(missing.into());
            }
        }
    }

    fn bad(&mut self, sequence: u32, problem: String, monitor: &Monitor) -> Result<(), CameraError> {
        self.count(sequence, monitor);
        monitor.bad(&problem);
        self.bad += 1;
        self.problem = problem;
        match self.bad {
            MOST_BAD.. => Err(CameraError::Bad {
                count: self.bad,
                problem: std::mem::take(&mut self.problem),
            }),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
