//! Kernels that the driver has accepted for the nodes of executable graphs.
//!
//! XLA sets the parameters of every kernel again before each launch of a graph. Waiting for each answer would cost more
//! than the launch; what was accepted once for the same kernel, and was checked here, is posted. The node that was set
//! first is waited for each time, so that a program is never further ahead than a launch.

use std::collections::HashMap;

use parking_lot::Mutex;

/// A function and the context it runs in.
type Kernel = (u64, u32);

struct Graph {
    first: u64,
    kernels: HashMap<u64, Kernel>,
}

/// By the executable graph's handle, which is never used again.
static GRAPHS: Mutex<Option<HashMap<u64, Graph>>> = Mutex::new(None);
/// More than any program has; then all are learned again.
const MOST_GRAPHS: usize = 1 << 12;
const MOST_NODES: usize = 1 << 16;

pub(super) fn may_be_posted(exec: u64, node: u64, kernel: Kernel) -> bool {
    let graphs = GRAPHS.lock();
    let graph = graphs.as_ref().and_then(|graphs| graphs.get(&exec));
    graph.is_some_and(|graph| graph.first != node && graph.kernels.get(&node) == Some(&kernel))
}

pub(super) fn learn(exec: u64, node: u64, kernel: Kernel) {
    let mut graphs = GRAPHS.lock();
    let graphs = graphs.get_or_insert_default();
    if graphs.len() >= MOST_GRAPHS {
        graphs.clear();
    }
    let graph = graphs.entry(exec).or_insert_with(|| Graph { first: node, kernels: HashMap::new() });
    if graph.kernels.len() < MOST_NODES {
        graph.kernels.insert(node, kernel);
    }
}
