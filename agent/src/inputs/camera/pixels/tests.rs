use super::super::colour::Matrix;
use super::*;

fn layout(format: PixelFormat, width: u32, height: u32, stride: u32) -> Layout {
    Layout {
        format,
        width,
        height,
        stride,
        colour: Colour {
            matrix: Matrix::Bt601,
            full_range: false,
        },
    }
}

/// Even noise, the same each time.
fn noise(length: usize) -> Vec<u8> {
    let mut state = 1u32;
    (0..length)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        })
        .collect()
}

/// The standards' equations, straight: E'Y = Kr·R + Kg·G + Kb·B, E'Cb = (B − Y) / 2(1 − Kb), E'Cr = (R − Y) / 2(1 − Kr),
/// solved for R, G and B, without any rounding.
fn exact(yuv: [u8; 3], (kr, kb): (f64, f64), full: bool) -> [f64; 3] {
    let [y, u, v] = yuv.map(f64::from);
    let (y, u, v) = match full {
        true => (y / 255.0, (u - 128.0) / 255.0, (v - 128.0) / 255.0),
        false => ((y - 16.0) / 219.0, (u - 128.0) / 224.0, (v - 128.0) / 224.0),
    };
    let (r, b) = (y + 2.0 * (1.0 - kr) * v, y + 2.0 * (1.0 - kb) * u);
    let g = (y - kr * r - kb * b) / (1.0 - kr - kb);
    [r, g, b].map(|part| (part * 255.0).clamp(0.0, 255.0))
}

fn assert_close(found: [u8; 3], expected: [f64; 3], what: &str) {
    for (found, expected) in found.iter().zip(expected) {
        let difference = (f64::from(*found) - expected).abs();
        assert!(difference < 0.52, "{what}: {found} is not {expected}");
    }
}

const STANDARDS: [(Matrix, (f64, f64)); 3] = [
    (Matrix::Bt601, (0.299, 0.114)),
    (Matrix::Bt709, (0.2126, 0.0722)),
    (Matrix::Bt2020, (0.2627, 0.0593)),
];

/// Luma and colour differences of the pixel in a frame, by the format's definition (kernel: userspace-api/media/v4l).
fn yuv_at(bytes: &[u8], layout: &Layout, x: usize, y: usize) -> [u8; 3] {
    let stride = layout.stride as usize;
    let at = |offset: usize| bytes[y * stride + x / 2 * 4 + offset];
    match layout.format {
        PixelFormat::Yuyv => [at(x % 2 * 2), at(1), at(3)],
        PixelFormat::Uyvy => [at(x % 2 * 2 + 1), at(0), at(2)],
        PixelFormat::Nv12 => {
            let pair = layout.height as usize * stride + y / 2 * stride + x / 2 * 2;
            [bytes[y * stride + x], bytes[pair], bytes[pair + 1]]
        }
        _ => unreachable!(),
    }
}

#[test]
fn yuv_follows_the_equations_at_every_size_and_stride() {
    for format in [PixelFormat::Yuyv, PixelFormat::Uyvy, PixelFormat::Nv12] {
        for (width, height) in [(2, 2), (7, 5), (64, 3), (1, 1), (129, 4), (200, 2)] {
            for padding in [0, 2, 30] {
                for (index, (matrix, shares)) in STANDARDS.into_iter().enumerate() {
                    let full_range = (index as u32 + width).is_multiple_of(2);
                    let mut layout = layout(format, width, height, 0);
                    layout.colour = Colour { matrix, full_range };
                    layout.stride = layout.stride() as u32 + padding;
                    let bytes = noise(layout.least());
                    let image = layout.rgb(&bytes, Vec::new()).unwrap();
                    assert_eq!(image.dimensions(), (width, height));
                    for (x, y, pixel) in image.enumerate_pixels() {
                        let yuv = yuv_at(&bytes, &layout, x as usize, y as usize);
                        let what = format!("{layout:?} at {x}, {y}: {yuv:?}");
                        assert_close(pixel.0, exact(yuv, shares, full_range), &what);
                    }
                }
            }
        }
    }
}

#[test]
fn every_combination_of_luma_and_differences_is_right() {
    for (matrix, shares) in STANDARDS {
        for full_range in [false, true] {
            let weights = Weights::of(Colour { matrix, full_range });
            for y in (0..=255).step_by(3) {
                for u in (0..=255).step_by(5) {
                    for v in (0..=255).step_by(5) {
                        let found = weights.rgb(y, u, v);
                        assert_close(found, exact([y, u, v], shares, full_range), "weights");
                    }
                }
            }
        }
    }
}

#[test]
fn memory_of_another_image_leaves_no_trace() {
    let layout = layout(PixelFormat::Yuyv, 7, 5, 0);
    let bytes = noise(layout.least());
    let fresh = layout.rgb(&bytes, Vec::new()).unwrap();
    for spare in [vec![9; 3], vec![9; 7 * 5 * 3], vec![9; 1000]] {
        assert_eq!(layout.rgb(&bytes, spare).unwrap(), fresh);
    }
    let large = Vec::with_capacity(1000);
    let place: *const u8 = large.as_ptr();
    assert_eq!(
        layout.rgb(&bytes, large).unwrap().as_raw().as_ptr(),
        place,
        "it is used"
    );
}

