//! Conditional handles that no node has yet. The driver follows them, so it gets only those of graphs that are there.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use cuda_abi::error::CUDA_ERROR_OUT_OF_MEMORY;

use super::{invalid, outermost};
use crate::Refusal;
use crate::handles::Object;

/// Each costs the driver memory that no ledger sees.
const MOST: usize = 64 << 10;

#[derive(Default)]
pub(super) struct Conditionals {
    /// By handle: the graph that it was made for.
    graphs: HashMap<u64, Weak<Object>>,
}

impl Conditionals {
    /// Whether there may be one more.
    pub(super) fn room(&mut self) -> Result<(), Refusal> {
        if self.graphs.len() >= MOST {
            self.graphs.retain(|_, graph| graph.strong_count() > 0);
        }
        if self.graphs.len() < MOST { Ok(()) } else { Err(Refusal::Code(CUDA_ERROR_OUT_OF_MEMORY)) }
    }

    pub(super) fn add(&mut self, handle: u64, graph: &Arc<Object>) {
        self.graphs.insert(handle, Arc::downgrade(graph));
    }

    /// Whether a node of `graph` may have this handle: it is of the same whole, which is still there.
    pub(super) fn check(&self, handle: u64, graph: &Arc<Object>) -> Result<(), Refusal> {
        let made_for = self.graphs.get(&handle).and_then(Weak::upgrade).ok_or_else(invalid)?;
        if Arc::ptr_eq(&outermost(&made_for), &outermost(graph)) { Ok(()) } else { Err(invalid()) }
    }

    /// A node has it now.
    pub(super) fn take(&mut self, handle: u64) {
        self.graphs.remove(&handle);
    }
}

#[cfg(test)]
mod tests {
    use cuda_abi::driver::Driver;
    use cuda_abi::wire::Kind;

    use super::*;
    use crate::handles::Handles;

    /// A graph, of a driver that is never called.
    fn graph(handles: &Handles, raw: u64) -> (u64, Arc<Object>) {
        let word = handles.open(Kind::Graph, raw, 1).unwrap();
        (word, handles.pin(Kind::Graph, word).unwrap())
    }

    #[test]
    fn a_handle_is_for_its_own_graph_while_that_is_there() {
        let handles = Handles::new(Arc::new(Driver::missing()), 2);
        let ((word, mine), (_, other)) = (graph(&handles, 0x1000), graph(&handles, 0x2000));
        let mut conditionals = Conditionals::default();
        conditionals.add(7, &mine);
        assert!(conditionals.check(7, &mine).is_ok());
        assert!(conditionals.check(7, &other).is_err());
        assert!(conditionals.check(8, &mine).is_err());
        handles.forget(word);
        drop(mine);
        assert!(conditionals.graphs[&7].upgrade().is_none());
        assert!(conditionals.check(7, &other).is_err());
    }

    #[test]
    fn a_handle_is_for_one_node() {
        let handles = Handles::new(Arc::new(Driver::missing()), 2);
        let (_, mine) = graph(&handles, 0x1000);
        let mut conditionals = Conditionals::default();
        conditionals.add(7, &mine);
        conditionals.take(7);
        assert!(conditionals.check(7, &mine).is_err());
    }

    #[test]
    fn only_so_many_wait_for_a_node() {
        let handles = Handles::new(Arc::new(Driver::missing()), 2);
        let (word, mine) = graph(&handles, 0x1000);
        let mut conditionals = Conditionals::default();
        (0..MOST as u64).for_each(|handle| conditionals.add(handle, &mine));
        assert!(conditionals.room().is_err());
        // Those of graphs that are gone do not count.
        handles.forget(word);
        drop(mine);
        assert!(conditionals.room().is_ok());
        assert!(conditionals.graphs.is_empty());
    }
}
