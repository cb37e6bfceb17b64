//! The few shapes that charts are made of.

use std::fmt::Write;

use maud::{Markup, PreEscaped, Render};

/// A drawing of a fixed coordinate size that scales with the page.
pub(super) struct Drawing {
    width: f64,
    height: f64,
    title: String,
    body: String,
}

/// Where a text stands relative to its point.
#[derive(Clone, Copy)]
pub(super) enum Anchor {
    Start,
    End,
}

impl Drawing {
    pub(super) fn new(width: f64, height: f64, title: &str) -> Self {
        Self {
            width,
            height,
            title: title.to_owned(),
            body: String::new(),
        }
    }

    // Writing to a String does not fail, so the results below are not looked at.

    pub(super) fn bar(&mut self, x: f64, y: f64, width: f64, height: f64, class: &str, title: &str) {
        let _ = write!(
            self.body,
            r#"<rect class="{class}" x="{x:.2}" y="{y:.2}" width="{:.2}" height="{:.2}"><title>{}</title></rect>"#,
            width.max(0.0),
            height.max(0.0),
            escaped(title)
        );
    }

    pub(super) fn line(&mut self, from: (f64, f64), to: (f64, f64), class: &str) {
        let _ = write!(
            self.body,
            r#"<line class="{class}" x1="{:.2}" y1="{:.2}" x2="{:.2}" y2="{:.2}"/>"#,
            from.0, from.1, to.0, to.1
        );
    }

    pub(super) fn area(&mut self, points: &[(f64, f64)], class: &str) {
        let points: Vec<String> = points.iter().map(|(x, y)| format!("{x:.2},{y:.2}")).collect();
        let _ = write!(
            self.body,
            r#"<polygon class="{class}" points="{}"/>"#,
            points.join(" ")
        );
    }

    pub(super) fn text(&mut self, x: f64, y: f64, anchor: Anchor, class: &str, text: &str) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::End => "end",
        };
        let _ = write!(
            self.body,
            r#"<text class="{class}" x="{x:.2}" y="{y:.2}" text-anchor="{anchor}">{}</text>"#,
            escaped(text)
        );
    }
}

impl Render for Drawing {
    fn render(&self) -> Markup {
        PreEscaped(format!(
            r#"<svg viewBox="0 0 {} {}" role="img" aria-label="{title}"><title>{title}</title>{}</svg>"#,
            self.width,
            self.height,
            self.body,
            title = escaped(&self.title)
        ))
    }
}

fn escaped(text: &str) -> String {
    maud::html! { (text) }.into_string()
}

/// A round step so that about `wanted` lines cover `span`: 1, 2 or 5 times a power of ten.
pub(super) fn grid_step(span: f64, wanted: f64) -> f64 {
    let raw = (span / wanted).max(f64::MIN_POSITIVE);
    let power = 10f64.powf(raw.log10().floor());
    [1.0, 2.0, 5.0, 10.0]
        .into_iter()
        .map(|factor| factor * power)
        .find(|step| *step >= raw)
        .unwrap_or(raw)
}

/// The text cut in the middle to at most `length` characters: both ends of a layer's name tell something.
pub(super) fn shortened(text: &str, length: usize) -> String {
    let characters: Vec<char> = text.chars().collect();
    if characters.len() <= length {
        return text.to_owned();
    }
    let head = length / 2;
    let tail = length.saturating_sub(head + 1);
    let start: String = characters[..head].iter().collect();
    let end: String = characters[characters.len() - tail..].iter().collect();
    format!("{start}…{end}")
}
