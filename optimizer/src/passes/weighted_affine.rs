use edgeopt_models::graph::{NameGenerator, Uses};
use edgeopt_models::{Attribute, Graph, Model, Node, Tensor, ValueName};

use super::affine::{Affine, floats};
use super::{Changes, Context, every_graph};

/// Folds a constant factor or summand for each channel (`BatchNormalization` in inference mode, `Mul`, `Add`,
/// `Sub`, `Div`) into the `Conv`, `ConvTranspose` or `Gemm` that alone feeds it. The folded weights are new
/// constants, so that nodes sharing the old ones are not touched.
pub(super) fn fold(model: &mut Model, _: &Context) -> Changes {
    let mut names = NameGenerator::new(model);
    Changes(every_graph(&mut model.graph, &mut |graph| {
        in_graph(graph, &mut names)
    }))
}

fn in_graph(graph: &mut Graph, names: &mut NameGenerator) -> usize {
    let uses = Uses::new(graph);
    let mut gone = vec![false; graph.nodes.len()];
    for index in 0..graph.nodes.len() {
        let Some(kind) = Kind::of(&graph.nodes[index]) else {
            continue;
        };
        // A chain of them folds link by link.
        while let Some(next) = graph.nodes[index]
            .output(0)
            .and_then(|output| uses.sole_reader(output))
        {
            let node = &graph.nodes[index];
            let folded = next
                .input
                .and_then(|side| Folded::new(graph, kind, node, &graph.nodes[next.node], side));
            let Some(folded) = folded else {
                break;
            };
            let output = graph.nodes[next.node].outputs[0].clone();
            folded.put(graph, index, names);
            graph.nodes[index].outputs = vec![output];
            gone[next.node] = true;
        }
    }
    graph.remove_nodes(|index| gone[index]);
    gone.iter().filter(|gone| **gone).count()
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Conv,
    ConvTranspose,
    Gemm,
}

impl Kind {
    fn of(node: &Node) -> Option<Self> {
        Some(match node.op_type.as_str() {
            _ if !node.domain.is_empty() => return None,
            "Conv" => Self::Conv,
            "ConvTranspose" => Self::ConvTranspose,
            "Gemm" => Self::Gemm,
            _ => return None,
        })
    }
}

/// New parameters of a weighted node.
struct Folded {
    /// `None` leaves the weight as it is.
    weight: Option<Tensor>,
    bias: Tensor,
}

impl Folded {
    /// The parameters of `node` with what `next`, which reads its result as input `side`, does to it.
    fn new(graph: &Graph, kind: Kind, node: &Node, next: &Node, side: usize) -> Option<Self> {
        let weight = graph.constant(node.input(1)?)?;
        let values = weight.view::<f32>().ok()?;
        let dims = weight.dims();
        let channels = Channels::of(kind, node, dims)?;
        let affine = match side {
            0 if next.is("BatchNormalization") => Affine::of_batch_norm(graph, next)?,
            _ => Affine::of_arithmetic(graph, next, side, channels.count, dims.len())?,
        };
        if affine.scale.len() != channels.count {
            return None;
        }
        // Gemm adds beta times its bias.
        let factor = match kind {
            Kind::Gemm => f64::from(node.float("beta").unwrap_or(1.0)),
            _ => 1.0,
        };
        let bias = match node.input(2) {
            Some(name) => by_channel(graph, kind, name, channels.count)?,
            None => vec![0.0; channels.count],
        };
        let bias: Vec<f32> = (0..channels.count)
            .map(|c| (f64::from(bias[c]) * factor * affine.scale[c] + affine.shift[c]) as f32)
            .collect();
        let weight = if affine.only_shifts() {
            None
        } else {
            let scaled: Vec<f32> = values
                .iter()
                .enumerate()
                .map(|(index, value)| (f64::from(*value) * affine.scale[channels.of_element(index)]) as f32)
                .collect();
            if scaled.iter().any(|value| !value.is_finite()) {
                return None;
            }
            Some(Tensor::new(dims, &scaled).ok()?)
        };
        if bias.iter().any(|value| !value.is_finite()) {
            return None;
        }
        Some(Self {
            weight,
            bias: Tensor::vector(&bias),
        })
    }

    fn put(self, graph: &mut Graph, index: usize, names: &mut NameGenerator) {
        let node = &mut graph.nodes[index];
        let base = node.inputs[1].clone();
        let weight: ValueName = match &self.weight {
            Some(_) => names.fresh(&format!("{base}_folded")),
            None => base.clone(),
        };
        let bias = names.fresh(&format!("{base}_folded_bias"));
        node.inputs.truncate(1);
        node.inputs.extend([weight.clone(), bias.clone()]);
        if node.attributes.contains_key("beta") {
            node.attributes.insert("beta".into(), Attribute::Float(1.0));
        }
        if let Some(tensor) = self.weight {
            graph.add_initializer(weight, tensor);
        }
        graph.add_initializer(bias, self.bias);
    }
}

/// The bias of each channel: one element for each, or for `Gemm` also one for all.
fn by_channel(graph: &Graph, kind: Kind, name: &str, channels: usize) -> Option<Vec<f32>> {
    let values = floats(graph, name)?;
    let dims = graph.constant(name)?.dims();
    match (kind, dims) {
        (Kind::Gemm, [] | [1] | [1, 1]) => Some(vec![*values.first()?; channels]),
        (Kind::Gemm, [1, length]) | (_, [length]) if *length == channels => Some(values),
        _ => None,
    }
}

/// Which output channel each element of a weight belongs to.
struct Channels {
    count: usize,
    kind: Kind,
    /// Elements after the first dimension, after the second, and the second's length.
    block: usize,
    inner: usize,
    second: usize,
    /// Lengths of the first dimension in one group.
    group_rows: usize,
    transposed: bool,
}

impl Channels {
    fn of(kind: Kind, node: &Node, dims: &[usize]) -> Option<Self> {
        let &[first, second, ref kernel @ ..] = dims else {
            return None;
        };
        let inner: usize = kernel.iter().product();
        let group = match kind {
            Kind::Gemm => 1,
            _ => usize::try_from(node.int("group").unwrap_or(1)).ok()?,
        };
        if group == 0 || first % group != 0 || first * second * inner == 0 {
            return None;
        }
        if kind == Kind::Gemm && !kernel.is_empty() {
            return None;
        }
        let transposed = node.int("transB").unwrap_or(0) != 0;
        Some(Self {
            count: match kind {
                Kind::Conv => first,
                Kind::ConvTranspose => second.checked_mul(group)?,
                Kind::Gemm if transposed => first,
                Kind::Gemm => second,
            },
            kind,
            block: second * inner,
            inner,
            second,
            group_rows: first / group,
            transposed,
        })
    }

    fn of_element(&self, index: usize) -> usize {
        let row = index / self.block;
        let column = index % self.block / self.inner;
        match self.kind {
            Kind::Conv => row,
            // Weight is (C, M/group, …): input channel c belongs to group c / (C/group).
            Kind::ConvTranspose => row / self.group_rows * self.second + column,
            Kind::Gemm if self.transposed => row,
            Kind::Gemm => column,
        }
    }
}
