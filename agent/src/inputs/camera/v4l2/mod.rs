//! Cameras of Linux: the thin edge. What it decides is which format to ask for; everything else is in the loop.

mod abi;
mod stream;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use abi::{Capability, Format, FormatDescription, FrameInterval, FrameSize, StreamParameters, capability};
use rustix::fs::{Mode as FileMode, OFlags, open};
use rustix::io::Errno;
pub(super) use stream::Capture;

use super::colour::{Colour, Matrix};
use super::format::{FourCc, Offer, PixelFormat, Sizes, choose};
use super::pixels::Layout;
use super::settings::CameraSettings;
use super::source::{CameraError, Mode, Source};

/// Entries of a driver's lists that are looked at: none has as many.
const MOST: u32 = 256;
/// Longest side of a frame, in pixels.
const LONGEST: u32 = 16_384;
/// Buffers besides those that may be in use here: two for the driver, so that it never waits, and the newest frame.
const BUFFERS: u32 = 3;

/// A camera by its settings.
pub(super) struct V4l2 {
    settings: CameraSettings,
    buffers: u32,
}

impl V4l2 {
    /// `held`: frames that may be decoded at the same time.
    pub(super) fn new(settings: CameraSettings, held: u32) -> Self {
        Self {
            settings,
            buffers: held.saturating_add(BUFFERS).clamp(4, 32),
        }
    }

    /// Whether the device is a camera that offers what is asked for. It may be in use.
    pub(super) fn check(settings: &CameraSettings) -> Result<(), CameraError> {
        let device = open_device(&settings.device)?;
        let offers = offers(device.as_fd(), settings.size());
        choose(&offers, settings).map_err(CameraError::Format)?;
        Ok(())
    }
}

impl Source for V4l2 {
    type Stream = Capture;

    fn open(&mut self) -> Result<Capture, CameraError> {
        let device = open_device(&self.settings.device)?;
        let offers = offers(device.as_fd(), self.settings.size());
        let (code, format) = choose(&offers, &self.settings).map_err(CameraError::Format)?;
        let mut differs = Vec::new();
        let layout = set_format(device.as_fd(), code, format, self.settings.size(), &mut differs)?;
        let fps = set_rate(device.as_fd(), self.settings.fps, &mut differs);
        let mode = Mode {
            format,
            width: layout.width,
            height: layout.height,
            fps,
            differs,
        };
        Capture::start(device, layout, mode, self.buffers)
    }
}

/// What a refusal of the system means.
fn refused(action: &'static str) -> impl Fn(Errno) -> CameraError {
    move |error| match error {
        Errno::NODEV | Errno::NXIO => CameraError::Gone,
        Errno::BUSY => CameraError::Busy,
        // A USB bus that cannot carry one more stream.
        Errno::NOSPC => CameraError::System {
            action: "the bus has no room for the stream: ask for smaller frames, fewer of them, or mjpeg",
            source: error.into(),
        },
        error => CameraError::System {
            action,
            source: error.into(),
        },
    }
}

fn open_device(path: &Path) -> Result<OwnedFd, CameraError> {
    // Without waiting: `poll` does that, with a limit.
    let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let device = open(path, flags, FileMode::empty()).map_err(|error| match error {
        Errno::NOENT | Errno::NODEV | Errno::NXIO => CameraError::Absent,
        Errno::ACCESS | Errno::PERM => CameraError::Permission,
        error => refused("cannot open it")(error),
    })?;
    let mut found = Capability::default();
    abi::query_capability(device.as_fd(), &mut found).map_err(|error| match error {
        Errno::NOTTY | Errno::INVAL => CameraError::NoCapture("it is no V4L2 device".into()),
        error => refused("asking what it can do")(error),
    })?;
    let able = match found.capabilities & capability::DEVICE_CAPS {
        0 => found.capabilities,
        _ => found.device_caps,
    };
    let can = |what: u32| able & what != 0;
    if can(capability::CAPTURE) && can(capability::STREAMING) {
        return Ok(device);
    }
    let name = text(&found.card);
    let what = if can(capability::META_CAPTURE) {
        "gives data about images; the camera has another device for the images themselves"
    } else if can(capability::CAPTURE_MPLANE) {
        "gives frames in several memory planes only, which is not supported"
    } else if can(capability::M2M) {
        "converts frames and captures none"
    } else if can(capability::CAPTURE) {
        "cannot stream"
    } else {
        "captures no video"
    };
    Err(CameraError::NoCapture(format!("{name} {what}")))
}

fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

fn offers(device: BorrowedFd<'_>, size: Option<(u32, u32)>) -> Vec<Offer> {
    let mut current = Format {
        kind: abi::CAPTURE,
        ..Format::default()
    };
    // Without a size asked for, the one that the device is set to counts.
    let size = size.or_else(|| {
        abi::get_format(device, &mut current).ok()?;
        Some((current.width, current.height))
    });
    let formats = (0..MOST).map_while(|index| {
        let mut found = FormatDescription {
            index,
            kind: abi::CAPTURE,
            ..FormatDescription::default()
        };
        abi::enumerate_formats(device, &mut found).ok()?;
        Some(found.pixel_format)
    });
    formats
        .map(|code| Offer {
            code: FourCc(code.to_le_bytes()),
            sizes: sizes(device, code),
            fastest: size.and_then(|size| fastest(device, code, size)),
        })
        .collect()
}

fn sizes(device: BorrowedFd<'_>, pixel_format: u32) -> Sizes {
    let mut listed = Vec::new();
    for index in 0..MOST {
        let mut found = FrameSize {
            index,
            pixel_format,
            ..FrameSize::default()
        };
        if abi::enumerate_sizes(device, &mut found).is_err() {
            break;
        }
        let [a, b, _, c, d, _] = found.sizes;
        if found.kind != abi::DISCRETE {
            return Sizes::Between((a, c), (b, d));
        }
        listed.push((a, b));
    }
    match listed.is_empty() {
        true => Sizes::Unknown,
        false => Sizes::Listed(listed),
    }
}

/// Most frames per second, if the driver says.
fn fastest(device: BorrowedFd<'_>, pixel_format: u32, (width, height): (u32, u32)) -> Option<f64> {
    let intervals = (0..MOST).map_while(|index| {
        let mut found = FrameInterval {
            index,
            pixel_format,
            width,
            height,
            ..FrameInterval::default()
        };
        abi::enumerate_intervals(device, &mut found).ok()?;
        // A range begins with the shortest; its further entries do not exist.
        let [numerator, denominator] = found.intervals[0];
        Some(f64::from(denominator) / f64::from(numerator))
    });
    intervals.filter(|fps| fps.is_finite()).max_by(f64::total_cmp)
}

fn set_format(
    device: BorrowedFd<'_>,
    code: FourCc,
    format: PixelFormat,
    size: Option<(u32, u32)>,
    differs: &mut Vec<String>,
) -> Result<Layout, CameraError> {
    let mut set = Format {
        kind: abi::CAPTURE,
        ..Format::default()
    };
    abi::get_format(device, &mut set).map_err(refused("asking for its format"))?;
    if let Some((width, height)) = size {
        (set.width, set.height) = (width, height);
    }
    let asked = (set.width, set.height);
    // The driver says how long rows are, and what colours its pixels have.
    set = Format {
        kind: abi::CAPTURE,
        width: asked.0,
        height: asked.1,
        pixel_format: u32::from_le_bytes(code.0),
        field: abi::FIELD_NONE,
        private: abi::PRIV_MAGIC,
        ..Format::default()
    };
    abi::set_format(device, &mut set).map_err(refused("setting its format"))?;
    let given = FourCc(set.pixel_format.to_le_bytes());
    if given != code {
        return Err(CameraError::Format(format!(
            "it was asked for {code} and gives {given}"
        )));
    }
    let side = |side: u32| (1..=LONGEST).contains(&side);
    if !side(set.width) || !side(set.height) {
        let (width, height) = (set.width, set.height);
        return Err(CameraError::Format(format!(
            "its frames are {width}x{height} pixels"
        )));
    }
    if (set.width, set.height) != asked {
        let (width, height) = (set.width, set.height);
        differs.push(format!(
            "asked for {}x{}, it gives {width}x{height}",
            asked.0, asked.1
        ));
    }
    Ok(Layout {
        format,
        width: set.width,
        height: set.height,
        stride: set.bytes_per_line,
        colour: colour(format, &set),
    })
}

