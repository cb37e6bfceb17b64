//! `[slots.<slot>.camera]` in `agent.toml`.

use std::fmt;
use std::path::PathBuf;

use serde::Deserialize;

use super::format::PixelFormat;

/// A camera whose frames are a slot's inputs: a V4L2 capture device.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CameraSettings {
    /// The device file. `/dev/video0` depends on the order in which cameras are found; a link below `/dev/v4l/by-id` or
    /// `/dev/v4l/by-path` does not.
    pub device: PathBuf,
    /// Pixels in a row; absent: as the device is set.
    pub width: Option<u32>,
    /// Rows; absent: as the device is set.
    pub height: Option<u32>,
    /// How pixels come.
    #[serde(default)]
    pub format: FormatChoice,
    /// Frames per second asked of the device; absent: as it is set.
    pub fps: Option<f64>,
    /// Most inferences per second; frames between are passed over before they are decoded. Absent: as many as the slot can.
    pub rate: Option<f64>,
}

/// Pixel formats to choose from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub enum FormatChoice {
    /// The one that is cheapest to decode among those that are fast enough.
    #[default]
    Auto,
    /// This one.
    Only(PixelFormat),
}

/// A text names no pixel format.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no format of pixels: write auto, yuyv, uyvy, nv12, rgb24, bgr24, grey or mjpeg")]
pub struct InvalidFormat(String);

impl TryFrom<String> for FormatChoice {
    type Error = InvalidFormat;
    fn try_from(text: String) -> Result<Self, InvalidFormat> {
        if text == "auto" {
            return Ok(Self::Auto);
        }
        let found = PixelFormat::ALL.into_iter().find(|format| format.name() == text);
        found.map(Self::Only).ok_or(InvalidFormat(text))
    }
}

impl CameraSettings {
    /// Everything that is wrong without looking at the device: the field's name, and what to do.
    pub(crate) fn problems(&self) -> Vec<(&'static str, String)> {
        let mut problems = Vec::new();
        if !self.device.starts_with("/dev") {
            let device = self.device.display();
            problems.push((
                "device",
                format!("{device} is not a device: write it from /dev, such as /dev/video0"),
            ));
        }
        if self.width.is_some() != self.height.is_some() {
            problems.push((
                "width",
                "`width` and `height` belong together: set both or neither".into(),
            ));
        }
        for (field, side) in [("width", self.width), ("height", self.height)] {
            if let Some(side) = side {
                range(&mut problems, field, side, 16, 16_384, " pixels");
            }
        }
        for (field, rate) in [("fps", self.fps), ("rate", self.rate)] {
            if let Some(rate) = rate {
                range(&mut problems, field, rate, 0.001, 1000.0, " per second");
            }
        }
        problems
    }

    /// Width and height asked for.
    pub fn size(&self) -> Option<(u32, u32)> {
        self.width.zip(self.height)
    }
}

fn range<T: PartialOrd + fmt::Display>(
    problems: &mut Vec<(&'static str, String)>,
    field: &'static str,
    value: T,
    low: T,
    high: T,
    unit: &str,
) {
    // Not a number is in no range.
    if !(value >= low && value <= high) {
        problems.push((
            field,
            format!("{value}{unit} is out of range: {low} to {high}{unit}"),
        ));
    }
}
