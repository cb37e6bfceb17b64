use edgeopt_models::{Node, Tensor};

use super::MAX_BYTES;

/// Elements a value computed ahead may have in any case: as many as fit the limit in the widest common type.
const MAX_ELEMENTS: usize = MAX_BYTES / 8;

/// What is known about the size of a value before it is computed.
#[derive(Clone, Debug)]
pub(super) struct Extent {
    /// An upper bound of the number of elements.
    pub(super) elements: usize,
    /// The lengths, where known.
    pub(super) dims: Option<Vec<usize>>,
}

/// An input: its size, and its value if that is there already.
pub(super) type Input<'a> = Option<(Extent, Option<&'a Tensor>)>;

impl Extent {
    pub(super) fn of(tensor: &Tensor) -> Self {
        Self {
            elements: tensor.elements(),
            dims: Some(tensor.dims().to_vec()),
        }
    }

    fn at_most(elements: usize) -> Self {
        Self { elements, dims: None }
    }
}

/// The size of the node's largest output, if it can be told before computing it and is within the limit: small,
/// or no more elements than `source` bytes of constants behind it. The size of what grows by the *value* of an
/// input (`Expand`, `Range`, …) can only be told once that value is there, in the next round.
pub(super) fn extent(node: &Node, inputs: &[Input], source: usize) -> Option<Extent> {
    let extent = estimate(node, inputs)?;
    (extent.elements <= MAX_ELEMENTS.max(source)).then_some(extent)
}

