//! The changes themselves, each exact.

use indexmap::IndexMap;

use super::Facts;
use crate::graph::NameGenerator;
use crate::{Attribute, DataType, Node, Tensor, ValueName};
use half::{bf16, f16};

/// The nodes of one graph while they are being rewritten.
pub(super) struct Rewriting<'a> {
    facts: &'a Facts,
    names: &'a mut NameGenerator,
    nodes: Vec<Node>,
    /// Nodes that come after the present one.
    after: Vec<Node>,
    constants: IndexMap<ValueName, Tensor>,
}

impl<'a> Rewriting<'a> {
    pub(super) fn new(facts: &'a Facts, names: &'a mut NameGenerator) -> Self {
        Self {
            facts,
            names,
            nodes: Vec::new(),
            after: Vec::new(),
            constants: IndexMap::new(),
        }
    }

    /// Adds a node that is done, and what was made to follow it.
    pub(super) fn finish_node(&mut self, node: Node) {
        self.nodes.push(node);
        self.nodes.append(&mut self.after);
    }

    /// All nodes and the constants made for them.
    pub(super) fn finish(self) -> (Vec<Node>, IndexMap<ValueName, Tensor>) {
        (self.nodes, self.constants)
    }

    /// Rewrites `node` for the change that came with `version`; whether anything had to be done.
    /// The error says why it cannot be.
    pub(super) fn apply(&mut self, node: &mut Node, version: i64) -> Result<bool, String> {
        match (node.op_type.as_str(), version) {
            ("BatchNormalization", 9) => match node.attributes.remove("spatial") {
                None => Ok(false),
                Some(Attribute::Int(1)) => Ok(true),
                Some(_) => Err("statistics per element (spatial = 0) no longer exist".to_owned()),
            },
            ("BatchNormalization", 14) => self.drop_outputs(node, "the training outputs"),
            ("Clip", 11) => self.bounds_to_inputs(node),
            ("DFT", 20) => {
                let axis = take_int(node, "axis")?.unwrap_or(1);
                let axis = self.constant(node, "axis", Tensor::scalar(axis));
                set_input(node, 2, axis);
                Ok(true)
            }
            ("Dropout", 10) => self.drop_outputs(node, "the mask, once a number and now boolean,"),
            // when not training, which a model of that time cannot ask for, the ratio has no effect
            ("Dropout", 12) => Ok(node.attributes.remove("ratio").is_some()),
            ("GridSample", 20) => {
                let mode = match node.string("mode") {
                    Some("bilinear") => "linear",
                    Some("bicubic") => "cubic",
                    _ => return Ok(false),
                };
                node.attributes.insert("mode".into(), mode.into());
                Ok(true)
            }
            ("Hardmax" | "LogSoftmax" | "Softmax", 13) => self.one_axis(node),
            ("OneHot", 11) => self.only_positive_indices(node),
            ("Pad", 11) => self.pads_to_inputs(node),
            ("ReduceSum", 13) | ("Squeeze" | "Unsqueeze", 13) => self.axes_to_input(node),
            (op, 18) if op.starts_with("Reduce") => self.axes_to_input(node),
            ("Resize", 11) => self.resize_coordinates(node),
            ("Resize", 13) => self.resize_optional_inputs(node),
            ("RoiAlign", 16) => {
                let key = "coordinate_transformation_mode";
                node.attributes.insert(key.into(), "output_half_pixel".into());
                Ok(true)
            }
            ("Scatter", 11) => {
                node.op_type = "ScatterElements".into();
                Ok(true)
            }
            ("Slice", 10) => self.slice_to_inputs(node),
            ("Split", 13) => {
                let Some(split) = take_ints(node, "split")? else {
                    return Ok(false);
                };
                let split = self.constant(node, "split", Tensor::vector(&split));
                set_input(node, 1, split);
                Ok(true)
            }
            ("Split", 18) => {
                if node.input(1).is_some() {
                    return Ok(false);
                }
                let parts = node.outputs.len() as i64;
                node.attributes.insert("num_outputs".into(), parts.into());
                Ok(true)
            }
            ("TopK", 10) => {
                let k = take_int(node, "k")?.ok_or("its attribute \"k\" is missing")?;
                let k = self.constant(node, "k", Tensor::vector(&[k]));
                set_input(node, 1, k);
                Ok(true)
            }
            ("Upsample", 9) => {
                let scales = match node.attributes.remove("scales") {
                    Some(Attribute::Floats(scales)) => scales,
                    _ => return Err("its attribute \"scales\" is missing or no list of floats".to_owned()),
                };
                let scales = self.constant(node, "scales", Tensor::vector(&scales));
                set_input(node, 1, scales);
                Ok(true)
            }
            ("Upsample", 10) => self.upsample_to_resize(node),
            _ => Err("how to rewrite it is not known".to_owned()),
        }
    }

