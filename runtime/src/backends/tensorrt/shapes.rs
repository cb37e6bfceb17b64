//! Optimization profiles from declared ranges. Pure.

use edgeopt_models::bundle::{DimInfo, TensorInfo};

use super::abi::MAX_RANK;
use super::failure::TensorRtError;

/// The range of an input's shape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InputRange {
    /// The input.
    pub input: String,
    /// Shortest lengths.
    pub min: Vec<usize>,
    /// Lengths to tune for.
    pub opt: Vec<usize>,
    /// Longest lengths.
    pub max: Vec<usize>,
}

/// The ranges of the inputs that have open lengths; TensorRT wants none for the others.
///
/// # Errors
/// When a length is open without a range, or a shape has more than 8 axes.
pub fn ranges(inputs: &[TensorInfo]) -> Result<Vec<InputRange>, TensorRtError> {
    let mut ranges = Vec::new();
    for info in inputs {
        let unsupported =
            |problem: &str| TensorRtError::Unsupported(format!("input {:?} {problem}", info.name));
        if info.shape.len() > MAX_RANK {
            return Err(unsupported("has more than 8 axes, which TensorRT cannot have"));
        }
        let mut range = InputRange {
            input: info.name.clone(),
            min: Vec::new(),
            opt: Vec::new(),
            max: Vec::new(),
        };
        let mut open = false;
        for dim in &info.shape {
            let (min, opt, max) = match dim {
                DimInfo::Fixed(length) => (*length, *length, *length),
                DimInfo::Range { min, opt, max, .. } => {
                    open = true;
                    (*min, *opt, *max)
                }
                DimInfo::Open { .. } => {
                    return Err(unsupported(
                        "has a length without a range; declare it with --range",
                    ));
                }
            };
            range.min.push(min);
            range.opt.push(opt);
            range.max.push(max);
        }
        if open {
            ranges.push(range);
        }
    }
    Ok(ranges)
}

#[cfg(test)]
mod tests {
    use edgeopt_models::DataType;

    use super::*;

    fn input(name: &str, shape: Vec<DimInfo>) -> TensorInfo {
        TensorInfo {
            name: name.into(),
            dtype: DataType::Float32,
            shape,
        }
    }

    #[test]
    fn only_inputs_with_open_lengths_get_a_range() {
        let open = DimInfo::Range {
            name: "W".into(),
            min: 1,
            opt: 2,
            max: 3,
        };
        let inputs = [
            input("fixed", vec![DimInfo::Fixed(4)]),
            input("open", vec![DimInfo::Fixed(4), open]),
        ];
        let expected = InputRange {
            input: "open".into(),
            min: vec![4, 1],
            opt: vec![4, 2],
            max: vec![4, 3],
        };
        assert_eq!(ranges(&inputs).unwrap(), [expected]);
    }

    #[test]
    fn what_tensorrt_cannot_have_is_said() {
        let nine = input("nine", vec![DimInfo::Fixed(1); 9]);
        assert!(
            ranges(&[nine])
                .unwrap_err()
                .to_string()
                .contains("\"nine\" has more than 8 axes")
        );
        let open = input("x", vec![DimInfo::Open { symbol: "N".into() }]);
        assert!(ranges(&[open]).unwrap_err().to_string().contains("--range"));
    }
}
