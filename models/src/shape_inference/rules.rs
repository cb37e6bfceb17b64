//! Which rule belongs to which operator.

use super::facts::{Derived, Op, ranked};
use super::{
    creation, einsum, elementwise, layout, linear, normalize, pick, recurrent, reduce, resize, window,
};
use crate::ValueType;

/// The types of the node's outputs.
pub(super) fn apply(op: &Op<'_>) -> Derived {
    if !op.node.domain.is_empty() {
        return Ok(Vec::new());
    }
    match op.node.op_type.as_str() {
        "Abs"
        | "Acos"
        | "Acosh"
        | "Asin"
        | "Asinh"
        | "Atan"
        | "Atanh"
        | "BitwiseNot"
        | "Ceil"
        | "Celu"
        | "Clip"
        | "Cos"
        | "Cosh"
        | "CumSum"
        | "Elu"
        | "Erf"
        | "Exp"
        | "Floor"
        | "Gelu"
        | "HardSigmoid"
        | "HardSwish"
        | "Hardmax"
        | "Identity"
        | "LRN"
        | "LeakyRelu"
        | "Log"
        | "LogSoftmax"
        | "LpNormalization"
        | "MeanVarianceNormalization"
        | "Mish"
        | "Neg"
        | "Not"
        | "Reciprocal"
        | "Relu"
        | "ReverseSequence"
        | "Round"
        | "Selu"
        | "Shrink"
        | "Sigmoid"
        | "Sign"
        | "Sin"
        | "Sinh"
        | "Softmax"
        | "Softplus"
        | "Softsign"
        | "Sqrt"
        | "Tan"
        | "Tanh"
        | "ThresholdedRelu"
        | "Trilu"
        | "GroupNormalization"
        | "InstanceNormalization"
        | "ScatterElements"
        | "Scatter"
        | "ScatterND" => elementwise::same(op),
        "Add" | "Sub" | "Mul" | "Div" | "Pow" | "Mod" | "BitShift" | "And" | "Or" | "Xor" | "BitwiseAnd"
        | "BitwiseOr" | "BitwiseXor" | "PRelu" | "Min" | "Max" | "Mean" | "Sum" => elementwise::broadcast(op),
        "Equal" | "Less" | "LessOrEqual" | "Greater" | "GreaterOrEqual" => elementwise::compare(op),
        "IsInf" | "IsNaN" => elementwise::predicate(op),
        "Where" => elementwise::select(op),
        "Cast" => elementwise::cast(op),
        "CastLike" => elementwise::cast_like(op),
        "Dropout" => elementwise::dropout(op),
        "QuantizeLinear" => elementwise::quantize(op),
        "DequantizeLinear" => elementwise::dequantize(op),
        "DynamicQuantizeLinear" => elementwise::dynamic_quantize(op),
        "Conv" | "ConvInteger" | "QLinearConv" => window::conv(op),
        "ConvTranspose" => window::conv_transpose(op),
        "MaxPool" | "AveragePool" | "LpPool" => window::pool(op),
        "GlobalAveragePool" | "GlobalMaxPool" | "GlobalLpPool" => window::global_pool(op),
        "MatMul" | "MatMulInteger" | "QLinearMatMul" => linear::matmul(op),
        "Gemm" => linear::gemm(op),
        "BatchNormalization" => normalize::batch(op),
        "LayerNormalization" => normalize::layer(op),
        "ReduceSum" | "ReduceMean" | "ReduceMax" | "ReduceMin" | "ReduceProd" | "ReduceL1" | "ReduceL2"
        | "ReduceLogSum" | "ReduceLogSumExp" | "ReduceSumSquare" => reduce::reduce(op),
        "ArgMax" | "ArgMin" => reduce::arg(op),
        "TopK" => reduce::top_k(op),
        "Reshape" => layout::reshape(op),
        "Flatten" => layout::flatten(op),
        "Transpose" => layout::transpose(op),
        "Squeeze" => layout::squeeze(op),
        "Unsqueeze" => layout::unsqueeze(op),
        "Expand" => layout::expand(op),
        "Tile" => layout::tile(op),
        "DepthToSpace" | "SpaceToDepth" => layout::depth_space(op),
        "Concat" => pick::concat(op),
        "Split" => pick::split(op),
        "Slice" => pick::slice(op),
        "Gather" => pick::gather(op),
        "GatherElements" => pick::gather_elements(op),
        "GatherND" => pick::gather_nd(op),
        "Pad" => pick::pad(op),
        "OneHot" => pick::one_hot(op),
        "Compress" | "NonZero" | "NonMaxSuppression" => pick::data_dependent(op),
        "Resize" | "Upsample" => resize::resize(op),
        "GridSample" => resize::grid_sample(op),
        "RoiAlign" => resize::roi_align(op),
        "Shape" => creation::shape(op),
        "Size" => creation::size(op),
        "Constant" => creation::constant(op),
        "ConstantOfShape" => creation::constant_of_shape(op),
        "Range" => creation::range(op),
        "RandomNormal" | "RandomUniform" => creation::random(op),
        "RandomNormalLike" | "RandomUniformLike" | "EyeLike" | "Bernoulli" => creation::like(op),
        "LSTM" | "GRU" | "RNN" => recurrent::recurrent(op),
        "Einsum" => einsum::einsum(op),
        "If" => branches(op),
        "Loop" => repeated(op, op.node.inputs.len().saturating_sub(2), 1),
        "Scan" if op.opset >= 9 => {
            let scanned = op
                .node
                .int("num_scan_inputs")
                .and_then(|count| usize::try_from(count).ok());
            let Some(states) = scanned.and_then(|count| op.node.inputs.len().checked_sub(count)) else {
                return Ok(Vec::new());
            };
            repeated(op, states, 0)
        }
        _ => Ok(Vec::new()),
    }
}

/// The outputs of `Loop` and `Scan` past the first `skip` outputs of their body: `carried` values, whose shape may
/// change from step to step, then what is collected over the steps along one more axis.
fn repeated(op: &Op<'_>, carried: usize, skip: usize) -> Derived {
    let [body] = op.branches.as_slice() else {
        return Ok(Vec::new());
    };
    let outputs = body.iter().skip(skip).enumerate();
    Ok(outputs
        .map(|(index, ty)| {
            let dtype = ty.dtype()?;
            let collected = ty.shape().filter(|_| index >= carried);
            let shape = collected.map(|shape| ranked(shape.len() + 1));
            Some(ValueType::Tensor { dtype, shape })
        })
        .collect())
}

/// The outputs of `If`: what both branches agree on.
fn branches(op: &Op<'_>) -> Derived {
    let [first, second] = op.branches.as_slice() else {
        return Ok(Vec::new());
    };
    Ok(first
        .iter()
        .zip(second)
        .map(|(a, b)| match (a, b) {
            (
                ValueType::Tensor { dtype, shape: one },
                ValueType::Tensor {
                    dtype: other,
                    shape: two,
                },
            ) => {
                if dtype != other {
                    return None;
                }
                let shape = match (one, two) {
                    (Some(one), Some(two)) if one.len() == two.len() => Some(
                        one.iter()
                            .zip(two.iter())
                            .map(|(a, b)| if a == b { a.clone() } else { crate::Dim::Unknown })
                            .collect(),
                    ),
                    _ => None,
                };
                Some(ValueType::Tensor { dtype: *dtype, shape })
            }
            _ => (a == b).then(|| a.clone()),
        })
        .collect())
}
