//! Constant factors and summands for each channel.

use edgeopt_models::{Graph, Node, Tensor};

/// `y[c] = x[c] · scale[c] + shift[c]` along axis 1 of a tensor.
pub(super) struct Affine {
    pub(super) scale: Vec<f64>,
    pub(super) shift: Vec<f64>,
}

/// A float32 constant's elements.
pub(super) fn floats(graph: &Graph, name: &str) -> Option<Vec<f32>> {
    Some(graph.constant(name)?.view::<f32>().ok()?.into_owned())
}

impl Affine {
    /// A `BatchNormalization` in inference mode with constant float32 parameters:
    /// `scale = gamma / sqrt(variance + epsilon)`, `shift = beta - mean · scale`.
    pub(super) fn of_batch_norm(graph: &Graph, norm: &Node) -> Option<Self> {
        if !norm.is("BatchNormalization")
            || norm.int("training_mode").unwrap_or(0) != 0
            || (1..norm.outputs.len()).any(|index| norm.output(index).is_some())
        {
            return None;
        }
        let [gamma, beta, mean, variance] =
            [1, 2, 3, 4].map(|index| norm.input(index).and_then(|name| floats(graph, name)));
        let (gamma, beta, mean, variance) = (gamma?, beta?, mean?, variance?);
        if [&beta, &mean, &variance]
            .iter()
            .any(|part| part.len() != gamma.len())
        {
            return None;
        }
        let epsilon = f64::from(norm.float("epsilon").unwrap_or(1e-5));
        let scale: Vec<f64> = gamma
            .iter()
            .zip(&variance)
            .map(|(gamma, variance)| f64::from(*gamma) / (f64::from(*variance) + epsilon).sqrt())
            .collect();
        let shift = beta
            .iter()
            .zip(&mean)
            .zip(&scale)
            .map(|((beta, mean), scale)| f64::from(*beta) - f64::from(*mean) * scale)
            .collect();
        Self { scale, shift }.finite()
    }

    /// `Mul`, `Add`, `Sub` or `Div` of a value of `channels` channels and rank `rank`, read as input `side`, with
    /// a float32 constant that has one element, or one for each channel *along axis 1*: a constant of shape
    /// (1, 1, 1, C) is none, even if the value is C wide.
    pub(super) fn of_arithmetic(
        graph: &Graph,
        node: &Node,
        side: usize,
        channels: usize,
        rank: usize,
    ) -> Option<Self> {
        if !node.domain.is_empty() || node.inputs.len() != 2 {
            return None;
        }
        let constant = graph.constant(node.input(1 - side)?)?;
        let values = by_channel(constant, channels, rank)?;
        let one = || vec![1.0; channels];
        let zero = || vec![0.0; channels];
        let (scale, shift) = match (node.op_type.as_str(), side) {
            ("Mul", _) => (values, zero()),
            ("Add", _) => (one(), values),
            ("Sub", 0) => (one(), values.iter().map(|value| -value).collect()),
            ("Sub", _) => (vec![-1.0; channels], values),
            ("Div", 0) => (values.iter().map(|value| value.recip()).collect(), zero()),
            _ => return None,
        };
        Self { scale, shift }.finite()
    }

    /// Whether the factors change nothing.
    pub(super) fn only_shifts(&self) -> bool {
        self.scale.iter().all(|scale| *scale == 1.0)
    }

    fn finite(self) -> Option<Self> {
        let finite = self
            .scale
            .iter()
            .chain(&self.shift)
            .all(|value| value.is_finite());
        finite.then_some(self)
    }
}

/// The constant's element for each channel of a value it is broadcast to without changing its shape.
fn by_channel(constant: &Tensor, channels: usize, rank: usize) -> Option<Vec<f64>> {
    let values = constant.view::<f32>().ok()?;
    let dims = constant.dims();
    // Dimensions align at the end.
    let lead = rank.checked_sub(dims.len())?;
    let elsewhere = dims
        .iter()
        .enumerate()
        .any(|(axis, dim)| lead + axis != 1 && *dim != 1);
    if elsewhere {
        return None;
    }
    match &*values {
        [one] => Some(vec![f64::from(*one); channels]),
        each if each.len() == channels => Some(each.iter().map(|value| f64::from(*value)).collect()),
        _ => None,
    }
}
