use edgeopt_models::{DataType, Tensor};
use edgeopt_runtime::pipeline::postprocess::Prediction as Found;
use serde::{Serialize, Serializer};
use serde_json::Value;

/// What a model says about one input, before it is written down.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
pub enum Prediction {
    /// Read as the bundle declares: a text, classes, objects …
    Read(Found),
    /// Outputs as they are.
    #[serde(serialize_with = "raw")]
    Raw(Vec<RawOutput>),
}

/// An output that nothing is declared about.
#[derive(Clone, Debug, Serialize)]
pub struct RawOutput {
    /// Its name in the model.
    pub name: String,
    /// Type of its elements.
    #[serde(serialize_with = "as_text")]
    pub dtype: DataType,
    /// Its shape.
    #[serde(rename = "shape")]
    pub dims: Vec<usize>,
    /// Its elements; absent when there are too many for a message, or they are of a type without numbers.
    #[serde(skip_serializing_if = "is_without_numbers", serialize_with = "as_numbers")]
    pub values: Option<Tensor>,
}

impl Prediction {
    /// As JSON. Raw values are 32-bit floats there, and `null` where they are not finite.
    ///
    /// # Errors
    /// When it has no JSON form.
    pub fn to_json(&self) -> Result<Value, serde_json::Error> {
        serde_json::to_value(self)
    }
}

fn raw<S: Serializer>(outputs: &[RawOutput], serializer: S) -> Result<S::Ok, S::Error> {
    #[derive(Serialize)]
    struct Raw<'a> {
        kind: &'static str,
        outputs: &'a [RawOutput],
    }
    Raw { kind: "raw", outputs }.serialize(serializer)
}

fn as_text<S: Serializer>(dtype: &DataType, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(dtype)
}

fn is_without_numbers(values: &Option<Tensor>) -> bool {
    values.as_ref().is_none_or(|values| values.to_f32().is_err())
}

fn as_numbers<S: Serializer>(values: &Option<Tensor>, serializer: S) -> Result<S::Ok, S::Error> {
    match values.as_ref().map(Tensor::to_f32) {
        Some(Ok(values)) => values.as_ref().serialize(serializer),
        _ => serializer.serialize_none(),
    }
}
