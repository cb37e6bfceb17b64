//! Where the bytes of a model's tensors come from: the message, the mapped file, or files beside it.

use std::ops::Range;
use std::path::Path;

use onnx_protobuf::{AttributeProto, GraphProto, TensorProto};

use super::external::ExternalFiles;
use super::wire::{Structure, WireError, separate};
use crate::{DataType, MappedFile, MappedPart, Tensor};

/// Smaller tensors are copied: a mapped one costs an unaligned view and keeps the file open.
const MAPPED_FROM: usize = 1024;

pub(super) struct Source<'a> {
    bytes: &'a [u8],
    /// The mapped file that `bytes` is a part of, and where.
    map: Option<&'a MappedPart>,
    /// `None` when raw data stands in the messages themselves.
    cuts: Option<Vec<Range<usize>>>,
    external: Option<ExternalFiles>,
    budget: u64,
}

/// Maps a model's file.
pub(super) fn open(path: &Path) -> std::io::Result<MappedPart> {
    let file = MappedFile::open(path)?;
    let range = 0..file.len();
    Ok(MappedPart { file, range })
}

impl<'a> Source<'a> {
    /// A model in memory: the structure to parse, and the source of its tensors.
    pub(super) fn memory(bytes: &'a [u8]) -> Result<(Vec<u8>, Self), WireError> {
        let Structure {
            bytes: structure,
            cuts,
            budget,
        } = separate(bytes)?;
        let source = Self {
            bytes,
            map: None,
            cuts: Some(cuts),
            external: None,
            budget,
        };
        Ok((structure, source))
    }

    /// Messages that hold their own raw data, as functions do.
    pub(super) fn messages() -> Self {
        Self {
            bytes: &[],
            map: None,
            cuts: None,
            external: None,
            budget: 0,
        }
    }

    /// Bytes of memory that may still be taken for the model.
    pub(super) fn budget(&self) -> u64 {
        self.budget
    }

    /// A mapped model; with files beside it if it has a `path` of its own.
    pub(super) fn mapped(part: &'a MappedPart, path: Option<&Path>) -> Result<(Vec<u8>, Self), WireError> {
        let (structure, source) = Self::memory(part.bytes())?;
        let source = Self {
            map: Some(part),
            external: path.map(ExternalFiles::beside),
            ..source
        };
        Ok((structure, source))
    }

    /// The raw data of a tensor of type `dtype` and shape `dims`.
    pub(super) fn raw(&self, field: &[u8], dtype: DataType, dims: &[usize]) -> Result<Tensor, String> {
        let range = self.range(field)?;
        let tensor = match (&self.map, range) {
            (Some(map), Some(range)) if range.len() >= MAPPED_FROM => {
                let start = map.range.start + range.start;
                let range = start..start + range.len();
                let file = map.file.clone();
                Tensor::from_mapped(dtype, dims, MappedPart { file, range })
            }
            (_, Some(range)) => Tensor::from_bytes(dtype, dims, &self.bytes[range]),
            (_, None) => Tensor::from_bytes(dtype, dims, field),
        };
        tensor.map_err(|error| error.to_string())
    }

    fn range(&self, field: &[u8]) -> Result<Option<Range<usize>>, String> {
        let Some(cuts) = &self.cuts else { return Ok(None) };
        let index = <[u8; 4]>::try_from(field).map(u32::from_le_bytes);
        let cut = index.ok().and_then(|index| cuts.get(index as usize));
        match cut {
            Some(range) => Ok(Some(range.clone())),
            None => Err("its raw data was not found in the file".to_owned()),
        }
    }

    /// The data of a tensor of type `dtype` and shape `dims` that lies in another file.
    pub(super) fn external(
        &mut self,
        proto: &TensorProto,
        dtype: DataType,
        dims: &[usize],
    ) -> Result<Tensor, String> {
        let files = self.external.as_mut().ok_or(
            "its data is in another file, which a model read from memory does not have; read the model from its file",
        )?;
        let elements = dims
            .iter()
            .try_fold(1usize, |product, dim| product.checked_mul(*dim));
        let expected = elements
            .and_then(|elements| dtype.size_of(elements))
            .ok_or_else(|| format!("a {dtype} tensor of shape {dims:?} cannot be stored in a file"))?;
        let part = files.locate(proto, expected)?;
        Tensor::from_mapped(dtype, dims, part).map_err(|error| error.to_string())
    }

    /// Puts raw data back into an attribute that is kept as it is.
    pub(super) fn restore(&self, attribute: &mut AttributeProto) -> Result<(), String> {
        for tensor in attribute.t.as_mut().into_iter().chain(&mut attribute.tensors) {
            self.restore_tensor(tensor)?;
        }
        for graph in attribute.g.as_mut().into_iter().chain(&mut attribute.graphs) {
            self.restore_graph(graph)?;
        }
        Ok(())
    }

    fn restore_graph(&self, graph: &mut GraphProto) -> Result<(), String> {
        for tensor in &mut graph.initializer {
            self.restore_tensor(tensor)?;
        }
        for attribute in graph.node.iter_mut().flat_map(|node| &mut node.attribute) {
            self.restore(attribute)?;
        }
        Ok(())
    }

    fn restore_tensor(&self, tensor: &mut TensorProto) -> Result<(), String> {
        if !tensor.raw_data.is_empty()
            && let Some(range) = self.range(&tensor.raw_data)?
        {
            tensor.raw_data = self.bytes[range].to_vec();
        }
        Ok(())
    }
}
