//! Frames as drivers give them into RGB images. Pure.
//!
//! Colour differences that stand for several pixels are used for each of them as they are, as OpenCV and most models'
//! training data have it.

use image::RgbImage;

use super::colour::{Colour, Weights, stretch};
use super::format::PixelFormat;
use super::mjpeg;

/// How a frame lies in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    pub(super) format: PixelFormat,
    /// Pixels.
    pub(super) width: u32,
    /// Pixels.
    pub(super) height: u32,
    /// Bytes from the start of a row to that of the next, in the first plane; 0 = rows follow each other at once.
    pub(super) stride: u32,
    pub(super) colour: Colour,
}

impl Layout {
    /// Bytes of a row that carry pixels, in the first plane.
    fn row(&self) -> usize {
        let width = self.width as usize;
        match self.format {
            // Two pixels share four bytes.
            PixelFormat::Yuyv | PixelFormat::Uyvy => width.div_ceil(2) * 4,
            PixelFormat::Nv12 | PixelFormat::Grey => width,
            PixelFormat::Rgb24 | PixelFormat::Bgr24 => width * 3,
            PixelFormat::Mjpeg => 0,
        }
    }

    fn stride(&self) -> usize {
        match self.stride {
            0 if self.format == PixelFormat::Nv12 => self.row().next_multiple_of(2),
            0 => self.row(),
            stride => stride as usize,
        }
    }

    /// Fewest bytes that a whole frame can have; the last row needs no padding.
    fn least(&self) -> usize {
        let (height, stride) = (self.height as usize, self.stride());
        let end = |rows: usize, row: usize| rows.saturating_sub(1) * stride + row;
        match self.format {
            PixelFormat::Mjpeg => 4,
            PixelFormat::Nv12 => height * stride + end(height.div_ceil(2), self.row().next_multiple_of(2)),
            _ => end(height, self.row()),
        }
    }

    /// What is wrong with a frame's bytes, as far as it can be seen without decoding them.
    pub(super) fn check(&self, bytes: &[u8]) -> Result<(), String> {
        if self.stride() < self.row() {
            let (stride, row) = (self.stride(), self.row());
            return Err(format!(
                "rows of {row} bytes do not fit {stride}, which the driver gives them"
            ));
        }
        if bytes.len() < self.least() {
            return Err(format!("it has {} of {} bytes", bytes.len(), self.least()));
        }
        match self.format {
            PixelFormat::Mjpeg => mjpeg::whole(bytes).map(drop),
            _ => Ok(()),
        }
    }

    /// The image of a frame.
    ///
    /// # Errors
    /// When bytes are missing, or are no JPEG where they should be.
    pub(super) fn rgb(&self, bytes: &[u8]) -> Result<RgbImage, String> {
        self.check(bytes)?;
        if self.format == PixelFormat::Mjpeg {
            return mjpeg::decode(bytes);
        }
        let mut image = RgbImage::new(self.width, self.height);
        let rows = (*image).chunks_exact_mut((self.width as usize * 3).max(1));
        let (stride, row, weights) = (self.stride(), self.row(), Weights::of(self.colour));
        let lines = bytes
            .chunks(stride.max(1))
            .map(|line| &line[..row.min(line.len())]);
        match self.format {
            PixelFormat::Yuyv => rows
                .zip(lines)
                .for_each(|(to, from)| packed::<0>(from, to, &weights)),
            PixelFormat::Uyvy => rows
                .zip(lines)
                .for_each(|(to, from)| packed::<1>(from, to, &weights)),
            PixelFormat::Nv12 => {
                let (luma, chroma) = bytes.split_at(stride * self.height as usize);
                for (index, (to, line)) in rows.zip(luma.chunks(stride)).enumerate() {
                    let pairs = &chroma[index / 2 * stride..];
                    planar(&line[..row], &pairs[..row.next_multiple_of(2)], to, &weights);
                }
            }
            PixelFormat::Rgb24 => rows.zip(lines).for_each(|(to, from)| to.copy_from_slice(from)),
            PixelFormat::Bgr24 => rows.zip(lines).for_each(|(to, from)| {
                for (to, from) in to.chunks_exact_mut(3).zip(from.chunks_exact(3)) {
                    to.copy_from_slice(&[from[2], from[1], from[0]]);
                }
            }),
            PixelFormat::Grey => rows.zip(lines).for_each(|(to, from)| {
                for (to, luma) in to.chunks_exact_mut(3).zip(from) {
                    to.fill(*luma);
                }
            }),
            PixelFormat::Mjpeg => {}
        }
        let is_yuv = matches!(
            self.format,
            PixelFormat::Yuyv | PixelFormat::Uyvy | PixelFormat::Nv12
        );
        if !is_yuv && !self.colour.full_range {
            (*image).iter_mut().for_each(|value| *value = stretch(*value));
        }
        Ok(image)
    }
}

/// A row of 4:2:2. `LUMA`: where the first luma stands in four bytes.
fn packed<const LUMA: usize>(from: &[u8], to: &mut [u8], weights: &Weights) {
    let (u, v) = (1 - LUMA, 3 - LUMA);
    let pairs = from.chunks_exact(4);
    let mut pixels = to.chunks_exact_mut(6);
    for (to, from) in (&mut pixels).zip(pairs) {
        let chroma = weights.chroma(from[u], from[v]);
        let (first, second) = (
            weights.rgb(from[LUMA], chroma),
            weights.rgb(from[LUMA + 2], chroma),
        );
        to.copy_from_slice(&[first[0], first[1], first[2], second[0], second[1], second[2]]);
    }
    // An odd width: the last pixel has its colour differences for itself.
    let last = pixels.into_remainder();
    if let ([_, _, _], Some(from)) = (&last, from.chunks_exact(4).last()) {
        last.copy_from_slice(&weights.rgb(from[LUMA], weights.chroma(from[u], from[v])));
    }
}

/// A row of NV12.
fn planar(luma: &[u8], pairs: &[u8], to: &mut [u8], weights: &Weights) {
    let pixels = to.chunks_mut(6).zip(luma.chunks(2)).zip(pairs.chunks_exact(2));
    for ((to, luma), pair) in pixels {
        let chroma = weights.chroma(pair[0], pair[1]);
        for (to, luma) in to.chunks_exact_mut(3).zip(luma) {
            to.copy_from_slice(&weights.rgb(*luma, chroma));
        }
    }
}

#[cfg(test)]
mod tests;
