use image::{Rgb, RgbImage};

use super::fonts::Typeface;
use super::ink::Ink;
use crate::random::Random;

/// An image with characters here and there, 344 × 384 pixels.
pub struct Scattered {
    /// How it looks.
    pub image: RgbImage,
    /// Around each character's ink: left, top, right and bottom in pixels, right and bottom behind the last.
    pub places: Vec<[u32; 4]>,
}

/// Pixels.
const WIDTH: u32 = 344;
const HEIGHT: u32 = 384;
/// Pixels between characters and to the edge, at least.
const GAP: u32 = 6;
const MOST: usize = 5;
/// Places tried for a character before it is left out.
const TRIES: usize = 40;
/// Without those that look like another when turned.
const CHARACTERS: &[u8] = b"ABCDEFGHJKLMNPQRSTUVWXYZ23456789abdefghkmnqrt";

/// The image with this number in the series of this seed: up to five characters in dark colours on a light ground, turned
/// by up to 30°, none touching another. Every eighth image is empty, as are all without fonts.
pub fn characters(seed: u64, number: usize, fonts: &[Typeface]) -> Scattered {
    let mut random = Random::of(seed, number);
    let ground = random.between(225.0, 250.0);
    let mut image = RgbImage::from_pixel(WIDTH, HEIGHT, Rgb([ground as u8; 3]));
    let mut places: Vec<[u32; 4]> = Vec::new();
    let count = if number % 8 == 7 { 0 } else { MOST };
    for _ in 0..count {
        let Some((face, character)) = random.pick(fonts).zip(random.pick(CHARACTERS)) else {
            break;
        };
        let size = random.between(35.0, 70.0);
        let ink = Ink::text(&face.font, &char::from(*character).to_string(), size, 2.0);
        let ink = ink.turned(random.between(-30.0, 30.0).to_radians());
        let Some([left, top, right, bottom]) = ink.bounds().map(|bounds| bounds.map(|side| side as u32))
        else {
            continue;
        };
        let (width, height) = (right - left, bottom - top);
        let mut try_place = || {
            let x = GAP + random.below((WIDTH - width - 2 * GAP) as usize) as u32;
            let y = GAP + random.below((HEIGHT - height - 2 * GAP) as usize) as u32;
            let apart = |other: &[u32; 4]| {
                x >= other[2] + GAP
                    || y >= other[3] + GAP
                    || other[0] >= x + width + GAP
                    || other[1] >= y + height + GAP
            };
            places.iter().all(apart).then_some([x, y, x + width, y + height])
        };
        let Some(place) = (0..TRIES).find_map(|_| try_place()) else {
            continue;
        };
        let color = [(); 3].map(|()| random.between(0.0, 120.0));
        // One pixel more than the bounds on each side: what is less than half ink.
        for y in place[1] - 1..=place[3] {
            for x in place[0] - 1..=place[2] {
                let (column, row) = (x + left - place[0], y + top - place[1]);
                let coverage = ink.at(column as isize, row as isize);
                let pixel = color.map(|color| (ground + (color - ground) * coverage).round() as u8);
                image.put_pixel(x, y, Rgb(pixel));
            }
        }
        places.push(place);
    }
    Scattered { image, places }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::text_images::find;

    #[test]
    fn every_character_is_dark_where_it_stands_and_nothing_else_is() {
        let fonts = find(&[PathBuf::from("/usr/share/fonts/truetype/dejavu")]).unwrap();
        for number in 0..16 {
            let scattered = characters(3, number, &fonts);
            assert_eq!(scattered.places.is_empty(), number % 8 == 7, "image {number}");
            // Where half or more is ink, whatever its colour; where it is dark ink, a little less.
            let dark = |x, y| {
                scattered
                    .image
                    .get_pixel(x, y)
                    .0
                    .iter()
                    .map(|c| u32::from(*c))
                    .sum::<u32>()
                    <= 3 * 185
            };
            // What is less than half ink may stand one pixel outside.
            let inside = |[left, top, right, bottom]: &[u32; 4], x, y| {
                (left - 1..right + 1).contains(&x) && (top - 1..bottom + 1).contains(&y)
            };
            for (y, x) in (0..HEIGHT).flat_map(|y| (0..WIDTH).map(move |x| (y, x))) {
                assert!(!dark(x, y) || scattered.places.iter().any(|place| inside(place, x, y)));
            }
            for [left, top, right, bottom] in &scattered.places {
                let touched = [
                    (*top..*bottom).any(|y| dark(*left, y)),
                    (*top..*bottom).any(|y| dark(right - 1, y)),
                    (*left..*right).any(|x| dark(x, *top)),
                    (*left..*right).any(|x| dark(x, bottom - 1)),
                ];
                assert_eq!(touched, [true; 4], "image {number}");
            }
        }
    }
}
