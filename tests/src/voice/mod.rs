//! Speech and noise for voice activity detectors: sentences spoken by espeak-ng, noise from a seeded generator.

mod noise;
mod wav;

use std::process::Command;

use anyhow::{Context, bail};

use crate::random::Random;
use crate::sentences::sentence;
use noise::Noise;

/// Samples a second.
pub const RATE: u32 = 16_000;
/// Samples a detector hears at a time: 32 ms.
pub const FRAME: usize = 512;

/// espeak-ng's voices to speak with: accents, and men's and women's variants.
const VOICES: &[&str] = &[
    "en-gb",
    "en-us",
    "en-gb-scotland",
    "en-us+f2",
    "en-gb+f4",
    "en-us+m3",
    "en-gb+m7",
];

/// A recording and what is heard in each whole frame of it.
pub struct Clip {
    /// Amplitudes, −1..=1, [`RATE`] a second.
    pub samples: Vec<f32>,
    /// Whether a frame has speech; `None` where that is a matter of taste (pauses, onsets, faint ends).
    pub speech: Vec<Option<bool>>,
}

/// The clip with this number in the series of this seed. Even ones are a sentence over faint noise, odd ones two
/// seconds of noise.
///
/// # Errors
/// When espeak-ng is missing or fails.
pub fn clip(seed: u64, number: usize) -> anyhow::Result<Clip> {
    let mut random = Random::of(seed, number);
    if number % 2 == 1 {
        let level = random.between(0.003, 0.15);
        let samples = Noise::new(&mut random).samples(2 * RATE as usize, level, &mut random);
        let speech = vec![Some(false); samples.len() / FRAME];
        return Ok(Clip { samples, speech });
    }
    let voice = random.pick(VOICES).copied().unwrap_or("en-gb");
    let spoken = speak(&sentence(seed, number), voice, 130 + random.below(60))?;
    let peak = spoken.iter().fold(f32::MIN_POSITIVE, |peak, x| peak.max(x.abs()));
    let gain = random.between(0.2, 0.8) / peak;
    // A third of a second before and after, so that the detector's state settles.
    let quiet = RATE as usize / 3;
    let mut heard = vec![0.0; quiet];
    heard.extend(spoken.iter().map(|x| x * gain));
    heard.resize(heard.len() + quiet, 0.0);
    let speech = clear_speech(&heard);
    let level = random.between(0.0005, 0.005);
    let noise = Noise::new(&mut random).samples(heard.len(), level, &mut random);
    let samples = heard.iter().zip(&noise).map(|(a, b)| a + b).collect();
    Ok(Clip { samples, speech })
}

/// Frames that are loud, and stand between loud ones, are speech; others are undecided.
fn clear_speech(samples: &[f32]) -> Vec<Option<bool>> {
    let energy: Vec<f32> = samples
        .chunks_exact(FRAME)
        .map(|frame| frame.iter().map(|x| x * x).sum())
        .collect();
    // A tenth of the loudest frame's amplitude.
    let enough = 0.01 * energy.iter().copied().fold(0.0, f32::max);
    let loud: Vec<bool> = energy.iter().map(|energy| *energy > enough).collect();
    (0..loud.len())
        .map(|at| {
            let around = loud.get(at.saturating_sub(2)..=at + 2);
            around
                .is_some_and(|around| around.iter().all(|loud| *loud))
                .then_some(true)
        })
        .collect()
}

fn speak(text: &str, voice: &str, words_a_minute: usize) -> anyhow::Result<Vec<f32>> {
    let output = Command::new("espeak-ng")
        .args(["-v", voice, "-s", &words_a_minute.to_string(), "--stdout", text])
        .output()
        .context("cannot run espeak-ng; on Debian: apt-get install espeak-ng")?;
    if !output.status.success() {
        bail!(
            "espeak-ng failed: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    let (samples, rate) = wav::read(&output.stdout).context("espeak-ng's recording")?;
    Ok(wav::resampled(&samples, rate, RATE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn noise_is_labelled_throughout_and_seeded() {
        let (clip_a, clip_b) = (clip(1, 3).unwrap(), clip(1, 3).unwrap());
        assert_eq!(clip_a.samples, clip_b.samples);
        assert!(clip_a.samples.iter().any(|x| x.abs() > 1e-4));
        assert_eq!(clip_a.speech, vec![Some(false); 62]);
    }

    #[test]
    fn only_frames_amid_loud_ones_are_clearly_speech() {
        let mut samples = vec![0.0; 12 * FRAME];
        samples[3 * FRAME..9 * FRAME].fill(0.5);
        let clear: Vec<usize> = (0..12)
            .filter(|at| clear_speech(&samples)[*at] == Some(true))
            .collect();
        assert_eq!(clear, [5, 6]);
    }
}
