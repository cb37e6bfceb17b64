//! CBOR (RFC 8949) for results: the same fields as in JSON, and raw outputs as typed arrays of numbers (RFC 8746) in the
//! type that the model gives.

use std::borrow::Cow;
use std::convert::Infallible;

use edgeopt_models::{DataType, Tensor};
use edgeopt_runtime::pipeline::postprocess::Prediction as Found;
use minicbor::data::{Tag, Type};
use minicbor::{Decoder, Encoder, decode, encode};
use serde_json::{Map, Number, Value};

use super::prediction::{Prediction, RawOutput};
use super::result::ResultMessage;

/// Why bytes are no CBOR that a result may hold.
#[derive(Debug, thiserror::Error)]
pub enum CborError {
    /// They are no CBOR.
    #[error("not CBOR: {0}")]
    Malformed(#[from] decode::Error),
    /// An item has no place in a result.
    #[error("byte {at}: {problem}")]
    Foreign {
        /// Where it begins.
        at: usize,
        /// What is wrong with it.
        problem: String,
    },
}

/// Typed arrays, little-endian, by their tags: RFC 8746, section 2.1.
const TYPED_ARRAYS: [(DataType, u64); 11] = [
    (DataType::Uint8, 64),
    (DataType::Uint16, 69),
    (DataType::Uint32, 70),
    (DataType::Uint64, 71),
    (DataType::Int8, 72),
    (DataType::Int16, 77),
    (DataType::Int32, 78),
    (DataType::Int64, 79),
    (DataType::Float16, 84),
    (DataType::Float32, FLOATS),
    (DataType::Float64, 86),
];

/// Tag of 32-bit floats.
const FLOATS: u64 = 85;

/// Items within items, at most.
const DEEPEST: usize = 32;

/// Why a result has no CBOR form.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unwritten {
    #[error(transparent)]
    Cbor(#[from] encode::Error<Infallible>),
    #[error(transparent)]
    Value(#[from] serde_json::Error),
}

type Written = Result<(), encode::Error<Infallible>>;
type Out<'a> = Encoder<&'a mut Vec<u8>>;

/// A result as one map.
pub(super) fn write(message: &ResultMessage<Prediction>) -> Result<Vec<u8>, Unwritten> {
    let mut bytes = Vec::new();
    let mut out = Encoder::new(&mut bytes);
    out.map(7 + u64::from(message.wall_ms.is_some()))?;
    out.str("id")?.str(&message.id)?;
    out.str("stream")?.str(&message.stream)?;
    out.str("model")?.str(&message.model)?;
    out.str("version")?.str(&message.version)?;
    if let Some(wall_ms) = message.wall_ms {
        out.str("wall_ms")?.u64(wall_ms)?;
    }
    out.str("monotonic_us")?.u64(message.monotonic_us)?;
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

fn write_value(out: &mut Out<'_>, value: &Value) -> Written {
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

/// One item, and nothing behind it, as the JSON that says the same: typed arrays are lists of numbers there, and what is
/// not finite is `null`.
pub(super) fn to_json(bytes: &[u8]) -> Result<Value, CborError> {
    let mut from = Decoder::new(bytes);
    let value = read(&mut from, 0)?;
    if from.position() < bytes.len() {
        return Err(foreign(&from, "something stands behind the result"));
    }
    Ok(value)
}

fn foreign(from: &Decoder<'_>, problem: impl Into<String>) -> CborError {
    CborError::Foreign {
        at: from.position(),
        problem: problem.into(),
    }
}

fn read(from: &mut Decoder<'_>, depth: usize) -> Result<Value, CborError> {
    if depth > DEEPEST {
        return Err(foreign(
            from,
            format!("items lie more than {DEEPEST} deep in each other"),
        ));
    }
    Ok(match from.datatype()? {
        Type::Null | Type::Undefined => {
            from.skip()?;
            Value::Null
        }
        Type::Bool => Value::Bool(from.bool()?),
        Type::U8 | Type::U16 | Type::U32 | Type::U64 => Value::from(from.u64()?),
        Type::I8 | Type::I16 | Type::I32 | Type::I64 => Value::from(from.i64()?),
        Type::F16 => float(from.f16()?.into()),
        Type::F32 => float(from.f32()?.into()),
        Type::F64 => float(from.f64()?),
        Type::String | Type::StringIndef => Value::String(text(from)?),
        Type::Array | Type::ArrayIndef => {
            let (length, mut items) = (from.array()?, Vec::new());
            while more(from, length, items.len())? {
                items.push(read(from, depth + 1)?);
            }
            Value::Array(items)
        }
        Type::Map | Type::MapIndef => {
            let (length, mut fields, mut count) = (from.map()?, Map::new(), 0);
            while more(from, length, count)? {
                let name = text(from)?;
                fields.insert(name, read(from, depth + 1)?);
                count += 1;
            }
            Value::Object(fields)
        }
        Type::Tag => {
            let tag = from.tag()?.as_u64();
            typed_array(from, tag)?
        }
        other => return Err(foreign(from, format!("{other} has no place in a result"))),
    })
}

/// Whether another item of a list comes.
fn more(from: &mut Decoder<'_>, length: Option<u64>, count: usize) -> Result<bool, CborError> {
    match length {
        Some(length) => Ok((count as u64) < length),
        None if from.datatype()? == Type::Break => {
            from.skip()?;
            Ok(false)
        }
        None => Ok(true),
    }
}

fn text(from: &mut Decoder<'_>) -> Result<String, CborError> {
    Ok(from.str_iter()?.collect::<Result<String, _>>()?)
}

fn float(value: f64) -> Value {
    Number::from_f64(value).map_or(Value::Null, Value::Number)
}

fn typed_array(from: &mut Decoder<'_>, tag: u64) -> Result<Value, CborError> {
    let at = from.position();
    let wrong = |problem: String| CborError::Foreign { at, problem };
    let (dtype, _) = TYPED_ARRAYS
        .iter()
        .find(|(_, own)| *own == tag)
        .ok_or_else(|| wrong(format!("tag {tag} has no place in a result")))?;
    let bytes = from.bytes()?;
    let width = dtype.size_of(1).unwrap_or(1);
    let tensor = Tensor::from_bytes(*dtype, &[bytes.len() / width], bytes)
        .map_err(|error| wrong(format!("an array of {dtype}: {error}")))?;
    let list = match dtype {
        DataType::Float64 => tensor
            .view::<f64>()
            .map(|all| all.iter().map(|value| float(*value)).collect()),
        DataType::Uint64 => tensor
            .view::<u64>()
            .map(|all| all.iter().map(|value| Value::from(*value)).collect()),
        DataType::Float16 | DataType::Float32 => tensor
            .to_f32()
            .map(|all| all.iter().map(|value| float((*value).into())).collect()),
        _ => tensor
            .to_i64()
            .map(|all| all.iter().map(|value| Value::from(*value)).collect()),
    };
    list.map(Value::Array).map_err(|error| wrong(error.to_string()))
}

#[cfg(test)]
mod tests {
    use edgeopt_runtime::pipeline::detection::{Bounds, Object};
    use serde_json::json;

    use super::super::{Encoding, ResultMessage};
    use super::*;

    fn message(prediction: Prediction) -> ResultMessage<Prediction> {
        ResultMessage {
            id: "5f0c2a9e61b7d384-42".into(),
            stream: "mqtt".into(),
            model: "net".into(),
            version: "2".into(),
            wall_ms: Some(1_789_000_000_123),
            monotonic_us: 81_234_567,
            latency_ms: 12.5,
            prediction,
        }
    }

    fn raw(tensors: Vec<Tensor>) -> Prediction {
        let output = |tensor: Tensor| RawOutput {
            name: "y".into(),
            dtype: tensor.dtype(),
            dims: tensor.dims().to_vec(),
            values: Some(tensor),
        };
        Prediction::Raw(tensors.into_iter().map(output).collect())
    }

    fn objects(count: usize) -> Prediction {
        let object = |index: usize| {
            let at = index as f32 * 17.3;
            Object {
                class: index % 80,
                label: Some("traffic light".into()),
                score: 0.9375 - at / 1000.0,
                bounds: Bounds {
                    left: at,
                    top: at + 0.1,
                    right: at + 40.7,
                    bottom: at + 80.9,
                },
            }
        };
        Prediction::Read(Found::Objects {
            objects: (0..count).map(object).collect(),
        })
    }

    #[test]
    fn both_encodings_say_the_same() {
        let numbers = raw(vec![
            Tensor::new(&[2, 2], &[0.1f32, -1.5, 1e-30, 3e38]).unwrap(),
            Tensor::vector(&[1i64, -7]),
            Tensor::vector(&[1u8, 255]),
            Tensor::bools(&[2], &[true, false]).unwrap(),
            Tensor::vector(&[half::f16::from_f32(0.5)]),
            Tensor::vector(&[half::bf16::from_f32(-2.0)]),
        ]);
        let vector = Found::Embedding {
            vector: vec![0.6, -0.8],
        };
        for prediction in [numbers, objects(3), Prediction::Read(vector)] {
            for wall_ms in [Some(1), None] {
                let message = ResultMessage {
                    wall_ms,
                    ..message(prediction.clone())
                };
                let written =
                    [Encoding::Json, Encoding::Cbor].map(|encoding| message.encode(encoding).unwrap());
                assert_eq!((written[0][0], written[1][0] & 0xe0), (b'{', 0xa0));
                // Integers of raw outputs are floats in JSON, and floats have as many digits as 32 bits need.
                let mut read = written.map(|bytes| ResultMessage::decode(&bytes).unwrap());
                for message in &mut read {
                    floats(&mut message.prediction);
                }
                assert_eq!(read[0], read[1]);
            }
        }
    }

    fn floats(value: &mut Value) {
        match value {
            Value::Number(number) => *value = json!(number.as_f64().map(|number| number as f32)),
            Value::Array(items) => items.iter_mut().for_each(floats),
            Value::Object(fields) => fields.values_mut().for_each(floats),
            _ => {}
        }
    }

    #[test]
    fn every_json_comes_back() {
        let mixed = json!({
            "list": [1, -1, 0.1, 0.5, null, true, "ä"], "none": {}, "large": u64::MAX, "small": i64::MIN, "empty": [],
        });
        let mut bytes = Vec::new();
        write_value(&mut Encoder::new(&mut bytes), &mixed).unwrap();
        assert_eq!(to_json(&bytes).unwrap(), mixed);
    }

    #[test]
    fn a_raw_output_is_a_typed_array_in_its_own_type() {
        let values = [1.0f32, f32::NAN, f32::NEG_INFINITY];
        let bytes = message(raw(vec![Tensor::vector(&values), Tensor::vector(&[i64::MAX])]))
            .encode(Encoding::Cbor)
            .unwrap();
        // Tag 85, 12 bytes; tag 79, 8 bytes.
        let expected: Vec<u8> = [0xd8, 85, 0x4c]
            .into_iter()
            .chain(values.iter().flat_map(|value| value.to_le_bytes()))
            .collect();
        assert!(bytes.windows(expected.len()).any(|part| part == expected));
        let read = ResultMessage::decode(&bytes).unwrap();
        assert_eq!(read.prediction["outputs"][0]["values"], json!([1.0, null, null]));
        assert_eq!(
            read.prediction["outputs"][1]["values"],
            json!([i64::MAX]),
            "exact, unlike JSON"
        );
    }

    #[test]
    fn what_is_no_result_is_refused_with_the_place() {
        let good = message(objects(1)).encode(Encoding::Cbor).unwrap();
        for end in 1..good.len() {
            assert!(ResultMessage::decode(&good[..end]).is_err(), "{end}");
        }
        let deep: Vec<u8> = [0xa1, 0x61, b'a'].repeat(1000);
        for (bytes, part) in [
            ([good.clone(), vec![0]].concat(), "something stands behind"),
            (deep, "deep in each other"),
            (b"\xa1\x61a\x41b".to_vec(), "byte 3"),
            (b"\xa1\x61a\xc0\x61b".to_vec(), "tag 0 has no place"),
            // Three bytes are no array of 32-bit numbers; a list of 2^63 items ends at once.
            (b"\xa1\x61a\xd8\x55\x43abc".to_vec(), "float32"),
            (
                b"\xa1\x61a\x9b\x7f\xff\xff\xff\xff\xff\xff\xff".to_vec(),
                "end of input",
            ),
            (b"\xa0".to_vec(), "missing field"),
        ] {
            let error = ResultMessage::decode(&bytes).unwrap_err().to_string();
            assert!(error.contains(part), "{bytes:x?}: {error}");
        }
        // Others may write lists of unknown length and half-precision numbers.
        let indefinite = b"\xbf\x61a\x9f\xf9\x3c\x00\x7f\x61b\x61c\xff\xff\xff";
        assert_eq!(
            ResultMessage::json_of(indefinite).unwrap(),
            json!({ "a": [1.0, "bc"] })
        );
    }

    /// The sizes in `docs/mqtt.md`.
    #[test]
    fn cbor_is_smaller() {
        let thousand: Vec<f32> = (0..1000).map(|index| (index as f32 * 0.37).sin()).collect();
        let sizes = |prediction: Prediction| {
            let message = message(prediction);
            [Encoding::Json, Encoding::Cbor].map(|encoding| message.encode(encoding).unwrap().len())
        };
        let (few, numbers) = (sizes(objects(10)), sizes(raw(vec![Tensor::vector(&thousand)])));
        println!("10 objects: {few:?} bytes; 1000 numbers: {numbers:?} bytes");
        assert!(few[1] * 4 < few[0] * 3, "{few:?}");
        assert!(
            numbers[1] < 4000 + 200 && numbers[1] * 2 < numbers[0],
            "{numbers:?}"
        );
    }
}
