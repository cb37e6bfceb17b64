//! What gives frames, behind traits: the loop that decides about them is tested without a camera.

use std::io;
use std::time::Duration;

use super::format::PixelFormat;
use super::pixels::Layout;

/// Why a camera gives no frames.
#[derive(Debug, thiserror::Error)]
pub enum CameraError {
    /// There is no such device file, or nothing behind it.
    #[error("it is not there: is the camera plugged in, and its driver loaded?")]
    Absent,
    /// The device file may not be opened.
    #[error(
        "no permission to open it: the daemon's user must be in the group `video` (and the unit must allow the device)"
    )]
    Permission,
    /// Something else has it.
    #[error("something else uses it (`fuser -v` on the device shows what)")]
    Busy,
    /// It is another kind of device.
    #[error("it is no camera: {0}")]
    NoCapture(String),
    /// It has no format that is asked for.
    #[error("{0}")]
    Format(String),
    /// It was there.
    #[error("it was unplugged, or its driver has gone")]
    Gone,
    /// It is there, and nothing comes.
    #[error("no frame came for {} s", .0.as_secs())]
    Stalled(Duration),
    /// What comes cannot be used.
    #[error("{count} frames in a row were bad: {problem}")]
    Bad {
        /// How many.
        count: u32,
        /// What was wrong with the last one.
        problem: String,
    },
    /// The system refuses something.
    #[error("{action}: {source}")]
    System {
        /// What was tried.
        action: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// The program was built without.
    #[error("this program was built without its feature `camera`")]
    LeftOut,
}

/// Opens a camera, any number of times.
pub(super) trait Source: Send {
    type Stream: Stream;

    /// Opens it and lets it begin.
    fn open(&mut self) -> Result<Self::Stream, CameraError>;
}

/// A camera that gives frames; dropping it ends that.
pub(super) trait Stream {
    type Frame: Frame;

    /// The oldest frame that is ready; waits for one for at most `wait`.
    fn next(&mut self, wait: Duration) -> Result<Next<Self::Frame>, CameraError>;

    /// What it gives.
    fn mode(&self) -> &Mode;
}

/// What came.
pub(super) enum Next<F> {
    Frame(F),
    /// A frame that the driver itself calls damaged.
    Damaged {
        sequence: u32,
    },
    /// Nothing yet.
    Nothing,
}

/// A frame in its driver's memory, which gets it back when this is dropped.
pub(super) trait Frame: Send + 'static {
    fn bytes(&self) -> &[u8];
    fn layout(&self) -> &Layout;
    /// Counted by the driver.
    fn sequence(&self) -> u32;
    /// Time from its capture to the moment when it was handed out.
    fn age(&self) -> Duration;
}

/// What a camera was set to.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Mode {
    pub(super) format: PixelFormat,
    pub(super) width: u32,
    pub(super) height: u32,
    /// Frames per second, as the driver says.
    pub(super) fps: Option<f64>,
    /// What is not as it was asked for.
    pub(super) differs: Vec<String>,
}
