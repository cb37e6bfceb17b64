//! The lengths that a bundle declares for dimensions its model leaves open: as asked for, as the preprocessing makes
//! them, or as the data has them.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, bail};
use edgeopt_models::bundle::{DimInfo, Layout, Preprocessing, Resize, TensorInfo};
use edgeopt_models::{Dim, ValueInfo};
use edgeopt_optimizer::calibrate::{SampleError, SampleInputs, Samples};
use edgeopt_runtime::dataset::Dataset;

use crate::commands::lengths::Range;

/// How often each length was seen, by input and axis.
type Seen = Vec<Vec<BTreeMap<usize, usize>>>;

/// Data that remembers the shapes of the samples that were read.
pub(super) struct Watched {
    /// The data.
    pub(super) dataset: Dataset,
    seen: Mutex<Seen>,
}

impl Watched {
    pub(super) fn new(dataset: Dataset) -> Self {
        Self {
            dataset,
            seen: Mutex::default(),
        }
    }

    fn note(&self, inputs: &SampleInputs) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.resize_with(inputs.len(), Vec::new);
        for (axes, tensor) in seen.iter_mut().zip(inputs) {
            axes.resize_with(axes.len().max(tensor.dims().len()), BTreeMap::new);
            for (lengths, length) in axes.iter_mut().zip(tensor.dims()) {
                *lengths.entry(*length).or_default() += 1;
            }
        }
    }

    fn lengths(&self, input: usize, axis: usize) -> BTreeMap<usize, usize> {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.get(input)
            .and_then(|axes| axes.get(axis))
            .cloned()
            .unwrap_or_default()
    }
}

impl Samples for Watched {
    fn open(&self) -> Result<Box<dyn Iterator<Item = Result<SampleInputs, SampleError>> + '_>, SampleError> {
        let samples = self.dataset.open()?;
        Ok(Box::new(samples.inspect(|sample| {
            _ = sample.as_ref().map(|inputs| self.note(inputs))
        })))
    }
}

/// What is known about open dimensions.
pub(super) struct Known<'a> {
    /// Ranges that were asked for, by name.
    pub(super) asked: &'a [(String, Range)],
    /// Largest batch.
    pub(super) batch: usize,
    /// How images become the input.
    pub(super) preprocessing: Option<&'a Preprocessing>,
    /// The data that was read.
    pub(super) data: Vec<&'a Watched>,
}

impl Known<'_> {
    /// The inputs as the manifest declares them.
    ///
    /// # Errors
    /// When nothing tells how long an open dimension may be.
    pub(super) fn inputs<'v>(
        &self,
        values: impl Iterator<Item = &'v ValueInfo>,
    ) -> anyhow::Result<Vec<TensorInfo>> {
        let mut used = Vec::new();
        let infos = values
            .enumerate()
            .map(|(index, info)| {
                let dims = dims(info).iter().enumerate().map(|(axis, dim)| {
                    let name = match dim {
                        Dim::Known(length) => return Ok(DimInfo::Fixed(*length)),
                        Dim::Symbol(symbol) => symbol.to_string(),
                        Dim::Unknown => format!("{}.{axis}", info.name),
                    };
                    let range = self.range(index, axis, &name).with_context(|| {
                        format!(
                            "dimension {name:?} of input {:?} is open: give its range with --range {name}=MIN:OPT:MAX, \
                             fix it with --dim {name}=LENGTH, or give data",
                            info.name
                        )
                    })?;
                    used.push(name.clone());
                    Ok(DimInfo::Range {
                        name,
                        min: range.min,
                        opt: range.opt,
                        max: range.max,
                    })
                });
                let shape = dims.collect::<anyhow::Result<Vec<_>>>()?;
                tensor(info, shape)
            })
            .collect::<anyhow::Result<Vec<_>>>()?;
        if let Some((name, _)) = self.asked.iter().find(|(name, _)| !used.contains(name)) {
            let open = if used.is_empty() {
                "none".into()
            } else {
                used.join(", ")
            };
            bail!("--range {name}: the inputs have no open dimension of this name; open ones: {open}");
        }
        Ok(infos)
    }

    fn range(&self, input: usize, axis: usize, name: &str) -> Option<Range> {
        if let Some((_, range)) = self.asked.iter().find(|(asked, _)| asked == name) {
            return Some(*range);
        }
        if axis == 0 {
            let max = self.batch.max(1);
            return Some(Range {
                min: 1,
                opt: max,
                max,
            });
        }
        let mut lengths = BTreeMap::new();
        for (length, count) in self.data.iter().flat_map(|data| data.lengths(input, axis)) {
            *lengths.entry(length).or_insert(0) += count;
        }
        let (min, max) = (*lengths.first_key_value()?.0, *lengths.last_key_value()?.0);
        let opt = lengths
            .iter()
            .max_by_key(|(_, count)| **count)
            .map(|(length, _)| *length)?;
        let (low, high) = self.image_side(input, axis).unwrap_or((min, max));
        Some(Range {
            min: min.min(low),
            opt,
            max: max.max(high),
        })
    }

    /// The lengths that the preprocessing gives this axis, where it depends on the image.
    fn image_side(&self, input: usize, axis: usize) -> Option<(usize, usize)> {
        let preprocessing = self.preprocessing.filter(|_| input == 0)?;
        let sides = match preprocessing.layout {
            Layout::Nchw => [2, 3],
            Layout::Nhwc => [1, 2],
        };
        match preprocessing.resize {
            Resize::LimitLongSide { limit, multiple } if sides.contains(&axis) => {
                Some((multiple, limit.next_multiple_of(multiple.max(1))))
            }
            _ => None,
        }
    }
}

