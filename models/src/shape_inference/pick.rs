//! Parts of tensors: slices, gathers, splits, and their counterpart, concatenation.

use super::facts::{Derived, Item, Op, normalized, one, ranked};
use crate::{DataType, Dim, Shape, ValueType};

pub(super) fn concat(op: &Op<'_>) -> Derived {
    let shapes: Option<Vec<&Shape>> = (0..op.node.inputs.len()).map(|input| op.shape(input)).collect();
    let Some(shapes) = shapes.filter(|shapes| !shapes.is_empty()) else {
        return one(op.dtype(0), None);
    };
    let rank = shapes[0].len();
    let axis = normalized(op.node.int("axis").ok_or("axis is missing")?, rank)?;
    let mut result = shapes[0].clone();
    for shape in &shapes[1..] {
        if shape.len() != rank {
            return Err(format!(
                "inputs of shapes {} and {shape} cannot be joined",
                shapes[0]
            ));
        }
        for (index, dim) in shape.iter().enumerate() {
            if index == axis {
                continue;
            }
            match (result[index].known(), dim.known()) {
                (Some(a), Some(b)) if a != b => {
                    return Err(format!(
                        "inputs of shapes {} and {shape} cannot be joined along {axis}",
                        shapes[0]
                    ));
                }
                (None, Some(_)) => result[index] = dim.clone(),
                _ => {}
            }
        }
    }
    let total = shapes
        .iter()
        .try_fold(0usize, |total, shape| total.checked_add(shape[axis].known()?));
    let lengths: Vec<&Dim> = shapes
        .iter()
        .map(|shape| &shape[axis])
        .filter(|dim| **dim != Dim::Known(0))
        .collect();
    result[axis] = match (total, lengths.as_slice()) {
        (Some(total), _) => Dim::Known(total),
        (None, [only]) => (*only).clone(),
        _ => Dim::Unknown,
    };
    one(op.dtype(0), Some(result))
}

pub(super) fn split(op: &Op<'_>) -> Derived {
    let count = op.node.outputs.len();
    let Some(input) = op.shape(0) else {
        return Ok(vec![
            op.dtype(0)
                .map(|dtype| ValueType::Tensor { dtype, shape: None });
            count
        ]);
    };
    let axis = normalized(op.node.int("axis").unwrap_or(0), input.len())?;
    let given = op.node.ints("split").map(<[i64]>::to_vec).or_else(|| op.known(1));
    let lengths: Vec<Dim> = if let Some(given) = given {
        given
            .iter()
            .map(|length| usize::try_from(*length).map_or(Dim::Unknown, Dim::Known))
            .collect()
    } else if op.node.input(1).is_some() {
        vec![Dim::Unknown; count]
    } else {
        // Equal parts; the last is shorter if the length is no multiple (operator set 18).
        match input[axis].known() {
            Some(length) if count > 0 => {
                let part = length.div_ceil(count);
                (0..count)
                    .map(|index| Dim::Known(part.min(length.saturating_sub(part * index))))
                    .collect()
            }
            _ => vec![Dim::Unknown; count],
        }
    };
    if lengths.len() != count {
        return Err(format!("{} lengths for {count} outputs", lengths.len()));
    }
    let sum = lengths
        .iter()
        .try_fold(0usize, |sum, dim| sum.checked_add(dim.known()?));
    if let (Some(sum), Some(length)) = (sum, input[axis].known())
        && sum != length
    {
        return Err(format!(
            "the parts add up to {sum}, axis {axis} of {input} has {length}"
        ));
    }
    Ok(lengths
        .into_iter()
        .map(|length| {
            let mut shape = input.clone();
            shape[axis] = length;
            op.dtype(0).map(|dtype| ValueType::tensor(dtype, shape))
        })
        .collect())
}

/// Length of `start..end` with `step` over `length` elements, by NumPy's rules for out-of-range and negative bounds.
pub(super) fn sliced(length: i64, start: i64, end: i64, step: i64) -> i64 {
    let resolve = |bound: i64, low: i64, high: i64| {
        let bound = if bound < 0 {
            bound.saturating_add(length)
        } else {
            bound
        };
        bound.clamp(low, high)
    };
    let span = if step > 0 {
        resolve(end, 0, length) - resolve(start, 0, length)
    } else {
        // The end may stand before the first element; the largest negative number means that.
        let end = if end < -length {
            -1
        } else {
            resolve(end, -1, length - 1)
        };
        resolve(start, 0, (length - 1).max(0)).min(length - 1) - end
    };
    if span <= 0 {
        0
    } else {
        (span - 1) / step.saturating_abs().max(1) + 1
    }
}

