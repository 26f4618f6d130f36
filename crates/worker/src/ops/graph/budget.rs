//! How many nodes a client's graphs and captures have in all. Each costs the driver host memory that no ledger sees, so there
//! is a limit for each client.
//!
//! A graph pays for all its nodes, those of graphs inside it included, and an executable graph for as many again. What is
//! captured is counted when the driver has taken it. With nothing left, whatever would add a node is refused; while a
//! stream is being captured that is all work, for what would be captured is not told from what would not.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, OnceLock};

use cuda_abi::error::CUDA_ERROR_OUT_OF_MEMORY;
use cuda_abi::wire::{FIRST_OP, Kind, Op, Reader};

use super::{capture, outermost};
use crate::dispatch::op_name;
use crate::handles::Object;
use crate::turns::{self, submits};
use crate::{Refusal, Worker};

/// Functions that have a captured stream get a node, beside those that give the GPU work.
const CAPTURED: [&str; 5] =
    ["cuEventRecord", "cuStreamWaitEvent", "cuStreamWriteValue", "cuMemAllocAsync", "cuMemFreeAsync"];

static PLAIN: LazyLock<Vec<bool>> = LazyLock::new(|| {
    let captured = |op: u16| CAPTURED.iter().any(|name| op_name(op).starts_with(name));
    (0..FIRST_OP).take_while(|op| op_name(*op) != "?").map(captured).collect()
});

/// What all graphs of a client have together.
#[derive(Debug)]
pub(crate) struct Budget {
    used: AtomicU64,
    limit: AtomicU64,
}

impl Default for Budget {
    fn default() -> Self {
        Self { used: AtomicU64::new(0), limit: AtomicU64::new(u64::MAX) }
    }
}

impl Budget {
    pub(crate) fn set_limit(&self, limit: u64) {
        self.limit.store(limit, Ordering::Release);
    }

    /// Whether there may be so many more.
    fn room(&self, nodes: u64) -> Result<(), Refusal> {
        let used = self.used.load(Ordering::Acquire).checked_add(nodes);
        match used.filter(|used| *used <= self.limit.load(Ordering::Acquire)) {
            Some(_) => Ok(()),
            None => Err(Refusal::Code(CUDA_ERROR_OUT_OF_MEMORY)),
        }
    }
}

/// What a graph or an executable one has of it, until it goes.
#[derive(Debug, Default)]
pub(crate) struct Nodes {
    count: AtomicU64,
    budget: OnceLock<Arc<Budget>>,
}

impl Nodes {
    pub(crate) fn count(&self) -> u64 {
        self.count.load(Ordering::Acquire)
    }

    fn add(&self, budget: &Arc<Budget>, nodes: u64) {
        self.budget.get_or_init(|| budget.clone()).used.fetch_add(nodes, Ordering::AcqRel);
        self.count.fetch_add(nodes, Ordering::AcqRel);
    }

    /// Gives back at most what there is.
    fn remove(&self, nodes: u64) {
        let taken =
            self.count.fetch_update(Ordering::AcqRel, Ordering::Acquire, |count| Some(count.saturating_sub(nodes)));
        let nodes = nodes.min(taken.unwrap_or(0));
        if let Some(budget) = self.budget.get() {
            budget.used.fetch_sub(nodes, Ordering::AcqRel);
        }
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        self.remove(u64::MAX);
    }
}

/// Whether there may be so many nodes more.
pub(super) fn room(worker: &Worker, nodes: u64) -> Result<(), Refusal> {
    worker.graphs.budget.room(nodes)
}

/// A graph has so many nodes more.
pub(super) fn add(worker: &Worker, graph: &Arc<Object>, nodes: u64) {
    outermost(graph).nodes.add(&worker.graphs.budget, nodes);
}

/// What a node has of its graph's part, with what is inside of it. Does not hold the node.
pub(super) struct Share {
    graph: Arc<Object>,
    nodes: u64,
}

pub(super) fn share_of(node: &Arc<Object>) -> Share {
    // One that was captured does not say how many it is.
    Share { graph: outermost(node), nodes: node.weight.get().copied().unwrap_or(1) }
}

impl Share {
    /// The node is gone.
    pub(super) fn give_back(self) {
        self.graph.nodes.remove(self.nodes);
    }
}

/// Can this message add a node, where its stream is being captured?
fn is_captured(op: u16) -> bool {
    let other = matches!(Op::from_code(op), Some(Op::SharedRecord | Op::SharedWait | Op::FreeAsync));
    other || submits(op) || PLAIN.get(usize::from(op)).copied().unwrap_or(false)
}

/// A message that may be captured is about to be executed. Answers whether what it captured is to be counted.
pub(crate) fn begin(worker: &Worker, op: u16) -> Result<bool, Refusal> {
    if !worker.graphs.is_capturing() || !is_captured(op) {
        return Ok(false);
    }
    turns::forget_stream();
    room(worker, 1)?;
    Ok(true)
}

/// It was: the graph that its stream is captured into has a node more.
#[cold]
pub(crate) fn end(worker: &Worker, op: u16, payload: &[u8]) {
    let Some(stream) = turns::named_stream(worker) else { return };
    if let Some(graph) = capture::captured_graph(worker, stream.raw as _) {
        add(worker, &graph, 1 + launched(worker, op, payload));
    }
}

/// A graph that is launched becomes a node with all of its own inside.
fn launched(worker: &Worker, op: u16, payload: &[u8]) -> u64 {
    if op >= FIRST_OP || !op_name(op).starts_with("cuGraphLaunch") {
        return 0;
    }
    let exec = Reader::new(payload).word().ok().and_then(|word| worker.handles.pin(Kind::GraphExec, word).ok());
    exec.map_or(0, |exec| exec.nodes.count())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn graphs_have_only_so_many_nodes_together_and_give_them_back() {
        let budget = Arc::new(Budget::default());
        budget.set_limit(10);
        let (a, b) = (Nodes::default(), Nodes::default());
        a.add(&budget, 6);
        assert!(budget.room(4).is_ok() && budget.room(5).is_err());
        assert!(budget.room(u64::MAX).is_err());
        b.add(&budget, 4);
        assert_eq!(budget.room(1), Err(Refusal::Code(CUDA_ERROR_OUT_OF_MEMORY)));
        b.remove(1);
        assert!(budget.room(1).is_ok() && budget.room(2).is_err());
        // More than it has is not another's.
        b.remove(100);
        assert!(budget.room(4).is_ok() && budget.room(5).is_err());
        drop(a);
        assert!(budget.room(10).is_ok() && budget.room(11).is_err());
    }

    #[test]
    fn what_a_capture_takes_is_told_from_questions() {
        let plain = |name: &str| is_captured((0..FIRST_OP).find(|op| op_name(*op).starts_with(name)).unwrap());
        assert!(
            plain("cuEventRecord")
                && plain("cuStreamWaitEvent")
                && plain("cuMemsetD8Async")
                && plain("cuGraphLaunch")
        );
        assert!(is_captured(Op::Launch as u16) && is_captured(Op::HostCallback as u16));
        assert!(!plain("cuStreamQuery") && !is_captured(Op::CaptureInfo as u16) && !is_captured(Op::NodeAdd as u16));
    }
}
