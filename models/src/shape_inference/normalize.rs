use super::facts::{Derived, Op, normalized};
use crate::{DataType, Dim, Shape, ValueType};

pub(super) fn batch(op: &Op<'_>) -> Derived {
    let mut types = vec![op.ty(0).cloned()];
    types.extend((1..op.node.outputs.len()).map(|index| op.ty(if index == 1 { 3 } else { 4 }).cloned()));
    Ok(types)
}

pub(super) fn layer(op: &Op<'_>) -> Derived {
    let mut types = vec![op.ty(0).cloned()];
    if let Some(input) = op.shape(0) {
        let axis = normalized(op.node.int("axis").unwrap_or(-1), input.len())?;
        let reduced: Shape = input
            .iter()
            .enumerate()
            .map(|(index, dim)| if index < axis { dim.clone() } else { Dim::Known(1) })
            .collect();
        types.extend((1..3).map(|_| Some(ValueType::tensor(DataType::Float32, reduced.clone()))));
    }
    Ok(types)
}
