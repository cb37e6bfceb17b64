//! Results drawn into the image they are of.

use std::convert::Infallible;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use edgeopt_runtime::pipeline::postprocess::Prediction;
use embedded_graphics::mono_font::{MonoFont, MonoTextStyle, iso_8859_1};
use embedded_graphics::pixelcolor::Rgb888;
use embedded_graphics::prelude::*;
use embedded_graphics::primitives::{Line, PrimitiveStyle};
use embedded_graphics::text::{Baseline, Text};
use image::{ImageFormat, Rgb, RgbImage};

/// Colours that differ from each other and on which white or black can be read; classes take turns.
const COLORS: [[u8; 3]; 8] = [
    [230, 25, 75],
    [0, 130, 200],
    [60, 180, 75],
    [245, 130, 48],
    [145, 30, 180],
    [0, 128, 128],
    [240, 50, 230],
    [128, 128, 0],
];

/// Where drawings go.
pub(super) enum Target {
    /// The one sample's.
    File(PathBuf),
    /// One of each sample, named like it.
    Folder(PathBuf),
}

impl Target {
    /// A file if `path` has an image's extension, else a folder, which is created.
    pub(super) fn new(path: &Path, samples: usize) -> anyhow::Result<Self> {
        if ImageFormat::from_path(path).is_ok() {
            if samples != 1 {
                bail!(
                    "--draw {}: there are {samples} samples; name a folder for their drawings",
                    path.display()
                );
            }
            return Ok(Self::File(path.into()));
        }
        std::fs::create_dir_all(path).with_context(|| format!("cannot create {}", path.display()))?;
        Ok(Self::Folder(path.into()))
    }

    /// Writes the drawing of the sample with this id that came from `source`: beside, then renamed.
    pub(super) fn write(&self, id: &str, source: &Path, image: &RgbImage) -> anyhow::Result<()> {
        let path = match self {
            Self::File(path) => path.clone(),
            Self::Folder(folder) => folder.join(id),
        };
        if let (Ok(target), Ok(source)) = (path.canonicalize(), source.canonicalize())
            && target == source
        {
            bail!("--draw would write over the image itself, {}", path.display());
        }
        let failed = || format!("cannot write {}", path.display());
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let mut file =
            tempfile::NamedTempFile::new_in(folder.unwrap_or(Path::new("."))).with_context(failed)?;
        let format = ImageFormat::from_path(&path).with_context(failed)?;
        let mut buffer = std::io::BufWriter::new(file.as_file_mut());
        image.write_to(&mut buffer, format).with_context(failed)?;
        std::io::Write::flush(&mut buffer).with_context(failed)?;
        drop(buffer);
        file.persist(&path).with_context(failed)?;
        Ok(())
    }
}

/// Draws what was found.
///
/// # Errors
/// When it is nothing that can be drawn.
pub(super) fn draw(image: &mut RgbImage, prediction: &Prediction) -> anyhow::Result<()> {
    match prediction {
        Prediction::Objects { objects } => {
            // The best last, on top of the others.
            for object in objects.iter().rev() {
                let bounds = object.bounds;
                let corners = [
                    [bounds.left, bounds.top],
                    [bounds.right, bounds.top],
                    [bounds.right, bounds.bottom],
                    [bounds.left, bounds.bottom],
                ];
                let color = COLORS[object.class % COLORS.len()];
                let name = object.label.clone().unwrap_or_else(|| object.class.to_string());
                outline(image, &corners, color);
                caption(image, corners[0], &format!("{name} {:.2}", object.score), color);
            }
        }
        Prediction::TextRegions { regions } => {
            for (place, region) in regions.iter().enumerate() {
                let color = COLORS[place % COLORS.len()];
                outline(image, &region.corners, color);
                caption(image, region.corners[0], &format!("{:.2}", region.score), color);
            }
        }
        Prediction::Classes { classes } => {
            let names = classes.iter().map(|class| {
                let name = class.label.clone().unwrap_or_else(|| class.index.to_string());
                format!("{name} {:.2}", class.score)
            });
            let shown = names.collect::<Vec<_>>().join("  ");
            caption(image, [0.0, 0.0], &shown, COLORS[0]);
        }
        Prediction::Text(text) => caption(
            image,
            [0.0, 0.0],
            &format!("{} {:.2}", text.text, text.confidence),
            COLORS[0],
        ),
        Prediction::Embedding { .. } | Prediction::Raw { .. } => bail!(
            "--draw: these outputs are nothing that can be drawn; declare what they mean with --task, or write them \
             with --output"
        ),
    }
    Ok(())
}

/// A line around these corners, thicker in larger images.
fn outline(image: &mut RgbImage, corners: &[[f32; 2]], color: [u8; 3]) {
    let thickness = image.width().min(image.height()).div_ceil(400).max(1);
    let style = PrimitiveStyle::with_stroke(Rgb888::new(color[0], color[1], color[2]), thickness);
    // The last pixel of a box that reaches the edge is still inside.
    let last = [image.width().saturating_sub(1), image.height().saturating_sub(1)];
    let point = |corner: &[f32; 2]| {
        Point::new(
            corner[0].min(last[0] as f32) as i32,
            corner[1].min(last[1] as f32) as i32,
        )
    };
    let mut canvas = Canvas {
        image,
        corner: Point::zero(),
        scale: 1,
    };
    for (a, b) in corners.iter().zip(corners.iter().cycle().skip(1)) {
        let Ok(()) = Line::new(point(a), point(b)).into_styled(style).draw(&mut canvas);
    }
}

