//! Writes images of lines of text and `labels.tsv`, which says what stands in each; or of pages, and `places.tsv`,
//! which says what stands where; or of scattered characters with labels for object detectors.

use std::fmt::Write as _;
use std::path::PathBuf;

use anyhow::Context;
use clap::Parser;
use edgeopt_tests::text_images::{self, Condition, Typeface};

/// Renders lines of text as PNG images with known contents.
#[derive(Parser)]
struct Arguments {
    /// Folder to write to; it is created
    #[arg(long)]
    out: PathBuf,
    /// Number of images
    #[arg(long, default_value_t = 200)]
    count: usize,
    /// The same seed and fonts give the same lines
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Folder with TrueType or OpenType fonts, also in folders below; may be given several times
    #[arg(long, default_value = "/usr/share/fonts/truetype")]
    fonts: Vec<PathBuf>,
    /// Black on white, upright, without blur and noise
    #[arg(long)]
    clean: bool,
    /// Pages of several lines instead, turned by up to 5°
    #[arg(long)]
    pages: bool,
    /// Scattered characters instead, with labels for object detectors in YOLO's format in the folder `labels`
    #[arg(long, conflicts_with_all = ["pages", "clean"])]
    characters: bool,
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let fonts = text_images::find(&arguments.fonts)?;
    let condition = if arguments.clean {
        Condition::Clean
    } else {
        Condition::Worn
    };
    std::fs::create_dir_all(&arguments.out)
        .with_context(|| format!("cannot create {}", arguments.out.display()))?;
    if arguments.pages {
        return write_pages(&arguments, &fonts, condition);
    }
    if arguments.characters {
        return write_characters(&arguments, &fonts);
    }
    let mut labels = String::new();
    for number in 0..arguments.count {
        let line = text_images::line(arguments.seed, number, &fonts, condition)?;
        let name = format!("{number:05}.png");
        let path = arguments.out.join(&name);
        line.image
            .save(&path)
            .with_context(|| format!("cannot write {}", path.display()))?;
        writeln!(labels, "{name}\t{}", line.text)?;
    }
    // Last, so that a folder with labels is a complete one.
    let path = arguments.out.join("labels.tsv");
    std::fs::write(&path, labels).with_context(|| format!("cannot write {}", path.display()))?;
    println!("{} lines in {} fonts", arguments.count, fonts.len());
    Ok(())
}

fn write_pages(arguments: &Arguments, fonts: &[Typeface], condition: Condition) -> anyhow::Result<()> {
    let mut places = String::new();
    for number in 0..arguments.count {
        let tilt = ((number % 11) as f32 - 5.0).to_radians();
        let page = text_images::page(arguments.seed, number, fonts, condition, tilt);
        let name = format!("{number:05}.png");
        let path = arguments.out.join(&name);
        page.image
            .save(&path)
            .with_context(|| format!("cannot write {}", path.display()))?;
        for line in &page.lines {
            let corners = line.place.0.map(|[x, y]| format!("{x:.1},{y:.1}"));
            writeln!(places, "{name}\t{}\t{}", corners.join(" "), line.text)?;
        }
    }
    let path = arguments.out.join("places.tsv");
    std::fs::write(&path, places).with_context(|| format!("cannot write {}", path.display()))?;
    println!("{} pages in {} fonts", arguments.count, fonts.len());
    Ok(())
}

fn write_characters(arguments: &Arguments, fonts: &[Typeface]) -> anyhow::Result<()> {
    let labels = arguments.out.join("labels");
    std::fs::create_dir_all(&labels).with_context(|| format!("cannot create {}", labels.display()))?;
    for number in 0..arguments.count {
        let scattered = text_images::characters(arguments.seed, number, fonts);
        let path = arguments.out.join(format!("{number:05}.png"));
        scattered
            .image
            .save(&path)
            .with_context(|| format!("cannot write {}", path.display()))?;
        let (width, height) = (scattered.image.width() as f64, scattered.image.height() as f64);
        let mut lines = String::new();
        for place in &scattered.places {
            let [left, top, right, bottom] = place.map(f64::from);
            let (x, y) = ((left + right) / 2.0 / width, (top + bottom) / 2.0 / height);
            let (w, h) = ((right - left) / width, (bottom - top) / height);
            writeln!(lines, "0 {x:.6} {y:.6} {w:.6} {h:.6}")?;
        }
        let path = labels.join(format!("{number:05}.txt"));
        std::fs::write(&path, lines).with_context(|| format!("cannot write {}", path.display()))?;
    }
    println!("{} images in {} fonts", arguments.count, fonts.len());
    Ok(())
}
