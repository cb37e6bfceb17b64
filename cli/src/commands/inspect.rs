use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use edgeopt_models::bundle::MemoryPlan;
use edgeopt_models::cost::cost;
use edgeopt_models::graph::validate::validate;
use edgeopt_models::shape_inference::Bindings;
use edgeopt_models::{Attribute, Bytes, Graph, Model, Tensor, ValueInfo, ValueType};
use edgeopt_optimizer::plan::{PlanError, bound, memory_plan};
use edgeopt_optimizer::tensorrt_support::refusals;
use serde::Serialize;

use super::lengths::{parse_dim, parse_shape};
use super::read_model;
use crate::screen::{BOLD, DIM, Screen, WARN};

/// Shows what a model is: inputs, outputs, operators, parameters, memory, and what TensorRT would refuse.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  edgeopt inspect model.onnx\n  edgeopt inspect model.edge --json")]
pub(crate) struct Arguments {
    /// An `.onnx` or `.edge` file.
    model: PathBuf,

    /// Length to assume for a symbolic dimension.
    #[arg(long, value_name = "NAME=LENGTH", value_parser = parse_dim)]
    dim: Vec<(String, usize)>,

    /// Shape to assume for an input, such as x=1,3,48,320.
    #[arg(long, value_name = "INPUT=N,N,…", value_parser = parse_shape)]
    shape: Vec<(String, Vec<usize>)>,

    /// Batch sizes to plan the memory for.
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_values_t = [1, 8])]
    batch: Vec<usize>,
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
    /// Multiply-accumulates of one run at the first batch size, if all shapes are known.
    macs: Option<u64>,
    /// By batch size; empty if a size is not known.
    memory: Vec<MemoryPlan>,
    /// Why costs are not known.
    open: Option<String>,
    /// Nodes TensorRT's parser would refuse.
    tensorrt_refuses: Vec<String>,
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
    let bindings = Bindings {
        dims: arguments.dim.iter().cloned().collect(),
        inputs: arguments.shape.iter().cloned().collect(),
    };
    let (macs, memory, open) = match costs(&given.model, &arguments.batch, &bindings) {
        Ok((macs, memory)) => (macs, memory, None),
        Err(error) => (None, Vec::new(), Some(error.to_string())),
    };
    let refused = refusals(&given.model)
        .into_iter()
        .map(|refusal| format!("{} {:?}: {}", refusal.operator, refusal.node, refusal.reason));
    let inspection = Inspection {
        macs,
        memory,
        open,
        tensorrt_refuses: refused.collect(),
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

/// Multiply-accumulates at the first batch size, and the memory plan at each.
fn costs(
    model: &Model,
    batches: &[usize],
    bindings: &Bindings,
) -> Result<(Option<u64>, Vec<MemoryPlan>), PlanError> {
    // Shapes that were given hold for the first batch size; at the others their first length is the batch.
    let at = |batch: usize| {
        let mut bindings = bindings.clone();
        if Some(&batch) != batches.first() {
            bindings
                .inputs
                .values_mut()
                .filter_map(|dims| dims.first_mut())
                .for_each(|length| *length = batch);
        }
        bindings
    };
    let Some(first) = batches.first() else {
        return Ok((None, Vec::new()));
    };
    let macs = cost(&bound(model, *first, &at(*first))?).macs;
    // A model with a fixed batch has one plan.
    let plans = batches
        .iter()
        .map_while(|batch| match memory_plan(model, *batch, &at(*batch)) {
            Err(PlanError::Batch { .. }) if batch != first => None,
            plan => Some(plan),
        });
    Ok((macs, plans.collect::<Result<_, _>>()?))
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
    if let Some(macs) = inspection.macs {
        let _ = writeln!(text, "compute    {:.3} G multiply-accumulates", macs as f64 / 1e9);
    }
    for plan in &inspection.memory {
        let _ = writeln!(
            text,
            "memory     batch {}: {} (activations {}, inputs and outputs {})",
            plan.batch,
            plan.weights + plan.activations + plan.io,
            plan.activations,
            plan.io
        );
    }
    if let Some(open) = &inspection.open {
        let _ = writeln!(
            text,
            "memory     {DIM}not known: {open}; see --dim and --shape{DIM:#}"
        );
    }
    match inspection.tensorrt_refuses.as_slice() {
        [] => {
            let _ = writeln!(text, "TensorRT   no node is known to be refused");
        }
        refused => {
            for refusal in refused {
                let _ = writeln!(text, "{WARN}TensorRT{WARN:#}   refuses {refusal}");
            }
        }
    }
    for problem in &inspection.problems {
        let _ = writeln!(text, "{WARN}problem{WARN:#}    {problem}");
    }
    text
}
