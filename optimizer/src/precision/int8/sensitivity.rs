use std::collections::HashMap;

use edgeopt_models::graph::NameGenerator;
use edgeopt_models::{DataType, Graph, Model, Node, Shape, ValueInfo, ValueName};
use edgeopt_runtime::Backend;

use crate::accuracy::{CompareError, EXACT_DB, LayerSqnr, Runner, open_samples};
use crate::calibrate::Samples;

/// The error each quantized layer adds by itself: its inputs are the float model's, only its own Q/DQ act.
/// Sorted from the worst.
///
/// The float graph gets a quantized twin of every quantized layer, and the sums of squares of the layer's output
/// and of its difference from the twin's; only those two numbers a layer leave the graph, so memory is that of
/// one run.
///
/// # Errors
/// When a sample cannot be read or a model cannot be run.
pub fn sensitivity(
    float: &Model,
    quantized: &Model,
    samples: &dyn Samples,
    backend: &dyn Backend,
) -> Result<Vec<LayerSqnr>, CompareError> {
    let (model, layers) = with_twins(float, quantized);
    if layers.is_empty() {
        return Ok(Vec::new());
    }
    let mut runner = Runner::new(&model, backend, 0)?;
    let mut sums = vec![(0f64, 0f64); layers.len()];
    for (sample, item) in open_samples(samples)?.enumerate() {
        let inputs = item.map_err(|source| CompareError::Sample { sample, source })?;
        let outputs = runner.run(&inputs)?;
        for (sum, pair) in sums.iter_mut().zip(outputs.chunks_exact(2)) {
            let read = |index: usize| pair[index].to_f32().ok().and_then(|value| value.first().copied());
            sum.0 += f64::from(read(0).unwrap_or(f32::NAN));
            sum.1 += f64::from(read(1).unwrap_or(f32::NAN));
        }
    }
    let mut table: Vec<LayerSqnr> = layers
        .into_iter()
        .zip(sums)
        .map(|(mut layer, (signal, noise))| {
            let ratio: f64 = 10.0 * (signal / noise).log10();
            layer.sqnr_db = if noise == 0.0 {
                EXACT_DB
            } else {
                ratio.clamp(-EXACT_DB, EXACT_DB)
            };
            layer
        })
        .collect();
    table.sort_by(|a, b| a.sqnr_db.total_cmp(&b.sqnr_db));
    Ok(table)
}

/// The float model with the twins; its outputs are signal and noise of each returned layer in turn.
fn with_twins(float: &Model, quantized: &Model) -> (Model, Vec<LayerSqnr>) {
    let mut names = NameGenerator::new(float);
    names.take(&quantized.graph);
    let mut model = float.clone();
    model.graph.outputs.clear();
    let source = &quantized.graph;
    let mut twins = Twins {
        source,
        renamed: HashMap::new(),
        names,
        graph: &mut model.graph,
        tail: Vec::new(),
    };
    let originals: HashMap<&str, &Node> = float
        .graph
        .nodes
        .iter()
        .map(|node| (node.name.as_str(), node))
        .collect();
    let mut layers = Vec::new();
    for node in &source.nodes {
        let reads_dequantized = node.inputs.iter().any(|input| {
            source
                .producer(input)
                .is_some_and(|index| source.nodes[index].is("DequantizeLinear"))
        });
        let Some(output) = node
            .output(0)
            .filter(|_| reads_dequantized && !node.is("QuantizeLinear"))
        else {
            continue;
        };
        // The same node in both models, under the same name and with the same output.
        if originals
            .get(node.name.as_str())
            .is_none_or(|original| original.outputs != node.outputs)
        {
            continue;
        }
        twins.add(node, output);
        layers.push(LayerSqnr {
            node: node.name.clone(),
            op: node.op_type.clone(),
            tensor: output.to_string(),
            sqnr_db: 0.0,
        });
    }
    let tail = twins.tail;
    model.graph.nodes.extend(tail);
    (model, layers)
}

struct Twins<'a> {
    source: &'a Graph,
    /// Dequantized values of the quantized model and their names in the new one.
    renamed: HashMap<ValueName, ValueName>,
    names: NameGenerator,
    graph: &'a mut Graph,
    tail: Vec<Node>,
}

impl Twins<'_> {
    fn add(&mut self, node: &Node, output: &ValueName) {
        let mut twin = node.clone();
        twin.name = self.names.fresh(&format!("{}_twin", node.name)).to_string();
        for input in &mut twin.inputs {
            *input = self.import(input);
        }
        for name in twin.outputs.iter_mut().filter(|name| !name.is_omitted()) {
            *name = self.names.fresh(&format!("{name}_twin"));
        }
        let twin_output = twin.outputs[0].clone();
        self.tail.push(twin);
        let difference = self.names.fresh(&format!("{output}_error"));
        self.push("Sub", [output.clone(), twin_output], &difference);
        for value in [output, &difference] {
            let sum = self.names.fresh(&format!("{value}_energy"));
            self.push("ReduceSumSquare", [value.clone()], &sum);
            if let Some(node) = self.tail.last_mut() {
                node.attributes.insert("keepdims".into(), 0i64.into());
            }
            self.graph
                .outputs
                .push(ValueInfo::tensor(sum, DataType::Float32, Shape::default()));
        }
    }

    fn push<const N: usize>(&mut self, op: &str, inputs: [ValueName; N], output: &ValueName) {
        let name = self.names.fresh(&format!("{output}_node"));
        self.tail.push(Node::new(op, &name, inputs, [output.clone()]));
    }

    /// Brings a constant, or a dequantized value with the nodes that make it from a float value, over.
    fn import(&mut self, name: &ValueName) -> ValueName {
        if let Some(known) = self.renamed.get(name) {
            return known.clone();
        }
        if let Some(tensor) = self.source.initializers.get(name) {
            let fresh = self.names.fresh(name);
            self.graph.add_initializer(fresh.clone(), tensor.clone());
            self.renamed.insert(name.clone(), fresh.clone());
            return fresh;
        }
        let producer = self.source.producer(name).map(|index| &self.source.nodes[index]);
        let Some(node) = producer.filter(|node| node.is("DequantizeLinear") || node.is("QuantizeLinear"))
        else {
            return name.clone();
        };
        let mut copy = node.clone();
        for input in &mut copy.inputs {
            *input = self.import(input);
        }
        copy.name = self.names.fresh(&node.name).to_string();
        let fresh = self.names.fresh(name);
        copy.outputs = vec![fresh.clone()];
        self.tail.push(copy);
        self.renamed.insert(name.clone(), fresh.clone());
        fresh
    }
}
