//! Sliding windows: convolutions and pooling.

use super::facts::{Derived, Op, one, ranked};
use crate::{DataType, Dim, Shape, ValueType};

/// A window along one axis.
struct Window {
    kernel: i64,
    stride: i64,
    dilation: i64,
    begin: i64,
    end: i64,
}

fn windows(op: &Op<'_>, kernel: &[i64]) -> Result<Vec<Window>, String> {
    let spatial = kernel.len();
    let list = |name: &str, default: i64, length: usize| -> Result<Vec<i64>, String> {
        match op.node.ints(name) {
            None => Ok(vec![default; length]),
            Some(values) if values.len() == length => Ok(values.to_vec()),
            Some(values) => Err(format!("{name} has {} values, expected {length}", values.len())),
        }
    };
    let (strides, dilations) = (list("strides", 1, spatial)?, list("dilations", 1, spatial)?);
    let pads = list("pads", 0, spatial * 2)?;
    if strides
        .iter()
        .chain(&dilations)
        .chain(kernel)
        .any(|value| *value < 1)
    {
        return Err("kernel, strides and dilations must be at least 1".into());
    }
    Ok((0..spatial)
        .map(|axis| Window {
            kernel: kernel[axis],
            stride: strides[axis],
            dilation: dilations[axis],
            begin: pads[axis],
            end: pads[axis + spatial],
        })
        .collect())
}

impl Window {
    /// Length of the output along this axis; the formulas are ONNX's own for Conv and pooling.
    fn output(&self, input: &Dim, auto_pad: &str, ceil: bool) -> Result<Dim, String> {
        let Some(length) = input.known() else {
            // A window that keeps the length keeps its name too.
            let keeps = match auto_pad {
                "SAME_UPPER" | "SAME_LOWER" => self.stride == 1,
                "VALID" => self.kernel == 1 && self.stride == 1,
                _ => self.stride == 1 && self.begin + self.end == (self.kernel - 1) * self.dilation,
            };
            return Ok(if keeps { input.clone() } else { Dim::Unknown });
        };
        let wrong = || format!("a window of {} does not fit a length of {length}", self.kernel);
        let length = i64::try_from(length).map_err(|_| wrong())?;
        let reach = (self.kernel - 1)
            .checked_mul(self.dilation)
            .and_then(|n| n.checked_add(1))
            .ok_or_else(wrong)?;
        let padded = match auto_pad {
            "SAME_UPPER" | "SAME_LOWER" => {
                return Ok(Dim::Known(((length + self.stride - 1) / self.stride) as usize));
            }
            "VALID" => Some(length),
            _ => length
                .checked_add(self.begin)
                .and_then(|n| n.checked_add(self.end)),
        };
        let room = padded
            .and_then(|padded| padded.checked_sub(reach))
            .filter(|room| *room >= 0)
            .ok_or_else(wrong)?;
        let mut steps = room / self.stride;
        // Rounded up, but no window may start in the padding behind the input.
        if ceil && room % self.stride != 0 && (steps + 1) * self.stride < length + self.begin {
            steps += 1;
        }
        Ok(Dim::Known(steps as usize + 1))
    }
}

fn auto_pad<'a>(op: &'a Op<'_>) -> &'a str {
    op.node.string("auto_pad").unwrap_or("NOTSET")
}

pub(super) fn conv(op: &Op<'_>) -> Derived {
    let (weight, dtype) = match op.node.op_type.as_str() {
        "QLinearConv" => (3, op.dtype(7)),
        "ConvInteger" => (1, Some(DataType::Int32)),
        _ => (1, op.dtype(0)),
    };
    let (Some(input), Some(weights)) = (op.shape(0), op.shape(weight)) else {
        return one(dtype, None);
    };
    if input.len() < 3 || weights.len() != input.len() {
        return Err(format!("the input has shape {input}, the weights {weights}"));
    }
    let group = op.node.int("group").unwrap_or(1).max(1) as usize;
    if let (Some(channels), Some(per_group)) = (input[1].known(), weights[1].known())
        && per_group.checked_mul(group) != Some(channels)
    {
        return Err(format!(
            "the input has {channels} channels, the weights {weights} in {group} groups take {per_group} each"
        ));
    }
    let kernel: Option<Vec<i64>> = weights[2..]
        .iter()
        .map(|dim| dim.known().map(|n| n as i64))
        .collect();
    let kernel = op.node.ints("kernel_shape").map(<[i64]>::to_vec).or(kernel);
    let mut shape = ranked(input.len());
    (shape[0], shape[1]) = (input[0].clone(), weights[0].clone());
    if let Some(kernel) = kernel {
        for (axis, window) in windows(op, &kernel)?.iter().enumerate().take(input.len() - 2) {
            shape[axis + 2] = window.output(&input[axis + 2], auto_pad(op), false)?;
        }
    }
    one(dtype, Some(shape))
}

