use edgeopt_models::{Attribute, DataType, Dim, Graph, Model, Node, Shape, Tensor, ValueInfo, ValueName};

/// Builds a graph layer by layer; every method returns the name of its output.
pub(crate) struct Builder {
    graph: Graph,
    state: u64,
    count: usize,
}

/// How a convolution is laid out.
#[derive(Clone, Copy)]
pub(crate) struct Conv {
    pub(crate) input: usize,
    pub(crate) output: usize,
    pub(crate) kernel: usize,
    pub(crate) stride: usize,
    pub(crate) groups: usize,
}

impl Conv {
    pub(crate) fn new(input: usize, output: usize, kernel: usize) -> Self {
        Self {
            input,
            output,
            kernel,
            stride: 1,
            groups: 1,
        }
    }

    pub(crate) fn stride(self, stride: usize) -> Self {
        Self { stride, ..self }
    }

    pub(crate) fn depthwise(self) -> Self {
        Self {
            groups: self.input,
            ..self
        }
    }
}

impl Builder {
    pub(crate) fn new(name: &str, seed: u64) -> Self {
        let graph = Graph {
            name: name.to_owned(),
            ..Graph::default()
        };
        Self {
            graph,
            state: seed | 1,
            count: 0,
        }
    }

    pub(crate) fn image_input(&mut self, channels: usize, side: usize) -> ValueName {
        let shape: Shape = [Dim::from("N"), channels.into(), side.into(), side.into()]
            .into_iter()
            .collect();
        self.graph
            .inputs
            .push(ValueInfo::tensor("images", DataType::Float32, shape));
        "images".into()
    }

    pub(crate) fn input(&mut self, name: &str, dtype: DataType, shape: Shape) -> ValueName {
        self.graph.inputs.push(ValueInfo::tensor(name, dtype, shape));
        name.into()
    }

    pub(crate) fn token_input(&mut self, name: &str, length: usize) -> ValueName {
        self.input(name, DataType::Int64, batched(&[length]))
    }

    /// Uniform in 0..1 (xorshift64*).
    fn uniform(&mut self) -> f32 {
        self.state ^= self.state >> 12;
        self.state ^= self.state << 25;
        self.state ^= self.state >> 27;
        (self.state.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 40) as f32 / (1u64 << 24) as f32
    }

    /// Values with zero mean and the given deviation (sum of three uniforms: close enough to normal here).
    fn values(&mut self, count: usize, deviation: f32) -> Vec<f32> {
        (0..count)
            .map(|_| (self.uniform() + self.uniform() + self.uniform() - 1.5) * 2.0 * deviation)
            .collect()
    }

    pub(crate) fn constant(&mut self, hint: &str, tensor: Tensor) -> ValueName {
        self.count += 1;
        let name: ValueName = format!("{hint}_{}", self.count).into();
        self.graph.add_initializer(name.clone(), tensor);
        name
    }

    pub(crate) fn weights(&mut self, hint: &str, dims: &[usize], deviation: f32) -> ValueName {
        let values = self.values(dims.iter().product(), deviation);
        let tensor = Tensor::new(dims, &values).expect("as many values as the shape asks for");
        self.constant(hint, tensor)
    }

    pub(crate) fn ints(&mut self, hint: &str, values: &[i64]) -> ValueName {
        self.constant(hint, Tensor::vector(values))
    }

    pub(crate) fn scalar(&mut self, hint: &str, value: f32) -> ValueName {
        self.constant(hint, Tensor::scalar(value))
    }

    pub(crate) fn op(
        &mut self,
        op: &str,
        inputs: &[&ValueName],
        attributes: &[(&str, Attribute)],
    ) -> ValueName {
        self.op_many(op, inputs, attributes, 1).remove(0)
    }

