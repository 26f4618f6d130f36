//! What a node does.

use std::sync::Arc;

use cuda_abi::constants::node_type;
use cuda_abi::error::*;
use cuda_abi::types::*;

use super::Graph;
use super::conditional::{Branches, Conditional};
use crate::abi::CudaResult;
use crate::context::Context;
use crate::event::Event;
use crate::function::Function;
use crate::handles::out;
use crate::launch::Shape;
use crate::values::Word;
use crate::{launch, set, shapes, state};

#[derive(Clone)]
pub(crate) enum Task {
    Kernel(KernelTask),
    Copy(Box<CUDA_MEMCPY3D>),
    Set(CUDA_MEMSET_NODE_PARAMS),
    Host(unsafe extern "C" fn(*mut c_void), u64),
    Graph(Arc<Graph>),
    Conditional(Conditional, Branches),
    Empty,
    Record(Arc<Event>),
    Wait(Arc<Event>),
    WriteWord(Word),
    WaitForWord(Word, u32),
}

// SAFETY: pointers in it are numbers until the task is run, which is the application's responsibility then.
unsafe impl Send for Task {}
// SAFETY: as above.
unsafe impl Sync for Task {}

/// A launch. The parameters lie in words, so that each can be shown to the application where it lies.
#[derive(Clone)]
pub(crate) struct KernelTask {
    pub function: Arc<Function>,
    pub shape: Shape,
    cooperative: bool,
    params: Arc<[u64]>,
    pointers: Arc<[usize]>,
    bytes: usize,
    /// The handle by which the application named the function.
    pub named: u64,
}

impl KernelTask {
    pub(crate) fn new(
        function: Arc<Function>,
        named: u64,
        shape: Shape,
        cooperative: bool,
        packed: &[u8],
    ) -> KernelTask {
        let mut words = vec![0u64; packed.len().div_ceil(8)];
        for (word, bytes) in words.iter_mut().zip(packed.chunks(8)) {
            let mut filled = [0; 8];
            filled[..bytes.len()].copy_from_slice(bytes);
            *word = u64::from_ne_bytes(filled);
        }
        let params: Arc<[u64]> = words.into();
        let base = params.as_ptr() as usize;
        let pointers = function.kernel().params.iter().map(|param| base + param.offset as usize).collect();
        KernelTask { function, shape, cooperative, params, pointers, bytes: packed.len(), named }
    }

    /// A pointer to each parameter, good as long as the node has this task.
    pub(crate) fn pointers(&self) -> *mut *mut c_void {
        self.pointers.as_ptr().cast_mut().cast()
    }

    fn packed(&self) -> &[u8] {
        // SAFETY: the words hold at least that many bytes.
        unsafe { std::slice::from_raw_parts(self.params.as_ptr().cast(), self.bytes) }
    }
}

impl Task {
    pub(crate) fn kind(&self) -> u32 {
        match self {
            Task::Kernel(_) => node_type::KERNEL,
            Task::Copy(_) => node_type::MEMCPY,
            Task::Set(_) => node_type::MEMSET,
            Task::Host(..) => node_type::HOST,
            Task::Graph(_) => node_type::GRAPH,
            Task::Conditional(..) => node_type::CONDITIONAL,
            Task::Empty => node_type::EMPTY,
            Task::Record(_) => node_type::EVENT_RECORD,
            Task::Wait(_) => node_type::WAIT_EVENT,
            Task::WriteWord(_) | Task::WaitForWord(..) => node_type::BATCH_MEM_OP,
        }
    }

    /// The graphs that it has inside.
    pub(crate) fn inside(&self) -> &[Arc<Graph>] {
        match self {
            Task::Graph(inside) => std::slice::from_ref(inside),
            Task::Conditional(_, branches) => &branches.graphs,
            _ => &[],
        }
    }

    /// For another graph: a graph inside is copied too.
    pub(crate) fn copy(&self) -> Task {
        match self {
            Task::Graph(inside) => {
                let copy = inside.copy();
                copy.own();
                Task::Graph(copy)
            }
            Task::Conditional(conditional, branches) => Task::Conditional(conditional.clone(), branches.copy()),
            other => other.clone(),
        }
    }

    pub(crate) fn run(&self, context: &Context) -> CudaResult {
        match self {
            Task::Kernel(kernel) => {
                let KernelTask { function, shape, cooperative, .. } = kernel;
                launch::launch_now(context, function, *shape, *cooperative, kernel.packed())
            }
            Task::Copy(copy) => shapes::run(copy),
            Task::Set(set) => set::run(set),
            Task::Host(function, user) => {
                let (function, user) = (*function, *user);
                // SAFETY: the application's own function and argument.
                state::in_callback(|| unsafe { function(out(user)) });
                Ok(())
            }
            Task::Graph(_) | Task::Conditional(..) => Err(CUDA_ERROR_UNKNOWN),
            Task::Empty => Ok(()),
            Task::Record(event) => {
                event.record_now();
                Ok(())
            }
            Task::Wait(event) => {
                event.wait_now(context);
                Ok(())
            }
            Task::WriteWord(word) => word.write(),
            Task::WaitForWord(word, condition) => word.wait(*condition, context),
        }
    }
}
