use std::collections::{HashMap, HashSet};

use edgeopt_models::{DataType, Graph, Node, Tensor, ValueName};

use super::Int8Options;

/// A weighted node that will compute in INT8.
#[derive(Clone, Debug)]
pub(super) struct Weighted {
    pub(super) node: usize,
    /// The constant weight (input 1) and its axis of output channels, `None` = one scale for all.
    pub(super) weight: Option<Option<usize>>,
}

/// The operators with weights.
pub(super) fn is_weighted(node: &Node) -> bool {
    ["Conv", "ConvTranspose", "Gemm", "MatMul"]
        .iter()
        .any(|op| node.is(op))
}

/// Whether a weighted node is quantized, or why not.
pub(super) fn judge(graph: &Graph, index: usize, options: &Int8Options) -> Result<Weighted, String> {
    let node = &graph.nodes[index];
    if let Some(reason) = options.excludes(&node.name) {
        return Err(reason);
    }
    let (Some(data), Some(second)) = (node.input(0), node.input(1)) else {
        return Err("an input is missing".into());
    };
    if graph.constant(data).is_some() {
        return Err("its first input is a constant".into());
    }
    let Some(weight) = graph.constant(second) else {
        return dynamic(graph, node, index, options);
    };
    if weight.dtype() != DataType::Float32 {
        return Err(format!(
            "its weight is {}, only float32 weights are quantized",
            weight.dtype()
        ));
    }
    let axis = match node.op_type.as_str() {
        "Conv" => {
            convolution(graph, node, weight)?;
            expectation(graph, node, weight)?;
            Some(0)
        }
        // Per-channel scales of transposed convolutions are refused by older TensorRT: one scale for all.
        "ConvTranspose" => None,
        "Gemm" => {
            let transposed = node.int("transB").unwrap_or(0) != 0;
            matrix(graph, node, weight, transposed)?;
            Some(if transposed { 0 } else { 1 })
        }
        _ => {
            matrix(graph, node, weight, false)?;
            (weight.dims().len() == 2).then_some(1)
        }
    };
    Ok(Weighted {
        node: index,
        weight: Some(axis),
    })
}

fn dynamic(graph: &Graph, node: &Node, index: usize, options: &Int8Options) -> Result<Weighted, String> {
    if !node.is("MatMul") {
        return Err("its weight is not a constant".into());
    }
    if !options.quantize_attention {
        return Err("a product of two activations (attention); quantize it with --quantize-attention".into());
    }
    let float = |name: &ValueName| {
        graph
            .type_of(name)
            .and_then(|ty| ty.dtype())
            .is_none_or(DataType::is_float)
    };
    if !node.inputs.iter().all(float) {
        return Err("its inputs are not float".into());
    }
    Ok(Weighted {
        node: index,
        weight: None,
    })
}

/// Small convolutions gain nothing (NVIDIA's ModelOpt applies the same limits).
fn convolution(graph: &Graph, node: &Node, weight: &Tensor) -> Result<(), String> {
    let [out, per_group, kernel @ ..] = weight.dims() else {
        return Err(format!(
            "its weight has the shape {:?}, a convolution's has rank 3 or more",
            weight.dims()
        ));
    };
    let group = node.int("group").unwrap_or(1);
    if *out >= 16 && *per_group >= 16 {
        return Ok(());
    }
    let fits = if group == 1 {
        let square = kernel.windows(2).all(|pair| pair[0] == pair[1]);
        let first = node.input(0).is_some_and(|name| graph.is_input(name));
        (out % 8 == 0 || per_group % 8 == 0) && (first || ((*out >= 16 || *per_group >= 16) && square))
    } else {
        out % 8 == 0 && kernel.iter().all(|k| *k >= 3)
    };
    let channels = format!("{per_group} to {out} channels in {group} group(s)");
    if fits {
        Ok(())
    } else {
        Err(format!("too small to gain: {channels}, kernel {kernel:?}"))
    }
}

/// A distribution weighed by places to one number, as a convolution: the boxes of detectors trained with distribution focal
/// loss (Li et al., "Generalized Focal Loss", 2020; YOLOv8 and its successors). It has no weights to learn, takes no time,
/// and hides the convolutions before it, which are the head.
fn expectation(graph: &Graph, node: &Node, weight: &Tensor) -> Result<(), String> {
    if weight.dims().first() != Some(&1) {
        return Ok(());
    }
    let mut value = node.input(0);
    while let Some(before) = value
        .and_then(|name| graph.producer(name))
        .map(|index| &graph.nodes[index])
    {
        if before.is("Softmax") {
            return Err("the expectation of a distribution, by which a detector's head ends".into());
        }
        if !["Transpose", "Reshape"].iter().any(|op| before.is(op)) {
            break;
        }
        value = before.input(0);
    }
    Ok(())
}

/// `[K, N]` products with a short side gain nothing (NVIDIA's ModelOpt applies the same limits).
fn matrix(graph: &Graph, node: &Node, weight: &Tensor, transposed: bool) -> Result<(), String> {
    let [.., k, n] = weight.dims() else {
        return Err("a product with a vector".into());
    };
    let (k, n) = if transposed { (n, k) } else { (k, n) };
    if node.is("Gemm") && node.int("transA").unwrap_or(0) != 0 {
        return Err("its first input is transposed".into());
    }
    // A classifier's Gemm has one row per image; TensorRT and CPUs run it in INT8 all the same.
    let rows = node.output(0).filter(|_| node.is("MatMul")).and_then(|name| {
        let ty = graph.type_of(name)?;
        let shape = ty.shape()?;
        shape.get(shape.len().checked_sub(2)?)?.known()
    });
    if rows == Some(1) || *n == 1 {
        return Err("a product of a single row or column".into());
    }
    if *k < 16 || *n < 16 {
        let shape = format!("[{k}, {n}]");
        return if node.is("Gemm") && *k >= 16 && *n >= 8 {
            Ok(())
        } else {
            Err(format!("too small to gain: weight {shape}"))
        };
    }
    Ok(())
}

/// The convolutions with neither a quantized node nor a matrix product between them and the outputs, by node index: detectors' heads and
/// the last layer of segmenters. Those lose most accuracy and gain least time.
pub(super) fn heads(graph: &Graph, weighted: &[Weighted]) -> Vec<usize> {
    let chosen: HashSet<usize> = weighted.iter().map(|weighted| weighted.node).collect();
    // Whether some reader's way to the outputs passes a quantized node.
    let mut passes: HashMap<&ValueName, bool> = HashMap::new();
    let mut heads = Vec::new();
    for (index, node) in graph.nodes.iter().enumerate().rev() {
        let later = node
            .outputs
            .iter()
            .any(|output| passes.get(output).copied().unwrap_or(false));
        let quantized = chosen.contains(&index);
        let product = node.is("Gemm") || node.is("MatMul");
        if quantized && !later && (node.is("Conv") || node.is("ConvTranspose")) {
            heads.push(index);
        }
        for input in &node.inputs {
            *passes.entry(input).or_default() |= later || quantized || product;
        }
    }
    heads
}
