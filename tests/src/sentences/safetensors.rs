use std::collections::HashMap;
use std::path::Path;

use anyhow::{Context, bail};
use edgeopt_models::{DataType, Tensor};

/// Named 32-bit tensors of a safetensors file: eight bytes with the length of a JSON header, the header with each
/// tensor's type, shape and place, then the data.
pub(super) struct Weights(HashMap<String, Tensor>);

impl Weights {
    pub(super) fn read(path: &Path) -> anyhow::Result<Self> {
        let bytes = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        Self::parse(&bytes).with_context(|| format!("{} is no safetensors file as expected", path.display()))
    }

    fn parse(bytes: &[u8]) -> anyhow::Result<Self> {
        let (length, rest) = bytes.split_first_chunk::<8>().context("shorter than 8 bytes")?;
        let length = usize::try_from(u64::from_le_bytes(*length))?;
        let (header, data) = rest
            .split_at_checked(length)
            .context("the header is longer than the file")?;
        let header: serde_json::Map<String, serde_json::Value> = serde_json::from_slice(header)?;
        let mut tensors = HashMap::new();
        for (name, entry) in header {
            if entry["dtype"] != "F32" {
                continue;
            }
            let numbers = |field: &str| -> anyhow::Result<Vec<usize>> {
                serde_json::from_value(entry[field].clone()).with_context(|| format!("{name}: {field}"))
            };
            let (shape, place) = (numbers("shape")?, numbers("data_offsets")?);
            let [start, end] = place[..] else {
                bail!("{name}: data_offsets are not two");
            };
            let part = data
                .get(start..end)
                .with_context(|| format!("{name} lies outside the file"))?;
            let tensor = Tensor::from_bytes(DataType::Float32, &shape, part).with_context(|| name.clone())?;
            tensors.insert(name, tensor);
        }
        Ok(Self(tensors))
    }

    /// The tensor with this name and shape.
    pub(super) fn get(&self, name: &str, dims: &[usize]) -> anyhow::Result<Tensor> {
        let tensor = self
            .0
            .get(name)
            .with_context(|| format!("there is no tensor {name:?}"))?;
        if tensor.dims() != dims {
            bail!("{name} has shape {:?}, expected {dims:?}", tensor.dims());
        }
        Ok(tensor.clone())
    }

    /// A matrix of `rows` × `columns`, transposed.
    pub(super) fn transposed(&self, name: &str, rows: usize, columns: usize) -> anyhow::Result<Tensor> {
        let matrix = self.get(name, &[rows, columns])?;
        let values = matrix.view::<f32>()?;
        let mut transposed: Vec<f32> = Vec::with_capacity(values.len());
        for column in 0..columns {
            transposed.extend(values.iter().skip(column).step_by(columns));
        }
        Ok(Tensor::new(&[columns, rows], &transposed)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(header: &str, data: &[f32]) -> Vec<u8> {
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend(header.as_bytes());
        bytes.extend(data.iter().flat_map(|value| value.to_le_bytes()));
        bytes
    }

    #[test]
    fn tensors_are_found_by_name_and_damage_is_refused() {
        let header = r#"{"m":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}}"#;
        let bytes = file(header, &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        let weights = Weights::parse(&bytes).unwrap();
        let transposed = weights.transposed("m", 2, 3).unwrap();
        assert_eq!(transposed.dims(), [3, 2]);
        assert_eq!(
            transposed.view::<f32>().unwrap()[..],
            [1.0, 4.0, 2.0, 5.0, 3.0, 6.0]
        );
        assert!(weights.get("m", &[6]).is_err() && weights.get("n", &[6]).is_err());
        for cut in [0, 7, 20, bytes.len() - 1] {
            assert!(Weights::parse(&bytes[..cut]).is_err(), "cut at {cut}");
        }
    }
}
