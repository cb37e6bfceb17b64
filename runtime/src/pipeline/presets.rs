//! Pre- and postprocessing of well-known model families by name, as their authors trained and published them.

use edgeopt_models::bundle::{Align, Color, DetectionFormat, Layout, Postprocessing, Preprocessing, Resize};
use edgeopt_models::{Dim, Model, ValueType};

use super::class_names;

/// Every preset's name.
pub const NAMES: [&str; 10] = [
    "mnist",
    "imagenet",
    "yolov5",
    "yolov8",
    "yolov10",
    "yolox",
    "yolox-decoded",
    "rtdetr",
    "ppocr-rec",
    "ppocr-det",
];

/// Key of the model's metadata under which PP-OCR recognizers carry their characters, one a line.
const CHARACTERS: &str = "character";
/// Key under which YOLO's exporters write the names of the classes.
const NAMES_OF_CLASSES: &str = "names";

/// Why a preset cannot be used.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum PresetError {
    /// No preset has this name.
    #[error("there is no preset {name:?}; there are: {}", NAMES.join(", "))]
    Unknown {
        /// The name asked for.
        name: String,
    },
    /// The recognizer does not say which characters its classes are.
    #[error(
        "preset \"ppocr-rec\" takes the characters from the model's metadata, key {CHARACTERS:?}, one a line; this \
         model has no such key. Declare the alphabet in the manifest instead"
    )]
    NoAlphabet,
    /// The detector's names of classes cannot be read.
    #[error(
        "the model's metadata has names of classes, key {NAMES_OF_CLASSES:?}, that are neither {{0: 'person', …}} nor \
         ['person', …]: {text:?}. Declare the labels in a JSON file instead"
    )]
    ClassNames {
        /// What is there, cut after 100 characters.
        text: String,
    },
    /// The recognizer's characters do not belong to its output.
    #[error(
        "the model's metadata lists {characters} characters, its output has {classes} classes; blank, characters and \
         space would be {}", characters + 2
    )]
    Alphabet {
        /// Characters listed, without blank and space.
        characters: usize,
        /// Classes of the first output.
        classes: usize,
    },
}

/// The preset of this name, or `None` if there is none. `ppocr-rec` comes without characters, detectors without labels
/// and for 640 × 640 pixels: these differ from model to model, so [`from_model`] reads them.
pub fn preset(name: &str) -> Option<(Preprocessing, Postprocessing)> {
    let classification = |softmax, top_k| Postprocessing::Classification {
        softmax,
        top_k,
        labels: vec![],
    };
    // Means and deviations are of pixels scaled to 0..=1.
    let image = |color, resize, mean: &[f32], std: &[f32]| Preprocessing {
        color,
        resize,
        scale: 1.0 / 255.0,
        mean: mean.to_vec(),
        std: std.to_vec(),
        layout: Layout::Nchw,
    };
    let objects = |format, score_threshold, iou_threshold| Postprocessing::Detection {
        format,
        score_threshold,
        iou_threshold,
        max_detections: 300,
        labels: vec![],
    };
    let letterbox = |align| Resize::Letterbox {
        width: 640,
        height: 640,
        fill: 114,
        align,
    };
    let detector = |format, iou_threshold| {
        (
            image(Color::Rgb, letterbox(Align::Center), &[0.0; 3], &[1.0; 3]),
            objects(format, 0.25, iou_threshold),
        )
    };
    // Takes pixels as OpenCV reads them.
    let yolox = |format| {
        let preprocessing = Preprocessing {
            scale: 1.0,
            ..image(Color::Bgr, letterbox(Align::TopLeft), &[0.0; 3], &[1.0; 3])
        };
        (preprocessing, objects(format, 0.25, Some(0.45)))
    };
    // Statistics of ImageNet's training images, in the order red, green, blue.
    let (mean, std) = ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]);
    Some(match name {
        "mnist" => (
            image(
                Color::Gray,
                Resize::Stretch {
                    width: 28,
                    height: 28,
                },
                &[0.1307],
                &[0.3081],
            ),
            classification(true, 1),
        ),
        "imagenet" => (
            image(
                Color::Rgb,
                Resize::CenterCrop {
                    resize: 256,
                    width: 224,
                    height: 224,
                },
                &mean,
                &std,
            ),
            classification(true, 5),
        ),
        // Thresholds as their authors' programs have them by default.
        "yolov5" => detector(DetectionFormat::YoloV5, Some(0.45)),
        "yolov8" => detector(DetectionFormat::YoloV8, Some(0.7)),
        "yolov10" => detector(DetectionFormat::EndToEnd, None),
        "yolox" => yolox(DetectionFormat::YoloX {
            width: 640,
            height: 640,
            strides: vec![8, 16, 32],
        }),
        "yolox-decoded" => yolox(DetectionFormat::YoloV5),
        "rtdetr" => (
            image(
                Color::Rgb,
                Resize::Stretch {
                    width: 640,
                    height: 640,
                },
                &[0.0; 3],
                &[1.0; 3],
            ),
            objects(
                DetectionFormat::Detr {
                    logits: "logits".into(),
                    boxes: "pred_boxes".into(),
                    width: 640,
                    height: 640,
                },
                0.5,
                None,
            ),
        ),
        "ppocr-rec" => (
            image(
                Color::Bgr,
                Resize::FitHeight {
                    width: 320,
                    height: 48,
                },
                &[0.5; 3],
                &[0.5; 3],
            ),
            Postprocessing::Ctc { alphabet: vec![] },
        ),
        "ppocr-det" => (
            // Thresholds as PaddleOCR documents them. Trained on BGR with the statistics in the order they have for RGB: not a slip here.
            image(
                Color::Bgr,
                Resize::LimitLongSide {
                    limit: 960,
                    multiple: 32,
                },
                &mean,
                &std,
            ),
            Postprocessing::TextDetection {
                threshold: 0.3,
                box_threshold: 0.6,
                unclip_ratio: 1.5,
                min_size: 3.0,
                max_regions: 1000,
            },
        ),
        _ => return None,
    })
}

