//! The layers of a finished engine, as the builder lists them when it is asked for details.
//!
//! TensorRT's inspector needs the engine loaded, and loading needs a GPU. The builder prints the same lines at the end of
//! a build, so that what became of a graph can be seen on any machine.

/// A layer of an engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineLayer {
    /// TensorRT's name of it.
    pub name: String,
    /// What it is: `correlation`, `gemm`, `kgen` (a generated kernel of fused operators).
    pub kind: String,
    /// Element types of its inputs, without constants.
    pub inputs: Vec<String>,
    /// Element types of its constants.
    pub constants: Vec<String>,
    /// Element types of its outputs.
    pub outputs: Vec<String>,
    /// Nodes of the ONNX graph in it.
    pub onnx_nodes: Vec<String>,
}

impl EngineLayer {
    /// Whether it is a convolution or product of matrices, by kind.
    pub fn multiplies(&self) -> bool {
        ["correlation", "conv", "gemm", "matmul", "matrix", "deconv"]
            .iter()
            .any(|kind| self.kind.to_lowercase().contains(kind))
    }
}

/// The layers in a message of the builder's log; empty for every other message.
pub(super) fn parse(message: &str) -> Vec<EngineLayer> {
    let Some(list) = message.strip_prefix("Layers:") else {
        return Vec::new();
    };
    let list = list.split("\nI/O Tensors:").next().unwrap_or(list);
    list.lines().filter_map(layer).collect()
}

fn layer(line: &str) -> Option<EngineLayer> {
    let rest = line.trim().strip_prefix("Name: ")?;
    let (name, rest) = rest.split_once(", LayerType: ")?;
    let (kind, rest) = rest.split_once(", Inputs: ")?;
    let (inputs, rest) = rest
        .split_once(", Constants: ")
        .or_else(|| rest.split_once(", Outputs: "))?;
    let (constants, rest) = rest.split_once(", Outputs: ").unwrap_or(("", rest));
    let outputs = rest.split(", TacticName: ").next().unwrap_or(rest);
    let nodes = line.split("[ONNX Layer: ").skip(1);
    Some(EngineLayer {
        name: name.to_owned(),
        kind: kind.to_owned(),
        inputs: types(inputs),
        constants: types(constants),
        outputs: types(outputs),
        onnx_nodes: nodes
            .filter_map(|node| Some(node.split(']').next()?.to_owned()))
            .collect(),
    })
}

fn types(list: &str) -> Vec<String> {
    let after = list.split("Datatype: ").skip(1);
    after
        .filter_map(|text| Some(text.split([',', ' ', '}']).next()?.to_owned()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_tell_types_and_nodes() {
        let message = "Layers:\n\
            Name: shapes, LayerType: shape_call, Inputs: [], Constants: [], Outputs: [], TacticName: , StreamId: 0, Metadata: \n\
            Name: conv1_2, LayerType: correlation, Inputs: [ { Name: x, Dimensions: [-1,4], Datatype: Int8, Format: N }], \
            Constants: [ { Name: w, Datatype: Int8, Format: N }, { Name: s, Datatype: Float, Format: N }], \
            Outputs: [ { Name: y, Datatype: Half, Format: N }], TacticName: t, StreamId: 0, \
            Metadata: [ONNX Layer: conv1][ONNX Layer: relu]\n\
            \nI/O Tensors:\n Name: image, IOMode: Input, DataType: Float\n";
        let layers = parse(message);
        assert_eq!(layers.len(), 2);
        assert!(!layers[0].multiplies() && layers[1].multiplies());
        assert_eq!(layers[1].inputs, ["Int8"]);
        assert_eq!(layers[1].constants, ["Int8", "Float"]);
        assert_eq!(layers[1].outputs, ["Half"]);
        assert_eq!(layers[1].onnx_nodes, ["conv1", "relu"]);
        assert_eq!(parse("Engine generation completed"), []);
    }
}
