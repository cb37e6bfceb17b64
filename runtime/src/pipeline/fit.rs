use edgeopt_models::bundle::{Align, Resize};
use fast_image_resize as fir;
use fast_image_resize::images::{TypedImage, TypedImageRef};
use fast_image_resize::pixels::U8x3;
use image::RgbImage;

use super::geometry::Geometry;
use super::preprocess::{ImageError, MAX_SIDE};

/// How an image of one size is brought to the input's size.
pub(super) struct Plan {
    /// What the whole image is scaled to.
    scaled: (usize, usize),
    /// Of the scaled image, the pixels left and above of what is kept.
    cut: (usize, usize),
    /// Size of the input.
    pub(super) canvas: (usize, usize),
    /// Where on the canvas the image's top left corner stands.
    pub(super) place: (usize, usize),
    pub(super) fill: Fill,
}

/// What stands outside the image.
pub(super) enum Fill {
    /// This pixel value, normalized like the image.
    Pixel(u8),
    /// Zero after normalization.
    Zero,
}

impl Plan {
    pub(super) fn new((w, h): (u32, u32), resize: Resize) -> Result<Self, ImageError> {
        let (w, h) = (w as usize, h as usize);
        if w == 0 || h == 0 {
            return Err(ImageError::Declaration("the image is empty".into()));
        }
        let rounded = |length: f64| (length.round() as usize).max(1);
        let whole = |scaled: (usize, usize), canvas: (usize, usize)| Self {
            scaled,
            cut: (0, 0),
            canvas,
            place: (0, 0),
            fill: Fill::Zero,
        };
        let plan = match resize {
            Resize::Stretch { width, height } => whole((width, height), (width, height)),
            Resize::Letterbox {
                width,
                height,
                fill,
                align,
            } => {
                let scale = (width as f64 / w as f64).min(height as f64 / h as f64);
                let scaled = (
                    rounded(w as f64 * scale).min(width),
                    rounded(h as f64 * scale).min(height),
                );
                let place = match align {
                    Align::Center => ((width - scaled.0) / 2, (height - scaled.1) / 2),
                    Align::TopLeft => (0, 0),
                };
                Self {
                    place,
                    fill: Fill::Pixel(fill),
                    ..whole(scaled, (width, height))
                }
            }
            Resize::CenterCrop {
                resize,
                width,
                height,
            } => {
                let shorter = w.min(h) as f64;
                let side = |length: usize| (length as f64 * resize as f64 / shorter).round() as usize;
                let scaled = (side(w), side(h));
                if width == 0 || height == 0 || scaled.0 < width || scaled.1 < height {
                    let problem = format!("cannot crop {width}x{height} from a shorter side of {resize}");
                    return Err(ImageError::Declaration(problem));
                }
                Self {
                    cut: ((scaled.0 - width) / 2, (scaled.1 - height) / 2),
                    ..whole(scaled, (width, height))
                }
            }
            Resize::FitHeight { width, height } => {
                let natural = (w as f64 * height as f64 / h as f64).ceil() as usize;
                whole((natural.clamp(1, width.max(1)), height), (width, height))
            }
            Resize::LimitLongSide { limit, multiple } => {
                let scale = (limit as f64 / w.max(h) as f64).min(1.0);
                let step = multiple.max(1);
                let side = |length: usize| rounded(length as f64 * scale / step as f64) * step;
                whole((side(w), side(h)), (side(w), side(h)))
            }
        };
        if plan.canvas.0 == 0 || plan.canvas.1 == 0 {
            return Err(ImageError::Declaration(
                "width and height must not be zero".into(),
            ));
        }
        if plan.canvas.0.max(plan.canvas.1) > MAX_SIDE as usize {
            return Err(too_large(plan.canvas));
        }
        Ok(plan)
    }

    /// How the input's coordinates map back to an image of this size.
    pub(super) fn geometry(&self, (width, height): (u32, u32)) -> Geometry {
        Geometry {
            width,
            height,
            scale: (
                self.scaled.0 as f32 / width as f32,
                self.scaled.1 as f32 / height as f32,
            ),
            pad: (
                self.place.0 as f32 - self.cut.0 as f32,
                self.place.1 as f32 - self.cut.1 as f32,
            ),
        }
    }

    /// The part of the image that the canvas shows.
    pub(super) fn scale(&self, image: &RgbImage) -> Result<RgbImage, ImageError> {
        let scaled = scale_to(image, self.scaled.0, self.scaled.1)?;
        if self.scaled.0 <= self.canvas.0 && self.scaled.1 <= self.canvas.1 {
            return Ok(scaled);
        }
        let [left, top, width, height] =
            [self.cut.0, self.cut.1, self.canvas.0, self.canvas.1].map(|length| length as u32);
        Ok(image::imageops::crop_imm(&scaled, left, top, width, height).to_image())
    }
}

fn too_large((width, height): (usize, usize)) -> ImageError {
    ImageError::Declaration(format!(
        "{width}x{height} is larger than {MAX_SIDE} pixels a side"
    ))
}

/// Bilinear interpolation between pixel centres without smoothing first: what OpenCV's `INTER_LINEAR` does, which
/// most vision models were trained with.
fn scale_to(image: &RgbImage, width: usize, height: usize) -> Result<RgbImage, ImageError> {
    if (image.width() as usize, image.height() as usize) == (width, height) {
        return Ok(image.clone());
    }
    let side = |length: usize| u32::try_from(length).ok().filter(|length| *length <= MAX_SIDE);
    let (Some(width), Some(height)) = (side(width), side(height)) else {
        return Err(too_large((width, height)));
    };
    let mut scaled = RgbImage::new(width, height);
    let options =
        fir::ResizeOptions::new().resize_alg(fir::ResizeAlg::Interpolation(fir::FilterType::Bilinear));
    let refused = |problem: &dyn std::fmt::Display| ImageError::Declaration(problem.to_string());
    // Views of this one pixel type: the untyped ones would compile the kernels of every other type as well.
    let from = TypedImageRef::<U8x3>::from_buffer(image.width(), image.height(), image)
        .map_err(|error| refused(&error))?;
    let mut to =
        TypedImage::<U8x3>::from_buffer(width, height, &mut scaled).map_err(|error| refused(&error))?;
    fir::Resizer::new()
        .resize_typed(&from, &mut to, &options)
        .map_err(|error| refused(&error))?;
    Ok(scaled)
}
