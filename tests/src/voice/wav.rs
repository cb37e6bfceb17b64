use anyhow::{Context, bail};

/// Amplitudes and rate of a mono 16-bit WAV recording. A program that writes to a pipe cannot know the length
/// beforehand, so the data may end before its declared length.
pub(super) fn read(bytes: &[u8]) -> anyhow::Result<(Vec<f32>, u32)> {
    if bytes.get(..4) != Some(b"RIFF") || bytes.get(8..12) != Some(b"WAVE") {
        bail!("not a WAV file");
    }
    let mut rest = bytes.get(12..).unwrap_or_default();
    let mut rate = None;
    while let Some((head, body)) = rest.split_first_chunk::<8>() {
        let [a, b, c, d, length @ ..] = *head;
        let length = u32::from_le_bytes(length) as usize;
        let chunk = body.get(..length).unwrap_or(body);
        match &[a, b, c, d] {
            b"fmt " => rate = Some(format(chunk)?),
            b"data" => {
                let samples = chunk
                    .as_chunks::<2>()
                    .0
                    .iter()
                    .map(|pair| f32::from(i16::from_le_bytes(*pair)) / 32768.0);
                return Ok((samples.collect(), rate.context("data before its format")?));
            }
            _ => {}
        }
        // Chunks start at even places.
        rest = body.get(length + length % 2..).unwrap_or_default();
    }
    bail!("no data")
}

/// The rate, if the format is one this reads.
fn format(chunk: &[u8]) -> anyhow::Result<u32> {
    let [1, 0, 1, 0, a, b, c, d, _, _, _, _, _, _, 16, 0, ..] = *chunk else {
        bail!("only mono 16-bit PCM is read");
    };
    let rate = u32::from_le_bytes([a, b, c, d]);
    if rate == 0 {
        bail!("a rate of 0");
    }
    Ok(rate)
}

/// At another rate, by linear interpolation: what folds over above half the new rate is faint in speech.
pub(super) fn resampled(samples: &[f32], from: u32, to: u32) -> Vec<f32> {
    let step = f64::from(from) / f64::from(to);
    let count = (samples.len() as f64 / step) as usize;
    (0..count)
        .map(|at| {
            let place = at as f64 * step;
            let left = place as usize;
            let value = |index: usize| samples.get(index).copied().unwrap_or(0.0);
            let part = (place - left as f64) as f32;
            value(left) * (1.0 - part) + value(left + 1) * part
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recordings_are_read_even_with_an_unknown_length_and_others_refused() {
        let mut bytes = b"RIFF\xff\xff\xff\x7fWAVEfmt \x10\0\0\0".to_vec();
        bytes.extend([1, 0, 1, 0, 0x22, 0x56, 0, 0, 0x44, 0xac, 0, 0, 2, 0, 16, 0]);
        bytes.extend(b"data\xff\xff\xff\x7f\x00\x40\x00\xc0");
        assert_eq!(read(&bytes).unwrap(), (vec![0.5, -0.5], 22050));
        bytes[22] = 2;
        assert!(read(&bytes).unwrap_err().to_string().contains("mono"));
        assert!(read(&bytes[..20]).is_err());
    }

    #[test]
    fn a_ramp_stays_a_ramp() {
        assert_eq!(resampled(&[0.0, 1.0, 2.0, 3.0], 2, 1), [0.0, 2.0]);
        assert_eq!(resampled(&[0.0, 1.0, 2.0], 1, 2)[..5], [0.0, 0.5, 1.0, 1.5, 2.0]);
    }
}
