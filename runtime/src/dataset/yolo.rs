use std::collections::HashSet;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use super::DatasetError;
use super::objects::{KnownObject, ModelClasses};
use crate::pipeline::detection::Bounds;

/// A folder with a text file per image: lines of class, centre x, centre y, width and height, as parts of the image.
#[derive(Debug)]
pub(super) struct YoloFolder {
    folder: PathBuf,
    classes: Option<usize>,
}

impl YoloFolder {
    pub(super) fn open(folder: &Path, classes: Option<usize>) -> Result<Self, DatasetError> {
        let entries = std::fs::read_dir(folder).map_err(|source| DatasetError::io(folder, source))?;
        let text = |path: PathBuf| path.extension().is_some_and(|extension| extension == "txt");
        // An image without a file has no objects; a folder without any would make that of every image.
        if !entries.flatten().any(|entry| text(entry.path())) {
            return Err(DatasetError::Labels {
                path: folder.into(),
                problem:
                    "no .txt file in it; labels are <image's name>.txt with lines of `class x y width height`"
                        .into(),
            });
        }
        Ok(Self {
            folder: folder.into(),
            classes,
        })
    }

    pub(super) fn of(&self, id: &str, (width, height): (u32, u32)) -> Result<Vec<KnownObject>, DatasetError> {
        let path = self.folder.join(Path::new(id).with_extension("txt"));
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(DatasetError::io(&path, error)),
        };
        let mut objects = Vec::new();
        let mut seen = HashSet::new();
        for (index, line) in text.lines().enumerate() {
            let line = line.trim();
            // The same line twice is one object, as YOLO's trainers take it.
            if line.is_empty() || !seen.insert(line) {
                continue;
            }
            let object = self.object(line, (width as f32, height as f32));
            objects.push(object.map_err(|problem| DatasetError::Label {
                path: path.clone(),
                line: index + 1,
                problem,
            })?);
        }
        Ok(objects)
    }

    fn object(&self, line: &str, (width, height): (f32, f32)) -> Result<KnownObject, String> {
        let columns: Vec<&str> = line.split_whitespace().collect();
        let [class, sides @ ..] = columns.as_slice() else {
            return Err("it is empty".into());
        };
        let Ok(sides) = <[&str; 4]>::try_from(sides) else {
            return Err(format!(
                "expected `class x y width height`, there are {} columns",
                columns.len()
            ));
        };
        let class = class
            .parse()
            .map_err(|_| format!("{class:?} is no class: expected 0, 1, …"))?;
        let known = ModelClasses {
            count: self.classes,
            names: &[],
        };
        known.check(class)?;
        let mut parts = [0f32; 4];
        for (part, side) in parts.iter_mut().zip(sides) {
            *part = side
                .parse()
                .ok()
                .filter(|part| (0.0..=1.0).contains(part))
                .ok_or_else(|| {
                    format!("{side:?} is no part of the image: expected numbers within 0..=1, not pixels")
                })?;
        }
        let [x, y, w, h] = parts;
        Ok(KnownObject {
            class,
            bounds: Bounds {
                left: (x - w / 2.0) * width,
                top: (y - h / 2.0) * height,
                right: (x + w / 2.0) * width,
                bottom: (y + h / 2.0) * height,
            },
            crowd: false,
        })
    }
}
