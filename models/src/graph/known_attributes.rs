//! The types of attributes of the standard operators.
//!
//! ONNX uses most attribute names with one type wherever they occur; the few exceptions are by operator.

use std::fmt;

use super::Attribute;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Expected {
    Int,
    Float,
    String,
    Tensor,
    Graph,
    Ints,
    Floats,
}

impl Expected {
    pub(super) fn matches(self, value: &Attribute) -> bool {
        matches!(
            (self, value),
            (Self::Int, Attribute::Int(_))
                | (Self::Float, Attribute::Float(_))
                | (Self::String, Attribute::String(_))
                | (Self::Tensor, Attribute::Tensor(_))
                | (Self::Graph, Attribute::Graph(_))
                | (Self::Ints, Attribute::Ints(_))
                | (Self::Floats, Attribute::Floats(_))
        )
    }
}

impl fmt::Display for Expected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Int => "an integer",
            Self::Float => "a float",
            Self::String => "a string",
            Self::Tensor => "a tensor",
            Self::Graph => "a graph",
            Self::Ints => "a list of integers",
            Self::Floats => "a list of floats",
        })
    }
}

/// The type that attribute `name` of the standard operator `op_type` has, if it is one this table knows.
pub(super) fn expected_attribute(op_type: &str, name: &str) -> Option<Expected> {
    use Expected::{Float, Floats, Graph, Int, Ints, String, Tensor};
    Some(match (op_type, name) {
        ("Constant" | "ConstantOfShape", "value") => Tensor,
        ("Pad", "value") => Float,
        ("Upsample", "scales") => Floats,
        (_, "then_branch" | "else_branch" | "body") => Graph,
        (
            _,
            "axis"
            | "group"
            | "keepdims"
            | "transA"
            | "transB"
            | "ceil_mode"
            | "count_include_pad"
            | "hidden_size"
            | "num_outputs"
            | "largest"
            | "sorted"
            | "select_last_index"
            | "blocksize"
            | "to"
            | "allowzero"
            | "noop_with_empty_axes"
            | "exclusive"
            | "reverse"
            | "batch_dims"
            | "training_mode"
            | "value_int"
            | "layout"
            | "input_forget"
            | "linear_before_reset"
            | "new_axis"
            | "upper"
            | "storage_order"
            | "num_scan_inputs"
            | "center_point_box"
            | "align_corners"
            | "block_size",
        ) => Int,
        (
            _,
            "epsilon"
            | "alpha"
            | "beta"
            | "momentum"
            | "ratio"
            | "lambd"
            | "bias"
            | "gamma"
            | "value_float"
            | "cubic_coeff_a"
            | "extrapolation_value"
            | "spatial_scale",
        ) => Float,
        (
            _,
            "mode"
            | "auto_pad"
            | "equation"
            | "direction"
            | "reduction"
            | "approximate"
            | "value_string"
            | "coordinate_transformation_mode"
            | "nearest_mode"
            | "padding_mode"
            | "keep_aspect_ratio_policy",
        ) => String,
        (
            _,
            "axes"
            | "kernel_shape"
            | "pads"
            | "strides"
            | "dilations"
            | "perm"
            | "split"
            | "starts"
            | "ends"
            | "output_shape"
            | "output_padding"
            | "value_ints"
            | "scan_input_axes"
            | "scan_output_axes"
            | "scan_input_directions"
            | "scan_output_directions",
        ) => Ints,
        (_, "activation_alpha" | "activation_beta" | "value_floats") => Floats,
        _ => return None,
    })
}
