use std::collections::{BTreeSet, HashMap};

use super::Graph;
use super::uses::captured_values;

/// The nodes of a graph depend on each other in a circle.
#[derive(Debug, thiserror::Error)]
#[error("the nodes {nodes:?} depend on each other in a circle; an ONNX graph must be acyclic")]
pub struct CycleError {
    /// Names of nodes that could not be ordered.
    pub nodes: Vec<String>,
}

impl Graph {
    /// Puts the nodes into topological order, changing the present order as little as possible.
    ///
    /// # Errors
    /// When the graph has a cycle; the order is then unchanged.
    pub fn sort_topologically(&mut self) -> Result<(), CycleError> {
        let mut producer = HashMap::new();
        for (index, node) in self.nodes.iter().enumerate() {
            for output in node.outputs.iter().filter(|name| !name.is_omitted()) {
                producer.insert(output.clone(), index);
            }
        }
        let mut waiting = vec![0usize; self.nodes.len()];
        let mut readers = vec![Vec::new(); self.nodes.len()];
        for (index, node) in self.nodes.iter().enumerate() {
            let captured = node.subgraphs().flat_map(captured_values);
            let sources: BTreeSet<usize> = node
                .inputs
                .iter()
                .cloned()
                .chain(captured)
                .filter_map(|name| producer.get(&name).copied())
                .collect();
            waiting[index] = sources.len();
            for source in sources {
                readers[source].push(index);
            }
        }
        let mut ready: BTreeSet<usize> = (0..self.nodes.len())
            .filter(|index| waiting[*index] == 0)
            .collect();
        let mut order = Vec::with_capacity(self.nodes.len());
        while let Some(index) = ready.pop_first() {
            order.push(index);
            for reader in &readers[index] {
                waiting[*reader] -= 1;
                if waiting[*reader] == 0 {
                    ready.insert(*reader);
                }
            }
        }
        if order.len() < self.nodes.len() {
            let stuck = (0..self.nodes.len()).filter(|index| waiting[*index] > 0);
            return Err(CycleError {
                nodes: stuck
                    .take(8)
                    .map(|index| self.nodes[index].name.clone())
                    .collect(),
            });
        }
        let mut nodes: Vec<_> = std::mem::take(&mut self.nodes).into_iter().map(Some).collect();
        self.nodes = order
            .into_iter()
            .filter_map(|index| nodes[index].take())
            .collect();
        Ok(())
    }
}
