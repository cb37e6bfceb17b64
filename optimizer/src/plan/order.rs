//! In which order to run the nodes: depth before breadth where that frees memory, never worse than the file's.

use std::collections::HashMap;

use edgeopt_models::{Bytes, Graph, ValueName};

use super::buffers::{Buffer, reads};

/// A buffer's first and last step in `order` (positions, both included).
pub(super) fn lifetimes(buffers: &[Buffer], order: &[usize]) -> Vec<(usize, usize)> {
    let mut position = vec![0; order.len()];
    for (step, node) in order.iter().enumerate() {
        position[*node] = step;
    }
    let end = order.len().saturating_sub(1);
    buffers
        .iter()
        .map(|buffer| {
            let first = position[buffer.producer];
            let last = if buffer.output {
                end
            } else {
                buffer
                    .readers
                    .iter()
                    .map(|reader| position[*reader])
                    .max()
                    .unwrap_or(first)
            };
            (first, last)
        })
        .collect()
}

/// Bytes live at every step, with what a node's subgraphs take while it runs.
pub(super) fn live(
    buffers: &[Buffer],
    lifetimes: &[(usize, usize)],
    inner: &[Bytes],
    order: &[usize],
) -> Vec<Bytes> {
    let mut live: Vec<Bytes> = order.iter().map(|node| inner[*node]).collect();
    for (buffer, (first, last)) in buffers.iter().zip(lifetimes) {
        for step in live.iter_mut().take(last + 1).skip(*first) {
            *step += buffer.size;
        }
    }
    live
}

/// An order of the nodes by a greedy choice: of all nodes that are ready, the one that leaves the least memory
/// behind (what it makes less what it frees); among equals the earliest in the file.
pub(super) fn greedy(graph: &Graph, buffers: &[Buffer], inner: &[Bytes]) -> Vec<usize> {
    let count = graph.nodes.len();
    let mut producer: HashMap<ValueName, usize> = HashMap::new();
    for (index, node) in graph.nodes.iter().enumerate() {
        for name in node.outputs.iter().filter(|name| !name.is_omitted()) {
            producer.insert(name.clone(), index);
        }
    }
    let mut waiting = vec![0usize; count];
    let mut followers = vec![Vec::new(); count];
    for (index, node) in graph.nodes.iter().enumerate() {
        let mut sources: Vec<usize> = reads(node)
            .iter()
            .filter_map(|name| producer.get(name).copied())
            .collect();
        sources.sort_unstable();
        sources.dedup();
        waiting[index] = sources.len();
        for source in sources {
            followers[source].push(index);
        }
    }
    let mut made = vec![Bytes::ZERO; count];
    let mut read_by: Vec<Vec<usize>> = vec![Vec::new(); count];
    let mut left: Vec<usize> = Vec::with_capacity(buffers.len());
    for (at, buffer) in buffers.iter().enumerate() {
        made[buffer.producer] += buffer.size;
        let mut readers = buffer.readers.clone();
        readers.sort_unstable();
        readers.dedup();
        left.push(readers.len());
        for reader in readers {
            read_by[reader].push(at);
        }
    }
    let mut ready: Vec<usize> = (0..count).filter(|index| waiting[*index] == 0).collect();
    let mut order = Vec::with_capacity(count);
    while !ready.is_empty() {
        let cost = |node: usize| {
            let freed: u64 = read_by[node]
                .iter()
                .filter(|at| left[**at] == 1 && !buffers[**at].output)
                .map(|at| buffers[*at].size.0)
                .sum();
            (i128::from(made[node].0) - i128::from(freed), inner[node], node)
        };
        let Some(at) = (0..ready.len()).min_by_key(|at| cost(ready[*at])) else {
            break;
        };
        let node = ready.swap_remove(at);
        order.push(node);
        for buffer in &read_by[node] {
            left[*buffer] -= 1;
        }
        for follower in &followers[node] {
            waiting[*follower] -= 1;
            if waiting[*follower] == 0 {
                ready.push(*follower);
            }
        }
    }
    order
}
