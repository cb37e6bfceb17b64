use super::elementwise::broadcast_shapes;
use super::facts::{Derived, Item, Op, normalized, one, ranked};
use crate::{Dim, Shape};

/// The product of all lengths, if all are known.
fn elements(dims: &[Dim]) -> Option<usize> {
    dims.iter()
        .try_fold(1usize, |product, dim| product.checked_mul(dim.known()?))
}

pub(super) fn reshape(op: &Op<'_>) -> Derived {
    let Some(target) = op.integers(1) else {
        // Not even the rank, unless the length of the shape tensor is known.
        let rank = op
            .shape(1)
            .and_then(|shape| shape.first()?.known())
            .filter(|rank| *rank <= 64);
        return one(op.dtype(0), rank.map(ranked));
    };
    let keep_zero = op.node.int("allowzero") == Some(1);
    let input = op.shape(0);
    let mut shape = Shape::default();
    let mut rest = None;
    for (axis, item) in target.items.iter().enumerate() {
        shape.push(match item {
            Item::Known(0) if !keep_zero => match input {
                Some(input) => input
                    .get(axis)
                    .cloned()
                    .ok_or_else(|| format!("shape {axis} is 0, the input has shape {input}"))?,
                None => Dim::Unknown,
            },
            Item::Known(-1) => {
                if rest.replace(axis).is_some() {
                    return Err("the shape has more than one -1".into());
                }
                Dim::Unknown
            }
            Item::Known(length) if *length < 0 => return Err(format!("the shape has the length {length}")),
            other => other.dim(),
        });
    }
    if let (Some(rest), Some(input)) = (rest, input) {
        shape[rest] = remainder(input, &shape, rest)?;
    } else if let (Some(input), Some(output)) = (input.and_then(|shape| elements(shape)), elements(&shape))
        && input != output
    {
        return Err(format!("{input} elements cannot be reshaped to {shape}"));
    }
    one(op.dtype(0), Some(shape))
}

/// The length that -1 stands for. Lengths that appear on both sides, known or not, cancel.
fn remainder(input: &Shape, shape: &Shape, rest: usize) -> Result<Dim, String> {
    let mut left: Vec<Dim> = input.to_vec();
    let mut right = Vec::new();
    for (axis, dim) in shape.iter().enumerate().filter(|(axis, _)| *axis != rest) {
        let same = left
            .iter()
            .position(|other| matches!(dim, Dim::Symbol(_)) && other == dim);
        match same {
            Some(index) => {
                left.remove(index);
            }
            None => right.push(shape[axis].clone()),
        }
    }
    let Some(below) = elements(&right) else {
        return Ok(Dim::Unknown);
    };
    let known: Vec<Dim> = left.iter().filter(|dim| dim.known().is_some()).cloned().collect();
    let open: Vec<&Dim> = left.iter().filter(|dim| dim.known().is_none()).collect();
    let Some(above) = elements(&known) else {
        return Ok(Dim::Unknown);
    };
    match open.as_slice() {
        [] if below == 0 => Ok(Dim::Unknown),
        [] if above % below != 0 => Err(format!("{above} elements cannot be reshaped to {shape}")),
        [] => Ok(Dim::Known(above / below)),
        [only] if above == below => Ok((*only).clone()),
        _ => Ok(Dim::Unknown),
    }
}

pub(super) fn flatten(op: &Op<'_>) -> Derived {
    let Some(input) = op.shape(0) else {
        return one(op.dtype(0), Some(ranked(2)));
    };
    let axis = op.node.int("axis").unwrap_or(1);
    let axis = if axis == input.len() as i64 {
        input.len()
    } else {
        normalized(axis, input.len().max(1))?
    };
    let part = |dims: &[Dim]| -> Dim {
        let significant: Vec<&Dim> = dims.iter().filter(|dim| **dim != Dim::Known(1)).collect();
        match significant.as_slice() {
            [] => Dim::Known(1),
            [only] => (*only).clone(),
            _ => elements(dims).map_or(Dim::Unknown, Dim::Known),
        }
    };
    one(
        op.dtype(0),
        Some(Shape(vec![part(&input[..axis]), part(&input[axis..])])),
    )
}

pub(super) fn transpose(op: &Op<'_>) -> Derived {
    let Some(input) = op.shape(0) else {
        return one(op.dtype(0), None);
    };
    let reversed: Vec<i64> = (0..input.len() as i64).rev().collect();
    let order = op.node.ints("perm").unwrap_or(&reversed);
    if order.len() != input.len() {
        return Err(format!(
            "perm has {} axes, the input has shape {input}",
            order.len()
        ));
    }
    let shape = order
        .iter()
        .map(|axis| Ok(input[normalized(*axis, input.len())?].clone()))
        .collect::<Result<_, String>>()?;
    one(op.dtype(0), Some(shape))
}