    fn constant(&mut self, node: &Node, what: &str, tensor: Tensor) -> ValueName {
        let name = self.names.fresh(&format!("{}_{what}", node.name));
        self.constants.insert(name.clone(), tensor);
        name
    }

    fn value(&self, name: Option<&ValueName>) -> Option<&Tensor> {
        let name = name?;
        self.constants
            .get(name)
            .or_else(|| self.facts.constants.get(name))
    }

    /// A scalar of the element type of `like`.
    fn scalar_like(
        &mut self,
        node: &Node,
        what: &str,
        value: f32,
        like: &ValueName,
    ) -> Result<ValueName, String> {
        let tensor = match self.facts.types.get(like).map(|ty| ty.dtype()) {
            Some(Some(DataType::Float32)) => Tensor::scalar(value),
            Some(Some(DataType::Float64)) => Tensor::scalar(f64::from(value)),
            Some(Some(DataType::Float16)) => Tensor::scalar(f16::from_f32(value)),
            Some(Some(DataType::Bfloat16)) => Tensor::scalar(bf16::from_f32(value)),
            // a type that is not known, or is an integer: left to the runtime
            _ => {
                let plain = self.constant(node, what, Tensor::scalar(value));
                let name = self.names.fresh(&format!("{}_{what}_typed", node.name));
                let cast = self.names.fresh(&format!("{}_{what}_cast", node.name));
                let cast = Node::new("CastLike", &cast, [plain, like.clone()], [name.clone()]);
                self.nodes.push(cast);
                return Ok(name);
            }
        };
        Ok(self.constant(node, what, tensor))
    }

    /// Drops all outputs but the first, if nothing reads them.
    fn drop_outputs(&mut self, node: &mut Node, what: &str) -> Result<bool, String> {
        let extra = node.outputs.get(1..).unwrap_or_default();
        if let Some(name) = extra
            .iter()
            .find(|name| !name.is_omitted() && self.facts.read.contains(*name))
        {
            return Err(format!("{what} {:?} is read", &**name));
        }
        let changed = node.outputs.len() > 1;
        node.outputs.truncate(1);
        Ok(changed)
    }

    fn bounds_to_inputs(&mut self, node: &mut Node) -> Result<bool, String> {
        let like = node.input(0).cloned().ok_or("it has no input")?;
        let mut changed = false;
        for (index, key) in [(1, "min"), (2, "max")] {
            match node.attributes.remove(key) {
                None => {}
                Some(Attribute::Float(bound)) => {
                    let bound = self.scalar_like(node, key, bound, &like)?;
                    set_input(node, index, bound);
                    changed = true;
                }
                Some(_) => return Err(format!("its attribute {key:?} is no float")),
            }
        }
        Ok(changed)
    }

    fn pads_to_inputs(&mut self, node: &mut Node) -> Result<bool, String> {
        let like = node.input(0).cloned().ok_or("it has no input")?;
        let pads = take_ints(node, "pads")?.ok_or("its attribute \"pads\" is missing")?;
        let pads = self.constant(node, "pads", Tensor::vector(&pads));
        set_input(node, 1, pads);
        match node.attributes.remove("value") {
            None => {}
            Some(Attribute::Float(0.0)) => {}
            Some(Attribute::Float(value)) => {
                let value = self.scalar_like(node, "value", value, &like)?;
                set_input(node, 2, value);
            }
            Some(_) => return Err("its attribute \"value\" is no float".to_owned()),
        }
        Ok(true)
    }

    fn axes_to_input(&mut self, node: &mut Node) -> Result<bool, String> {
        match take_ints(node, "axes")? {
            Some(axes) if !axes.is_empty() => {
                let axes = self.constant(node, "axes", Tensor::vector(&axes));
                set_input(node, 1, axes);
                Ok(true)
            }
            _ if node.op_type == "Unsqueeze" => Err("its attribute \"axes\" is missing".to_owned()),
            // no axes: all of them, then as now
            axes => Ok(axes.is_some()),
        }
    }

    fn slice_to_inputs(&mut self, node: &mut Node) -> Result<bool, String> {
        for (index, key) in [(1, "starts"), (2, "ends"), (3, "axes")] {
            let Some(values) = take_ints(node, key)? else {
                if key == "axes" {
                    continue;
                }
                return Err(format!("its attribute {key:?} is missing"));
            };
            let values = self.constant(node, key, Tensor::vector(&values));
            set_input(node, index, values);
        }
        Ok(true)
    }

