//! Constants that passes made, out of memory into a file.

use std::io::{self, BufWriter, Write};
use std::path::Path;

use super::Graph;
use crate::{DataType, MappedFile, MappedPart, Tensor, ValueName};

/// Smaller constants stay in memory.
const SMALLEST: usize = 64 << 10;
/// Where each begins: for vector units, and so that no page is shared with a neighbour's end for nothing.
const ALIGNMENT: usize = 64;

impl Graph {
    /// Moves this graph's constants of 64 KiB and more that are in memory to a temporary file in `folder`, from which they
    /// are mapped: the system keeps in memory what is being read, and no more. The file goes with its last reader. What
    /// other graphs share is theirs to keep.
    ///
    /// # Errors
    /// When the file cannot be written; the graph is unchanged then.
    pub fn spill_constants(&mut self, folder: &Path) -> io::Result<()> {
        let large = |tensor: &Tensor| {
            tensor.mapped().is_none()
                && tensor.dtype() != DataType::String
                && tensor.as_bytes().len() >= SMALLEST
        };
        let spilled: Vec<ValueName> = self
            .initializers
            .iter()
            .filter(|(_, tensor)| large(tensor))
            .map(|(name, _)| name.clone())
            .collect();
        if spilled.is_empty() {
            return Ok(());
        }
        let mut file = tempfile::Builder::new()
            .prefix(".edgeopt-weights-")
            .tempfile_in(folder)?;
        let mut writer = BufWriter::new(file.as_file_mut());
        let mut ranges = Vec::with_capacity(spilled.len());
        let mut end = 0usize;
        for name in &spilled {
            let bytes = self.initializers[name].as_bytes();
            let start = end.next_multiple_of(ALIGNMENT);
            writer.write_all(&[0; ALIGNMENT][..start - end])?;
            writer.write_all(bytes)?;
            end = start + bytes.len();
            ranges.push(start..end);
        }
        writer.flush()?;
        drop(writer);
        let file = MappedFile::temporary(file)?;
        for (name, range) in spilled.iter().zip(ranges) {
            if let Some(tensor) = self.initializers.get_mut(name) {
                let part = MappedPart {
                    file: file.clone(),
                    range,
                };
                let (dtype, dims) = (tensor.dtype(), tensor.dims().to_vec());
                *tensor = Tensor::from_mapped(dtype, &dims, part).map_err(io::Error::other)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constants_read_the_same_from_the_file_which_goes_with_them() {
        let large: Vec<f32> = (0..20_000).map(|index| index as f32).collect();
        let mut graph = Graph::default();
        let tensors = [
            ("a", Tensor::new(&[20_000], &large).unwrap()),
            ("odd", Tensor::new(&[70_001], &vec![7u8; 70_001]).unwrap()),
            ("b", Tensor::new(&[100, 200], &large).unwrap()),
            ("small", Tensor::scalar(1.0f32)),
        ];
        for (name, tensor) in tensors.clone() {
            graph.initializers.insert(name.into(), tensor);
        }
        let folder = tempfile::tempdir().unwrap();
        let files = || std::fs::read_dir(folder.path()).unwrap().count();
        graph.spill_constants(folder.path()).unwrap();
        assert_eq!(files(), 1);
        for (name, tensor) in &tensors {
            assert_eq!(&graph.initializers[*name], tensor, "{name}");
            assert_eq!(
                graph.initializers[*name].mapped().is_some(),
                *name != "small",
                "{name}"
            );
        }
        // What is in the file stays there.
        graph.spill_constants(folder.path()).unwrap();
        assert_eq!(files(), 1);
        let kept = graph.initializers["b"].clone();
        drop(graph);
        assert_eq!((files(), &kept), (1, &tensors[2].1));
        drop(kept);
        assert_eq!(files(), 0);
    }

    #[test]
    fn a_folder_that_is_not_there_is_an_error_and_changes_nothing() {
        let mut graph = Graph::default();
        let tensor = Tensor::new(&[70_000], &vec![1u8; 70_000]).unwrap();
        graph.initializers.insert("a".into(), tensor.clone());
        assert!(graph.spill_constants(Path::new("/not/there")).is_err());
        assert!(graph.initializers["a"].mapped().is_none() && graph.initializers["a"] == tensor);
    }
}