pub(super) fn squeeze(op: &Op<'_>) -> Derived {
    let Some(input) = op.shape(0) else {
        return one(op.dtype(0), None);
    };
    let axes = match op.axes(1) {
        Some(axes) => axes
            .iter()
            .map(|axis| normalized(*axis, input.len()))
            .collect::<Result<Vec<_>, _>>()?,
        None if op.has_axes(1) => return one(op.dtype(0), None),
        None if input.as_known().is_none() => return one(op.dtype(0), None),
        None => (0..input.len())
            .filter(|axis| input[*axis] == Dim::Known(1))
            .collect(),
    };
    if let Some(axis) = axes
        .iter()
        .find(|axis| input[**axis].known().is_some_and(|length| length != 1))
    {
        return Err(format!(
            "axis {axis} of shape {input} is not 1 and cannot be squeezed"
        ));
    }
    let kept = input
        .iter()
        .enumerate()
        .filter(|(axis, _)| !axes.contains(axis))
        .map(|(_, dim)| dim.clone());
    one(op.dtype(0), Some(kept.collect()))
}

pub(super) fn unsqueeze(op: &Op<'_>) -> Derived {
    let (Some(input), Some(axes)) = (op.shape(0), op.axes(1)) else {
        return one(op.dtype(0), None);
    };
    let rank = input.len() + axes.len();
    let axes = axes
        .iter()
        .map(|axis| normalized(*axis, rank))
        .collect::<Result<Vec<_>, _>>()?;
    let mut rest = input.iter().cloned();
    let shape: Option<Shape> = (0..rank)
        .map(|axis| {
            if axes.contains(&axis) {
                Some(Dim::Known(1))
            } else {
                rest.next()
            }
        })
        .collect();
    one(op.dtype(0), Some(shape.ok_or("an axis is given twice")?))
}

pub(super) fn expand(op: &Op<'_>) -> Derived {
    let (Some(input), Some(target)) = (op.shape(0), op.integers(1)) else {
        return one(op.dtype(0), None);
    };
    let target: Shape = target.items.iter().map(Item::dim).collect();
    one(op.dtype(0), Some(broadcast_shapes(input, &target)?))
}

pub(super) fn tile(op: &Op<'_>) -> Derived {
    let Some(input) = op.shape(0) else {
        return one(op.dtype(0), None);
    };
    let Some(repeats) = op.integers(1) else {
        return one(op.dtype(0), Some(ranked(input.len())));
    };
    if repeats.items.len() != input.len() {
        return Err(format!(
            "{} repeats for an input of shape {input}",
            repeats.items.len()
        ));
    }
    let times = |(dim, repeat): (&Dim, &Item)| match (dim, repeat) {
        (dim, Item::Known(1)) => dim.clone(),
        (Dim::Known(length), Item::Known(times)) => usize::try_from(*times)
            .ok()
            .and_then(|times| length.checked_mul(times))
            .map_or(Dim::Unknown, Dim::Known),
        (Dim::Known(1), Item::Symbol(name)) => Dim::Symbol(name.clone()),
        _ => Dim::Unknown,
    };
    one(
        op.dtype(0),
        Some(input.iter().zip(&repeats.items).map(times).collect()),
    )
}

pub(super) fn depth_space(op: &Op<'_>) -> Derived {
    let Some(input) = op.shape(0) else {
        return one(op.dtype(0), None);
    };
    let block = op
        .node
        .int("blocksize")
        .and_then(|n| usize::try_from(n).ok())
        .filter(|n| *n > 0);
    let block = block.ok_or("blocksize must be at least 1")?;
    let [n, c, h, w] = input.as_slice() else {
        return Err(format!("the input has shape {input}, expected four axes"));
    };
    let scaled = |dim: &Dim, up: usize, down: usize| -> Dim {
        dim.known()
            .and_then(|length| length.checked_mul(up))
            .map_or(Dim::Unknown, |length| Dim::Known(length / down))
    };
    let area = block.checked_mul(block).ok_or("blocksize is too large")?;
    let shape = if op.node.is("DepthToSpace") {
        [
            n.clone(),
            scaled(c, 1, area),
            scaled(h, block, 1),
            scaled(w, block, 1),
        ]
    } else {
        [
            n.clone(),
            scaled(c, area, 1),
            scaled(h, 1, block),
            scaled(w, 1, block),
        ]
    };
    one(op.dtype(0), Some(shape.into_iter().collect()))
}