    /// Before version 13, everything from `axis` on was one long axis.
    fn one_axis(&mut self, node: &mut Node) -> Result<bool, String> {
        let axis = take_int(node, "axis")?.unwrap_or(1);
        let input = node.input(0).cloned().ok_or("it has no input")?;
        let output = node.output(0).cloned().ok_or("it has no output")?;
        let rank = self
            .facts
            .types
            .get(&input)
            .and_then(|ty| ty.shape())
            .map(|shape| shape.len() as i64);
        node.attributes.insert("axis".into(), Attribute::Int(-1));
        if axis == -1 || rank.is_some_and(|rank| axis == rank - 1) {
            return Ok(true);
        }
        let mut name = |what: &str| self.names.fresh(&format!("{}_{what}", node.name));
        let (flat, shape, result) = (name("flat"), name("shape"), name("result"));
        let (flatten_name, shape_name, reshape_name) = (name("flatten"), name("shape_of"), name("reshape"));
        let flatten = Node::new("Flatten", &flatten_name, [input.clone()], [flat.clone()]);
        self.nodes.push(flatten.with("axis", axis));
        self.nodes
            .push(Node::new("Shape", &shape_name, [input], [shape.clone()]));
        // a zero in the shape is a length here, not "copy"
        let reshape = Node::new("Reshape", &reshape_name, [result.clone(), shape], [output]);
        self.after.push(reshape.with("allowzero", 1));
        node.inputs = vec![flat];
        node.outputs = vec![result];
        Ok(true)
    }

    /// From version 11 on, negative indices count from the end; before, they selected nothing.
    fn only_positive_indices(&mut self, node: &Node) -> Result<bool, String> {
        let indices = self
            .value(node.input(0))
            .and_then(|indices| indices.to_f32().ok());
        match indices {
            Some(indices) if indices.iter().all(|index| *index >= 0.0) => Ok(false),
            _ => Err(
                "negative indices mean something else now, and its indices are not known to be positive"
                    .to_owned(),
            ),
        }
    }

    fn upsample_to_resize(&mut self, node: &mut Node) -> Result<bool, String> {
        let small = |scales: &Tensor| {
            scales
                .to_f32()
                .is_ok_and(|scales| scales.iter().any(|scale| *scale < 1.0))
        };
        if self.value(node.input(1)).is_some_and(small) {
            return Err("a scale is below 1, which Upsample does not have".to_owned());
        }
        node.op_type = "Resize".into();
        // this is no Resize of version 10, whose rounding depends on the scales: Upsample always rounds down
        coordinates(node, "floor");
        Ok(true)
    }

    /// Version 10 had one way to find the source of an output element: divide by the scale. Its nearest
    /// neighbour is the one below when enlarging and the one above when shrinking, as runtimes do it.
    fn resize_coordinates(&mut self, node: &mut Node) -> Result<bool, String> {
        if node.attributes.contains_key("coordinate_transformation_mode") {
            return Ok(false); // it was an Upsample
        }
        let rounding = match self.value(node.input(1)).map(Tensor::to_f32) {
            _ if node.string("mode").is_some_and(|mode| mode != "nearest") => "floor",
            Some(Ok(scales)) if scales.iter().all(|scale| *scale >= 1.0) => "floor",
            Some(Ok(scales)) if scales.iter().all(|scale| *scale <= 1.0) => "ceil",
            Some(_) => {
                return Err("it enlarges one axis and shrinks another, which rounded differently".to_owned());
            }
            None => return Err("its rounding depends on its scales, which are not constant".to_owned()),
        };
        coordinates(node, rounding);
        Ok(true)
    }

    /// From version 13 on, what is not given is left out; before, it was an empty tensor.
    fn resize_optional_inputs(&mut self, node: &mut Node) -> Result<bool, String> {
        match node.string("coordinate_transformation_mode") {
            Some("tf_half_pixel_for_nn") => {
                return Err("the coordinates \"tf_half_pixel_for_nn\" no longer exist".to_owned());
            }
            Some("tf_crop_and_resize") => return Ok(false),
            _ => {}
        }
        let mut changed = false;
        for index in [1, 2] {
            if self
                .value(node.input(index))
                .is_some_and(|tensor| tensor.elements() == 0)
            {
                node.inputs[index] = ValueName::omitted();
                changed = true;
            }
        }
        Ok(changed)
    }
}

fn coordinates(node: &mut Node, rounding: &str) {
    let key = "coordinate_transformation_mode";
    node.attributes.insert(key.into(), "asymmetric".into());
    node.attributes.insert("nearest_mode".into(), rounding.into());
    // X, scales became X, region of interest, scales
    node.inputs.insert(1.min(node.inputs.len()), ValueName::omitted());
}

fn set_input(node: &mut Node, index: usize, name: ValueName) {
    while node.inputs.len() <= index {
        node.inputs.push(ValueName::omitted());
    }
    node.inputs[index] = name;
}

fn take_int(node: &mut Node, key: &str) -> Result<Option<i64>, String> {
    match node.attributes.remove(key) {
        None => Ok(None),
        Some(Attribute::Int(value)) => Ok(Some(value)),
        Some(_) => Err(format!("its attribute {key:?} is no integer")),
    }
}

fn take_ints(node: &mut Node, key: &str) -> Result<Option<Vec<i64>>, String> {
    match node.attributes.remove(key) {
        None => Ok(None),
        Some(Attribute::Ints(values)) => Ok(Some(values)),
        Some(_) => Err(format!("its attribute {key:?} is no list of integers")),
    }
}
