//! From luma and colour differences to red, green and blue.

/// Which standard luma and colour differences follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Matrix {
    /// ITU-R BT.601: cameras of standard definition, JPEG, and whatever says nothing.
    Bt601,
    /// ITU-R BT.709: high definition.
    Bt709,
    /// ITU-R BT.2020, non-constant luminance.
    Bt2020,
}

impl Matrix {
    /// Shares of red and blue in luma: ITU-R BT.601-7 and BT.709-6, items 3.2 and following; BT.2020-2, table 4.
    fn luma(self) -> (f64, f64) {
        match self {
            Self::Bt601 => (0.299, 0.114),
            Self::Bt709 => (0.2126, 0.0722),
            Self::Bt2020 => (0.2627, 0.0593),
        }
    }
}

/// How numbers stand for colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Colour {
    pub(super) matrix: Matrix,
    /// 0 to 255 are used; otherwise 16 to 235, and 16 to 240 for colour differences.
    pub(super) full_range: bool,
}

/// Digits after the binary point of [`Weights`].
const SHIFT: u32 = 14;
const HALF: i32 = 1 << (SHIFT - 1);

/// Numbers to compute colours with, as multiples of 2⁻¹⁴: the error stays below a hundredth of a step.
#[derive(Clone, Copy, Debug)]
pub(super) struct Weights {
    luma: i32,
    black: i32,
    red_v: i32,
    green_u: i32,
    green_v: i32,
    blue_u: i32,
}

impl Weights {
    pub(super) fn of(colour: Colour) -> Self {
        let (kr, kb) = colour.matrix.luma();
        let kg = 1.0 - kr - kb;
        // Quantization: ITU-R BT.601-7, item 2.5.3; full range as JFIF 1.02 has it.
        let (luma, chroma, black) = match colour.full_range {
            true => (1.0, 1.0, 0),
            false => (255.0 / 219.0, 255.0 / 224.0, 16),
        };
        let fixed = |value: f64| (value * f64::from(1 << SHIFT)).round() as i32;
        Self {
            luma: fixed(luma),
            black,
            red_v: fixed(chroma * 2.0 * (1.0 - kr)),
            green_u: fixed(-chroma * 2.0 * (1.0 - kb) * kb / kg),
            green_v: fixed(-chroma * 2.0 * (1.0 - kr) * kr / kg),
            blue_u: fixed(chroma * 2.0 * (1.0 - kb)),
        }
    }

    /// A pixel.
    #[inline(always)]
    pub(super) fn rgb(&self, y: u8, u: u8, v: u8) -> [u8; 3] {
        let luma = (i32::from(y) - self.black) * self.luma + HALF;
        let (u, v) = (i32::from(u) - 128, i32::from(v) - 128);
        let byte = |value: i32| (value >> SHIFT).clamp(0, 255) as u8;
        [
            byte(luma + self.red_v * v),
            byte(luma + self.green_u * u + self.green_v * v),
            byte(luma + self.blue_u * u),
        ]
    }
}

/// 16 to 235 stretched over all of a byte, for RGB and luma of limited range.
pub(super) fn stretch(value: u8) -> u8 {
    let value = (i32::from(value) - 16) * 255;
    ((value + 109) / 219).clamp(0, 255) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    /// ITU-R BT.601's own numbers for studio range, as they are printed everywhere.
    #[test]
    fn weights_are_those_of_the_standards() {
        let close = |weight: i32, expected: f64| {
            let weight = f64::from(weight) / f64::from(1 << SHIFT);
            assert!((weight - expected).abs() < 6e-4, "{weight} is not {expected}");
        };
        let limited = Weights::of(Colour {
            matrix: Matrix::Bt601,
            full_range: false,
        });
        close(limited.luma, 1.164);
        close(limited.red_v, 1.596);
        close(limited.green_u, -0.392);
        close(limited.green_v, -0.813);
        close(limited.blue_u, 2.017);
        let hd = Weights::of(Colour {
            matrix: Matrix::Bt709,
            full_range: false,
        });
        close(hd.red_v, 1.793);
        close(hd.green_u, -0.213);
        close(hd.green_v, -0.533);
        close(hd.blue_u, 2.112);
        let jpeg = Weights::of(Colour {
            matrix: Matrix::Bt601,
            full_range: true,
        });
        close(jpeg.luma, 1.0);
        close(jpeg.red_v, 1.402);
        close(jpeg.green_u, -0.344_14);
        close(jpeg.green_v, -0.714_14);
        close(jpeg.blue_u, 1.772);
    }

    #[test]
    fn limited_range_is_stretched_to_the_ends() {
        assert_eq!([0, 16, 17, 126, 235, 255].map(stretch), [0, 0, 1, 128, 255, 255]);
    }
}
