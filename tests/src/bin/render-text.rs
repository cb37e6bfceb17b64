//! Writes images of lines of text and `labels.tsv`, which says what stands in each.

use std::fmt::Write as _;
use std::path::PathBuf;

use anyhow::Context;
use clap::Parser;
use edgeopt_tests::text_images::{self, Condition};

/// Renders lines of text as PNG images with known contents.
#[derive(Parser)]
struct Arguments {
    /// Folder to write to; it is created
    #[arg(long)]
    out: PathBuf,
    /// Number of lines
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
