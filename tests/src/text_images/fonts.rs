use std::path::{Path, PathBuf};

use ab_glyph::{Font, FontVec};
use anyhow::{Context, bail};

/// A font file that has every printable ASCII character.
pub struct Typeface {
    /// Where it is.
    pub path: PathBuf,
    pub(super) font: FontVec,
}

/// Every usable TrueType or OpenType font in the folders and the folders below, in the order of their file names, so
/// that the same fonts in other places give the same lines.
///
/// # Errors
/// When a folder cannot be read, or there is no font in any.
pub fn find(folders: &[PathBuf]) -> anyhow::Result<Vec<Typeface>> {
    let mut files = Vec::new();
    for folder in folders {
        collect(folder, &mut files)
            .with_context(|| format!("cannot look for fonts in {}", folder.display()))?;
    }
    files.sort_by(|a, b| (a.file_name(), a).cmp(&(b.file_name(), b)));
    files.dedup_by(|a, b| a.file_name() == b.file_name());
    let faces: Vec<Typeface> = files.into_iter().filter_map(load).collect();
    if faces.is_empty() {
        let looked: Vec<String> = folders
            .iter()
            .map(|folder| folder.display().to_string())
            .collect();
        bail!(
            "no TrueType or OpenType font with all of ASCII in {}; on Debian: apt-get install fonts-dejavu-core",
            looked.join(", ")
        );
    }
    Ok(faces)
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> std::io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let path = entry.path();
        let is_font = path
            .extension()
            .and_then(|extension| extension.to_str())
            .is_some_and(|extension| ["ttf", "otf"].contains(&extension.to_ascii_lowercase().as_str()));
        // The entry's own type: links to folders are not followed, so no circle can catch us.
        if entry.file_type()?.is_dir() {
            collect(&path, files)?;
        } else if is_font {
            files.push(path);
        }
    }
    Ok(())
}

/// The font, or `None` for symbols, single scripts and damaged files.
fn load(path: PathBuf) -> Option<Typeface> {
    let font = FontVec::try_from_vec(std::fs::read(&path).ok()?).ok()?;
    ('!'..='~')
        .all(|character| font.glyph_id(character).0 != 0)
        .then_some(Typeface { path, font })
}
