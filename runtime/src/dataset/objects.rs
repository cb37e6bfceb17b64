//! The truth about where objects are.

use std::path::Path;

use super::DatasetError;
use super::coco::CocoFile;
use super::yolo::YoloFolder;
use crate::pipeline::detection::Bounds;

/// An object that is known to be in an image.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct KnownObject {
    /// Index of its class.
    pub class: usize,
    /// Where it is, in pixels of the image.
    pub bounds: Bounds,
    /// A region of many such objects (COCO's `iscrowd`): what is found inside counts neither for nor against the model.
    pub crowd: bool,
}

/// What is known of the model's classes.
#[derive(Clone, Copy, Debug, Default)]
pub struct ModelClasses<'a> {
    /// How many there are, if the model or its declaration tells.
    pub count: Option<usize>,
    /// Their names, if declared.
    pub names: &'a [String],
}

impl ModelClasses<'_> {
    /// Whether an index is a class, else what is wrong.
    pub(super) fn check(&self, class: usize) -> Result<usize, String> {
        match self.count {
            Some(count) if class >= count => Err(format!(
                "class {class} is none of the model's {count} classes (0 to {})",
                count.saturating_sub(1)
            )),
            _ => Ok(class),
        }
    }
}

/// Known objects of many images: a folder of YOLO's text files, or a COCO file.
#[derive(Debug)]
pub struct ObjectLabels(Source);

#[derive(Debug)]
enum Source {
    Yolo(YoloFolder),
    Coco(CocoFile),
}

impl ObjectLabels {
    /// Opens the labels at `path`: a folder is YOLO's, `<image's name>.txt` each; a `.json` file is COCO's `instances`.
    ///
    /// # Errors
    /// When it is neither, or its classes are not the model's; the error names file and place.
    pub fn open(path: &Path, classes: ModelClasses<'_>) -> Result<Self, DatasetError> {
        let metadata = std::fs::metadata(path).map_err(|source| DatasetError::io(path, source))?;
        let json = path
            .extension()
            .is_some_and(|extension| extension.eq_ignore_ascii_case("json"));
        if metadata.is_dir() {
            return Ok(Self(Source::Yolo(YoloFolder::open(path, classes.count)?)));
        }
        if json {
            return Ok(Self(Source::Coco(CocoFile::read(path, classes)?)));
        }
        Err(DatasetError::Labels {
            path: path.into(),
            problem: "labels of objects are a folder of YOLO's .txt files or a COCO .json file".into(),
        })
    }

    /// The objects in the image called `id` of this width and height in pixels; `None` if the image is not labelled. An
    /// image without a text file is one without objects, as YOLO's trainers take it; one that a COCO file does not list
    /// is not labelled.
    ///
    /// # Errors
    /// Naming the file and the line or the image.
    pub fn of(&self, id: &str, size: (u32, u32)) -> Result<Option<Vec<KnownObject>>, DatasetError> {
        match &self.0 {
            Source::Yolo(folder) => folder.of(id, size).map(Some),
            Source::Coco(file) => file.of(id, size),
        }
    }

    /// How labels became classes, for people.
    pub fn notes(&self) -> Vec<String> {
        match &self.0 {
            Source::Yolo(_) => Vec::new(),
            Source::Coco(file) => file.notes().to_vec(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES: [&str; 2] = ["cat", "dog"];

    fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in files {
            std::fs::write(folder.path().join(name), text).unwrap();
        }
        folder
    }

    fn corners(object: &KnownObject) -> (usize, [f32; 4], bool) {
        let bounds = object.bounds;
        let sides = [bounds.left, bounds.top, bounds.right, bounds.bottom];
        (object.class, sides, object.crowd)
    }

    fn of(labels: &ObjectLabels, id: &str, size: (u32, u32)) -> Option<Vec<(usize, [f32; 4], bool)>> {
        let objects = labels.of(id, size).unwrap()?;
        Some(objects.iter().map(corners).collect())
    }

    fn named(names: &[String]) -> ModelClasses<'_> {
        ModelClasses {
            count: Some(names.len()),
            names,
        }
    }

    fn counted(count: usize) -> ModelClasses<'static> {
        ModelClasses {
            count: Some(count),
            names: &[],
        }
    }

    #[test]
    fn yolos_lines_become_boxes_in_pixels_and_an_image_without_a_file_has_none() {
        let lines = "0 0.5 0.5 0.25 0.5\n\n1 0.25 0.75 0.5 0.5\n0 0.5 0.5 0.25 0.5\n";
        let folder = folder(&[("a.txt", lines), ("b.txt", ""), ("classes.txt", "cat\ndog\n")]);
        let labels = ObjectLabels::open(folder.path(), counted(2)).unwrap();
        let expected = vec![
            (0, [75.0, 25.0, 125.0, 75.0], false),
            (1, [0.0, 50.0, 100.0, 100.0], false),
        ];
        assert_eq!(of(&labels, "a.jpg", (200, 100)), Some(expected));
        assert_eq!(of(&labels, "b.jpg", (200, 100)), Some(vec![]));
        assert_eq!(of(&labels, "c.jpg", (200, 100)), Some(vec![]));
    }