/// `V4L2_MAP_YCBCR_ENC_DEFAULT` and `V4L2_MAP_QUANTIZATION_DEFAULT` of `linux/videodev2.h`, for what a driver leaves open.
fn colour(format: PixelFormat, set: &Format) -> Colour {
    /// `V4L2_COLORSPACE_…`
    const REC709: u32 = 3;
    const JPEG: u32 = 7;
    const BT2020: u32 = 10;
    const DCI_P3: u32 = 12;
    /// `V4L2_YCBCR_ENC_…`: 1 is BT.601, 3 xvYCC with its numbers.
    const ENC_709: u32 = 2;
    const ENC_XV709: u32 = 4;
    const ENC_BT2020: u32 = 6;
    /// `V4L2_QUANTIZATION_…`
    const FULL: u32 = 1;
    const LIMITED: u32 = 2;
    let matrix = match (set.ycbcr_encoding, set.colorspace) {
        (ENC_709 | ENC_XV709, _) | (0, REC709 | DCI_P3) => Matrix::Bt709,
        (ENC_BT2020, _) | (0, BT2020) => Matrix::Bt2020,
        _ => Matrix::Bt601,
    };
    let is_yuv = matches!(format, PixelFormat::Yuyv | PixelFormat::Uyvy | PixelFormat::Nv12);
    let full_range = match set.quantization {
        FULL => true,
        LIMITED => false,
        // The header calls luma alone limited, too; sensors that give it use the whole byte.
        _ => !is_yuv || set.colorspace == JPEG,
    };
    Colour { matrix, full_range }
}

/// Asks for frames per second, and says how many there will be, if the driver knows.
fn set_rate(device: BorrowedFd<'_>, fps: Option<f64>, differs: &mut Vec<String>) -> Option<f64> {
    let mut parameters = StreamParameters {
        kind: abi::CAPTURE,
        capability: 0,
        capture_mode: 0,
        numerator: 0,
        denominator: 0,
        extended_mode: 0,
        read_buffers: 0,
        rest: [0; 44],
    };
    let known = abi::get_parameters(device, &mut parameters).is_ok();
    let settable = known && parameters.capability & capability::TIME_PER_FRAME != 0;
    if let Some(fps) = fps {
        if !settable {
            differs.push(format!("it cannot be asked for {fps} frames per second"));
        } else {
            (parameters.numerator, parameters.denominator) = (1000, (fps * 1000.0).round() as u32);
            if let Err(error) = abi::set_parameters(device, &mut parameters) {
                differs.push(format!("it refuses {fps} frames per second: {error}"));
            }
        }
    }
    let given = f64::from(parameters.denominator) / f64::from(parameters.numerator);
    let given = (known && given.is_finite() && given > 0.0).then_some(given)?;
    if let Some(fps) = fps
        && settable
        && (given / fps - 1.0).abs() > 0.05
    {
        differs.push(format!("asked for {fps} frames per second, it gives {given:.2}"));
    }
    Some(given)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn colour_of(format: PixelFormat, colorspace: u32, encoding: u32, quantization: u32) -> Colour {
        let set = Format {
            colorspace,
            ycbcr_encoding: encoding,
            quantization,
            ..Format::default()
        };
        colour(format, &set)
    }

    #[test]
    fn colours_are_as_the_driver_says_and_bt_601_of_limited_range_otherwise() {
        let of = |matrix, full_range| Colour { matrix, full_range };
        let yuyv = |colorspace, encoding, range| colour_of(PixelFormat::Yuyv, colorspace, encoding, range);
        assert_eq!(yuyv(0, 0, 0), of(Matrix::Bt601, false));
        // sRGB, as webcams say: BT.601 in YUV.
        assert_eq!(yuyv(8, 0, 0), of(Matrix::Bt601, false));
        assert_eq!(yuyv(3, 0, 0), of(Matrix::Bt709, false));
        assert_eq!(yuyv(3, 1, 1), of(Matrix::Bt601, true), "the encoding is said");
        assert_eq!(yuyv(8, 2, 0), of(Matrix::Bt709, false));
        assert_eq!(yuyv(7, 0, 0), of(Matrix::Bt601, true), "JPEG");
        assert_eq!(yuyv(7, 0, 2), of(Matrix::Bt601, false));
        assert_eq!(yuyv(10, 0, 0), of(Matrix::Bt2020, false));
        assert!(colour_of(PixelFormat::Grey, 8, 0, 0).full_range);
        assert!(!colour_of(PixelFormat::Rgb24, 8, 0, 2).full_range);
    }

    #[test]
    fn what_is_no_camera_is_refused_in_words() {
        let check = |device: &str| {
            let settings = toml::from_str(&format!("device = '{device}'")).unwrap();
            V4l2::check(&settings).unwrap_err()
        };
        assert!(matches!(check("/dev/no-camera-here"), CameraError::Absent));
        let null = check("/dev/null");
        assert_eq!(null.to_string(), "it is no camera: it is no V4L2 device");
    }
}