fn estimate(node: &Node, inputs: &[Input]) -> Option<Extent> {
    let given = |index: usize| inputs.get(index).and_then(Option::as_ref);
    let integers = |index: usize| -> Option<Vec<i64>> { Some(given(index)?.1?.to_i64().ok()?.into_owned()) };
    let first = given(0).map(|(extent, _)| extent);
    let sum = || {
        inputs
            .iter()
            .flatten()
            .try_fold(0usize, |sum, (extent, _)| sum.checked_add(extent.elements))
    };
    let product = || {
        inputs.iter().flatten().try_fold(1usize, |product, (extent, _)| {
            product.checked_mul(extent.elements.max(1))
        })
    };
    Some(match node.op_type.as_str() {
        // Same lengths as the first input.
        "Abs" | "BatchNormalization" | "Cast" | "CastLike" | "Ceil" | "Cos" | "CumSum" | "Erf" | "Exp"
        | "Floor" | "Identity" | "IsInf" | "IsNaN" | "LayerNormalization" | "Log" | "LogSoftmax" | "Neg"
        | "Not" | "Reciprocal" | "Relu" | "Round" | "ScatterElements" | "ScatterND" | "Sigmoid" | "Sign"
        | "Sin" | "Softmax" | "Sqrt" | "Tanh" | "Trilu" => first?.clone(),
        // One output element for each of the first input's, or fewer.
        "ArgMax" | "ArgMin" | "Compress" | "DepthToSpace" | "Flatten" | "Reshape" | "Slice"
        | "SpaceToDepth" | "Split" | "Squeeze" | "Transpose" | "Unsqueeze" => {
            Extent::at_most(first?.elements)
        }
        reduction if reduction.starts_with("Reduce") => Extent::at_most(first?.elements),
        // Ranks are small.
        "Shape" | "Size" => Extent::at_most(64),
        "Concat" => Extent::at_most(sum()?),
        // A coordinate for each dimension of each element.
        "NonZero" => Extent::at_most(first?.elements.checked_mul(first?.dims.as_ref()?.len().max(1))?),
        "Expand" => {
            let wanted = known_shape(&integers(1)?)?;
            broadcast([first?.dims.as_deref()?, &wanted])?
        }
        "ConstantOfShape" => from_dims(known_shape(&integers(0)?)?)?,
        "Tile" => {
            let repeats = known_shape(&integers(1)?)?;
            let times = repeats
                .iter()
                .try_fold(1usize, |all, times| all.checked_mul(*times))?;
            Extent::at_most(first?.elements.checked_mul(times)?)
        }
        "Range" => {
            let number = |index: usize| -> Option<f64> {
                let tensor = given(index)?.1?;
                match tensor.to_f32() {
                    Ok(values) => values.first().map(|value| f64::from(*value)),
                    Err(_) => tensor.to_i64().ok()?.first().map(|value| *value as f64),
                }
            };
            let length = ((number(1)? - number(0)?) / number(2)?).ceil().max(0.0);
            if length.is_nan() || length > MAX_ELEMENTS as f64 {
                return None;
            }
            Extent::at_most(length as usize)
        }
        "Pad" => {
            let (pads, dims) = (integers(1)?, first?.dims.as_ref()?);
            if given(3).is_some() || pads.len() != 2 * dims.len() {
                return None;
            }
            let lengths = dims.iter().enumerate().map(|(axis, dim)| {
                let before = usize::try_from(pads[axis].max(0)).ok()?;
                let after = usize::try_from(pads[dims.len() + axis].max(0)).ok()?;
                dim.checked_add(before)?.checked_add(after)
            });
            from_dims(lengths.collect::<Option<_>>()?)?
        }
        // Their output may be as large as a window, an image or a table the attributes ask for.
        "AveragePool" | "Col2Im" | "Conv" | "ConvInteger" | "ConvTranspose" | "DFT" | "EyeLike"
        | "GridSample" | "HannWindow" | "HammingWindow" | "BlackmanWindow" | "ImageDecoder" | "LpPool"
        | "MaxPool" | "MaxUnpool" | "MelWeightMatrix" | "OneHot" | "QLinearConv" | "Resize" | "RoiAlign"
        | "MaxRoiPool" | "STFT" | "Upsample" | "AffineGrid" | "CenterCropPad" | "Einsum" => {
            return None;
        }
        "Gather" => {
            let indices = given(1)?.0.elements;
            let rows = first?.dims.as_ref().and_then(|dims| {
                let axis = node.int("axis").unwrap_or(0);
                let axis = if axis < 0 { axis + dims.len() as i64 } else { axis };
                dims.get(usize::try_from(axis).ok()?)
                    .copied()
                    .filter(|rows| *rows > 0)
            });
            Extent::at_most((first?.elements / rows.unwrap_or(1)).checked_mul(indices)?)
        }
        "GatherElements" => Extent::at_most(given(1)?.0.elements),
        "MatMul" => {
            let (a, b) = (first?.dims.as_ref()?, given(1)?.0.dims.as_ref()?);
            let ([a @ .., rows, _], [b @ .., _, columns]) = (a.as_slice(), b.as_slice()) else {
                return None;
            };
            let batch = broadcast([a, b])?;
            Extent::at_most(batch.elements.checked_mul(*rows)?.checked_mul(*columns)?)
        }
        // Elementwise operators broadcast.
        "Add" | "And" | "BitShift" | "BitwiseAnd" | "BitwiseOr" | "BitwiseXor" | "Clip" | "Div" | "Equal"
        | "Greater" | "GreaterOrEqual" | "Less" | "LessOrEqual" | "Max" | "Mean" | "Min" | "Mod" | "Mul"
        | "Or" | "Pow" | "PRelu" | "Sub" | "Sum" | "Where" | "Xor" => {
            let dims: Option<Vec<&Vec<usize>>> = inputs
                .iter()
                .flatten()
                .map(|(extent, _)| extent.dims.as_ref())
                .collect();
            match dims {
                Some(dims) => dims.into_iter().try_fold(
                    Extent {
                        elements: 1,
                        dims: Some(vec![]),
                    },
                    |all, dims| broadcast([all.dims.as_ref()?, dims]),
                )?,
                None => Extent::at_most(product()?),
            }
        }
        // No other operator makes more of its inputs than every combination of their elements.
        _ => Extent::at_most(product()?),
    })
}

fn known_shape(values: &[i64]) -> Option<Vec<usize>> {
    values.iter().map(|value| usize::try_from(*value).ok()).collect()
}

fn from_dims(dims: Vec<usize>) -> Option<Extent> {
    let elements = dims
        .iter()
        .try_fold(1usize, |product, dim| product.checked_mul(*dim))?;
    Some(Extent {
        elements,
        dims: Some(dims),
    })
}

/// The extent of two shapes broadcast together, if they can be.
fn broadcast(shapes: [&[usize]; 2]) -> Option<Extent> {
    let rank = shapes[0].len().max(shapes[1].len());
    let lengths = (0..rank).map(|axis| {
        let [a, b] = shapes.map(|dims| {
            (axis + dims.len())
                .checked_sub(rank)
                .and_then(|own| dims.get(own))
                .copied()
                .unwrap_or(1)
        });
        match (a, b) {
            (1, length) | (length, 1) => Some(length),
            (a, b) => (a == b).then_some(a),
        }
    });
    from_dims(lengths.collect::<Option<_>>()?)
}