/// A text on this colour above the corner, or below it where there is no room above.
fn caption(image: &mut RgbImage, corner: [f32; 2], text: &str, color: [u8; 3]) {
    let longest = image.width().max(image.height());
    let (font, scale): (&MonoFont<'_>, u32) = match longest {
        0..400 => (&iso_8859_1::FONT_6X10, 1),
        400..1200 => (&iso_8859_1::FONT_8X13, 1),
        _ => (&iso_8859_1::FONT_8X13, longest.div_ceil(1200)),
    };
    let width = (text.chars().count() as u32 * font.character_size.width * scale) as i32;
    let height = (font.character_size.height * scale) as i32;
    let (x, y) = (corner[0] as i32, corner[1] as i32);
    let top = if y >= height { y - height } else { y };
    let left = x.min(image.width() as i32 - width).max(0);
    let luma = 299 * u32::from(color[0]) + 587 * u32::from(color[1]) + 114 * u32::from(color[2]);
    let ink = if luma > 140_000 {
        Rgb888::BLACK
    } else {
        Rgb888::WHITE
    };
    let mut style = MonoTextStyle::new(font, ink);
    style.background_color = Some(Rgb888::new(color[0], color[1], color[2]));
    let mut canvas = Canvas {
        image,
        corner: Point::new(left, top),
        scale,
    };
    // The next position is of no interest.
    let Ok(_) = Text::with_baseline(text, Point::zero(), style, Baseline::Top).draw(&mut canvas);
}

/// An image to draw into, from this corner on, each pixel as a square of `scale` pixels. What lies outside is left out.
struct Canvas<'a> {
    image: &'a mut RgbImage,
    corner: Point,
    scale: u32,
}

impl OriginDimensions for Canvas<'_> {
    fn size(&self) -> Size {
        Size::new(self.image.width(), self.image.height())
    }
}

impl DrawTarget for Canvas<'_> {
    type Color = Rgb888;
    type Error = Infallible;

    fn draw_iter<I: IntoIterator<Item = Pixel<Rgb888>>>(&mut self, pixels: I) -> Result<(), Infallible> {
        for Pixel(point, color) in pixels {
            let start = point * self.scale as i32 + self.corner;
            for (dx, dy) in (0..self.scale).flat_map(|dx| (0..self.scale).map(move |dy| (dx, dy))) {
                let (x, y) = (start.x + dx as i32, start.y + dy as i32);
                if let (Ok(x), Ok(y)) = (u32::try_from(x), u32::try_from(y))
                    && let Some(pixel) = self.image.get_pixel_mut_checked(x, y)
                {
                    *pixel = Rgb([color.r(), color.g(), color.b()]);
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use edgeopt_runtime::pipeline::detection::{Bounds, Object};

    use super::*;

    fn found(left: f32, top: f32, right: f32, bottom: f32) -> Prediction {
        Prediction::Objects {
            objects: vec![Object {
                class: 1,
                label: Some("größe".into()),
                score: 0.5,
                bounds: Bounds {
                    left,
                    top,
                    right,
                    bottom,
                },
            }],
        }
    }

    #[test]
    fn boxes_are_outlined_and_named_and_the_rest_stays() {
        let mut image = RgbImage::from_pixel(300, 200, Rgb([9; 3]));
        draw(&mut image, &found(100.0, 60.0, 200.0, 160.0)).unwrap();
        let color = Rgb(COLORS[1]);
        for (x, y) in [
            (100, 60),
            (150, 60),
            (200, 60),
            (200, 100),
            (150, 160),
            (100, 159),
        ] {
            assert_eq!(image.get_pixel(x, y), &color, "{x} {y}");
        }
        // Ten characters of 6 × 10 pixels above, in white.
        let caption: Vec<_> = (100..160).flat_map(|x| (50..60).map(move |y| (x, y))).collect();
        assert!(caption.iter().any(|(x, y)| image.get_pixel(*x, *y).0 == [255; 3]));
        assert!(caption.iter().all(|(x, y)| image.get_pixel(*x, *y).0 != [9; 3]));
        for (x, y) in [
            (99, 100),
            (150, 100),
            (201, 100),
            (150, 161),
            (180, 55),
            (100, 48),
        ] {
            assert_eq!(image.get_pixel(x, y).0, [9; 3], "{x} {y}");
        }
    }

    #[test]
    fn what_reaches_the_edge_or_beyond_is_cut() {
        for (width, height) in [(300, 200), (20, 5), (2500, 1300)] {
            let mut image = RgbImage::new(width, height);
            draw(&mut image, &found(0.0, 0.0, width as f32, height as f32)).unwrap();
            assert_eq!(image.get_pixel(width - 1, height - 1), &Rgb(COLORS[1]));
        }
    }

    #[test]
    fn one_file_is_for_one_sample() {
        let error = Target::new(Path::new("out.png"), 2).err().unwrap().to_string();
        assert!(
            error.contains("out.png") && error.contains("2 samples"),
            "{error}"
        );
        let raw = Prediction::Raw { shapes: vec![] };
        assert!(draw(&mut RgbImage::new(4, 4), &raw).is_err());
    }
}
