use image::{Rgb, RgbImage};

use super::ink::Ink;
use crate::random::Random;

/// How lines look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// Black on white, upright and sharp.
    Clean,
    /// As a camera sees print: turned by up to 2°, blurred, noisy, in colours, of low contrast now and then, on
    /// uneven ground, light on dark in one of four.
    Worn,
}

/// What happens to one line between the type and the image.
pub(super) struct Wear {
    /// Radians.
    pub(super) angle: f32,
    /// Deviation in pixels.
    pub(super) blur: f32,
    /// Deviation of each pixel's brightness, of 255.
    noise: f32,
    ground: [f32; 3],
    ink: [f32; 3],
    /// How much brighter the right and the lower edge are than the centre, of 255.
    slope: (f32, f32),
    /// Height in brightness, of 255, and length in pixels of ripples in the ground.
    ripple: (f32, f32),
}

impl Wear {
    pub(super) fn new(condition: Condition, random: &mut Random) -> Self {
        match condition {
            Condition::Clean => Self {
                angle: 0.0,
                blur: 0.0,
                noise: 0.0,
                ground: [255.0; 3],
                ink: [0.0; 3],
                slope: (0.0, 0.0),
                ripple: (0.0, 1.0),
            },
            Condition::Worn => Self::worn(random),
        }
    }

    fn worn(random: &mut Random) -> Self {
        let contrast = random.between(80.0, 220.0);
        let bright = random.between(contrast + 10.0, 245.0);
        let dark = bright - contrast;
        let (ground, ink) = if random.chance(0.25) {
            (dark, bright)
        } else {
            (bright, dark)
        };
        let mut tinted = |brightness: f32| [(); 3].map(|()| brightness + random.between(-12.0, 12.0));
        let (ground, ink) = (tinted(ground), tinted(ink));
        Self {
            angle: random.between(-2.0, 2.0).to_radians(),
            blur: random.between(0.0, 1.1),
            noise: random.between(0.0, 10.0),
            ground,
            ink,
            slope: (random.between(-20.0, 20.0), random.between(-12.0, 12.0)),
            ripple: (random.between(0.0, 6.0), random.between(15.0, 120.0)),
        }
    }

    /// The image of this ink.
    pub(super) fn paint(&self, ink: &Ink, random: &mut Random) -> RgbImage {
        let (phase_x, phase_y) = (
            random.between(0.0, std::f32::consts::TAU),
            random.between(0.0, std::f32::consts::TAU),
        );
        let (width, height) = (ink.width as f32, ink.height as f32);
        RgbImage::from_fn(ink.width as u32, ink.height as u32, |column, row| {
            let (x, y) = (column as f32, row as f32);
            let wave = |along: f32, phase: f32| (std::f32::consts::TAU * along / self.ripple.1 + phase).sin();
            let light = self.slope.0 * (2.0 * x / width - 1.0)
                + self.slope.1 * (2.0 * y / height - 1.0)
                + self.ripple.0 * wave(x, phase_x) * wave(y, phase_y)
                + self.noise * random.normal();
            let coverage = ink.at(column as isize, row as isize);
            let mut channels = [0; 3];
            for ((channel, ground), ink) in channels.iter_mut().zip(self.ground).zip(self.ink) {
                let value = ground + (ink - ground) * coverage + light;
                *channel = value.round().clamp(0.0, 255.0) as u8;
            }
            Rgb(channels)
        })
    }
}
