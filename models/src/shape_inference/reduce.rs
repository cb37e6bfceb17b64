use super::facts::{Derived, Op, normalized, one, ranked};
use crate::{DataType, Dim, Shape, ValueType};

fn reduced(input: &Shape, axes: &[usize], keep: bool) -> Shape {
    input
        .iter()
        .enumerate()
        .filter_map(|(axis, dim)| match (axes.contains(&axis), keep) {
            (false, _) => Some(dim.clone()),
            (true, true) => Some(Dim::Known(1)),
            (true, false) => None,
        })
        .collect()
}

pub(super) fn reduce(op: &Op<'_>) -> Derived {
    let Some(input) = op.shape(0) else {
        return one(op.dtype(0), None);
    };
    let keep = op.node.int("keepdims").unwrap_or(1) != 0;
    let axes = if op.has_axes(1) {
        match op.axes(1) {
            Some(axes) => axes,
            None => return one(op.dtype(0), keep.then(|| ranked(input.len()))),
        }
    } else {
        Vec::new()
    };
    if axes.is_empty() && op.node.int("noop_with_empty_axes") == Some(1) {
        return one(op.dtype(0), Some(input.clone()));
    }
    let axes = if axes.is_empty() {
        (0..input.len()).collect()
    } else {
        axes.iter()
            .map(|axis| normalized(*axis, input.len()))
            .collect::<Result<Vec<_>, _>>()?
    };
    one(op.dtype(0), Some(reduced(input, &axes, keep)))
}

pub(super) fn arg(op: &Op<'_>) -> Derived {
    let Some(input) = op.shape(0) else {
        return one(Some(DataType::Int64), None);
    };
    let axis = normalized(op.node.int("axis").unwrap_or(0), input.len())?;
    let keep = op.node.int("keepdims").unwrap_or(1) != 0;
    one(Some(DataType::Int64), Some(reduced(input, &[axis], keep)))
}

pub(super) fn top_k(op: &Op<'_>) -> Derived {
    let shape = match op.shape(0) {
        Some(input) => {
            let axis = normalized(op.node.int("axis").unwrap_or(-1), input.len())?;
            let mut shape = input.clone();
            let count = op
                .integers(1)
                .and_then(|value| value.items.first().map(super::facts::Item::dim));
            shape[axis] = count.unwrap_or(Dim::Unknown);
            Some(shape)
        }
        None => None,
    };
    let values = op.dtype(0).map(|dtype| ValueType::Tensor {
        dtype,
        shape: shape.clone(),
    });
    Ok(vec![
        values,
        Some(ValueType::Tensor {
            dtype: DataType::Int64,
            shape,
        }),
    ])
}
