use edgeopt_models::{DataType, Tensor};
use minicbor::Decoder;
use minicbor::data::Type;
use serde_json::{Map, Number, Value};

use super::{CborError, TYPED_ARRAYS};

/// Items within items, at most.
const DEEPEST: usize = 32;

/// One item, and nothing behind it, as the JSON that says the same: typed arrays are lists of numbers there, and what is
/// not finite is `null`.
pub(in crate::protocol) fn to_json(bytes: &[u8]) -> Result<Value, CborError> {
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
