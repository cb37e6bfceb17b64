//! Images of lines of text with the text known: calibration and test data for text recognizers, without any data set
//! to download. The same seed and the same fonts give the same images.

mod characters;
mod fonts;
mod ink;
mod page;
mod wear;
mod wording;
mod words;

use image::RgbImage;

use crate::random::Random;

pub use characters::{Scattered, characters};
pub use fonts::{Typeface, find};
pub use page::{Page, PlacedLine, page};

use ink::Ink;
pub use wear::Condition;
use wear::Wear;

/// An image of a line of text, 28 to 64 pixels high.
pub struct Line {
    /// What stands in it.
    pub text: String,
    /// How it looks.
    pub image: RgbImage,
}

/// The line with this number in the series of this seed. Lines are independent of each other: a longer series begins
/// like a shorter one. Fonts take turns.
///
/// # Errors
/// When there is no font.
pub fn line(seed: u64, number: usize, fonts: &[Typeface], condition: Condition) -> anyhow::Result<Line> {
    let face = fonts
        .get(number % fonts.len().max(1))
        .ok_or_else(|| anyhow::anyhow!("there is no font to write with"))?;
    let mut random = Random::of(seed, number);
    let text = wording::line(&mut random);
    let size = random.between(24.0, 40.0);
    let margin = random.between(2.0, 5.0);
    let wear = Wear::new(condition, &mut random);
    let ink = Ink::text(&face.font, &text, size, margin);
    // A long line would leave the image: both ends together rise by at most a third of its size.
    let steepest = (size / 3.0 / ink.width as f32).asin();
    let ink = match wear.angle.clamp(-steepest, steepest) {
        0.0 => ink,
        angle => ink.turned(angle),
    };
    let image = wear.paint(&ink.blurred(wear.blur), &mut random);
    Ok(Line { text, image })
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    fn typefaces() -> Vec<Typeface> {
        find(&[PathBuf::from("/usr/share/fonts/truetype/dejavu")]).unwrap()
    }

    #[test]
    fn lines_are_the_same_for_the_same_seed_and_differ_for_another() {
        let fonts = typefaces();
        let image = |seed, number| line(seed, number, &fonts, Condition::Worn).unwrap();
        let (first, again) = (image(3, 5), image(3, 5));
        assert_eq!((&first.text, &first.image), (&again.text, &again.image));
        assert_ne!(first.image, image(3, 6).image);
        assert_ne!(first.image, image(4, 5).image);
    }

    #[test]
    fn every_line_has_the_height_of_a_line_and_ink_that_stands_out() {
        let fonts = typefaces();
        for condition in [Condition::Clean, Condition::Worn] {
            for number in 0..40 {
                let image = line(1, number, &fonts, condition).unwrap().image;
                assert!((28..=66).contains(&image.height()), "{}", image.height());
                assert!(image.width() > image.height() / 2);
                let luma = image
                    .pixels()
                    .map(|pixel| pixel.0.iter().map(|c| u32::from(*c)).sum::<u32>() / 3);
                let (low, high) = luma.fold((255, 0), |(low, high), l| (low.min(l), high.max(l)));
                assert!(high - low > 50, "line {number}: luma from {low} to {high}");
            }
        }
    }

    #[test]
    fn without_fonts_the_error_says_where_it_looked() {
        let folder = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/src/bin"));
        let error = find(std::slice::from_ref(&folder)).err().unwrap().to_string();
        assert!(error.contains(&folder.display().to_string()), "{error}");
        assert!(line(1, 0, &[], Condition::Clean).is_err());
    }
}
