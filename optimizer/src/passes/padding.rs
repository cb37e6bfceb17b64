use std::collections::HashSet;

use edgeopt_models::graph::Uses;
use edgeopt_models::{Attribute, Graph, Model, Node};

use super::integers::integers;
use super::{Changes, Context, every_graph};

/// Moves a `Pad` with zeros along spatial axes into the `Conv` that alone reads it.
pub(super) fn into_convolutions(model: &mut Model, _: &Context) -> Changes {
    Changes(every_graph(&mut model.graph, &mut in_graph))
}

fn in_graph(graph: &mut Graph) -> usize {
    let uses = Uses::new(graph);
    let mut gone = HashSet::new();
    for index in 0..graph.nodes.len() {
        let pad = &graph.nodes[index];
        let reader = pad
            .output(0)
            .and_then(|output| uses.sole_reader(output))
            .filter(|reader| reader.input == Some(0));
        let Some(reader) = reader else {
            continue;
        };
        let conv = &graph.nodes[reader.node];
        let (Some(pads), Some(input)) = (together(graph, pad, conv), pad.input(0).cloned()) else {
            continue;
        };
        let conv = &mut graph.nodes[reader.node];
        conv.inputs[0] = input;
        conv.attributes.insert("pads".into(), Attribute::Ints(pads));
        gone.insert(index);
    }
    graph.remove_nodes(|index| gone.contains(&index));
    gone.len()
}

/// The `pads` attribute of the convolution with the padding in it.
fn together(graph: &Graph, pad: &Node, conv: &Node) -> Option<Vec<i64>> {
    let automatic = conv.string("auto_pad").is_some_and(|mode| mode != "NOTSET");
    if !pad.is("Pad")
        || !conv.is("Conv")
        || automatic
        || pad.attributes.contains_key("mode") && pad.string("mode") != Some("constant")
    {
        return None;
    }
    if let Some(value) = pad.input(2) {
        let value = graph.constant(value)?.to_f32().ok()?;
        if value.iter().any(|value| *value != 0.0) {
            return None;
        }
    }
    // Of the input's rank, which is the weight's.
    let rank = graph.type_of(conv.input(1)?)?.shape()?.len();
    let spatial = rank.checked_sub(2)?;
    let given = integers(graph, pad.input(1)?)?;
    let axes: Vec<usize> = match pad.input(3) {
        Some(name) => integers(graph, name)?
            .iter()
            .map(|axis| usize::try_from(if *axis < 0 { axis + rank as i64 } else { *axis }).ok())
            .collect::<Option<_>>()?,
        None => (0..rank).collect(),
    };
    if given.len() != 2 * axes.len() || given.iter().any(|pad| *pad < 0) {
        return None;
    }
    let mut pads = match conv.ints("pads") {
        Some(pads) => pads.to_vec(),
        None => vec![0; 2 * spatial],
    };
    if pads.len() != 2 * spatial {
        return None;
    }
    for (position, axis) in axes.iter().enumerate() {
        let (before, after) = (given[position], given[axes.len() + position]);
        match axis.checked_sub(2) {
            Some(axis) if axis < spatial => {
                pads[axis] = pads[axis].checked_add(before)?;
                pads[spatial + axis] = pads[spatial + axis].checked_add(after)?;
            }
            _ if before == 0 && after == 0 => {}
            _ => return None,
        }
    }
    Some(pads)
}
