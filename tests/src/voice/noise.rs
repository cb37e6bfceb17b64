use super::RATE;
use crate::random::Random;

/// Kinds of noise a microphone hears.
pub(super) enum Noise {
    /// Hiss: every frequency alike.
    White,
    /// Wind and rumble: low frequencies dominate.
    Brown,
    /// Mains and motors: a tone of this frequency in hertz with overtones, and some hiss.
    Hum(f32),
}

impl Noise {
    pub(super) fn new(random: &mut Random) -> Self {
        match random.below(3) {
            0 => Self::White,
            1 => Self::Brown,
            _ => Self::Hum(random.between(45.0, 180.0)),
        }
    }

    /// So many samples with roughly this root mean square.
    pub(super) fn samples(&self, count: usize, level: f32, random: &mut Random) -> Vec<f32> {
        let mut low = 0.0;
        (0..count)
            .map(|at| {
                let white = random.normal();
                let sample = match self {
                    Self::White => white,
                    Self::Brown => {
                        // A leaky sum; the factor restores a deviation of about 1.
                        low = 0.98 * low + white;
                        low * (1.0f32 - 0.98 * 0.98).sqrt()
                    }
                    Self::Hum(frequency) => {
                        let turns = (at as f32 / RATE as f32 * frequency).fract();
                        let tone = |overtone: f32| (std::f32::consts::TAU * turns * overtone).sin();
                        tone(1.0) + 0.6 * tone(2.0) + 0.4 * tone(3.0) + 0.2 * white
                    }
                };
                (sample * level).clamp(-1.0, 1.0)
            })
            .collect()
    }
}
