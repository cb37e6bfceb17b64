use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::BundleError;
use super::member::{MANIFEST, MODEL, SIGNATURE, check_path};
use super::postprocessing::{OutputShape, Postprocessing};
use crate::{Bytes, DataType};

/// The format this version writes.
pub const FORMAT: &str = "1.0";

/// What a bundle says about its model: `manifest.json`, the first member. Unknown fields are refused within a
/// major format version, so that a typing mistake is never silently ignored.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// Format version, `major.minor`; a reader refuses majors it does not know.
    pub format: String,
    /// Name of the model: letters, digits, `.`, `_`, `-`.
    pub name: String,
    /// Version of the model, as the user counts it.
    pub version: String,
    /// Numeric precision the graph was built to.
    pub precision: Precision,
    /// Inputs in the graph's order.
    pub inputs: Vec<TensorInfo>,
    /// Outputs in the graph's order.
    pub outputs: Vec<TensorInfo>,
    /// How an image becomes the input; absent for models that take tensors.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preprocessing: Option<Preprocessing>,
    /// How the outputs become a result.
    #[serde(default)]
    pub postprocessing: Postprocessing,
    /// Memory the model takes, by batch size.
    pub memory: Vec<MemoryPlan>,
    /// Measured differences from the float model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accuracy: Option<AccuracySummary>,
    /// Where the model came from.
    pub provenance: Provenance,
    /// Every other member: path to digest and size.
    pub members: BTreeMap<String, MemberInfo>,
}

impl Manifest {
    /// A manifest of this format that says nothing yet but what the model is called.
    pub fn new(name: &str, version: &str, precision: Precision) -> Self {
        Self {
            format: FORMAT.to_owned(),
            name: name.to_owned(),
            version: version.to_owned(),
            precision,
            inputs: Vec::new(),
            outputs: Vec::new(),
            preprocessing: None,
            postprocessing: Postprocessing::Raw,
            memory: Vec::new(),
            accuracy: None,
            provenance: Provenance::default(),
            members: BTreeMap::new(),
        }
    }

    /// Whether this version can read a bundle of `format`: the same major, any minor.
    pub(super) fn check_format(format: &str) -> Result<(), BundleError> {
        let major = |format: &str| {
            format
                .split_once('.')
                .and_then(|(major, _)| major.parse::<u32>().ok())
        };
        match major(format) {
            Some(found) if Some(found) == major(FORMAT) => Ok(()),
            Some(found) => Err(BundleError::Manifest(format!(
                "format {format} is of major version {found}, this program reads {FORMAT}; update it"
            ))),
            None => Err(BundleError::Manifest(format!(
                "format {format:?} is not `major.minor`"
            ))),
        }
    }

    /// Checks what the types alone do not: format, names, member paths and digests, that there is a model, declared
    /// ranges, and that the outputs have the shapes the postprocessing reads.
    ///
    /// # Errors
    /// Naming the field that is wrong.
    pub fn validate(&self) -> Result<(), BundleError> {
        Self::check_format(&self.format)?;
        for (field, text) in [("name", &self.name), ("version", &self.version)] {
            let allowed = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'.' | b'_' | b'-' | b'+');
            if text.is_empty() || text.len() > 64 || !text.bytes().all(allowed) || text.starts_with('.') {
                return Err(BundleError::Manifest(format!(
                    "{field} {text:?}: use 1 to 64 ASCII letters, digits or `._-+`, not starting with a dot"
                )));
            }
        }
        for (name, info) in &self.members {
            check_path(name)?;
            if name == MANIFEST || name == SIGNATURE {
                return Err(BundleError::Manifest(format!(
                    "members: {name:?} cannot list itself"
                )));
            }
            let is_digest = info.sha256.len() == 64
                && info
                    .sha256
                    .bytes()
                    .all(|c| c.is_ascii_digit() || (b'a'..=b'f').contains(&c));
            if !is_digest {
                return Err(BundleError::Manifest(format!(
                    "members: the sha256 of {name:?} is not 64 hex digits"
                )));
            }
            let mut folders = name.match_indices('/').map(|(end, _)| &name[..end]);
            if let Some(folder) = folders.find(|folder| self.members.contains_key(*folder)) {
                return Err(BundleError::Manifest(format!(
                    "members: {folder:?} cannot be a file and the folder of {name:?}"
                )));
            }
        }
        if !self.members.contains_key(MODEL) {
            return Err(BundleError::Manifest(format!(
                "members: there is no {MODEL}, the model itself"
            )));
        }
        self.inputs
            .iter()
            .chain(&self.outputs)
            .try_for_each(check_ranges)?;
        let outputs: Vec<OutputShape<'_>> = self.outputs.iter().map(OutputShape::from).collect();
        self.postprocessing
            .check(&outputs)
            .map_err(|error| BundleError::Manifest(format!("postprocessing: {error}")))
    }
}

/// Checks that every range is one: not empty, and tuned for a length within it.
fn check_ranges(tensor: &TensorInfo) -> Result<(), BundleError> {
    for dim in &tensor.shape {
        if let DimInfo::Range { name, min, opt, max } = dim
            && !(*min >= 1 && min <= opt && opt <= max)
        {
            return Err(BundleError::Manifest(format!(
                "dimension {name:?} of {:?}: min {min}, opt {opt}, max {max} must be 1 ≤ min ≤ opt ≤ max",
                tensor.name
            )));
        }
    }
    Ok(())
}

