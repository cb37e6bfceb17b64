//! In place of the system's cameras, in a build without the feature `camera`.

use std::time::Duration;

use super::pixels::Layout;
use super::settings::CameraSettings;
use super::source::{CameraError, Frame, Mode, Next, Source, Stream};

pub(super) struct V4l2;

/// There is none.
pub(super) enum Never {}

impl V4l2 {
    pub(super) fn new(_: CameraSettings, _: u32) -> Self {
        Self
    }

    pub(super) fn check(_: &CameraSettings) -> Result<(), CameraError> {
        Err(CameraError::LeftOut)
    }
}

impl Source for V4l2 {
    type Stream = Never;

    fn open(&mut self) -> Result<Never, CameraError> {
        Err(CameraError::LeftOut)
    }
}

impl Stream for Never {
    type Frame = Never;

    fn next(&mut self, _: Duration) -> Result<Next<Never>, CameraError> {
        match *self {}
    }

    fn mode(&self) -> &Mode {
        match *self {}
    }
}

impl Frame for Never {
    fn bytes(&self) -> &[u8] {
        match *self {}
    }

    fn layout(&self) -> &Layout {
        match *self {}
    }

    fn sequence(&self) -> u32 {
        match *self {}
    }

    fn age(&self) -> Duration {
        match *self {}
    }
}
