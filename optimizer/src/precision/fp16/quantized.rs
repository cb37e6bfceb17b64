use std::collections::HashSet;

use edgeopt_models::graph::Uses;
use edgeopt_models::{Graph, Tensor, ValueName};
use half::f16;

use super::choose::Choice;
use super::operators::reads_shape_only;

/// From this operator set on, QuantizeLinear and DequantizeLinear take half scales: the scale's type is the type of the
/// numbers outside.
pub(super) const OPSET: i64 = 19;

/// Largest relative change of a scale by rounding to half: a quarter of a step at the end of INT8's range.
const LARGEST_CHANGE: f32 = 1.0 / 512.0;

/// Whether the scales are nearly the same in half, and what they stand for stays below `limit`.
pub(super) fn scale_survives(scale: &Tensor, limit: f32) -> bool {
    scale.view::<f32>().is_ok_and(|scales| {
        scales.iter().all(|scale| {
            let change = (f16::from_f32(*scale).to_f32() - scale).abs();
            scale.is_finite() && change <= scale * LARGEST_CHANGE && scale * 128.0 <= limit
        })
    })
}

/// Makes the choices around Q/DQ agree. A backend fuses a DequantizeLinear into what reads it, so both must be of one
/// type, without a cast between them:
///
/// - a DequantizeLinear is half only if everything that reads it is,
/// - what reads one that is float32 is float32 itself,
/// - a QuantizeLinear is half only if what it quantizes is.
///
/// What reads a mask that was raised to half's lowest number goes back to float32 with the mask.
pub(super) fn settle(graph: &Graph, uses: &Uses, clamped: &HashSet<&ValueName>, choices: &mut [Choice]) {
    let is_half = |choices: &[Choice], name: &ValueName| {
        uses.producer(name)
            .is_some_and(|index| choices[index] == Choice::Half)
    };
    let dequantized = |name: &ValueName| {
        uses.producer(name)
            .is_some_and(|index| graph.nodes[index].is("DequantizeLinear"))
    };
    loop {
        let mut changed = false;
        for (index, node) in graph.nodes.iter().enumerate() {
            if choices[index] != Choice::Half {
                continue;
            }
            let changes = if node.is("DequantizeLinear") {
                let all_half = node.outputs.iter().all(|output| {
                    !graph.is_output(output)
                        && uses.readers(output).iter().all(|reader| {
                            reader.input.is_some()
                                && (choices[reader.node] == Choice::Half
                                    || reads_shape_only(&graph.nodes[reader.node]))
                        })
                });
                (!all_half).then_some(Choice::Float("what reads it stays in float32"))
            } else if node.is("QuantizeLinear") {
                let half = node.input(0).is_some_and(|name| is_half(choices, name));
                (!half).then_some(Choice::NotFloat)
            } else {
                let mut inputs = node.inputs.iter();
                inputs
                    .any(|name| (dequantized(name) || clamped.contains(name)) && !is_half(choices, name))
                    .then_some(Choice::Float("what it reads stays in float32"))
            };
            if let Some(choice) = changes {
                choices[index] = choice;
                changed = true;
            }
        }
        if !changed {
            return;
        }
    }
}
