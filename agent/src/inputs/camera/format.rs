//! Which of the formats that a camera offers is taken. Pure.

use std::fmt;

use super::settings::{CameraSettings, FormatChoice};

/// Frames per second that a format should reach when neither `fps` nor `rate` says so.
const USUAL_FPS: f64 = 15.0;
/// Share of it that is near enough: 30 is often 29.97, or 30.00003.
const NEAR: f64 = 0.95;

/// Formats of pixels that are understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PixelFormat {
    /// 4:2:2, `Y U Y V`.
    Yuyv,
    /// 4:2:2, `U Y V Y`.
    Uyvy,
    /// 4:2:0, a plane of Y, then one of `U V`.
    Nv12,
    /// `R G B`, a byte each.
    Rgb24,
    /// `B G R`, a byte each.
    Bgr24,
    /// One byte of luma.
    Grey,
    /// JPEG images, often without their Huffman tables.
    Mjpeg,
}

impl PixelFormat {
    /// From the cheapest to decode to the dearest (measured: docs/agent.md); luma alone comes last, for it has no colours.
    pub(crate) const ALL: [Self; 7] = [
        Self::Rgb24,
        Self::Bgr24,
        Self::Yuyv,
        Self::Uyvy,
        Self::Nv12,
        Self::Mjpeg,
        Self::Grey,
    ];

    /// Its name in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::Yuyv => "yuyv",
            Self::Uyvy => "uyvy",
            Self::Nv12 => "nv12",
            Self::Rgb24 => "rgb24",
            Self::Bgr24 => "bgr24",
            Self::Grey => "grey",
            Self::Mjpeg => "mjpeg",
        }
    }

    /// What `linux/videodev2.h` calls it. `JPEG` is the same for our purpose as `MJPG`.
    pub(super) fn of(code: FourCc) -> Option<Self> {
        Some(match &code.0 {
            b"YUYV" => Self::Yuyv,
            b"UYVY" => Self::Uyvy,
            b"NV12" => Self::Nv12,
            b"RGB3" => Self::Rgb24,
            b"BGR3" => Self::Bgr24,
            b"GREY" => Self::Grey,
            b"MJPG" | b"JPEG" => Self::Mjpeg,
            _ => return None,
        })
    }
}

impl fmt::Display for PixelFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A format's four characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FourCc(pub(super) [u8; 4]);

impl fmt::Display for FourCc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The highest bit of the last one says big-endian.
        self.0.map(|byte| byte & 0x7F).escape_ascii().fmt(f)
    }
}

/// Sizes that a format has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Sizes {
    /// The driver does not say.
    Unknown,
    /// These: width, height.
    Listed(Vec<(u32, u32)>),
    /// From the smallest to the largest.
    Between((u32, u32), (u32, u32)),
}

impl Sizes {
    fn has(&self, size: (u32, u32)) -> bool {
        match self {
            Self::Unknown => true,
            Self::Listed(sizes) => sizes.contains(&size),
            Self::Between(least, most) => {
                let inside = |side, least, most| side >= least && side <= most;
                inside(size.0, least.0, most.0) && inside(size.1, least.1, most.1)
            }
        }
    }
}

impl fmt::Display for Sizes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown => f.write_str("any size"),
            Self::Listed(sizes) => {
                let sizes: Vec<_> = sizes.iter().map(|(w, h)| format!("{w}x{h}")).collect();
                f.write_str(&sizes.join(" "))
            }
            Self::Between(least, most) => write!(f, "{}x{} to {}x{}", least.0, least.1, most.0, most.1),
        }
    }
}

/// A format that a device offers.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Offer {
    pub(super) code: FourCc,
    pub(super) sizes: Sizes,
    /// Most frames per second at the size asked for, if the driver says so.
    pub(super) fastest: Option<f64>,
}

impl fmt::Display for Offer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.code, self.sizes)
    }
}