    #[test]
    fn what_is_wrong_in_yolos_files_is_named_with_its_line() {
        for (line, expected) in [
            (
                "2 0.5 0.5 0.1 0.1",
                "class 2 is none of the model's 2 classes (0 to 1)",
            ),
            ("-1 0.5 0.5 0.1 0.1", "\"-1\" is no class"),
            ("0 320 0.5 0.1 0.1", "\"320\" is no part of the image"),
            ("0 0.5 nan 0.1 0.1", "\"nan\" is no part of the image"),
            ("0 0.5 0.5 0.1", "there are 4 columns"),
            ("0 0.1 0.1 0.2 0.2 0.1 0.2", "there are 7 columns"),
        ] {
            let folder = folder(&[("a.txt", &format!("0 0.5 0.5 0.1 0.1\n{line}\n"))]);
            let labels = ObjectLabels::open(folder.path(), counted(2)).unwrap();
            let error = labels.of("a.png", (10, 10)).unwrap_err().to_string();
            assert!(
                error.contains("a.txt, line 2: ") && error.contains(expected),
                "{error}"
            );
        }
        let nothing = folder(&[("a.csv", "")]);
        let error = ObjectLabels::open(nothing.path(), counted(2))
            .unwrap_err()
            .to_string();
        assert!(error.contains("no .txt file in it"), "{error}");
        let error = ObjectLabels::open(&nothing.path().join("a.csv"), counted(2))
            .unwrap_err()
            .to_string();
        assert!(error.contains("a COCO .json file"), "{error}");
    }

    /// One image without and two with objects; category 7 is a dog, 3 a cat, 9 a cow.
    const COCO: &str = r#"{"info": {}, "images": [
            {"id": 5, "file_name": "val/a.jpg", "width": 200, "height": 100, "license": 1},
            {"id": 6, "file_name": "b.jpg"}, {"id": 7, "file_name": "c.jpg"}],
        "annotations": [
            {"id": 1, "image_id": 5, "category_id": 7, "bbox": [10, 20.5, 30, 40], "area": 9, "iscrowd": 0,
             "segmentation": [[1, 2, 3]]},
            {"id": 2, "image_id": 6, "category_id": 3, "bbox": [0, 0, 8, 8], "iscrowd": 1}],
        "categories": [{"id": 9, "name": "cow"}, {"id": 7, "name": "dog"}, {"id": 3, "name": "cat"}]}"#;

    fn coco(json: &str, classes: ModelClasses<'_>) -> Result<ObjectLabels, DatasetError> {
        let folder = folder(&[("instances.json", json)]);
        ObjectLabels::open(&folder.path().join("instances.json"), classes)
    }

    #[test]
    fn cocos_categories_are_classes_by_name_or_else_in_the_order_of_their_ids() {
        let names = NAMES.map(str::to_owned);
        let labels = coco(COCO, named(&names)).unwrap();
        assert_eq!(labels.notes(), Vec::<String>::new());
        let dog = (1, [10.0, 20.5, 40.0, 60.5], false);
        assert_eq!(of(&labels, "a.jpg", (200, 100)), Some(vec![dog]));
        assert_eq!(
            of(&labels, "b.jpg", (9, 9)),
            Some(vec![(0, [0.0, 0.0, 8.0, 8.0], true)])
        );
        assert_eq!(of(&labels, "c.jpg", (9, 9)), Some(vec![]));
        assert_eq!(of(&labels, "d.jpg", (9, 9)), None);
        let labels = coco(COCO, counted(3)).unwrap();
        assert_eq!(of(&labels, "a.jpg", (200, 100)).unwrap()[0].0, 1);
        assert!(labels.notes()[0].contains("order of their ids"));
        let birds = ["dog".to_owned(), "bird".to_owned()];
        let labels = coco(COCO, named(&birds)).unwrap();
        assert!(
            labels.notes()[0].ends_with("left out: cat"),
            "{:?}",
            labels.notes()
        );
        assert_eq!(of(&labels, "b.jpg", (9, 9)), Some(vec![]));
    }

    #[test]
    fn what_is_wrong_in_a_coco_file_is_named_with_annotation_and_image() {
        let names = NAMES.map(str::to_owned);
        let zoo = ["lion".to_owned()];
        let changed = |from: &str, to: &str| COCO.replacen(from, to, 1);
        for (json, classes, expected) in [
            (COCO.to_owned(), counted(80), "3 categories, the model 80 classes"),
            (
                COCO.to_owned(),
                named(&zoo),
                "(cat, dog, cow) is a class of the model (lion)",
            ),
            (
                changed("[10, 20.5, 30, 40]", "[10, 20]"),
                named(&names),
                "annotation 1 of image \"a.jpg\": bbox is",
            ),
            (
                changed("[10, 20.5, 30, 40]", "[9, 9, -3, 4]"),
                named(&names),
                "annotation 1 of image \"a.jpg\": bbox is",
            ),
            (
                changed("\"category_id\": 7", "\"category_id\": 8"),
                named(&names),
                "no category with the id 8",
            ),
            (
                changed("\"image_id\": 6", "\"image_id\": 8"),
                named(&names),
                "annotation 2: there is no image",
            ),
            (
                changed("\"id\": 6", "\"id\": 5"),
                named(&names),
                "two images have the id 5",
            ),
            (
                changed("b.jpg", "train/a.jpg"),
                named(&names),
                "two images are called \"a.jpg\"",
            ),
            ("{}".to_owned(), named(&names), "missing field"),
        ] {
            let error = coco(&json, classes).unwrap_err().to_string();
            assert!(
                error.contains("instances.json: ") && error.contains(expected),
                "{error}"
            );
        }
        let labels = coco(COCO, named(&names)).unwrap();
        let error = labels.of("a.jpg", (100, 200)).unwrap_err().to_string();
        assert!(
            error.contains("\"a.jpg\" has 200 × 100") && error.contains("100 × 200"),
            "{error}"
        );
    }
}
