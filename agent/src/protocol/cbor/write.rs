use std::borrow::Cow;
use std::convert::Infallible;

use edgeopt_models::{DataType, Tensor};
use edgeopt_runtime::pipeline::postprocess::Prediction as Found;
use minicbor::data::Tag;
use minicbor::{Encoder, encode};
use serde_json::Value;

use super::{FLOATS, TYPED_ARRAYS, Unwritten};
use crate::protocol::{Prediction, RawOutput, ResultMessage};

pub(super) type Written = Result<(), encode::Error<Infallible>>;
pub(super) type Out<'a> = Encoder<&'a mut Vec<u8>>;

/// A result as one map.
pub(in crate::protocol) fn write(message: &ResultMessage<Prediction>) -> Result<Vec<u8>, Unwritten> {
    let mut bytes = Vec::new();
    let mut out = Encoder::new(&mut bytes);
    let optional = u64::from(message.wall_ms.is_some()) + u64::from(message.sequence.is_some());
    out.map(7 + optional)?;
    out.str("id")?.str(&message.id)?;
    out.str("stream")?.str(&message.stream)?;
    out.str("model")?.str(&message.model)?;
    out.str("version")?.str(&message.version)?;
    if let Some(wall_ms) = message.wall_ms {
        out.str("wall_ms")?.u64(wall_ms)?;
    }
    out.str("monotonic_us")?.u64(message.monotonic_us)?;
    if let Some(sequence) = message.sequence {
        out.str("sequence")?.u64(sequence)?;
    }
    out.str("latency_ms")?;
    write_float(&mut out, message.latency_ms)?;
    out.str("prediction")?;
    match &message.prediction {
        Prediction::Read(Found::Embedding { vector }) => {
            let bytes: Vec<u8> = vector.iter().flat_map(|value| value.to_le_bytes()).collect();
            out.map(2)?.str("kind")?.str("embedding")?;
            out.str("vector")?.tag(Tag::new(FLOATS))?.bytes(&bytes)?;
        }
        prediction @ Prediction::Read(_) => write_value(&mut out, &prediction.to_json()?)?,
        Prediction::Raw(outputs) => {
            out.map(2)?.str("kind")?.str("raw")?.str("outputs")?;
            out.array(outputs.len() as u64)?;
            for output in outputs {
                write_raw(&mut out, output)?;
            }
        }
    }
    Ok(bytes)
}

fn write_raw(out: &mut Out<'_>, output: &RawOutput) -> Written {
    let values = output.values.as_ref().and_then(typed);
    out.map(3 + u64::from(values.is_some()))?;
    out.str("name")?.str(&output.name)?;
    out.str("dtype")?.str(&output.dtype.to_string())?;
    out.str("shape")?.array(output.dims.len() as u64)?;
    for dim in &output.dims {
        out.u64(*dim as u64)?;
    }
    if let Some((tag, bytes)) = values {
        out.str("values")?.tag(Tag::new(tag))?.bytes(&bytes)?;
    }
    Ok(())
}

/// The tag of a typed array and its bytes, without loss; `None` for types that no such array holds. A tensor's bytes are
/// little-endian, as ONNX demands.
fn typed(tensor: &Tensor) -> Option<(u64, Cow<'_, [u8]>)> {
    let dtype = match tensor.dtype() {
        DataType::Bool => DataType::Uint8,
        dtype => dtype,
    };
    if let Some((_, tag)) = TYPED_ARRAYS.iter().find(|(own, _)| *own == dtype) {
        return Some((*tag, Cow::Borrowed(tensor.as_bytes())));
    }
    let values = tensor.to_f32().ok()?;
    let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    Some((FLOATS, Cow::Owned(bytes)))
}

pub(super) fn write_value(out: &mut Out<'_>, value: &Value) -> Written {
    match value {
        Value::Null => out.null().map(drop),
        Value::Bool(value) => out.bool(*value).map(drop),
        Value::String(text) => out.str(text).map(drop),
        Value::Number(number) => match (number.as_u64(), number.as_i64(), number.as_f64()) {
            (Some(value), ..) => out.u64(value).map(drop),
            (_, Some(value), _) => out.i64(value).map(drop),
            (_, _, Some(value)) => write_float(out, value),
            // Beyond every number of Rust's.
            _ => out.str(&number.to_string()).map(drop),
        },
        Value::Array(items) => {
            out.array(items.len() as u64)?;
            items.iter().try_for_each(|item| write_value(out, item))
        }
        Value::Object(fields) => {
            out.map(fields.len() as u64)?;
            for (name, value) in fields {
                out.str(name)?;
                write_value(out, value)?;
            }
            Ok(())
        }
    }
}

/// In four bytes where they hold the number exactly, as they do for what was computed with four.
fn write_float(out: &mut Out<'_>, value: f64) -> Written {
    let short = value as f32;
    if f64::from(short) == value || value.is_nan() {
        out.f32(short).map(drop)
    } else {
        out.f64(value).map(drop)
    }
}
