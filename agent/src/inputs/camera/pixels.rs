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

    /// The image of a frame, in the memory of `spare` if that is large enough.
    ///
    /// # Errors
    /// When bytes are missing, or are no JPEG where they should be.
    pub(super) fn rgb(&self, bytes: &[u8], spare: Vec<u8>) -> Result<RgbImage, String> {
        self.check(bytes)?;
        if self.format == PixelFormat::Mjpeg {
            // The decoder has memory of its own.
            drop(spare);
            return mjpeg::decode(bytes);
        }
        let (width, height) = (self.width as usize, self.height as usize);
        let mut rgb = spare;
        rgb.clear();
        rgb.reserve_exact(width * height * 3);
        let (stride, row, weights) = (self.stride().max(1), self.row(), Weights::of(self.colour));
        let lines = bytes
            .chunks(stride)
            .take(height)
            .map(|line| &line[..row.min(line.len())]);
        match self.format {
            PixelFormat::Yuyv => lines.for_each(|line| packed::<0>(line, width, &weights, &mut rgb)),
            PixelFormat::Uyvy => lines.for_each(|line| packed::<1>(line, width, &weights, &mut rgb)),
            PixelFormat::Nv12 => {
                let chroma = &bytes[stride * height..];
                for (index, luma) in lines.enumerate() {
                    let pairs = &chroma[index / 2 * stride..][..row.next_multiple_of(2)];
                    planar(luma, pairs, &weights, &mut rgb);
                }
            }
            PixelFormat::Rgb24 => lines.for_each(|line| rgb.extend_from_slice(line)),
            PixelFormat::Bgr24 => lines.for_each(|line| {
                rgb.extend_from_slice(line);
                let start = rgb.len() - row;
                rgb[start..]
                    .chunks_exact_mut(3)
                    .for_each(|pixel| pixel.swap(0, 2));
            }),
            PixelFormat::Grey => lines.for_each(|line| {
                for part in line.chunks(BLOCK) {
                    let luma: [u8; BLOCK] = filled(part);
                    push(&mut rgb, |pixel| [luma[pixel]; 3], part.len());
                }
            }),
            PixelFormat::Mjpeg => {}
        }
        let is_yuv = matches!(
            self.format,
            PixelFormat::Yuyv | PixelFormat::Uyvy | PixelFormat::Nv12
        );
        if !is_yuv && !self.colour.full_range {
            rgb.iter_mut().for_each(|value| *value = stretch(*value));
        }
        RgbImage::from_raw(self.width, self.height, rgb).ok_or_else(|| "it is not complete".to_owned())
    }
}

/// Pixels that are converted together: loops of a fixed length without branches become vector instructions.
const BLOCK: usize = 64;

/// A block's numbers; what is missing at the end of a row is 0, and not looked at.
fn filled<const LENGTH: usize>(part: &[u8]) -> [u8; LENGTH] {
    part.try_into().unwrap_or_else(|_| {
        let mut block = [0; LENGTH];
        block[..part.len()].copy_from_slice(part);
        block
    })
}

/// Appends the first pixels of a block.
#[inline(always)]
fn push(rgb: &mut Vec<u8>, pixel: impl Fn(usize) -> [u8; 3], count: usize) {
    // Colour by colour, then side by side: the compiler does not see through both at once.
    let (mut red, mut green, mut blue) = ([0; BLOCK], [0; BLOCK], [0; BLOCK]);
    for index in 0..BLOCK {
        [red[index], green[index], blue[index]] = pixel(index);
    }
    let mut block = [0; BLOCK * 3];
    for index in 0..BLOCK {
        block[index * 3] = red[index];
        block[index * 3 + 1] = green[index];
        block[index * 3 + 2] = blue[index];
    }
    rgb.extend_from_slice(&block[..count * 3]);
}

/// A row of 4:2:2. `LUMA`: where the first luma stands in four bytes.
fn packed<const LUMA: usize>(line: &[u8], width: usize, weights: &Weights, rgb: &mut Vec<u8>) {
    for (index, part) in line.chunks(BLOCK * 2).enumerate() {
        let from: [u8; BLOCK * 2] = filled(part);
        let (mut y, mut u, mut v) = ([0; BLOCK], [0; BLOCK], [0; BLOCK]);
        for pair in 0..BLOCK / 2 {
            let (pixel, at) = (pair * 2, pair * 4);
            (y[pixel], y[pixel + 1]) = (from[at + LUMA], from[at + LUMA + 2]);
            (u[pixel], u[pixel + 1]) = (from[at + 1 - LUMA], from[at + 1 - LUMA]);
            (v[pixel], v[pixel + 1]) = (from[at + 3 - LUMA], from[at + 3 - LUMA]);
        }
        // An odd width: the last pair has one pixel.
        let count = BLOCK.min(width - index * BLOCK);
        push(rgb, |pixel| weights.rgb(y[pixel], u[pixel], v[pixel]), count);
    }
}

/// A row of NV12.
fn planar(luma: &[u8], pairs: &[u8], weights: &Weights, rgb: &mut Vec<u8>) {
    for (luma, pairs) in luma.chunks(BLOCK).zip(pairs.chunks(BLOCK)) {
        let (y, from): ([u8; BLOCK], [u8; BLOCK]) = (filled(luma), filled(pairs));
        let (mut u, mut v) = ([0; BLOCK], [0; BLOCK]);
        for pair in 0..BLOCK / 2 {
            let pixel = pair * 2;
            (u[pixel], u[pixel + 1]) = (from[pixel], from[pixel]);
            (v[pixel], v[pixel + 1]) = (from[pixel + 1], from[pixel + 1]);
        }
        push(rgb, |pixel| weights.rgb(y[pixel], u[pixel], v[pixel]), luma.len());
    }
}

#[cfg(test)]
mod tests;
