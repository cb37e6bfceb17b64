use std::collections::HashSet;

use super::Graph;
use super::uses::captured_values;
use crate::{Tensor, ValueName};

impl Graph {
    /// Makes every reader of `from` (nodes, their subgraphs) read `to` instead. Graph outputs keep their name.
    pub fn replace_reads(&mut self, from: &str, to: &ValueName) {
        for node in &mut self.nodes {
            for input in node.inputs.iter_mut().filter(|input| **input == *from) {
                *input = to.clone();
            }
            for subgraph in node.subgraphs_mut() {
                let shadowed = subgraph.is_input(from)
                    || subgraph.initializers.contains_key(from)
                    || subgraph.producer(from).is_some();
                if !shadowed {
                    subgraph.replace_reads(from, to);
                    for output in subgraph.outputs.iter_mut().filter(|output| output.name == *from) {
                        output.name = to.clone();
                    }
                }
            }
        }
    }

    /// Adds a constant under `name`.
    pub fn add_initializer(&mut self, name: ValueName, tensor: Tensor) {
        self.initializers.insert(name, tensor);
    }

    /// Removes the nodes for which `remove` holds, keeping the order of the rest.
    pub fn remove_nodes(&mut self, mut remove: impl FnMut(usize) -> bool) {
        let mut index = 0;
        self.nodes.retain(|_| {
            index += 1;
            !remove(index - 1)
        });
    }

    /// Lets the system take back the memory of constants that are mapped from a file, in this graph and its subgraphs;
    /// see [`Tensor::release_pages`](crate::Tensor::release_pages).
    pub fn release_mapped_constants(&self) {
        for tensor in self.initializers.values() {
            tensor.release_pages();
        }
        for graph in self.nodes.iter().flat_map(|node| node.subgraphs()) {
            graph.release_mapped_constants();
        }
    }

    /// Drops constants that nothing reads, and types of values that no longer exist.
    /// Initializers that are graph inputs or outputs stay. Returns how many constants went.
    pub fn drop_unused_constants(&mut self) -> usize {
        let mut read: HashSet<ValueName> = self.outputs.iter().map(|output| output.name.clone()).collect();
        read.extend(self.inputs.iter().map(|input| input.name.clone()));
        let mut alive: HashSet<ValueName> = HashSet::new();
        for node in &self.nodes {
            read.extend(node.inputs.iter().cloned());
            read.extend(node.subgraphs().flat_map(captured_values));
            alive.extend(node.outputs.iter().cloned());
        }
        let before = self.initializers.len();
        self.initializers.retain(|name, _| read.contains(name));
        self.value_types.retain(|name, _| alive.contains(name));
        before - self.initializers.len()
    }
}
