use super::facts::{Derived, Item, Op, one, ranked};
use crate::{Attribute, DataType, Dim, Shape};

pub(super) fn shape(op: &Op<'_>) -> Derived {
    let length = op.shape(0).map(|input| {
        let (start, end) = bounds(op, input.len());
        Dim::Known(end.saturating_sub(start))
    });
    one(
        Some(DataType::Int64),
        Some(Shape(vec![length.unwrap_or(Dim::Unknown)])),
    )
}

/// The axes `Shape` reports: `start..end`, clamped to the rank.
pub(super) fn bounds(op: &Op<'_>, rank: usize) -> (usize, usize) {
    let resolve = |bound: i64| {
        let bound = if bound < 0 {
            bound.saturating_add(rank as i64)
        } else {
            bound
        };
        bound.clamp(0, rank as i64) as usize
    };
    (
        resolve(op.node.int("start").unwrap_or(0)),
        op.node.int("end").map_or(rank, resolve),
    )
}

pub(super) fn size(_: &Op<'_>) -> Derived {
    one(Some(DataType::Int64), Some(Shape::default()))
}

pub(super) fn constant(op: &Op<'_>) -> Derived {
    let length = |n: usize| Some(Shape::known(&[n]));
    let scalar = Some(Shape::default());
    for (name, value) in &op.node.attributes {
        return match (name.as_str(), value) {
            ("value", Attribute::Tensor(tensor)) => {
                one(Some(tensor.dtype()), Some(Shape::known(tensor.dims())))
            }
            ("value_float", _) => one(Some(DataType::Float32), scalar),
            ("value_int", _) => one(Some(DataType::Int64), scalar),
            ("value_string", _) => one(Some(DataType::String), scalar),
            ("value_floats", Attribute::Floats(values)) => one(Some(DataType::Float32), length(values.len())),
            ("value_ints", Attribute::Ints(values)) => one(Some(DataType::Int64), length(values.len())),
            ("value_strings", Attribute::Strings(values)) => {
                one(Some(DataType::String), length(values.len()))
            }
            _ => continue,
        };
    }
    Ok(Vec::new())
}

pub(super) fn constant_of_shape(op: &Op<'_>) -> Derived {
    let dtype = match op.node.attributes.get("value") {
        Some(Attribute::Tensor(tensor)) => tensor.dtype(),
        _ => DataType::Float32,
    };
    let shape = match op.integers(0) {
        Some(value) => Some(value.items.iter().map(Item::dim).collect()),
        None => op
            .shape(0)
            .and_then(|shape| shape.first()?.known())
            .filter(|rank| *rank <= 64)
            .map(ranked),
    };
    one(Some(dtype), shape)
}

pub(super) fn range(op: &Op<'_>) -> Derived {
    let item = |input: usize| op.integers(input).and_then(|value| value.items.first().cloned());
    let length = match (item(0), item(1), item(2)) {
        (Some(Item::Known(start)), Some(Item::Known(limit)), Some(Item::Known(step))) if step != 0 => {
            let span = i128::from(limit) - i128::from(start);
            let step = i128::from(step);
            let steps = if span.signum() == step.signum() {
                (span.abs() + step.abs() - 1) / step.abs()
            } else {
                0
            };
            usize::try_from(steps).map_or(Dim::Unknown, Dim::Known)
        }
        (Some(Item::Known(0)), Some(limit @ Item::Symbol(_)), Some(Item::Known(1))) => limit.dim(),
        _ => Dim::Unknown,
    };
    one(op.dtype(0), Some(Shape(vec![length])))
}

fn declared(op: &Op<'_>) -> Option<DataType> {
    op.node
        .int("dtype")
        .and_then(|code| DataType::from_onnx(i32::try_from(code).ok()?))
}

pub(super) fn random(op: &Op<'_>) -> Derived {
    let shape = op.node.ints("shape").map(|dims| {
        dims.iter()
            .map(|length| usize::try_from(*length).map_or(Dim::Unknown, Dim::Known))
            .collect()
    });
    one(declared(op).or(Some(DataType::Float32)), shape)
}

pub(super) fn like(op: &Op<'_>) -> Derived {
    one(declared(op).or(op.dtype(0)), op.shape(0).cloned())
}