pub(super) fn conv_transpose(op: &Op<'_>) -> Derived {
    let (Some(input), Some(weights)) = (op.shape(0), op.shape(1)) else {
        return one(op.dtype(0), None);
    };
    if input.len() < 3 || weights.len() != input.len() {
        return Err(format!("the input has shape {input}, the weights {weights}"));
    }
    let group = op.node.int("group").unwrap_or(1).max(1) as usize;
    let mut shape = ranked(input.len());
    shape[0] = input[0].clone();
    shape[1] = weights[1]
        .known()
        .and_then(|n| n.checked_mul(group))
        .map_or(Dim::Unknown, Dim::Known);
    let kernel: Option<Vec<i64>> = weights[2..]
        .iter()
        .map(|dim| dim.known().map(|n| n as i64))
        .collect();
    let kernel = op.node.ints("kernel_shape").map(<[i64]>::to_vec).or(kernel);
    if let Some(given) = op.node.ints("output_shape") {
        let spatial = given
            .len()
            .checked_sub(input.len() - 2)
            .map_or(&[][..], |skip| &given[skip..]);
        for (axis, length) in spatial.iter().enumerate() {
            shape[axis + 2] = usize::try_from(*length).map_or(Dim::Unknown, Dim::Known);
        }
    } else if let Some(kernel) = kernel {
        let extra = op.node.ints("output_padding").unwrap_or_default();
        for (axis, window) in windows(op, &kernel)?.iter().enumerate().take(input.len() - 2) {
            let Some(length) = input[axis + 2].known() else {
                continue;
            };
            let extra = extra.get(axis).copied().unwrap_or(0);
            // stride × (length − 1) + output padding + (kernel − 1) × dilation + 1 − padding
            let full = || -> Option<i64> {
                let steps = i64::try_from(length)
                    .ok()?
                    .checked_sub(1)?
                    .checked_mul(window.stride)?;
                steps
                    .checked_add(extra)?
                    .checked_add((window.kernel - 1).checked_mul(window.dilation)?)?
                    .checked_add(1)
            };
            let result = match auto_pad(op) {
                "SAME_UPPER" | "SAME_LOWER" => (length as i64).checked_mul(window.stride),
                "VALID" => full(),
                _ => full().and_then(|n| n.checked_sub(window.begin)?.checked_sub(window.end)),
            };
            let result = result.and_then(|n| usize::try_from(n).ok());
            shape[axis + 2] = Dim::Known(
                result.ok_or_else(|| format!("the padding exceeds the output of axis {}", axis + 2))?,
            );
        }
    }
    one(op.dtype(0), Some(shape))
}

pub(super) fn pool(op: &Op<'_>) -> Derived {
    let indices = |shape: Option<Shape>| {
        Some(ValueType::Tensor {
            dtype: DataType::Int64,
            shape,
        })
    };
    let Some(input) = op.shape(0) else {
        return Ok(vec![
            op.dtype(0).map(|dtype| ValueType::Tensor { dtype, shape: None }),
            indices(None),
        ]);
    };
    let kernel = op.node.ints("kernel_shape").ok_or("kernel_shape is missing")?;
    if input.len() != kernel.len() + 2 {
        return Err(format!(
            "a kernel of {} axes on an input of shape {input}",
            kernel.len()
        ));
    }
    let ceil = op.node.int("ceil_mode") == Some(1);
    let mut shape = input.clone();
    for (axis, window) in windows(op, kernel)?.iter().enumerate() {
        shape[axis + 2] = window.output(&input[axis + 2], auto_pad(op), ceil)?;
    }
    Ok(vec![
        op.dtype(0).map(|dtype| ValueType::tensor(dtype, shape.clone())),
        indices(Some(shape)),
    ])
}

pub(super) fn global_pool(op: &Op<'_>) -> Derived {
    let shape = op.shape(0).map(|input| {
        input
            .iter()
            .enumerate()
            .map(|(axis, dim)| if axis < 2 { dim.clone() } else { Dim::Known(1) })
            .collect()
    });
    one(op.dtype(0), shape)
}