#[test]
fn colours_everybody_knows_are_those_colours() {
    // 75 % bars of ITU-R BT.471 as BT.601 numbers, from its tables: white, yellow, cyan, green, magenta, red, blue, black.
    let bars = [
        ([180, 128, 128], [191, 191, 191]),
        ([162, 44, 142], [191, 191, 0]),
        ([131, 156, 44], [0, 191, 191]),
        ([112, 72, 58], [0, 191, 0]),
        ([84, 184, 198], [191, 0, 191]),
        ([65, 100, 212], [191, 0, 0]),
        ([35, 212, 114], [0, 0, 191]),
        ([16, 128, 128], [0, 0, 0]),
    ];
    for ([y, u, v], expected) in bars {
        let image = layout(PixelFormat::Yuyv, 2, 1, 4)
            .rgb(&[y, u, y, v], Vec::new())
            .unwrap();
        for (found, expected) in image.iter().zip(expected.iter().cycle()) {
            assert!(
                found.abs_diff(*expected) <= 1,
                "{y} {u} {v}: {:?}",
                image.as_raw()
            );
        }
    }
}

#[test]
fn other_formats_are_copied_in_order() {
    let full = |format, width, height, stride| Layout {
        colour: Colour {
            matrix: Matrix::Bt601,
            full_range: true,
        },
        ..layout(format, width, height, stride)
    };
    // Two rows of one pixel, with a byte of padding.
    let bytes = [1, 2, 3, 99, 4, 5, 6];
    let rgb = full(PixelFormat::Rgb24, 1, 2, 4).rgb(&bytes, Vec::new()).unwrap();
    assert_eq!(rgb.as_raw(), &[1, 2, 3, 4, 5, 6]);
    let bgr = full(PixelFormat::Bgr24, 1, 2, 4).rgb(&bytes, Vec::new()).unwrap();
    assert_eq!(bgr.as_raw(), &[3, 2, 1, 6, 5, 4]);
    let grey = full(PixelFormat::Grey, 3, 2, 4).rgb(&bytes, Vec::new()).unwrap();
    assert_eq!(
        grey.as_raw(),
        &[1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4, 5, 5, 5, 6, 6, 6]
    );
    let limited = layout(PixelFormat::Grey, 3, 1, 3)
        .rgb(&[16, 235, 126], Vec::new())
        .unwrap();
    assert_eq!(limited.as_raw(), &[0, 0, 0, 255, 255, 255, 128, 128, 128]);
}

#[test]
fn short_frames_are_refused_to_the_byte() {
    for format in PixelFormat::ALL {
        if format == PixelFormat::Mjpeg {
            continue;
        }
        for (width, height, padding) in [(6, 4, 0), (7, 5, 3), (1, 1, 0)] {
            let mut layout = layout(format, width, height, 0);
            layout.stride = layout.stride() as u32 + padding;
            let bytes = noise(layout.least());
            assert!(layout.rgb(&bytes, Vec::new()).is_ok(), "{layout:?}");
            let short = layout.rgb(&bytes[1..], Vec::new()).unwrap_err();
            assert_eq!(
                short,
                format!("it has {} of {} bytes", bytes.len() - 1, bytes.len())
            );
            // More than is needed, as drivers that round up give it.
            assert!(layout.rgb(&noise(bytes.len() + 100), Vec::new()).is_ok());
        }
    }
    let narrow = layout(PixelFormat::Yuyv, 4, 1, 4)
        .rgb(&[0; 64], Vec::new())
        .unwrap_err();
    assert_eq!(
        narrow,
        "rows of 8 bytes do not fit 4, which the driver gives them"
    );
}

#[test]
#[ignore = "a measurement, for a release build: --release --run-ignored only --no-capture"]
fn measures() {
    use std::hint::black_box;
    use std::time::Instant;
    for (width, height) in [(640u32, 480u32), (1920, 1080)] {
        for format in PixelFormat::ALL {
            let mut layout = layout(format, width, height, 0);
            // As drivers declare it: RGB and luma of full range are only copied.
            layout.colour.full_range = matches!(
                format,
                PixelFormat::Rgb24 | PixelFormat::Bgr24 | PixelFormat::Grey
            );
            let bytes = match format {
                PixelFormat::Mjpeg => photo(width, height),
                _ => noise(layout.least()),
            };
            let mut spare = Vec::new();
            let mut times: Vec<f64> = (0..40)
                .map(|_| {
                    let begun = Instant::now();
                    let image = layout.rgb(black_box(&bytes), std::mem::take(&mut spare)).unwrap();
                    spare = black_box(image).into_raw();
                    begun.elapsed().as_secs_f64() * 1e3
                })
                .collect();
            times.sort_by(f64::total_cmp);
            println!(
                "{format:>6} {width}x{height}: {:.2} ms least, {:.2} ms median, {} bytes",
                times[0],
                times[20],
                bytes.len()
            );
        }
    }
}

/// A JPEG image of about the size that cameras send.
fn photo(width: u32, height: u32) -> Vec<u8> {
    let image = RgbImage::from_fn(width, height, |x, y| {
        let wave = |f: f32| (127.0 + 90.0 * (x as f32 * f).sin() * (y as f32 * f * 0.7).cos()) as u8;
        let grain = noise_at(x, y) / 16;
        image::Rgb([wave(0.013) + grain, wave(0.031) + grain, wave(0.007) + grain])
    });
    let mut bytes = Vec::new();
    image::codecs::jpeg::JpegEncoder::new_with_quality(&mut bytes, 85)
        .encode_image(&image)
        .unwrap();
    bytes
}

fn noise_at(x: u32, y: u32) -> u8 {
    (x.wrapping_mul(0x9E37_79B9) ^ y.wrapping_mul(0x85EB_CA6B))
        .wrapping_mul(0xC2B2_AE35)
        .to_be_bytes()[0]
}
