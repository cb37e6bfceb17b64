use edgeopt_models::graph::{NameGenerator, Uses};
use edgeopt_models::{Attribute, Graph, Model, Node, Tensor, ValueName};

use super::integers::integers;
use super::{Changes, Context, every_graph};

/// Makes one node of two that follow each other and only move elements: `Transpose` after `Transpose`, `Reshape`
/// after anything that keeps the order of elements, `Slice` after `Slice` along other axes. The first node goes
/// with the dead code.
pub(super) fn merge(model: &mut Model, _: &Context) -> Changes {
    let mut names = NameGenerator::new(model);
    Changes(every_graph(&mut model.graph, &mut |graph| {
        in_graph(graph, &mut names)
    }))
}

fn in_graph(graph: &mut Graph, names: &mut NameGenerator) -> usize {
    let uses = Uses::new(graph);
    let mut count = 0;
    for index in 0..graph.nodes.len() {
        let node = &graph.nodes[index];
        let before = node
            .input(0)
            .filter(|input| uses.sole_reader(input).is_some_and(|reader| reader.node == index))
            .and_then(|input| uses.producer(input))
            .map(|before| &graph.nodes[before]);
        let Some((before, input)) = before.and_then(|before| Some((before, before.input(0)?.clone()))) else {
            continue;
        };
        if !node.domain.is_empty() || !before.domain.is_empty() {
            continue;
        }
        match (before.op_type.as_str(), node.op_type.as_str()) {
            ("Transpose", "Transpose") => {
                let Some(perm) = composed(before, node) else {
                    continue;
                };
                graph.nodes[index]
                    .attributes
                    .insert("perm".into(), Attribute::Ints(perm));
            }
            ("Reshape" | "Flatten" | "Squeeze" | "Unsqueeze", "Reshape") => {
                // A zero would copy a length of the first node's result.
                let literal = node.int("allowzero").unwrap_or(0) != 0;
                let shape = node.input(1).and_then(|name| integers(graph, name));
                if !shape.is_some_and(|shape| literal || !shape.contains(&0)) {
                    continue;
                }
            }
            ("Slice", "Slice") => {
                let Some(both) = Ranges::of(graph, before)
                    .zip(Ranges::of(graph, node))
                    .and_then(|(first, second)| first.and(second))
                else {
                    continue;
                };
                let base = node.outputs[0].clone();
                let inputs = both.put(graph, &base, names);
                graph.nodes[index].inputs.truncate(1);
                graph.nodes[index].inputs.extend(inputs);
            }
            _ => continue,
        }
        graph.nodes[index].inputs[0] = input;
        count += 1;
    }
    count
}

/// The order of axes after both transpositions.
fn composed(first: &Node, second: &Node) -> Option<Vec<i64>> {
    let (first, second) = (first.ints("perm")?, second.ints("perm")?);
    if first.len() != second.len() {
        return None;
    }
    second
        .iter()
        .map(|axis| first.get(usize::try_from(*axis).ok()?).copied())
        .collect()
}

/// What a `Slice` with constant parameters takes.
struct Ranges {
    starts: Vec<i64>,
    ends: Vec<i64>,
    axes: Vec<i64>,
    steps: Vec<i64>,
}

impl Ranges {
    fn of(graph: &Graph, node: &Node) -> Option<Self> {
        let starts = integers(graph, node.input(1)?)?;
        let ends = integers(graph, node.input(2)?)?;
        let axes = match node.input(3) {
            Some(name) => integers(graph, name)?,
            None => (0..starts.len() as i64).collect(),
        };
        let steps = match node.input(4) {
            Some(name) => integers(graph, name)?,
            None => vec![1; starts.len()],
        };
        let ranges = Self {
            starts,
            ends,
            axes,
            steps,
        };
        let length = ranges.starts.len();
        let same = [&ranges.ends, &ranges.axes, &ranges.steps]
            .iter()
            .all(|part| part.len() == length);
        same.then_some(ranges)
    }

    /// Both together, if no axis is in both. Axes counted from the end could be the same as others.
    fn and(mut self, other: Self) -> Option<Self> {
        let axes = || self.axes.iter().chain(&other.axes);
        let one_sign = axes().all(|axis| *axis >= 0) || axes().all(|axis| *axis < 0);
        if !one_sign || self.axes.iter().any(|axis| other.axes.contains(axis)) {
            return None;
        }
        self.starts.extend(other.starts);
        self.ends.extend(other.ends);
        self.axes.extend(other.axes);
        self.steps.extend(other.steps);
        Some(self)
    }

    /// Adds the parameters as constants and returns their names.
    fn put(&self, graph: &mut Graph, base: &str, names: &mut NameGenerator) -> [ValueName; 4] {
        [
            ("starts", &self.starts),
            ("ends", &self.ends),
            ("axes", &self.axes),
            ("steps", &self.steps),
        ]
        .map(|(part, values)| {
            let name = names.fresh(&format!("{base}_{part}"));
            graph.add_initializer(name.clone(), Tensor::vector(values));
            name
        })
    }
}
