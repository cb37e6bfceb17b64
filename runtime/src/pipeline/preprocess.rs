//! Images into input tensors, as a manifest's [`Preprocessing`] declares.

use std::path::Path;

use edgeopt_models::bundle::{Color, Layout, Preprocessing, Resize};
use edgeopt_models::{DataType, Tensor};
use fast_image_resize as fir;
use fast_image_resize::images::{TypedImage, TypedImageRef};
use fast_image_resize::pixels::U8x3;
use image::{DynamicImage, ImageDecoder, ImageReader, RgbImage};

use super::geometry::Geometry;

/// Longest accepted side of an image, in pixels, and the memory its decoder may take.
const MAX_SIDE: u32 = 16_384;
const MAX_DECODED: u64 = 1 << 30;

/// Why an image cannot become a tensor.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// It cannot be read or decoded.
    #[error("cannot decode the image: {0}")]
    Decode(#[from] image::ImageError),
    /// It cannot be opened.
    #[error("cannot open the image: {0}")]
    Io(#[from] std::io::Error),
    /// The declared preprocessing is not usable.
    #[error("preprocessing: {0}")]
    Declaration(String),
}

/// A preprocessed image.
#[derive(Clone, Debug)]
pub struct Prepared {
    /// The input, `[1, channels, height, width]` or `[1, height, width, channels]`.
    pub tensor: Tensor,
    /// Where it came from.
    pub geometry: Geometry,
}

/// Reads an image file, honouring its orientation, and prepares it.
///
/// # Errors
/// When it is no image, or larger than 16384 pixels a side.
pub fn read_image(path: &Path, preprocessing: &Preprocessing) -> Result<Prepared, ImageError> {
    prepare(&decode(path)?, preprocessing)
}

/// Decodes an image file to RGB, honouring its orientation.
///
/// # Errors
/// When it is no image, or larger than 16384 pixels a side.
pub fn decode(path: &Path) -> Result<RgbImage, ImageError> {
    decode_from(std::io::BufReader::new(std::fs::File::open(path)?))
}

/// Decodes an image in memory to RGB, honouring its orientation.
///
/// # Errors
/// As [`decode`].
pub fn decode_bytes(bytes: &[u8]) -> Result<RgbImage, ImageError> {
    decode_from(std::io::Cursor::new(bytes))
}

fn decode_from(encoded: impl std::io::BufRead + std::io::Seek) -> Result<RgbImage, ImageError> {
    let mut reader = ImageReader::new(encoded).with_guessed_format()?;
    let mut limits = image::Limits::default();
    limits.max_image_width = Some(MAX_SIDE);
    limits.max_image_height = Some(MAX_SIDE);
    limits.max_alloc = Some(MAX_DECODED);
    reader.limits(limits);
    let mut decoder = reader.into_decoder()?;
    let orientation = decoder.orientation()?;
    let mut image = DynamicImage::from_decoder(decoder)?;
    image.apply_orientation(orientation);
    Ok(image.into_rgb8())
}

/// The image brought to the input's size, and how much of the canvas it fills.
struct Fitted {
    image: RgbImage,
    width: usize,
    height: usize,
    left: usize,
    top: usize,
    fill: Fill,
    geometry: Geometry,
}

/// What stands outside the image.
enum Fill {
    /// This pixel value, normalized like the image.
    Pixel(u8),
    /// Zero after normalization.
    Zero,
}

/// Prepares a decoded image.
///
/// # Errors
/// When the declaration is not usable (a zero size, a wrong number of means).
pub fn prepare(image: &RgbImage, preprocessing: &Preprocessing) -> Result<Prepared, ImageError> {
    let channels = if preprocessing.color == Color::Gray { 1 } else { 3 };
    for (field, values) in [("mean", &preprocessing.mean), ("std", &preprocessing.std)] {
        if values.len() != channels {
            let problem = format!(
                "{field} has {} values, the colours have {channels} channels",
                values.len()
            );
            return Err(ImageError::Declaration(problem));
        }
    }
    if preprocessing
        .std
        .iter()
        .any(|value| *value == 0.0 || !value.is_finite())
    {
        return Err(ImageError::Declaration("std must not be zero".into()));
    }
    let fitted = fit(image, preprocessing.resize)?;
    let area = fitted.width * fitted.height;
    // value = pixel × gain + offset
    let gain: Vec<f32> = preprocessing
        .std
        .iter()
        .map(|std| preprocessing.scale / std)
        .collect();
    let offset: Vec<f32> = preprocessing
        .mean
        .iter()
        .zip(&preprocessing.std)
        .map(|(mean, std)| -mean / std)
        .collect();
    let dims = match preprocessing.layout {
        Layout::Nchw => [1, channels, fitted.height, fitted.width],
        Layout::Nhwc => [1, fitted.height, fitted.width, channels],
    };
    let wrong = |error: edgeopt_models::TensorError| ImageError::Declaration(error.to_string());
    let mut tensor = Tensor::zeros(DataType::Float32, &dims).map_err(wrong)?;
    let values = tensor.view_mut::<f32>().map_err(wrong)?;
    let place = |channel: usize, pixel: usize| match preprocessing.layout {
        Layout::Nchw => channel * area + pixel,
        Layout::Nhwc => pixel * channels + channel,
    };
    if let Fill::Pixel(fill) = fitted.fill {
        for channel in 0..channels {
            let value = f32::from(fill) * gain[channel] + offset[channel];
            (0..area).for_each(|pixel| values[place(channel, pixel)] = value);
        }
    }
    let stride = fitted.image.width() as usize;
    for (row, line) in fitted
        .image
        .as_raw()
        .chunks_exact((stride * 3).max(1))
        .enumerate()
    {
        let start = (fitted.top + row) * fitted.width + fitted.left;
        for (column, pixel) in line.chunks_exact(3).enumerate() {
            let [r, g, b] = [pixel[0], pixel[1], pixel[2]].map(f32::from);
            let colors = match preprocessing.color {
                Color::Rgb => [r, g, b],
                Color::Bgr => [b, g, r],
                // ITU-R BT.601 luma.
                Color::Gray => [0.299 * r + 0.587 * g + 0.114 * b, 0.0, 0.0],
            };
            for (channel, color) in colors.iter().take(channels).enumerate() {
                values[place(channel, start + column)] = color * gain[channel] + offset[channel];
            }
        }
    }
    Ok(Prepared {
        tensor,
        geometry: fitted.geometry,
    })
}

fn fit(image: &RgbImage, resize: Resize) -> Result<Fitted, ImageError> {
    let (w, h) = (image.width() as usize, image.height() as usize);
    if w == 0 || h == 0 {
        return Err(ImageError::Declaration("the image is empty".into()));
    }
    let rounded = |length: f64| (length.round() as usize).max(1);
    let (width, height, inner, left, top, fill) = match resize {
        Resize::Stretch { width, height } => (width, height, (width, height), 0, 0, Fill::Zero),
        Resize::Letterbox { width, height, fill } => {
            let scale = (width as f64 / w as f64).min(height as f64 / h as f64);
            let inner = (
                rounded(w as f64 * scale).min(width),
                rounded(h as f64 * scale).min(height),
            );
            (
                width,
                height,
                inner,
                (width - inner.0) / 2,
                (height - inner.1) / 2,
                Fill::Pixel(fill),
            )
        }
        Resize::CenterCrop {
            resize,
            width,
            height,
        } => {
            return center_crop(image, resize, width, height);
        }
        Resize::FitHeight { width, height } => {
            let natural = (w as f64 * height as f64 / h as f64).ceil() as usize;
            (
                width,
                height,
                (natural.clamp(1, width.max(1)), height),
                0,
                0,
                Fill::Zero,
            )
        }
        Resize::LimitLongSide { limit, multiple } => {
            let scale = (limit as f64 / w.max(h) as f64).min(1.0);
            let step = multiple.max(1);
            let side = |length: usize| rounded(length as f64 * scale / step as f64) * step;
            (side(w), side(h), (side(w), side(h)), 0, 0, Fill::Zero)
        }
    };
    if width == 0 || height == 0 {
        return Err(ImageError::Declaration(
            "width and height must not be zero".into(),
        ));
    }
    Ok(Fitted {
        image: scale_to(image, inner.0, inner.1)?,
        width,
        height,
        left,
        top,
        fill,
        geometry: Geometry {
            width: image.width(),
            height: image.height(),
            scale: (inner.0 as f32 / w as f32, inner.1 as f32 / h as f32),
            pad: (left as f32, top as f32),
        },
    })
}

fn center_crop(image: &RgbImage, resize: usize, width: usize, height: usize) -> Result<Fitted, ImageError> {
    let (w, h) = (f64::from(image.width()), f64::from(image.height()));
    let scale = resize as f64 / w.min(h);
    let scaled = ((w * scale).round() as usize, (h * scale).round() as usize);
    if width == 0 || height == 0 || scaled.0 < width || scaled.1 < height {
        let problem = format!("cannot crop {width}x{height} from a shorter side of {resize}");
        return Err(ImageError::Declaration(problem));
    }
    let whole = scale_to(image, scaled.0, scaled.1)?;
    let (left, top) = ((scaled.0 - width) / 2, (scaled.1 - height) / 2);
    let cropped =
        image::imageops::crop_imm(&whole, left as u32, top as u32, width as u32, height as u32).to_image();
    Ok(Fitted {
        image: cropped,
        width,
        height,
        left: 0,
        top: 0,
        fill: Fill::Zero,
        geometry: Geometry {
            width: image.width(),
            height: image.height(),
            scale: (scaled.0 as f32 / w as f32, scaled.1 as f32 / h as f32),
            pad: (-(left as f32), -(top as f32)),
        },
    })
}

/// Bilinear interpolation between pixel centres without smoothing first: what OpenCV's `INTER_LINEAR` does, which
/// most vision models were trained with.
fn scale_to(image: &RgbImage, width: usize, height: usize) -> Result<RgbImage, ImageError> {
    if (image.width() as usize, image.height() as usize) == (width, height) {
        return Ok(image.clone());
    }
    let side = |length: usize| u32::try_from(length).ok().filter(|length| *length <= MAX_SIDE);
    let (Some(width), Some(height)) = (side(width), side(height)) else {
        return Err(ImageError::Declaration(format!(
            "{width}x{height} is larger than {MAX_SIDE} pixels a side"
        )));
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

#[cfg(test)]
mod tests {
    use super::*;

    fn preprocessing(resize: Resize) -> Preprocessing {
        Preprocessing {
            color: Color::Gray,
            resize,
            scale: 1.0,
            mean: vec![0.0],
            std: vec![1.0],
            layout: Layout::Nchw,
        }
    }

    fn gray(width: u32, height: u32) -> RgbImage {
        RgbImage::from_fn(width, height, |x, y| image::Rgb([(10 * x + y) as u8; 3]))
    }

    #[test]
    fn letterbox_centres_the_image_and_fills_the_rest() {
        let prepared = prepare(
            &gray(4, 2),
            &preprocessing(Resize::Letterbox {
                width: 4,
                height: 4,
                fill: 114,
            }),
        )
        .unwrap();
        let values = prepared.tensor.view::<f32>().unwrap();
        assert_eq!(&values[..5], [114.0, 114.0, 114.0, 114.0, 0.0]);
        assert!((values[7] - 30.0).abs() < 1e-3 && (values[8] - 1.0).abs() < 1e-3);
        assert_eq!(
            (prepared.geometry.pad, prepared.geometry.scale),
            ((0.0, 1.0), (1.0, 1.0))
        );
    }

    #[test]
    fn lines_of_text_keep_their_ratio_and_are_padded_with_zeros_or_squeezed() {
        let short = prepare(
            &gray(4, 2),
            &preprocessing(Resize::FitHeight { width: 12, height: 4 }),
        )
        .unwrap();
        assert_eq!(short.tensor.dims(), [1, 1, 4, 12]);
        let values = short.tensor.view::<f32>().unwrap();
        assert!(values[7] > 0.0 && values[8..12].iter().all(|value| *value == 0.0));
        let long = prepare(
            &gray(20, 2),
            &preprocessing(Resize::FitHeight { width: 12, height: 4 }),
        )
        .unwrap();
        assert!(long.tensor.view::<f32>().unwrap()[11] > 0.0);
        assert_eq!(long.geometry.scale, (0.6, 2.0));
    }

    #[test]
    fn detectors_get_sides_that_are_multiples() {
        let limit = Resize::LimitLongSide {
            limit: 96,
            multiple: 32,
        };
        let dims = |w, h| {
            prepare(&gray(w, h), &preprocessing(limit))
                .unwrap()
                .tensor
                .dims()
                .to_vec()
        };
        assert_eq!(dims(200, 100), [1, 1, 64, 96]);
        assert_eq!(dims(10, 10), [1, 1, 32, 32]);
    }

    #[test]
    fn crops_come_from_the_centre() {
        let crop = Resize::CenterCrop {
            resize: 4,
            width: 2,
            height: 2,
        };
        let prepared = prepare(&gray(8, 4), &preprocessing(crop)).unwrap();
        let values = prepared.tensor.view::<f32>().unwrap();
        assert!((values[0] - 31.0).abs() < 1e-3, "{values:?}");
        assert!(
            prepare(
                &gray(8, 4),
                &preprocessing(Resize::CenterCrop {
                    resize: 1,
                    width: 2,
                    height: 2
                })
            )
            .is_err()
        );
    }

    #[test]
    fn halving_takes_the_mean_of_the_two_middle_pixels() {
        // Pixel centres: output x = 0.5 lies between inputs 0 and 1.
        let prepared = prepare(
            &gray(4, 1),
            &preprocessing(Resize::Stretch { width: 2, height: 1 }),
        )
        .unwrap();
        let values = prepared.tensor.view::<f32>().unwrap();
        assert!(
            (values[0] - 5.0).abs() < 0.6 && (values[1] - 25.0).abs() < 0.6,
            "{values:?}"
        );
    }

    #[test]
    fn declarations_that_cannot_work_are_refused() {
        let mut wrong = preprocessing(Resize::Stretch { width: 2, height: 2 });
        wrong.mean = vec![0.0; 3];
        assert!(
            prepare(&gray(2, 2), &wrong)
                .unwrap_err()
                .to_string()
                .contains("mean has 3")
        );
        let zero = preprocessing(Resize::Stretch { width: 0, height: 2 });
        assert!(prepare(&gray(2, 2), &zero).is_err());
    }
}