    pub(crate) fn op_many(
        &mut self,
        op: &str,
        inputs: &[&ValueName],
        attributes: &[(&str, Attribute)],
        outputs: usize,
    ) -> Vec<ValueName> {
        self.count += 1;
        let name = format!("{}_{}", op.to_lowercase(), self.count);
        let outputs: Vec<ValueName> = (0..outputs).map(|i| format!("{name}.out{i}").into()).collect();
        let mut node = Node::new(op, &name, inputs.iter().copied().cloned(), outputs.clone());
        for (key, value) in attributes {
            node = node.with(key, value.clone());
        }
        self.graph.nodes.push(node);
        outputs
    }

    /// Convolution with "same" padding and no bias; weights as Kaiming (fan in) has them.
    pub(crate) fn conv(&mut self, x: &ValueName, conv: Conv) -> ValueName {
        let fan_in = conv.input / conv.groups * conv.kernel * conv.kernel;
        let dims = [conv.output, conv.input / conv.groups, conv.kernel, conv.kernel];
        let weight = self.weights("weight", &dims, (2.0 / fan_in as f32).sqrt());
        self.op("Conv", &[x, &weight], &conv.attributes())
    }

    /// Convolution with a bias.
    pub(crate) fn conv_bias(&mut self, x: &ValueName, conv: Conv) -> ValueName {
        let fan_in = conv.input / conv.groups * conv.kernel * conv.kernel;
        let dims = [conv.output, conv.input / conv.groups, conv.kernel, conv.kernel];
        let weight = self.weights("weight", &dims, (2.0 / fan_in as f32).sqrt());
        let bias = self.weights("bias", &[conv.output], 0.1);
        self.op("Conv", &[x, &weight, &bias], &conv.attributes())
    }

    /// BatchNormalization with statistics near those of a trained net; `scale` damps residual branches.
    pub(crate) fn batch_norm(&mut self, x: &ValueName, channels: usize, scale: f32) -> ValueName {
        let gain = self.constant("bn_scale", filled(channels, scale));
        let bias = self.constant("bn_bias", filled(channels, 0.0));
        let mean = self.weights("bn_mean", &[channels], 0.1);
        let variance: Vec<f32> = (0..channels).map(|_| 0.8 + 0.4 * self.uniform()).collect();
        let variance = self.constant("bn_var", Tensor::vector(&variance));
        self.op(
            "BatchNormalization",
            &[x, &gain, &bias, &mean, &variance],
            &[("epsilon", 1e-5f32.into())],
        )
    }

    pub(crate) fn gemm(&mut self, x: &ValueName, input: usize, output: usize) -> ValueName {
        let weight = self.weights("weight", &[output, input], (1.0 / input as f32).sqrt());
        let bias = self.weights("bias", &[output], 0.1);
        self.op("Gemm", &[x, &weight, &bias], &[("transB", 1i64.into())])
    }

    /// Names the result `name` and finishes the model at opset 17.
    pub(crate) fn finish(mut self, outputs: &[(&ValueName, &str, Shape)]) -> Model {
        for (value, name, shape) in outputs {
            let node = Node::new("Identity", name, [(*value).clone()], [*name]);
            self.graph.nodes.push(node);
            self.graph
                .outputs
                .push(ValueInfo::tensor(*name, DataType::Float32, shape.clone()));
        }
        Model::new(self.graph, 17)
    }
}

impl Conv {
    fn attributes(self) -> [(&'static str, Attribute); 4] {
        let (kernel, stride, pad) = (self.kernel as i64, self.stride as i64, (self.kernel / 2) as i64);
        [
            ("kernel_shape", [kernel, kernel].into()),
            ("strides", [stride, stride].into()),
            ("pads", [pad, pad, pad, pad].into()),
            ("group", (self.groups as i64).into()),
        ]
    }
}

fn filled(count: usize, value: f32) -> Tensor {
    Tensor::vector(&vec![value; count])
}

/// A shape whose first length is the batch.
pub(crate) fn batched(rest: &[usize]) -> Shape {
    std::iter::once(Dim::from("N"))
        .chain(rest.iter().copied().map(Dim::Known))
        .collect()
}