/// The outputs as the manifest declares them: their open lengths are those of the inputs' dimensions of the same name,
/// or depend on the data.
pub(super) fn outputs<'v>(
    values: impl Iterator<Item = &'v ValueInfo>,
    inputs: &[TensorInfo],
) -> anyhow::Result<Vec<TensorInfo>> {
    let same = |symbol: &str| {
        let mut dims = inputs.iter().flat_map(|input| &input.shape);
        dims.find(|dim| matches!(dim, DimInfo::Range { name, .. } if name == symbol))
    };
    values
        .map(|info| {
            let dims = dims(info).iter().enumerate().map(|(axis, dim)| match dim {
                Dim::Known(length) => DimInfo::Fixed(*length),
                Dim::Symbol(symbol) => same(symbol).cloned().unwrap_or_else(|| DimInfo::Open {
                    symbol: symbol.to_string(),
                }),
                Dim::Unknown => DimInfo::Open {
                    symbol: format!("{}.{axis}", info.name),
                },
            });
            tensor(info, dims.collect())
        })
        .collect()
}

fn dims(info: &ValueInfo) -> &[Dim] {
    info.ty.shape().map_or(&[], |shape| shape.as_slice())
}

fn tensor(info: &ValueInfo, shape: Vec<DimInfo>) -> anyhow::Result<TensorInfo> {
    Ok(TensorInfo {
        name: info.name.to_string(),
        dtype: info
            .ty
            .dtype()
            .with_context(|| format!("{:?} is no tensor", info.name))?,
        shape,
    })
}

#[cfg(test)]
mod tests {
    use edgeopt_models::{DataType, Shape};

    use super::*;

    fn known<'a>(asked: &'a [(String, Range)], batch: usize) -> Known<'a> {
        Known {
            asked,
            batch,
            preprocessing: None,
            data: Vec::new(),
        }
    }

    fn input() -> ValueInfo {
        let shape: Shape = [Dim::from("N"), Dim::Known(3), Dim::from("W")]
            .into_iter()
            .collect();
        ValueInfo::tensor("x", DataType::Float32, shape)
    }

    #[test]
    fn a_length_that_nothing_tells_is_an_error_that_says_what_to_do() {
        let error = known(&[], 4).inputs([&input()].into_iter()).unwrap_err();
        assert!(
            format!("{error:#}").contains("--range W=MIN:OPT:MAX"),
            "{error:#}"
        );
    }

    #[test]
    fn asked_ranges_and_the_batch_are_declared_and_outputs_follow() {
        let asked = [(
            "W".to_owned(),
            Range {
                min: 8,
                opt: 32,
                max: 64,
            },
        )];
        let inputs = known(&asked, 4).inputs([&input()].into_iter()).unwrap();
        let range = |name: &str, min, opt, max| DimInfo::Range {
            name: name.into(),
            min,
            opt,
            max,
        };
        assert_eq!(
            inputs[0].shape,
            [range("N", 1, 4, 4), DimInfo::Fixed(3), range("W", 8, 32, 64)]
        );
        let shape: Shape = [Dim::from("W"), Dim::from("other")].into_iter().collect();
        let output = ValueInfo::tensor("y", DataType::Float32, shape);
        let outputs = outputs([&output].into_iter(), &inputs).unwrap();
        let open = DimInfo::Open {
            symbol: "other".into(),
        };
        assert_eq!(outputs[0].shape, [range("W", 8, 32, 64), open]);
    }

    #[test]
    fn a_range_for_a_dimension_that_does_not_exist_is_refused() {
        let asked = [
            (
                "W".to_owned(),
                Range {
                    min: 8,
                    opt: 8,
                    max: 8,
                },
            ),
            (
                "H".to_owned(),
                Range {
                    min: 1,
                    opt: 1,
                    max: 1,
                },
            ),
        ];
        let error = known(&asked, 1)
            .inputs([&input()].into_iter())
            .unwrap_err()
            .to_string();
        assert!(error.contains("--range H") && error.contains("N, W"), "{error}");
    }
}
