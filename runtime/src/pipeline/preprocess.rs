//! Images into input tensors, as a manifest's [`Preprocessing`] declares.

use std::path::Path;

use edgeopt_models::bundle::{Color, Layout, Preprocessing};
use edgeopt_models::{DataType, Tensor};
use image::metadata::Orientation;
use image::{DynamicImage, ImageDecoder, ImageReader, RgbImage};

use super::fit::{Fill, Plan};
use super::geometry::Geometry;

/// Longest accepted side of an image, in pixels, and the memory its decoder may take.
pub(super) const MAX_SIDE: u32 = 16_384;
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
    let mut decoder = open_decoder(encoded)?;
    let orientation = decoder.orientation()?;
    let mut image = DynamicImage::from_decoder(decoder)?;
    image.apply_orientation(orientation);
    Ok(image.into_rgb8())
}

fn open_decoder<'a>(
    encoded: impl std::io::BufRead + std::io::Seek + 'a,
) -> Result<impl ImageDecoder + 'a, ImageError> {
    let mut reader = ImageReader::new(encoded).with_guessed_format()?;
    let mut limits = image::Limits::default();
    limits.max_image_width = Some(MAX_SIDE);
    limits.max_image_height = Some(MAX_SIDE);
    limits.max_alloc = Some(MAX_DECODED);
    reader.limits(limits);
    Ok(reader.into_decoder()?)
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
    let plan = Plan::new(image.dimensions(), preprocessing.resize)?;
    let shown = plan.scale(image)?;
    let (width, height) = plan.canvas;
    let area = width * height;
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
        Layout::Nchw => [1, channels, height, width],
        Layout::Nhwc => [1, height, width, channels],
    };
    let wrong = |error: edgeopt_models::TensorError| ImageError::Declaration(error.to_string());
    let mut tensor = Tensor::zeros(DataType::Float32, &dims).map_err(wrong)?;
    let values = tensor.view_mut::<f32>().map_err(wrong)?;
    let place = |channel: usize, pixel: usize| match preprocessing.layout {
        Layout::Nchw => channel * area + pixel,
        Layout::Nhwc => pixel * channels + channel,
    };
    if let Fill::Pixel(fill) = plan.fill {
        for channel in 0..channels {
            let value = f32::from(fill) * gain[channel] + offset[channel];
            (0..area).for_each(|pixel| values[place(channel, pixel)] = value);
        }
    }
    let stride = shown.width() as usize;
    for (row, line) in shown.as_raw().chunks_exact((stride * 3).max(1)).enumerate() {
        let start = (plan.place.1 + row) * width + plan.place.0;
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
        geometry: plan.geometry(image.dimensions()),
    })
}

/// Reads an image file's size, honouring its orientation, and tells how the image becomes the input; its pixels are not
/// read.
///
/// # Errors
/// When it is no image, or the declaration is not usable.
pub fn read_geometry(path: &Path, preprocessing: &Preprocessing) -> Result<Geometry, ImageError> {
    let mut decoder = open_decoder(std::io::BufReader::new(std::fs::File::open(path)?))?;
    let turned = decoder.orientation()?;
    let (mut width, mut height) = decoder.dimensions();
    if matches!(
        turned,
        Orientation::Rotate90
            | Orientation::Rotate270
            | Orientation::Rotate90FlipH
            | Orientation::Rotate270FlipH
    ) {
        (width, height) = (height, width);
    }
    Ok(Plan::new((width, height), preprocessing.resize)?.geometry((width, height)))
}

#[cfg(test)]
mod tests {
    use edgeopt_models::bundle::{Align, Resize};

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
        let prepared = prepare(&gray(4, 2), &preprocessing(letterbox(Align::Center))).unwrap();
        let values = prepared.tensor.view::<f32>().unwrap();
        assert_eq!(&values[..5], [114.0, 114.0, 114.0, 114.0, 0.0]);
        assert!((values[7] - 30.0).abs() < 1e-3 && (values[8] - 1.0).abs() < 1e-3);
        assert_eq!(
            (prepared.geometry.pad, prepared.geometry.scale),
            ((0.0, 1.0), (1.0, 1.0))
        );
        let prepared = prepare(&gray(4, 2), &preprocessing(letterbox(Align::TopLeft))).unwrap();
        let values = prepared.tensor.view::<f32>().unwrap();
        assert!(
            values[0].abs() < 1e-3 && (values[7] - 31.0).abs() < 1e-3,
            "{values:?}"
        );
        assert_eq!(values[8..], [114.0; 8]);
        assert_eq!(prepared.geometry.pad, (0.0, 0.0));
    }

    #[test]
    fn an_input_too_large_for_any_memory_is_refused_however_small_the_image_becomes() {
        let (width, height, fill, align) = (1 << 40, 4, 0, Align::Center);
        for resize in [
            Resize::Letterbox {
                width,
                height,
                fill,
                align,
            },
            Resize::FitHeight { width, height },
            Resize::LimitLongSide {
                limit: 4,
                multiple: width,
            },
        ] {
            let error = prepare(&gray(4, 2), &preprocessing(resize))
                .unwrap_err()
                .to_string();
            assert!(error.contains("larger than 16384 pixels a side"), "{error}");
        }
    }

    fn letterbox(align: Align) -> Resize {
        Resize::Letterbox {
            width: 4,
            height: 4,
            fill: 114,
            align,
        }
    }

    #[test]
    fn the_geometry_of_a_file_is_that_of_its_prepared_image() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("image.png");
        gray(50, 20).save(&path).unwrap();
        let resizes = [
            letterbox(Align::TopLeft),
            Resize::CenterCrop {
                resize: 10,
                width: 8,
                height: 6,
            },
        ];
        for resize in resizes {
            let preprocessing = preprocessing(resize);
            let read = read_geometry(&path, &preprocessing).unwrap();
            assert_eq!(read, read_image(&path, &preprocessing).unwrap().geometry);
            assert_eq!((read.width, read.height), (50, 20));
        }
    }

    #[test]
    fn a_photo_that_lies_on_its_side_is_turned_and_so_is_its_geometry() {
        let mut jpeg = std::io::Cursor::new(Vec::new());
        gray(48, 16)
            .write_to(&mut jpeg, image::ImageFormat::Jpeg)
            .unwrap();
        // Behind the start marker, an EXIF segment of one entry: orientation 6, to be turned clockwise by a quarter.
        let entry = b"MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0\0\0\0\0";
        let mut bytes = b"\xff\xd8\xff\xe1".to_vec();
        bytes.extend((2 + 6 + entry.len() as u16).to_be_bytes());
        bytes.extend(b"Exif\0\0");
        bytes.extend(entry);
        bytes.extend(&jpeg.into_inner()[2..]);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("photo.jpg");
        std::fs::write(&path, bytes).unwrap();
        let preprocessing = preprocessing(letterbox(Align::TopLeft));
        let read = read_geometry(&path, &preprocessing).unwrap();
        assert_eq!((read.width, read.height), (16, 48));
        assert_eq!(read, read_image(&path, &preprocessing).unwrap().geometry);
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
