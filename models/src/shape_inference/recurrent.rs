use super::facts::{Derived, Op};
use crate::{Dim, Shape, ValueType};

/// LSTM, GRU and RNN: all states, the last state, and for LSTM the last cell.
pub(super) fn recurrent(op: &Op<'_>) -> Derived {
    let Some(dtype) = op.dtype(0) else {
        return Ok(Vec::new());
    };
    let directions = if op.node.string("direction") == Some("bidirectional") {
        2
    } else {
        1
    };
    let hidden = op
        .node
        .int("hidden_size")
        .and_then(|n| usize::try_from(n).ok())
        .map_or(Dim::Unknown, Dim::Known);
    let (steps, batch) = match op.shape(0).map(|shape| shape.as_slice()) {
        Some([first, second, _]) if op.node.int("layout") == Some(1) => (second.clone(), first.clone()),
        Some([first, second, _]) => (first.clone(), second.clone()),
        Some(other) => return Err(format!("the input has {} axes, expected 3", other.len())),
        None => (Dim::Unknown, Dim::Unknown),
    };
    let directions = Dim::Known(directions);
    let (all, last) = if op.node.int("layout") == Some(1) {
        (
            vec![batch.clone(), steps, directions.clone(), hidden.clone()],
            vec![batch, directions, hidden],
        )
    } else {
        (
            vec![steps, directions.clone(), batch.clone(), hidden.clone()],
            vec![directions, batch, hidden],
        )
    };
    let last = Some(ValueType::tensor(dtype, Shape(last)));
    Ok(vec![
        Some(ValueType::tensor(dtype, Shape(all))),
        last.clone(),
        last,
    ])
}