pub(super) fn slice(op: &Op<'_>) -> Derived {
    let Some(input) = op.shape(0) else {
        return one(op.dtype(0), None);
    };
    let list = |name: &str, index: usize| {
        op.node
            .ints(name)
            .map(|values| values.iter().map(|value| Item::Known(*value)).collect::<Vec<_>>())
            .or_else(|| op.integers(index).map(|value| value.items))
    };
    let (Some(starts), Some(ends)) = (list("starts", 1), list("ends", 2)) else {
        return one(op.dtype(0), Some(ranked(input.len())));
    };
    let all: Vec<i64> = (0..starts.len() as i64).collect();
    let axes = match op.axes(3) {
        Some(axes) => axes,
        None if op.has_axes(3) => return one(op.dtype(0), Some(ranked(input.len()))),
        None => all,
    };
    let steps = match op.node.input(4) {
        Some(_) => op.integers(4).map(|value| value.items),
        None => Some(vec![Item::Known(1); starts.len()]),
    };
    let Some(steps) = steps else {
        return one(op.dtype(0), Some(ranked(input.len())));
    };
    if [ends.len(), axes.len(), steps.len()]
        .iter()
        .any(|length| *length != starts.len())
    {
        return Err("starts, ends, axes and steps must have the same length".into());
    }
    let mut shape = input.clone();
    for (index, axis) in axes.iter().enumerate() {
        let axis = normalized(*axis, input.len())?;
        shape[axis] = match (
            input[axis].known(),
            starts[index].known(),
            ends[index].known(),
            steps[index].known(),
        ) {
            (_, _, _, Some(0)) => return Err("a step is 0".into()),
            (Some(length), Some(start), Some(end), Some(step)) => {
                Dim::Known(sliced(length as i64, start, end, step) as usize)
            }
            (None, Some(0), Some(i64::MAX), Some(1)) => input[axis].clone(),
            _ => Dim::Unknown,
        };
    }
    one(op.dtype(0), Some(shape))
}

pub(super) fn gather(op: &Op<'_>) -> Derived {
    let (Some(data), Some(indices)) = (op.shape(0), op.shape(1)) else {
        return one(op.dtype(0), None);
    };
    let axis = normalized(op.node.int("axis").unwrap_or(0), data.len())?;
    let shape = data[..axis]
        .iter()
        .chain(indices.iter())
        .chain(&data[axis + 1..])
        .cloned();
    one(op.dtype(0), Some(shape.collect()))
}

pub(super) fn gather_elements(op: &Op<'_>) -> Derived {
    one(op.dtype(0), op.shape(1).cloned())
}

pub(super) fn gather_nd(op: &Op<'_>) -> Derived {
    let (Some(data), Some(indices)) = (op.shape(0), op.shape(1)) else {
        return one(op.dtype(0), None);
    };
    let batch = op
        .node
        .int("batch_dims")
        .and_then(|n| usize::try_from(n).ok())
        .unwrap_or(0);
    let Some(depth) = indices.last().and_then(Dim::known) else {
        return one(op.dtype(0), None);
    };
    let Some(rest) = batch.checked_add(depth).and_then(|skip| data.get(skip..)) else {
        return Err(format!(
            "indices of shape {indices} reach beyond data of shape {data}"
        ));
    };
    one(
        op.dtype(0),
        Some(indices[..indices.len() - 1].iter().chain(rest).cloned().collect()),
    )
}

pub(super) fn pad(op: &Op<'_>) -> Derived {
    let Some(input) = op.shape(0) else {
        return one(op.dtype(0), None);
    };
    let pads = op.node.ints("pads").map(<[i64]>::to_vec).or_else(|| op.known(1));
    let Some(pads) = pads else {
        return one(op.dtype(0), Some(ranked(input.len())));
    };
    let axes = match op.node.input(3) {
        Some(_) => match op.known(3) {
            Some(axes) => axes
                .iter()
                .map(|axis| normalized(*axis, input.len()))
                .collect::<Result<Vec<_>, _>>()?,
            None => return one(op.dtype(0), Some(ranked(input.len()))),
        },
        None => (0..input.len()).collect(),
    };
    if pads.len() != axes.len() * 2 {
        return Err(format!("{} pads for {} axes", pads.len(), axes.len()));
    }
    let mut shape = input.clone();
    for (index, axis) in axes.iter().enumerate() {
        let Some(extra) = pads[index].checked_add(pads[index + axes.len()]) else {
            continue;
        };
        if extra != 0 {
            let length = input[*axis]
                .known()
                .and_then(|n| i64::try_from(n).ok()?.checked_add(extra));
            shape[*axis] = length
                .and_then(|n| usize::try_from(n).ok())
                .map_or(Dim::Unknown, Dim::Known);
        }
    }
    one(op.dtype(0), Some(shape))
}

pub(super) fn one_hot(op: &Op<'_>) -> Derived {
    let Some(indices) = op.shape(0) else {
        return one(op.dtype(2), None);
    };
    let axis = normalized(op.node.int("axis").unwrap_or(-1), indices.len() + 1)?;
    let mut shape = indices.clone();
    let depth = op
        .integers(1)
        .and_then(|value| value.items.first().map(Item::dim))
        .unwrap_or(Dim::Unknown);
    shape.insert(axis, depth);
    one(op.dtype(2), Some(shape))
}

/// Lengths that depend on the data.
pub(super) fn data_dependent(op: &Op<'_>) -> Derived {
    match op.node.op_type.as_str() {
        "NonZero" => {
            let rank = op.shape(0).map_or(Dim::Unknown, |shape| Dim::Known(shape.len()));
            one(Some(DataType::Int64), Some(Shape(vec![rank, Dim::Unknown])))
        }
        "NonMaxSuppression" => one(
            Some(DataType::Int64),
            Some(Shape(vec![Dim::Unknown, Dim::Known(3)])),
        ),
        _ => {
            // Compress without an axis flattens.
            let shape = match (op.node.int("axis"), op.shape(0)) {
                (None, _) => Some(ranked(1)),
                (Some(axis), Some(input)) => {
                    let mut shape = input.clone();
                    shape[normalized(axis, input.len())?] = Dim::Unknown;
                    Some(shape)
                }
                _ => None,
            };
            one(op.dtype(0), shape)
        }
    }
}
