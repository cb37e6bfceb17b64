use super::facts::{Derived, Item, Op, normalized, one, ranked};
use crate::{Dim, Shape};

pub(super) fn resize(op: &Op<'_>) -> Derived {
    let Some(input) = op.shape(0) else {
        return one(op.dtype(0), None);
    };
    let unknown = || one(op.dtype(0), Some(ranked(input.len())));
    let axes = match op.node.ints("axes") {
        Some(axes) => axes
            .iter()
            .map(|axis| normalized(*axis, input.len()))
            .collect::<Result<Vec<_>, _>>()?,
        None => (0..input.len()).collect(),
    };
    // Resize 11 and later: X, roi, scales, sizes. Resize 10 and Upsample 9: X, scales.
    let modern = op.node.is("Resize") && op.opset >= 11;
    if let Some(sizes) = op.integers(3).filter(|sizes| modern && !sizes.items.is_empty()) {
        let policy = op.node.string("keep_aspect_ratio_policy").unwrap_or("stretch");
        if policy != "stretch" || sizes.items.len() != axes.len() {
            return unknown();
        }
        let mut shape = input.clone();
        axes.iter()
            .zip(&sizes.items)
            .for_each(|(axis, size): (&usize, &Item)| shape[*axis] = size.dim());
        return one(op.dtype(0), Some(shape));
    }
    let scales = match op.node.attributes.get("scales") {
        Some(crate::Attribute::Floats(scales)) => Some(scales.clone()),
        _ => op
            .constant(if modern { 2 } else { 1 })
            .filter(|tensor| tensor.elements() <= 64)
            .and_then(|tensor| tensor.to_f32().ok().map(|scales| scales.to_vec())),
    };
    let Some(scales) = scales.filter(|scales| scales.len() == axes.len()) else {
        return unknown();
    };
    let mut shape = input.clone();
    for (axis, scale) in axes.iter().zip(&scales) {
        if *scale == 1.0 {
            continue;
        }
        shape[*axis] = match input[*axis].known() {
            Some(length) if scale.is_finite() && *scale > 0.0 => {
                // In f32, as runtimes compute it: what they allocate is what counts.
                Dim::Known((length as f32 * *scale).floor() as usize)
            }
            _ => Dim::Unknown,
        };
    }
    one(op.dtype(0), Some(shape))
}

pub(super) fn grid_sample(op: &Op<'_>) -> Derived {
    let (Some(input), Some(grid)) = (op.shape(0), op.shape(1)) else {
        return one(op.dtype(0), None);
    };
    if input.len() < 3 || grid.len() != input.len() {
        return Err(format!("the input has shape {input}, the grid {grid}"));
    }
    let spatial = &grid[1..grid.len() - 1];
    one(
        op.dtype(0),
        Some(input[..2].iter().chain(spatial).cloned().collect()),
    )
}

pub(super) fn roi_align(op: &Op<'_>) -> Derived {
    let length = |name: &str| {
        op.node.int(name).map_or(Dim::Known(1), |n| {
            usize::try_from(n).map_or(Dim::Unknown, Dim::Known)
        })
    };
    let axis = |input: usize, axis: usize| {
        op.shape(input)
            .and_then(|s| s.get(axis))
            .cloned()
            .unwrap_or(Dim::Unknown)
    };
    let shape = [
        axis(1, 0),
        axis(0, 1),
        length("output_height"),
        length("output_width"),
    ];
    one(op.dtype(0), Some(shape.into_iter().collect::<Shape>()))
}
