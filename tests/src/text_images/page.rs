use image::RgbImage;

use super::fonts::Typeface;
use super::ink::Ink;
use super::wear::{Condition, Wear};
use super::wording;
use crate::quadrangle::Quadrangle;
use crate::random::Random;

/// A line on a page.
pub struct PlacedLine {
    /// What stands in it.
    pub text: String,
    /// The smallest rectangle along the line around its ink, with a margin of a tenth of the type's size as people
    /// leave who draw such boxes; in pixels of the page.
    pub place: Quadrangle,
}

/// An image of a page of text, 640 × 480 pixels.
pub struct Page {
    /// How it looks.
    pub image: RgbImage,
    /// What stands on it, from the top.
    pub lines: Vec<PlacedLine>,
}

/// Pixels.
const WIDTH: usize = 640;
const HEIGHT: usize = 480;

/// The page with this number in the series of this seed: up to seven lines in as many fonts, all turned by `tilt`
/// radians, clockwise where positive; lines that would leave the page are left out. Without fonts the page is empty.
pub fn page(seed: u64, number: usize, fonts: &[Typeface], condition: Condition, tilt: f32) -> Page {
    let mut random = Random::of(seed, number);
    let wear = Wear::new(condition, &mut random);
    let mut ink = Ink::blank(WIDTH, HEIGHT);
    let mut lines = Vec::new();
    let (sin, cos) = tilt.sin_cos();
    let mut row = -200.0;
    while let Some(face) = random.pick(fonts) {
        let text = wording::line(&mut random);
        let size = random.between(20.0, 36.0);
        row += size;
        if row > 200.0 {
            break;
        }
        let line = Ink::text(&face.font, &text, size, 1.0);
        let along = random.between(-60.0, 60.0);
        let place = (
            WIDTH as f32 / 2.0 + along * cos - row * sin,
            HEIGHT as f32 / 2.0 + along * sin + row * cos,
        );
        row += size + random.between(6.0, 30.0);
        let turned = if tilt == 0.0 {
            line.clone()
        } else {
            line.turned(tilt)
        };
        let corner = (
            (place.0 - turned.width as f32 / 2.0).round(),
            (place.1 - turned.height as f32 / 2.0).round(),
        );
        let centre = (
            corner.0 + turned.width as f32 / 2.0,
            corner.1 + turned.height as f32 / 2.0,
        );
        let Some([left, top, right, bottom]) = line.bounds() else {
            continue;
        };
        let margin = size / 10.0;
        let (left, right) = (left as f32 - margin, right as f32 + margin);
        let (top, bottom) = (top as f32 - margin, bottom as f32 + margin);
        let corners = [(left, top), (right, top), (right, bottom), (left, bottom)].map(|(x, y)| {
            let (x, y) = (x - line.width as f32 / 2.0, y - line.height as f32 / 2.0);
            [centre.0 + x * cos - y * sin, centre.1 + x * sin + y * cos]
        });
        let inside = |[x, y]: &[f32; 2]| {
            (4.0..WIDTH as f32 - 4.0).contains(x) && (4.0..HEIGHT as f32 - 4.0).contains(y)
        };
        if corners.iter().all(inside) {
            ink.lay(&turned, corner.0 as i64, corner.1 as i64);
            lines.push(PlacedLine {
                text,
                place: Quadrangle(corners),
            });
        }
    }
    Page {
        image: wear.paint(&ink.blurred(wear.blur), &mut random),
        lines,
    }
}