/// The preset of this name, completed with what the model itself declares.
///
/// # Errors
/// When there is no such preset, or the model lacks what it needs.
pub fn from_model(name: &str, model: &Model) -> Result<(Preprocessing, Postprocessing), PresetError> {
    let (mut preprocessing, mut postprocessing) = preset(name).ok_or_else(|| PresetError::Unknown {
        name: name.to_owned(),
    })?;
    match &mut postprocessing {
        Postprocessing::Ctc { alphabet } => *alphabet = characters(model)?,
        Postprocessing::Detection { format, labels, .. } => {
            *labels = class_names(model)?;
            let Some(size) = image_size(model) else {
                return Ok((preprocessing, postprocessing));
            };
            if let Resize::Letterbox { width, height, .. } | Resize::Stretch { width, height } =
                &mut preprocessing.resize
            {
                (*width, *height) = size;
            }
            if let DetectionFormat::YoloX { width, height, .. }
            | DetectionFormat::Detr { width, height, .. } = format
            {
                (*width, *height) = size;
            }
        }
        _ => {}
    }
    Ok((preprocessing, postprocessing))
}

/// The recognizer's characters in the order of its classes after the blank, with the space that stands last.
fn characters(model: &Model) -> Result<Vec<String>, PresetError> {
    let listed = model.metadata.get(CHARACTERS).ok_or(PresetError::NoAlphabet)?;
    let mut alphabet: Vec<String> = listed.lines().map(str::to_owned).collect();
    if let Some(classes) = classes(model)
        && classes != alphabet.len() + 2
    {
        return Err(PresetError::Alphabet {
            characters: alphabet.len(),
            classes,
        });
    }
    alphabet.push(" ".to_owned());
    Ok(alphabet)
}

/// The detector's classes, if its metadata names them.
fn class_names(model: &Model) -> Result<Vec<String>, PresetError> {
    let Some(text) = model.metadata.get(NAMES_OF_CLASSES) else {
        return Ok(Vec::new());
    };
    class_names::parse(text).ok_or_else(|| PresetError::ClassNames {
        text: text.chars().take(100).collect(),
    })
}

/// Width and height of the first input, [batch, channels, height, width], where the model states them.
fn image_size(model: &Model) -> Option<(usize, usize)> {
    let input = model.graph.required_inputs().next()?;
    let ValueType::Tensor { shape, .. } = &input.ty else {
        return None;
    };
    match shape.as_ref()?.0.as_slice() {
        [_, _, height, width] => Some((width.known()?, height.known()?)),
        _ => None,
    }
}

