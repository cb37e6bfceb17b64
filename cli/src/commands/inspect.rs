use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use edgeopt_models::graph::validate::validate;
use edgeopt_models::{Attribute, Bytes, Graph, Tensor, ValueInfo, ValueType};
use serde::Serialize;

use super::read_model;
use crate::screen::{BOLD, DIM, Screen, WARN};

/// Shows what a model is: inputs, outputs, operators, parameters, precision.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  edgeopt inspect model.onnx\n  edgeopt inspect model.edge --json")]
pub(crate) struct Arguments {
    /// An `.onnx` or `.edge` file.
    model: PathBuf,
}

#[derive(Serialize)]
struct Inspection {
    file: PathBuf,
    bundle: Option<String>,
    ir_version: i64,
    opsets: BTreeMap<String, i64>,
    producer: String,
    inputs: Vec<Value>,
    outputs: Vec<Value>,
    nodes: usize,
    operators: BTreeMap<String, usize>,
    parameters: u64,
    weights: Bytes,
    weights_by_type: BTreeMap<String, Bytes>,
    problems: Vec<String>,
}

#[derive(Serialize)]
struct Value {
    name: String,
    r#type: String,
}

pub(crate) fn run(arguments: &Arguments, screen: &Screen) -> anyhow::Result<ExitCode> {
    let given = read_model(&arguments.model)?;
    let graph = &given.model.graph;
    let mut counts = Counts::default();
    counts.add(graph);
    let problems = match validate(&given.model) {
        Ok(()) => Vec::new(),
        Err(error) => error.to_string().lines().map(str::to_owned).collect(),
    };
    let inspection = Inspection {
        file: arguments.model.clone(),
        bundle: given
            .manifest
            .map(|manifest| format!("{} {}", manifest.name, manifest.version)),
        ir_version: given.model.ir_version,
        opsets: given.model.opsets.clone(),
        producer: given.model.producer.clone(),
        inputs: graph.required_inputs().map(value).collect(),
        outputs: graph.outputs.iter().map(value).collect(),
        nodes: counts.operators.values().sum(),
        operators: counts.operators,
        parameters: counts.parameters,
        weights: counts.by_type.values().copied().sum(),
        weights_by_type: counts.by_type,
        problems,
    };
    screen.result(&inspection, show)?;
    Ok(if inspection.problems.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Operators and constants of a graph with all its subgraphs.
#[derive(Default)]
struct Counts {
    operators: BTreeMap<String, usize>,
    parameters: u64,
    by_type: BTreeMap<String, Bytes>,
}

impl Counts {
    fn add(&mut self, graph: &Graph) {
        for tensor in graph.initializers.values() {
            self.add_constant(tensor);
        }
        for node in &graph.nodes {
            if let (true, Some(Attribute::Tensor(tensor))) =
                (node.is("Constant"), node.attributes.get("value"))
            {
                self.add_constant(tensor);
            }
            let domain = if node.domain.is_empty() {
                String::new()
            } else {
                format!("{}::", node.domain)
            };
            *self
                .operators
                .entry(format!("{domain}{}", node.op_type))
                .or_default() += 1;
            node.subgraphs().for_each(|subgraph| self.add(subgraph));
        }
    }

    fn add_constant(&mut self, tensor: &Tensor) {
        self.parameters += tensor.elements() as u64;
        *self.by_type.entry(tensor.dtype().to_string()).or_default() += Bytes::from(tensor.as_bytes().len());
    }
}

fn value(info: &ValueInfo) -> Value {
    Value {
        name: info.name.to_string(),
        r#type: type_text(&info.ty),
    }
}

fn type_text(ty: &ValueType) -> String {
    match ty {
        ValueType::Tensor {
            dtype,
            shape: Some(shape),
        } => format!("{dtype} {shape}"),
        ValueType::Tensor { dtype, shape: None } => format!("{dtype} of unknown rank"),
        ValueType::Sequence(element) => format!("sequence of {}", type_text(element)),
        ValueType::Optional(element) => format!("optional {}", type_text(element)),
        ValueType::Other(_) => "unknown".to_owned(),
    }
}

fn show(inspection: &Inspection) -> String {
    let mut text = String::new();
    // Writing to a String does not fail.
    let _ = writeln!(text, "{BOLD}{}{BOLD:#}", inspection.file.display());
    if let Some(bundle) = &inspection.bundle {
        let _ = writeln!(text, "bundle     {bundle}");
    }
    let opsets: Vec<String> = inspection
        .opsets
        .iter()
        .map(|(domain, version)| format!("{} {version}", if domain.is_empty() { "ai.onnx" } else { domain }))
        .collect();
    let _ = writeln!(
        text,
        "format     IR {}, opset {}{}",
        inspection.ir_version,
        opsets.join(", "),
        if inspection.producer.is_empty() {
            String::new()
        } else {
            format!(", by {}", inspection.producer)
        }
    );
    for (label, values) in [("inputs", &inspection.inputs), ("outputs", &inspection.outputs)] {
        for (index, value) in values.iter().enumerate() {
            let label = if index == 0 { label } else { "" };
            let _ = writeln!(text, "{label:10} {} {DIM}{}{DIM:#}", value.name, value.r#type);
        }
    }
    let by_type: Vec<String> = inspection
        .weights_by_type
        .iter()
        .map(|(dtype, bytes)| format!("{dtype} {bytes}"))
        .collect();
    let _ = writeln!(
        text,
        "weights    {} in {} parameters ({})",
        inspection.weights,
        inspection.parameters,
        by_type.join(", ")
    );
    let mut operators: Vec<_> = inspection.operators.iter().collect();
    operators.sort_by_key(|(name, count)| (std::cmp::Reverse(**count), (*name).clone()));
    let operators: Vec<String> = operators
        .iter()
        .map(|(name, count)| format!("{name} ×{count}"))
        .collect();
    let _ = writeln!(
        text,
        "operators  {} nodes: {}",
        inspection.nodes,
        operators.join(", ")
    );
    for problem in &inspection.problems {
        let _ = writeln!(text, "{WARN}problem{WARN:#}    {problem}");
    }
    text
}
