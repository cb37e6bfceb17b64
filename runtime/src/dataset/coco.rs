use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::DatasetError;
use super::objects::{KnownObject, ModelClasses};
use crate::pipeline::detection::Bounds;

/// The parts of COCO's `instances` that boxes need; what else there is (segmentations, licences) is skipped.
#[derive(Deserialize)]
struct Instances {
    images: Vec<Image>,
    annotations: Vec<Annotation>,
    categories: Vec<Category>,
}

#[derive(Deserialize)]
struct Image {
    id: u64,
    file_name: String,
    width: Option<u32>,
    height: Option<u32>,
}

#[derive(Deserialize)]
struct Annotation {
    id: Option<u64>,
    image_id: u64,
    category_id: u64,
    /// Left, top, width, height in pixels.
    bbox: Vec<f32>,
    #[serde(default)]
    iscrowd: u8,
}

#[derive(Deserialize)]
struct Category {
    id: u64,
    name: String,
}

/// A COCO file, read.
#[derive(Debug)]
pub(super) struct CocoFile {
    path: PathBuf,
    /// By the image file's name without folders.
    images: HashMap<String, LabelledImage>,
    notes: Vec<String>,
}

#[derive(Debug, Default)]
struct LabelledImage {
    size: Option<(u32, u32)>,
    objects: Vec<KnownObject>,
}

impl CocoFile {
    pub(super) fn read(path: &Path, classes: ModelClasses<'_>) -> Result<Self, DatasetError> {
        let file = File::open(path).map_err(|source| DatasetError::io(path, source))?;
        let wrong = |problem: String| DatasetError::Labels {
            path: path.into(),
            problem,
        };
        let instances: Instances = serde_json::from_reader(BufReader::new(file))
            .map_err(|error| wrong(format!("not COCO's `instances`: {error}")))?;
        let (by_category, notes) = categories(&instances, classes).map_err(wrong)?;
        let mut names: HashMap<u64, String> = HashMap::new();
        let mut images: HashMap<String, LabelledImage> = HashMap::new();
        for image in instances.images {
            // Some write them on Windows.
            let name = image
                .file_name
                .rsplit(['/', '\\'])
                .next()
                .unwrap_or_default()
                .to_owned();
            if names.insert(image.id, name.clone()).is_some() {
                return Err(wrong(format!("two images have the id {}", image.id)));
            }
            let labelled = LabelledImage {
                size: image.width.zip(image.height),
                objects: Vec::new(),
            };
            if images.insert(name.clone(), labelled).is_some() {
                return Err(wrong(format!("two images are called {name:?}")));
            }
        }
        for (index, annotation) in instances.annotations.iter().enumerate() {
            let called = annotation
                .id
                .map_or_else(|| format!("number {index}"), |id| id.to_string());
            let Some(name) = names.get(&annotation.image_id) else {
                let id = annotation.image_id;
                return Err(wrong(format!(
                    "annotation {called}: there is no image with the id {id}"
                )));
            };
            let wrong = |problem: String| wrong(format!("annotation {called} of image {name:?}: {problem}"));
            let class = by_category.get(&annotation.category_id).ok_or_else(|| {
                wrong(format!(
                    "there is no category with the id {}",
                    annotation.category_id
                ))
            })?;
            let bounds = bounds(&annotation.bbox).map_err(wrong)?;
            if let (Some(class), Some(image)) = (class, images.get_mut(name)) {
                image.objects.push(KnownObject {
                    class: *class,
                    bounds,
                    crowd: annotation.iscrowd != 0,
                });
            }
        }
        Ok(Self {
            path: path.into(),
            images,
            notes,
        })
    }

    pub(super) fn of(&self, id: &str, size: (u32, u32)) -> Result<Option<Vec<KnownObject>>, DatasetError> {
        let Some(image) = self.images.get(id) else {
            return Ok(None);
        };
        match image.size {
            Some(declared) if declared != size => Err(DatasetError::Labels {
                path: self.path.clone(),
                problem: format!(
                    "image {id:?} has {} × {} pixels there, the file (turned as its EXIF says) has {} × {}",
                    declared.0, declared.1, size.0, size.1
                ),
            }),
            _ => Ok(Some(image.objects.clone())),
        }
    }

    pub(super) fn notes(&self) -> &[String] {
        &self.notes
    }
}

/// The class of each category by its id.
type ClassOf = BTreeMap<u64, Option<usize>>;

/// The class of each category, `None` for those the model does not know: by name where the model's classes have names,
/// else in the order of the categories' ids, as COCO's 80 categories are numbered 1 to 90.
fn categories(instances: &Instances, classes: ModelClasses<'_>) -> Result<(ClassOf, Vec<String>), String> {
    let mut named: BTreeMap<u64, &str> = BTreeMap::new();
    for category in &instances.categories {
        if named.insert(category.id, &category.name).is_some() {
            return Err(format!("two categories have the id {}", category.id));
        }
    }
    if classes.names.is_empty() {
        if let Some(count) = classes.count
            && count != named.len()
        {
            return Err(format!(
                "it has {} categories, the model {count} classes: declare the classes' names (`labels` of the task), so \
                 that categories are matched by name",
                named.len()
            ));
        }
        let order = named.keys().enumerate().map(|(class, id)| (*id, Some(class)));
        let note = "classes have no names: categories are matched to them in the order of their ids";
        return Ok((order.collect(), vec![note.to_owned()]));
    }
    let class_of = |name: &str| classes.names.iter().position(|class| class == name);
    let matched: ClassOf = named.iter().map(|(id, name)| (*id, class_of(name))).collect();
    if matched.values().all(Option::is_none) {
        return Err(format!(
            "none of its categories ({}) is a class of the model ({})",
            few(named.values().copied()),
            few(classes.names.iter().map(String::as_str))
        ));
    }
    let used: BTreeSet<u64> = instances
        .annotations
        .iter()
        .map(|annotation| annotation.category_id)
        .collect();
    let unknown = named
        .iter()
        .filter(|(id, _)| used.contains(id) && matched.get(id) == Some(&None));
    let unknown: Vec<&str> = unknown.map(|(_, name)| *name).collect();
    let note = format!(
        "categories that are no class of the model, whose objects are left out: {}",
        few(unknown.iter().copied())
    );
    Ok((
        matched,
        if unknown.is_empty() {
            Vec::new()
        } else {
            vec![note]
        },
    ))
}

/// The first names, and how many more there are.
fn few<'a>(names: impl ExactSizeIterator<Item = &'a str>) -> String {
    const SHOWN: usize = 8;
    let more = names.len().saturating_sub(SHOWN);
    let shown: Vec<&str> = names.take(SHOWN).collect();
    let shown = shown.join(", ");
    if more > 0 {
        format!("{shown} and {more} more")
    } else {
        shown
    }
}

fn bounds(bbox: &[f32]) -> Result<Bounds, String> {
    match bbox {
        [left, top, width, height]
            if bbox.iter().all(|side| side.is_finite()) && *width >= 0.0 && *height >= 0.0 =>
        {
            Ok(Bounds {
                left: *left,
                top: *top,
                right: left + width,
                bottom: top + height,
            })
        }
        _ => Err(format!(
            "bbox is {bbox:?}, expected [left, top, width, height] in pixels"
        )),
    }
}
