use ab_glyph::{Font, FontVec, Glyph, PxScale, ScaleFont, point};

/// How much of each pixel is ink, 0..=1, row by row.
#[derive(Clone)]
pub(super) struct Ink {
    pub(super) width: usize,
    pub(super) height: usize,
    coverage: Vec<f32>,
}

impl Ink {
    pub(super) fn blank(width: usize, height: usize) -> Self {
        Self {
            width,
            height,
            coverage: vec![0.0; width * height],
        }
    }

    /// Coverage of a pixel; none outside.
    pub(super) fn at(&self, x: isize, y: isize) -> f32 {
        let (Ok(x), Ok(y)) = (usize::try_from(x), usize::try_from(y)) else {
            return 0.0;
        };
        if x >= self.width || y >= self.height {
            return 0.0;
        }
        self.coverage.get(y * self.width + x).copied().unwrap_or(0.0)
    }

    fn add(&mut self, x: i64, y: i64, amount: f32) {
        let (Ok(x), Ok(y)) = (usize::try_from(x), usize::try_from(y)) else {
            return;
        };
        if x < self.width
            && let Some(pixel) = self.coverage.get_mut(y * self.width + x)
        {
            *pixel = (*pixel + amount).min(1.0);
        }
    }

    /// Adds other ink with its top left corner at this pixel; what lies outside is lost.
    pub(super) fn lay(&mut self, other: &Self, left: i64, top: i64) {
        for (row, line) in (top..).zip(other.coverage.chunks_exact(other.width.max(1))) {
            for (column, amount) in (left..).zip(line) {
                self.add(column, row, *amount);
            }
        }
    }

    /// Left, top, right and bottom of the pixels that are more ink than not, right and bottom behind the last; `None`
    /// where there is none.
    pub(super) fn bounds(&self) -> Option<[usize; 4]> {
        let inked = self
            .coverage
            .iter()
            .enumerate()
            .filter(|(_, amount)| **amount > 0.5);
        inked
            .map(|(place, _)| (place % self.width, place / self.width))
            .fold(None, |bounds, (x, y)| {
                let [left, top, right, bottom] = bounds.unwrap_or([x, y, x, y]);
                Some([left.min(x), top.min(y), right.max(x + 1), bottom.max(y + 1)])
            })
    }

    /// The line of text in this font, `size` pixels from the highest to the lowest stroke the font has, with `margin`
    /// pixels of blank on every side.
    pub(super) fn text(font: &FontVec, text: &str, size: f32, margin: f32) -> Self {
        let scaled = font.as_scaled(PxScale::from(size));
        let mut glyphs: Vec<Glyph> = Vec::new();
        let mut pen = 0.0;
        for character in text.chars() {
            let id = scaled.glyph_id(character);
            if let Some(last) = glyphs.last() {
                pen += scaled.kern(last.id, id);
            }
            let position = point(margin + pen, margin + scaled.ascent());
            glyphs.push(id.with_scale_and_position(size, position));
            pen += scaled.h_advance(id);
        }
        let width = (pen + 2.0 * margin).ceil() as usize;
        let mut ink = Self::blank(width.max(1), (size + 2.0 * margin).ceil() as usize);
        for outline in glyphs.into_iter().filter_map(|glyph| font.outline_glyph(glyph)) {
            let corner = outline.px_bounds().min;
            outline.draw(|x, y, amount| {
                ink.add(
                    corner.x as i64 + i64::from(x),
                    corner.y as i64 + i64::from(y),
                    amount,
                );
            });
        }
        ink
    }

    /// Turned about its centre, `angle` in radians, clockwise where positive, on a canvas grown to hold it.
    pub(super) fn turned(&self, angle: f32) -> Self {
        let (sin, cos) = angle.sin_cos();
        let (w, h) = (self.width as f32, self.height as f32);
        let mut turned = Self::blank(
            (w * cos.abs() + h * sin.abs()).ceil() as usize,
            (w * sin.abs() + h * cos.abs()).ceil() as usize,
        );
        let centre = (turned.width as f32 / 2.0, turned.height as f32 / 2.0);
        for y in 0..turned.height {
            for x in 0..turned.width {
                let (dx, dy) = (x as f32 + 0.5 - centre.0, y as f32 + 0.5 - centre.1);
                let amount = self.between(cos * dx + sin * dy + w / 2.0, cos * dy - sin * dx + h / 2.0);
                turned.add(x as i64, y as i64, amount);
            }
        }
        turned
    }

    /// Bilinear value at a point; pixel centres stand at halves.
    fn between(&self, x: f32, y: f32) -> f32 {
        let (x, y) = (x - 0.5, y - 0.5);
        let (left, top) = (x.floor(), y.floor());
        let (right_part, bottom_part) = (x - left, y - top);
        let (left, top) = (left as isize, top as isize);
        let row = |y| self.at(left, y) * (1.0 - right_part) + self.at(left + 1, y) * right_part;
        row(top) * (1.0 - bottom_part) + row(top + 1) * bottom_part
    }

    /// Blurred by a Gaussian with this deviation in pixels.
    pub(super) fn blurred(&self, deviation: f32) -> Self {
        if deviation <= 0.0 {
            return Self {
                width: self.width,
                height: self.height,
                coverage: self.coverage.clone(),
            };
        }
        let reach = (3.0 * deviation).ceil() as isize;
        let weights: Vec<(isize, f32)> = (-reach..=reach)
            .map(|step| {
                (
                    step,
                    (-((step * step) as f32) / (2.0 * deviation * deviation)).exp(),
                )
            })
            .collect();
        let total: f32 = weights.iter().map(|(_, weight)| weight).sum();
        let pass = |source: &Self, along: fn(isize, isize, isize) -> (isize, isize)| {
            let mut blurred = Self::blank(source.width, source.height);
            for y in 0..source.height as isize {
                for x in 0..source.width as isize {
                    let sum: f32 = weights
                        .iter()
                        .map(|(step, weight)| {
                            let (x, y) = along(x, y, *step);
                            weight * source.at(x, y)
                        })
                        .sum();
                    blurred.add(x as i64, y as i64, sum / total);
                }
            }
            blurred
        };
        let sideways = pass(self, |x, y, step| (x + step, y));
        pass(&sideways, |x, y, step| (x, y + step))
    }
}
