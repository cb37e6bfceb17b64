use std::collections::{HashMap, HashSet};

use super::Graph;
use crate::ValueName;

/// One place where a node of the graph reads a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Use {
    /// Index of the reading node.
    pub node: usize,
    /// Index of the input; `None` when a subgraph of the node captures the value.
    pub input: Option<usize>,
}

/// Who produces and who reads each value of one graph, at the time it was made.
#[derive(Debug, Default)]
pub struct Uses {
    producers: HashMap<ValueName, usize>,
    readers: HashMap<ValueName, Vec<Use>>,
    outputs: HashSet<ValueName>,
}

impl Uses {
    /// Indexes `graph`. Values that subgraphs capture count as read by the node that holds the subgraph.
    pub fn new(graph: &Graph) -> Self {
        let mut uses = Self::default();
        for (index, node) in graph.nodes.iter().enumerate() {
            for output in node.outputs.iter().filter(|name| !name.is_omitted()) {
                uses.producers.insert(output.clone(), index);
            }
            for (input, name) in node
                .inputs
                .iter()
                .enumerate()
                .filter(|(_, name)| !name.is_omitted())
            {
                uses.readers.entry(name.clone()).or_default().push(Use {
                    node: index,
                    input: Some(input),
                });
            }
            for subgraph in node.subgraphs() {
                for name in captured_values(subgraph) {
                    uses.readers.entry(name).or_default().push(Use {
                        node: index,
                        input: None,
                    });
                }
            }
        }
        uses.outputs = graph.outputs.iter().map(|output| output.name.clone()).collect();
        uses
    }

    /// Index of the node that produces `name`.
    pub fn producer(&self, name: &str) -> Option<usize> {
        self.producers.get(name).copied()
    }

    /// The places that read `name`, in node order.
    pub fn readers(&self, name: &str) -> &[Use] {
        self.readers.get(name).map_or(&[], Vec::as_slice)
    }

    /// Whether nothing reads `name` and it is no graph output.
    pub fn is_dead(&self, name: &str) -> bool {
        self.readers(name).is_empty() && !self.outputs.contains(name)
    }

    /// The only node input that reads `name`, if there is exactly one reader and it is no graph output
    /// and no captured value.
    pub fn sole_reader(&self, name: &str) -> Option<Use> {
        match self.readers(name) {
            [only] if only.input.is_some() && !self.outputs.contains(name) => Some(*only),
            _ => None,
        }
    }
}

/// The values of outer scopes that a subgraph (with its own subgraphs) reads.
pub fn captured_values(graph: &Graph) -> Vec<ValueName> {
    let mut defined: HashSet<&str> = graph.inputs.iter().map(|input| &*input.name).collect();
    defined.extend(graph.initializers.keys().map(|name| &**name));
    defined.extend(
        graph
            .nodes
            .iter()
            .flat_map(|node| node.outputs.iter().map(|name| &**name)),
    );
    let mut seen = HashSet::new();
    let mut captured = Vec::new();
    let mut read = |name: &ValueName| {
        if !name.is_omitted() && !defined.contains(&**name) && seen.insert(name.clone()) {
            captured.push(name.clone());
        }
    };
    for node in &graph.nodes {
        node.inputs.iter().for_each(&mut read);
        for subgraph in node.subgraphs() {
            captured_values(subgraph).iter().for_each(&mut read);
        }
    }
    graph.outputs.iter().for_each(|output| read(&output.name));
    captured
}