/// Numeric precision of a graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Precision {
    /// 32-bit float, as given.
    Fp32,
    /// 16-bit float where that is safe.
    Fp16,
    /// 8-bit integers with float where that is needed.
    Int8,
}

impl std::fmt::Display for Precision {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Self::Fp32 => "fp32",
            Self::Fp16 => "fp16",
            Self::Int8 => "int8",
        })
    }
}

/// An input or output as the manifest declares it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TensorInfo {
    /// Name in the graph.
    pub name: String,
    /// Element type.
    pub dtype: DataType,
    /// Lengths.
    pub shape: Vec<DimInfo>,
}

/// One length: fixed, a range for a dimension that varies, or open.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged, deny_unknown_fields)]
pub enum DimInfo {
    /// Always this long.
    Fixed(usize),
    /// Between `min` and `max` inclusive; engines are tuned for `opt`.
    Range {
        /// Symbol of the dimension in the graph; equal symbols are equal lengths.
        name: String,
        /// Shortest allowed.
        min: usize,
        /// Length to tune for.
        opt: usize,
        /// Longest allowed.
        max: usize,
    },
    /// Of an output: a length that follows from the inputs' shapes or contents.
    Open {
        /// Symbol of the dimension in the graph.
        symbol: String,
    },
}

/// How an image becomes a model's input tensor. Steps in this order: decode, orient colours, resize,
/// scale and normalize, lay out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Preprocessing {
    /// Channels and their order.
    pub color: Color,
    /// How the image is brought to the input's size.
    pub resize: Resize,
    /// Value = (pixel × `scale` − `mean`) ÷ `std`, pixel in 0..=255; one mean and std per channel.
    pub scale: f32,
    /// Mean per channel, in the order of `color`.
    pub mean: Vec<f32>,
    /// Standard deviation per channel, in the order of `color`.
    pub std: Vec<f32>,
    /// Order of the tensor's axes.
    pub layout: Layout,
}

/// Channels and their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs)]
pub enum Color {
    Rgb,
    Bgr,
    Gray,
}

/// Order of an image tensor's axes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs)]
pub enum Layout {
    Nchw,
    Nhwc,
}

/// Where an image stands that does not fill its canvas.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Align {
    /// In the middle, border on both sides.
    #[default]
    Center,
    /// In the top left corner, border on the right or below.
    TopLeft,
}

impl Align {
    fn is_center(&self) -> bool {
        *self == Self::Center
    }
}

/// How an image is brought to the input's size.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "mode", deny_unknown_fields)]
pub enum Resize {
    /// To exactly this size, changing the aspect ratio.
    Stretch {
        /// Pixels.
        width: usize,
        /// Pixels.
        height: usize,
    },
    /// Fitted inside, aspect ratio kept, the rest filled with `fill` (pixel value).
    Letterbox {
        /// Pixels.
        width: usize,
        /// Pixels.
        height: usize,
        /// Pixel value of the border.
        fill: u8,
        /// Where the image stands.
        #[serde(default, skip_serializing_if = "Align::is_center")]
        align: Align,
    },
    /// Shorter side to `resize`, then the centre of this size.
    CenterCrop {
        /// Length of the shorter side in pixels, before cropping.
        resize: usize,
        /// Pixels.
        width: usize,
        /// Pixels.
        height: usize,
    },
    /// To this height, aspect ratio kept, padded on the right with zeros (after normalization) or squeezed to
    /// `width`: lines of text.
    FitHeight {
        /// Pixels.
        width: usize,
        /// Pixels.
        height: usize,
    },
    /// Longer side to at most `limit`, both sides rounded to a multiple of `multiple`: text detectors.
    LimitLongSide {
        /// Pixels.
        limit: usize,
        /// Pixels.
        multiple: usize,
    },
}

/// Memory the model takes at one batch size.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MemoryPlan {
    /// Batch size.
    pub batch: usize,
    /// Constants.
    pub weights: Bytes,
    /// Intermediate tensors at their peak, with lifetimes planned.
    pub activations: Bytes,
    /// Inputs and outputs.
    pub io: Bytes,
}

/// Differences from the float model, measured on the user's data.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AccuracySummary {
    /// Samples compared.
    pub samples: usize,
    /// Per output.
    pub outputs: Vec<OutputAccuracy>,
    /// The task's own metric, when labels were given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<TaskAccuracy>,
}

/// How close one output is to the float model's.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OutputAccuracy {
    /// Name of the output.
    pub name: String,
    /// Signal to quantization noise ratio in dB: 10·log₁₀(Σ ref² ÷ Σ (ref − out)²) over all samples.
    pub sqnr_db: f64,
    /// Cosine similarity over all samples.
    pub cosine: f64,
    /// Largest absolute difference.
    pub max_abs: f64,
}

/// The task's own metric for the float model and for this one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TaskAccuracy {
    /// Name of the metric, such as `top-1` or `character accuracy`.
    pub metric: String,
    /// The float model's value, 0..=1.
    pub float: f64,
    /// This model's value, 0..=1.
    pub this: f64,
}

/// Where a model came from.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Provenance {
    /// File name of the source model.
    pub source: String,
    /// SHA-256 of the source model, lower-case hex.
    pub source_sha256: String,
    /// Program and version that built the bundle.
    pub tool: String,
    /// Options that led to it, by name.
    pub options: BTreeMap<String, String>,
}

/// Digest and size of a member.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MemberInfo {
    /// SHA-256, lower-case hex.
    pub sha256: String,
    /// Size in bytes.
    pub size: Bytes,
}