/// Length of the first output's last axis, where the model states it.
fn classes(model: &Model) -> Option<usize> {
    match &model.graph.outputs.first()?.ty {
        ValueType::Tensor { shape, .. } => shape.as_ref()?.0.last().and_then(Dim::known),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use edgeopt_models::{DataType, Graph, Shape, ValueInfo};
    use image::RgbImage;

    use super::*;
    use crate::pipeline::preprocess::prepare;

    fn recognizer(characters: Option<&str>, classes: usize) -> Model {
        let mut model = Model {
            ir_version: 8,
            opsets: BTreeMap::from([(String::new(), 17)]),
            producer: String::new(),
            metadata: BTreeMap::new(),
            graph: Graph::default(),
            extra: None,
        };
        model.graph.outputs.push(ValueInfo::tensor(
            "scores",
            DataType::Float32,
            Shape(vec![Dim::Unknown, Dim::Unknown, Dim::Known(classes)]),
        ));
        if let Some(characters) = characters {
            model.metadata.insert(CHARACTERS.into(), characters.into());
        }
        model
    }

    #[test]
    fn every_preset_prepares_an_image_to_its_size() {
        let image = RgbImage::from_pixel(60, 30, image::Rgb([10, 20, 30]));
        let dims: Vec<Vec<usize>> = NAMES
            .iter()
            .map(|name| {
                let (preprocessing, _) = preset(name).unwrap();
                prepare(&image, &preprocessing).unwrap().tensor.dims().to_vec()
            })
            .collect();
        assert_eq!(
            dims,
            [
                [1, 1, 28, 28],
                [1, 3, 224, 224],
                [1, 3, 640, 640],
                [1, 3, 640, 640],
                [1, 3, 640, 640],
                [1, 3, 640, 640],
                [1, 3, 640, 640],
                [1, 3, 640, 640],
                [1, 3, 48, 320],
                [1, 3, 32, 64]
            ]
        );
    }

    #[test]
    fn pixels_are_normalized_in_the_order_of_the_models_channels() {
        let first = |name: &str| {
            let image = RgbImage::from_pixel(96, 96, image::Rgb([255, 0, 0]));
            let (preprocessing, _) = preset(name).unwrap();
            let tensor = prepare(&image, &preprocessing).unwrap().tensor;
            tensor.view::<f32>().unwrap()[0]
        };
        // The first channel is red, or blue where the model takes BGR.
        for (name, expected) in [
            ("mnist", (0.299 - 0.1307) / 0.3081),
            ("imagenet", (1.0 - 0.485) / 0.229),
            ("ppocr-rec", -1.0),
            ("ppocr-det", -0.485 / 0.229),
        ] {
            assert!(
                (first(name) - expected).abs() < 1e-3,
                "{name}: {} instead of {expected}",
                first(name)
            );
        }
        // The letterbox fills nothing of a square.
        assert!((first("yolov8") - 1.0).abs() < 1e-3);
    }

    #[test]
    fn a_recognizers_characters_come_from_the_model_and_end_with_the_space() {
        let (_, postprocessing) = from_model("ppocr-rec", &recognizer(Some("a\n\u{3000}\nb\n"), 5)).unwrap();
        let alphabet = ["a", "\u{3000}", "b", " "].map(str::to_owned).to_vec();
        assert_eq!(postprocessing, Postprocessing::Ctc { alphabet });
        assert_eq!(
            from_model("ppocr-rec", &recognizer(None, 5)),
            Err(PresetError::NoAlphabet)
        );
        assert_eq!(
            from_model("ppocr-rec", &recognizer(Some("a\nb"), 5)),
            Err(PresetError::Alphabet {
                characters: 2,
                classes: 5
            })
        );
    }

    #[test]
    fn a_detectors_labels_and_size_come_from_the_model() {
        let mut model = recognizer(None, 5);
        let shape = Shape(vec![
            Dim::Known(1),
            Dim::Known(3),
            Dim::Known(320),
            Dim::Known(416),
        ]);
        model
            .graph
            .inputs
            .push(ValueInfo::tensor("images", DataType::Float32, shape));
        let read = |model: &Model| -> Result<(usize, usize, String), PresetError> {
            match from_model("yolov8", model)? {
                (
                    Preprocessing {
                        resize: Resize::Letterbox { width, height, .. },
                        ..
                    },
                    Postprocessing::Detection { labels, .. },
                ) => Ok((width, height, labels.concat())),
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(read(&model), Ok((416, 320, String::new())));
        model.metadata.insert("names".into(), "{0: 'a', 1: 'b'}".into());
        assert_eq!(read(&model), Ok((416, 320, "ab".into())));
        model.metadata.insert("names".into(), "a, b".into());
        assert!(read(&model).unwrap_err().to_string().contains("\"a, b\""));
    }

    #[test]
    fn formats_that_need_the_inputs_size_get_it_from_the_model() {
        let mut model = recognizer(None, 5);
        let shape: Shape = [1, 3, 320, 416].into_iter().map(Dim::Known).collect();
        model
            .graph
            .inputs
            .push(ValueInfo::tensor("images", DataType::Float32, shape));
        for name in ["yolox", "rtdetr"] {
            let (preprocessing, postprocessing) = from_model(name, &model).unwrap();
            match postprocessing {
                Postprocessing::Detection {
                    format:
                        DetectionFormat::YoloX { width, height, .. } | DetectionFormat::Detr { width, height, .. },
                    ..
                } => assert_eq!((width, height), (416, 320), "{name}"),
                other => panic!("{other:?}"),
            }
            let prepared = prepare(&RgbImage::new(100, 100), &preprocessing).unwrap();
            assert_eq!(prepared.tensor.dims(), [1, 3, 320, 416], "{name}");
        }
        // YOLOX takes blue first and bytes as they are, the image in the corner.
        let (preprocessing, _) = from_model("yolox", &model).unwrap();
        let image = RgbImage::from_pixel(10, 10, image::Rgb([1, 2, 200]));
        let tensor = prepare(&image, &preprocessing).unwrap().tensor;
        let values = tensor.view::<f32>().unwrap();
        assert_eq!((values[0], values[415]), (200.0, 114.0));
    }

    #[test]
    fn an_unknown_name_is_answered_with_the_names_there_are() {
        let error = from_model("resnet", &recognizer(None, 5))
            .unwrap_err()
            .to_string();
        for name in NAMES {
            assert!(error.contains(name), "{error}");
        }
    }
}
