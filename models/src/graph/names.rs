use std::collections::{HashMap, HashSet};

use super::{Graph, Model};
use crate::ValueName;

/// Makes value and node names that no scope of a model uses yet.
#[derive(Clone, Debug, Default)]
pub struct NameGenerator {
    taken: HashSet<String>,
    /// The last number given to each base, so that a thousand equal names do not take a million tries.
    counts: HashMap<String, usize>,
}

impl NameGenerator {
    /// Collects every value and node name of all scopes.
    pub fn new(model: &Model) -> Self {
        let mut names = Self::default();
        names.take(&model.graph);
        names
    }

    /// Adds the names of one graph and its subgraphs to those taken.
    pub fn take(&mut self, graph: &Graph) {
        for info in graph.inputs.iter().chain(&graph.outputs) {
            self.taken.insert(info.name.to_string());
        }
        self.taken
            .extend(graph.initializers.keys().map(ToString::to_string));
        for node in &graph.nodes {
            self.taken.insert(node.name.clone());
            self.taken
                .extend(node.inputs.iter().chain(&node.outputs).map(ToString::to_string));
            for subgraph in node.subgraphs() {
                self.take(subgraph);
            }
        }
    }

    /// `base` if it is free, else `base_1`, `base_2`, …; the name is taken from now on.
    pub fn fresh(&mut self, base: &str) -> ValueName {
        let base = if base.is_empty() { "value" } else { base };
        if self.taken.insert(base.to_owned()) {
            return base.into();
        }
        let count = self.counts.entry(base.to_owned()).or_default();
        loop {
            *count += 1;
            let name = format!("{base}_{count}");
            if self.taken.insert(name.clone()) {
                return name.into();
            }
        }
    }
}
