/// How tensor coordinates map back to the image: image = (tensor − pad) ÷ scale, per axis. Coordinates are continuous:
/// the first pixel reaches from 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Geometry {
    /// Width of the original image in pixels.
    pub width: u32,
    /// Height of the original image in pixels.
    pub height: u32,
    /// Tensor pixels per image pixel, horizontally and vertically.
    pub scale: (f32, f32),
    /// Tensor pixels left and above of the image; negative where it was cropped.
    pub pad: (f32, f32),
}

impl Geometry {
    /// The image's point that stands at this point of the tensor, brought inside the image.
    pub fn to_image(&self, x: f32, y: f32) -> (f32, f32) {
        (
            ((x - self.pad.0) / self.scale.0).clamp(0.0, self.width as f32),
            ((y - self.pad.1) / self.scale.1).clamp(0.0, self.height as f32),
        )
    }

    /// The tensor's point that shows this point of the image.
    pub fn to_tensor(&self, x: f32, y: f32) -> (f32, f32) {
        (x * self.scale.0 + self.pad.0, y * self.scale.1 + self.pad.1)
    }
}

#[cfg(test)]
mod tests {
    use edgeopt_models::bundle::{Align, Color, Layout, Preprocessing, Resize};
    use image::{Rgb, RgbImage};
    use proptest::prelude::*;

    use crate::pipeline::preprocess::{Prepared, prepare};

    fn prepared(image: &RgbImage, resize: Resize) -> Prepared {
        let preprocessing = Preprocessing {
            color: Color::Gray,
            resize,
            scale: 1.0 / 255.0,
            mean: vec![0.0],
            std: vec![1.0],
            layout: Layout::Nchw,
        };
        prepare(image, &preprocessing).unwrap()
    }

    /// Every way to bring an image to the input's size.
    fn resizes() -> impl Strategy<Value = Resize> {
        let size = || (48..160usize, 48..160usize);
        prop_oneof![
            size().prop_map(|(width, height)| Resize::Stretch { width, height }),
            (size(), any::<bool>()).prop_map(|((width, height), centred)| Resize::Letterbox {
                width,
                height,
                fill: 0,
                align: if centred { Align::Center } else { Align::TopLeft },
            }),
            size().prop_map(|(width, height)| Resize::CenterCrop {
                resize: width.max(height),
                width,
                height
            }),
            size().prop_map(|(width, height)| Resize::FitHeight { width, height }),
            (64..200usize).prop_map(|limit| Resize::LimitLongSide { limit, multiple: 32 }),
        ]
    }

    proptest! {
        #[test]
        fn a_point_comes_back_from_the_tensor(
            (w, h) in (20..300u32, 20..300u32), resize in resizes(), (x, y) in (0.0..1f32, 0.0..1f32)
        ) {
            let geometry = prepared(&RgbImage::new(w, h), resize).geometry;
            prop_assert_eq!((geometry.width, geometry.height), (w, h));
            let (x, y) = (x * w as f32, y * h as f32);
            let (there_x, there_y) = geometry.to_tensor(x, y);
            let (back_x, back_y) = geometry.to_image(there_x, there_y);
            prop_assert!((back_x - x).abs() < 1e-2 && (back_y - y).abs() < 1e-2);
            // Nothing leaves the image.
            let (x, y) = geometry.to_image(-1e4, 1e4);
            prop_assert_eq!((x, y), (0.0, h as f32));
        }

        /// A bright block in the image has its centre of mass where the geometry says.
        #[test]
        fn the_tensor_shows_the_image_where_the_geometry_says(
            (w, h) in (100..240u32, 100..240u32), resize in resizes(), (dx, dy) in (0..16u32, 0..16u32)
        ) {
            // Near the centre, so that no crop cuts it.
            let (left, top, side) = (w / 2 - 10 + dx - 8, h / 2 - 10 + dy - 8, 20);
            let image = RgbImage::from_fn(w, h, |x, y| {
                let inside = (left..left + side).contains(&x) && (top..top + side).contains(&y);
                Rgb([if inside { 255 } else { 0 }; 3])
            });
            let prepared = prepared(&image, resize);
            let values = prepared.tensor.view::<f32>().unwrap();
            let width = *prepared.tensor.dims().last().unwrap();
            let (mut mass, mut x, mut y) = (0f32, 0f32, 0f32);
            for (place, value) in values.iter().enumerate() {
                mass += value;
                x += value * ((place % width) as f32 + 0.5);
                y += value * ((place / width) as f32 + 0.5);
            }
            prop_assert!(mass > 4.0);
            let (x, y) = prepared.geometry.to_image(x / mass, y / mass);
            let (want_x, want_y) = ((left + side / 2) as f32, (top + side / 2) as f32);
            // Within the pixel of the tensor, as large as it is in the image.
            let (close_x, close_y) = (1.0 / prepared.geometry.scale.0, 1.0 / prepared.geometry.scale.1);
            prop_assert!((x - want_x).abs() < 0.6 * close_x.max(1.0), "{x} {want_x}");
            prop_assert!((y - want_y).abs() < 0.6 * close_y.max(1.0), "{y} {want_y}");
        }
    }
}
