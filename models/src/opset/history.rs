//! The standard operators, and the versions of the operator set (8 to 21) that changed what an existing node
//! means or how it is written. New element types, new optional inputs and attributes with the old meaning
//! as their default, and negative axes where there were none before leave a node as it is.
//!
//! Source: the operator schemas' histories in ONNX's `Changelog.md`.

/// Operators whose nodes must be looked at, with the versions in question.
const CHANGED: &[(&str, &[i64])] = &[
    ("BatchNormalization", &[9, 14]), // `spatial` went; training outputs changed
    ("Clip", &[11]),                  // bounds became inputs
    ("DFT", &[20]),                   // axis became an input
    ("Dropout", &[10, 12]),           // mask became boolean; ratio became an input
    ("GridSample", &[20]),            // modes were renamed
    ("GroupNormalization", &[21]),    // scale and bias per channel, no longer per group
    ("Hardmax", &[13]),               // along one axis, no longer over the flattened rest
    ("LogSoftmax", &[13]),
    ("OneHot", &[11]),   // negative indices count from the end
    ("Pad", &[11]),      // pads and value became inputs
    ("ReduceL1", &[18]), // axes became an input
    ("ReduceL2", &[18]),
    ("ReduceLogSum", &[18]),
    ("ReduceLogSumExp", &[18]),
    ("ReduceMax", &[18]),
    ("ReduceMean", &[18]),
    ("ReduceMin", &[18]),
    ("ReduceProd", &[18]),
    ("ReduceSum", &[13]),
    ("ReduceSumSquare", &[18]),
    ("Resize", &[11, 13]), // coordinates; a mode went
    ("RoiAlign", &[16]),   // the default coordinates changed
    ("Scan", &[9]),        // batches and sequence lengths went
    ("Scatter", &[11]),    // renamed to ScatterElements
    ("Slice", &[10]),      // starts, ends and axes became inputs
    ("Softmax", &[13]),
    ("Split", &[13, 18]), // sizes became an input; the number of outputs is written down
    ("Squeeze", &[13]),   // axes became an input
    ("TopK", &[10]),      // k became an input
    ("Unsqueeze", &[13]),
    ("Upsample", &[9, 10]), // scales became an input; renamed to Resize
];

/// Operators that no target has: where they were still allowed, they are renamed.
pub(super) const REMOVED: &[&str] = &["Scatter", "Upsample"];

/// Operators whose nodes mean the same in every version from 7 to 21 that has them.
const UNCHANGED: &[&str] = &[
    "Abs",
    "Acos",
    "Acosh",
    "Add",
    "AffineGrid",
    "And",
    "ArgMax",
    "ArgMin",
    "Asin",
    "Asinh",
    "Atan",
    "Atanh",
    "AveragePool",
    "Bernoulli",
    "BitShift",
    "BitwiseAnd",
    "BitwiseNot",
    "BitwiseOr",
    "BitwiseXor",
    "BlackmanWindow",
    "Cast",
    "CastLike",
    "Ceil",
    "Celu",
    "CenterCropPad",
    "Col2Im",
    "Compress",
    "Concat",
    "ConcatFromSequence",
    "Constant",
    "ConstantOfShape",
    "Conv",
    "ConvInteger",
    "ConvTranspose",
    "Cos",
    "Cosh",
    "CumSum",
    "DeformConv",
    "DepthToSpace",
    "DequantizeLinear",
    "Det",
    "Div",
    "DynamicQuantizeLinear",
    "Einsum",
    "Elu",
    "Equal",
    "Erf",
    "Exp",
    "Expand",
    "EyeLike",
    "Flatten",
    "Floor",
    "GRU",
    "Gather",
    "GatherElements",
    "GatherND",
    "Gelu",
    "Gemm",
    "GlobalAveragePool",
    "GlobalLpPool",
    "GlobalMaxPool",
    "Greater",
    "GreaterOrEqual",
    "HammingWindow",
    "HannWindow",
    "HardSigmoid",
    "HardSwish",
    "Identity",
    "If",
    "ImageDecoder",
    "InstanceNormalization",
    "IsInf",
    "IsNaN",
    "LRN",
    "LSTM",
    "LayerNormalization",
    "LeakyRelu",
    "Less",
    "LessOrEqual",
    "Log",
    "Loop",
    "LpNormalization",
    "LpPool",
    "MatMul",
    "MatMulInteger",
    "Max",
    "MaxPool",
    "MaxRoiPool",
    "MaxUnpool",
    "Mean",
    "MeanVarianceNormalization",
    "MelWeightMatrix",
    "Min",
    "Mish",
    "Mod",
    "Mul",
    "Multinomial",
    "Neg",
    "NegativeLogLikelihoodLoss",
    "NonMaxSuppression",
    "NonZero",
    "Not",
    "Optional",
    "OptionalGetElement",
    "OptionalHasElement",
    "Or",
    "PRelu",
    "Pow",
    "QLinearConv",
    "QLinearMatMul",
    "QuantizeLinear",
    "RNN",
    "RandomNormal",
    "RandomNormalLike",
    "RandomUniform",
    "RandomUniformLike",
    "Range",
    "Reciprocal",
    "RegexFullMatch",
    "Relu",
    "Reshape",
    "ReverseSequence",
    "Round",
    "STFT",
    "ScatterElements",
    "ScatterND",
    "Selu",
    "SequenceAt",
    "SequenceConstruct",
    "SequenceEmpty",
    "SequenceErase",
    "SequenceInsert",
    "SequenceLength",
    "SequenceMap",
    "Shape",
    "Shrink",
    "Sigmoid",
    "Sign",
    "Sin",
    "Sinh",
    "Size",
    "SoftmaxCrossEntropyLoss",
    "Softplus",
    "Softsign",
    "SpaceToDepth",
    "SplitToSequence",
    "Sqrt",
    "StringConcat",
    "StringNormalizer",
    "StringSplit",
    "Sub",
    "Sum",
    "Tan",
    "Tanh",
    "TfIdfVectorizer",
    "ThresholdedRelu",
    "Tile",
    "Transpose",
    "Trilu",
    "Unique",
    "Where",
    "Xor",
];

/// The versions that changed `op_type`, oldest first; `None` for an operator the standard set does not have.
pub(super) fn changes(op_type: &str) -> Option<&'static [i64]> {
    let changed = CHANGED.iter().find(|(name, _)| *name == op_type);
    changed
        .map(|(_, versions)| *versions)
        .or_else(|| UNCHANGED.contains(&op_type).then_some(&[]))
}
