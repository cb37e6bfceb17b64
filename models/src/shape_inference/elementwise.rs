use super::facts::{Derived, Op, one};
use crate::{DataType, Dim, Shape, ValueType};

/// The output is like the first input.
pub(super) fn same(op: &Op<'_>) -> Derived {
    Ok(vec![op.ty(0).cloned()])
}

/// Two lengths brought to one by NumPy's rule, or `None` if they cannot be.
fn joined(a: &Dim, b: &Dim) -> Option<Dim> {
    Some(match (a, b) {
        (Dim::Known(1), other) | (other, Dim::Known(1)) => other.clone(),
        (Dim::Known(x), Dim::Known(y)) => return (x == y).then(|| a.clone()),
        // A length above one wins over one that is not known: at run time they are equal or the other is one.
        (Dim::Known(_), _) => a.clone(),
        (_, Dim::Known(_)) => b.clone(),
        _ if a == b => a.clone(),
        _ => Dim::Unknown,
    })
}

/// Shapes brought to one by NumPy's broadcasting rule.
pub(super) fn broadcast_shapes(a: &Shape, b: &Shape) -> Result<Shape, String> {
    let rank = a.len().max(b.len());
    let at = |shape: &Shape, axis: usize| -> Dim {
        (axis + shape.len())
            .checked_sub(rank)
            .map_or(Dim::Known(1), |axis| shape[axis].clone())
    };
    (0..rank)
        .map(|axis| joined(&at(a, axis), &at(b, axis)))
        .collect::<Option<Shape>>()
        .ok_or_else(|| format!("the shapes {a} and {b} cannot be broadcast to one"))
}

fn common_shape(op: &Op<'_>, inputs: impl Iterator<Item = usize>) -> Result<Option<Shape>, String> {
    let mut common = Some(Shape::default());
    for input in inputs {
        common = match (common, op.shape(input)) {
            (Some(common), Some(shape)) => Some(broadcast_shapes(&common, shape)?),
            _ => None,
        };
    }
    Ok(common)
}

pub(super) fn broadcast(op: &Op<'_>) -> Derived {
    one(op.dtype(0), common_shape(op, 0..op.node.inputs.len())?)
}

pub(super) fn compare(op: &Op<'_>) -> Derived {
    one(Some(DataType::Bool), common_shape(op, 0..2)?)
}

pub(super) fn predicate(op: &Op<'_>) -> Derived {
    one(Some(DataType::Bool), op.shape(0).cloned())
}

pub(super) fn select(op: &Op<'_>) -> Derived {
    one(op.dtype(1), common_shape(op, 0..3)?)
}

pub(super) fn cast(op: &Op<'_>) -> Derived {
    let target = op
        .node
        .int("to")
        .and_then(|code| DataType::from_onnx(i32::try_from(code).ok()?));
    one(target, op.shape(0).cloned())
}

pub(super) fn cast_like(op: &Op<'_>) -> Derived {
    one(op.dtype(1), op.shape(0).cloned())
}

pub(super) fn dropout(op: &Op<'_>) -> Derived {
    let mask = ValueType::Tensor {
        dtype: DataType::Bool,
        shape: op.shape(0).cloned(),
    };
    Ok(vec![op.ty(0).cloned(), Some(mask)])
}

pub(super) fn quantize(op: &Op<'_>) -> Derived {
    let declared = op.node.int("output_dtype").filter(|code| *code != 0);
    let declared = declared.and_then(|code| DataType::from_onnx(i32::try_from(code).ok()?));
    one(
        op.dtype(2).or(declared).or(Some(DataType::Uint8)),
        op.shape(0).cloned(),
    )
}

pub(super) fn dequantize(op: &Op<'_>) -> Derived {
    // Before operator set 19 the scale was always float32.
    one(op.dtype(1), op.shape(0).cloned())
}

pub(super) fn dynamic_quantize(op: &Op<'_>) -> Derived {
    Ok(vec![
        Some(ValueType::Tensor {
            dtype: DataType::Uint8,
            shape: op.shape(0).cloned(),
        }),
        Some(ValueType::tensor(DataType::Float32, Shape::default())),
        Some(ValueType::tensor(DataType::Uint8, Shape::default())),
    ])
}
