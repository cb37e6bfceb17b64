use edgeopt_models::graph::Uses;
use edgeopt_models::{DataType, Graph, Model, Node, Tensor, ValueName};

use super::LARGEST;

/// Largest magnitude of scores that a mask of −65504 still pushes below every other score with room to spare.
pub(super) const LARGEST_SCORE: f32 = 16_384.0;

/// Entries of a mask up to this magnitude leave a score in the running.
const OPEN: f32 = 1024.0;

/// Whether constants of this Add or Where below the lowest half may be raised to it (−65504) without changing a result:
/// only softmaxes read the sum, and
///
/// - of an Add, every row that a softmax normalizes has an open entry. Then the masked ones get 0 before and after. A
///   row without one would be a plain softmax of its scores in half (or NaN, when `score − 65504` overflows), where it
///   is nearly even in float32.
/// - of a Where, all raised values are equal, so that a row of nothing else stays even.
///
/// In both cases the scores must stay within [`LARGEST_SCORE`]; the caller looks at what was calibrated. A graph output
/// must show its caller the number that the original gave.
pub(super) fn is_harmless(node: &Node, model: &Model, uses: &Uses) -> bool {
    let graph = &model.graph;
    let Some(output) = node.output(0) else {
        return false;
    };
    // Before operator set 13, Softmax flattened everything from its axis on.
    if graph.is_output(output) || model.opset() < 13 {
        return false;
    }
    let readers = uses.readers(output);
    let softmaxes = readers
        .iter()
        .filter(|reader| reader.input == Some(0) && graph.nodes[reader.node].is("Softmax"))
        .map(|reader| &graph.nodes[reader.node]);
    if readers.is_empty() || softmaxes.clone().count() != readers.len() {
        return false;
    }
    let constants: Vec<&Tensor> = node
        .inputs
        .iter()
        .filter_map(|name| graph.constant(name))
        .filter(|tensor| tensor.dtype() == DataType::Float32)
        .collect();
    if node.is("Where") {
        return raises_one_value(&constants);
    }
    let [mask] = constants[..] else {
        return false;
    };
    node.is("Add")
        && softmaxes
            .map(|softmax| axis_from_end(softmax, output, graph))
            .all(|axis| axis.is_some_and(|axis| every_row_is_open(mask, axis)))
}

/// Softmax's axis counted from the end, 1 for the last.
fn axis_from_end(softmax: &Node, input: &ValueName, graph: &Graph) -> Option<usize> {
    let axis = softmax.int("axis").unwrap_or(-1);
    if axis < 0 {
        return usize::try_from(axis.checked_neg()?).ok();
    }
    let rank = graph.type_of(input)?.shape()?.len();
    rank.checked_sub(usize::try_from(axis).ok()?)
}

fn raises_one_value(constants: &[&Tensor]) -> bool {
    let mut raised = None;
    constants.iter().all(|tensor| {
        tensor.view::<f32>().is_ok_and(|values| {
            values.iter().all(|value| {
                if value.is_finite() && *value < -LARGEST {
                    return *raised.get_or_insert(*value) == *value;
                }
                value.abs() <= LARGEST_SCORE || *value == f32::NEG_INFINITY
            })
        })
    })
}

/// Whether each row of `mask` along the axis (counted from the end) has an open entry, and none is a large positive
/// number.
fn every_row_is_open(mask: &Tensor, axis_from_end: usize) -> bool {
    let Ok(values) = mask.view::<f32>() else {
        return false;
    };
    let dims = mask.dims();
    let Some(axis) = dims.len().checked_sub(axis_from_end) else {
        return false;
    };
    let Some(length) = dims.get(axis).copied().filter(|length| *length > 1) else {
        return false;
    };
    if values
        .iter()
        .any(|value| value.is_nan() || *value > LARGEST_SCORE)
    {
        return false;
    }
    let inner: usize = dims[axis + 1..].iter().product();
    let outer: usize = dims[..axis].iter().product();
    (0..outer).all(|block| {
        (0..inner).all(|place| {
            (0..length).any(|step| values[(block * length + step) * inner + place].abs() <= OPEN)
        })
    })
}