/// Chooses among `offers`.
///
/// # Errors
/// In words, with what is offered.
pub(super) fn choose(offers: &[Offer], asked: &CameraSettings) -> Result<(FourCc, PixelFormat), String> {
    let all = || {
        let all: Vec<_> = offers.iter().map(Offer::to_string).collect();
        match all.is_empty() {
            true => "it offers none".to_owned(),
            false => format!("it offers {}", all.join(", ")),
        }
    };
    let wanted = |format| match asked.format {
        FormatChoice::Auto => true,
        FormatChoice::Only(only) => format == only,
    };
    let mut known: Vec<(PixelFormat, &Offer)> = offers
        .iter()
        .filter_map(|offer| PixelFormat::of(offer.code).map(|format| (format, offer)))
        .filter(|(format, _)| wanted(*format))
        .collect();
    if known.is_empty() {
        return Err(match asked.format {
            FormatChoice::Auto => format!(
                "the camera has no format that is understood (yuyv, uyvy, nv12, rgb24, bgr24, grey, mjpeg); {}",
                all()
            ),
            FormatChoice::Only(format) => format!("the camera has no format {format}; {}", all()),
        });
    }
    if let Some(size) = asked.size() {
        known.retain(|(_, offer)| offer.sizes.has(size));
        if known.is_empty() {
            return Err(format!("the camera has no size {}x{}; {}", size.0, size.1, all()));
        }
    }
    known.sort_by_key(|(format, _)| PixelFormat::ALL.iter().position(|one| one == format));
    let enough = asked.fps.or(asked.rate).unwrap_or(USUAL_FPS) * NEAR;
    let fast = known
        .iter()
        .find(|(_, offer)| offer.fastest.is_none_or(|fastest| fastest >= enough));
    let fastest = || {
        let speed = |offer: &Offer| offer.fastest.unwrap_or(f64::INFINITY);
        // The first of equals is the cheapest.
        known
            .iter()
            .rev()
            .max_by(|(_, one), (_, other)| speed(one).total_cmp(&speed(other)))
    };
    let chosen = fast.or_else(fastest);
    chosen
        .map(|(format, offer)| (offer.code, *format))
        .ok_or_else(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(extra: &str) -> CameraSettings {
        toml::from_str(&format!("device = '/dev/video0'\n{extra}")).unwrap()
    }

    fn offer(code: &[u8; 4], sizes: &[(u32, u32)], fastest: f64) -> Offer {
        Offer {
            code: FourCc(*code),
            sizes: match sizes {
                [] => Sizes::Unknown,
                sizes => Sizes::Listed(sizes.to_vec()),
            },
            fastest: (fastest > 0.0).then_some(fastest),
        }
    }

    const HD: (u32, u32) = (1920, 1080);

    #[test]
    fn the_cheapest_that_is_fast_enough_is_taken() {
        let of = |offers: &[Offer], extra: &str| {
            choose(offers, &asked(extra)).map(|(code, format)| (code.to_string(), format))
        };
        // A webcam on USB 2: raw pixels are slow at large sizes.
        let webcam = [
            offer(b"MJPG", &[(640, 480), HD], 30.0),
            offer(b"YUYV", &[(640, 480), HD], 5.0),
        ];
        let mjpeg = Ok(("MJPG".to_owned(), PixelFormat::Mjpeg));
        let yuyv = Ok(("YUYV".to_owned(), PixelFormat::Yuyv));
        assert_eq!(of(&webcam, "width = 1920\nheight = 1080"), mjpeg);
        assert_eq!(of(&webcam, "width = 1920\nheight = 1080\nrate = 2.0"), yuyv);
        assert_eq!(of(&webcam, "fps = 5.0"), yuyv);
        assert_eq!(of(&webcam, "format = 'yuyv'\nfps = 30.0"), yuyv, "as it was told");
        // None is fast enough: the fastest.
        assert_eq!(of(&webcam, "fps = 60.0"), mjpeg);
        // Not known to be slow.
        let unknown = [offer(b"MJPG", &[], 30.0), offer(b"YUYV", &[], 0.0)];
        assert_eq!(of(&unknown, "fps = 60.0"), yuyv);
        // Colours before cheapness; what is not understood is passed over.
        let sensor = [
            offer(b"GREY", &[], 0.0),
            offer(b"RG10", &[], 0.0),
            offer(b"NV12", &[], 0.0),
        ];
        assert_eq!(of(&sensor, ""), Ok(("NV12".into(), PixelFormat::Nv12)));
        assert_eq!(of(&sensor[..2], ""), Ok(("GREY".into(), PixelFormat::Grey)));
        // Neither is fast enough, and both are equally slow.
        let slow = [offer(b"MJPG", &[], 5.0), offer(b"UYVY", &[], 5.0)];
        assert_eq!(of(&slow, "fps = 60.0").unwrap().1, PixelFormat::Uyvy);
    }

    #[test]
    fn what_cannot_be_had_is_said_with_what_can() {
        let offers = [offer(b"MJPG", &[(640, 480)], 0.0), offer(b"RG10", &[], 0.0)];
        let refused = |offers: &[Offer], extra: &str| choose(offers, &asked(extra)).unwrap_err();
        assert_eq!(
            refused(&offers, "format = 'nv12'"),
            "the camera has no format nv12; it offers MJPG (640x480), RG10 (any size)"
        );
        assert_eq!(
            refused(&offers, "width = 1920\nheight = 1080"),
            "the camera has no size 1920x1080; it offers MJPG (640x480), RG10 (any size)"
        );
        let bayer = refused(&offers[1..], "");
        assert!(bayer.contains("no format that is understood"), "{bayer}");
        assert!(bayer.ends_with("it offers RG10 (any size)"), "{bayer}");
        assert!(refused(&[], "").ends_with("it offers none"));
        let steps = Offer {
            sizes: Sizes::Between((32, 32), (1280, 720)),
            ..offer(b"YUYV", &[], 0.0)
        };
        assert!(choose(std::slice::from_ref(&steps), &asked("width = 1280\nheight = 720")).is_ok());
        let large = choose(&[steps], &asked("width = 1280\nheight = 721")).unwrap_err();
        assert!(large.ends_with("it offers YUYV (32x32 to 1280x720)"), "{large}");
    }
}
