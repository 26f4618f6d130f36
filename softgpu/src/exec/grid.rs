//! A grid while it runs, and how one OS thread runs blocks of it.

use std::cell::RefCell;
use std::ops::Range;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::block::BlockState;
use super::code::Compiled;
use super::context::{Context, Pause, RawFault, Trap};
use super::fault::{Fault, FaultKind};
use super::fiber::{Back, Fiber};
use super::helpers;
use super::module::Launch;
use super::ticker;

/// Everything that the threads working on a grid share.
pub struct Grid<'a> {
    pub launch: &'a Launch<'a>,
    pub code: &'a Compiled,
    pub variables: &'a [u64],
    pub kernel: &'a str,
    pub shared_bytes: u32,
    pub local_bytes: u64,
    blocks: u64,
    next_block: AtomicU64,
    abort: AtomicBool,
    fault: Mutex<Option<Fault>>,
}

impl<'a> Grid<'a> {
    pub fn new(
        launch: &'a Launch<'a>,
        code: &'a Compiled,
        variables: &'a [u64],
        kernel: &'a str,
        shared_bytes: u32,
        local_bytes: u64,
    ) -> Grid<'a> {
        let blocks = launch.grid.iter().map(|n| u64::from(*n)).product();
        Grid {
            launch,
            code,
            variables,
            kernel,
            shared_bytes,
            local_bytes,
            blocks,
            next_block: AtomicU64::new(0),
            abort: AtomicBool::new(false),
            fault: Mutex::new(None),
        }
    }

    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// The next few blocks that nobody has taken.
    fn take(&self) -> Option<Range<u64>> {
        let left = self.blocks.saturating_sub(self.next_block.load(Ordering::Relaxed));
        // Large bites while there is plenty, so that the counter is not what limits us; small ones at the end.
        let bite = (left / 64).clamp(1, 256);
        let start = self.next_block.fetch_add(bite, Ordering::Relaxed);
        (start < self.blocks).then(|| start..(start + bite).min(self.blocks))
    }

    /// Whether the grid should end early.
    pub fn stopping(&self) -> bool {
        self.abort.load(Ordering::Relaxed) || self.launch.stop.load(Ordering::Relaxed)
    }

    fn fail(&self, fault: Fault) {
        let mut first = self.fault.lock().unwrap_or_else(PoisonError::into_inner);
        first.get_or_insert(fault);
        self.abort.store(true, Ordering::Relaxed);
    }

    /// How the grid ended.
    pub fn result(self) -> Result<(), Fault> {
        let fault = self.fault.into_inner().unwrap_or_else(PoisonError::into_inner);
        match fault {
            Some(fault) => Err(fault),
            None if self.launch.stop.load(Ordering::Relaxed) => Err(Fault {
                kind: FaultKind::Stopped,
                kernel: self.kernel.to_owned(),
                block: [0; 3],
                thread: [0; 3],
                address: None,
                message: String::new(),
            }),
            None => Ok(()),
        }
    }

    fn coordinates(&self, index: u64) -> [u32; 3] {
        let [x, y, _] = self.launch.grid.map(u64::from);
        [(index % x) as u32, (index / x % y) as u32, (index / x / y) as u32]
    }

    /// Works on the grid until no block is left. The thread's fibers and buffers are kept for the next grid.
    pub fn work(&self) {
        WORKER.with(|worker| match worker.try_borrow_mut() {
            Ok(mut worker) => worker.run(self),
            // A launch from within a launch on the same thread, by an `Output` of strange taste.
            Err(_) => Worker::new().run(self),
        });
    }
}

thread_local! {
    static WORKER: RefCell<Worker> = RefCell::new(Worker::new());
}

/// What an OS thread needs to run blocks.
struct Worker {
    fibers: Vec<Fiber>,
    block: Box<BlockState>,
    shared: Vec<u128>,
    attention: Arc<AtomicU32>,
}

/// How a block ended, when not well.
type Broken = (usize, RawFault);

impl Worker {
    fn new() -> Worker {
        let attention = Arc::new(AtomicU32::new(0));
        ticker::register(&attention);
        Worker { fibers: Vec::new(), block: Box::new(BlockState::new()), shared: Vec::new(), attention }
    }

    fn run(&mut self, grid: &Grid) {
        let words = (grid.shared_bytes as usize).div_ceil(16);
        if self.shared.len() < words {
            self.shared = vec![0; words];
        }
        while let Some(range) = grid.take() {
            for index in range {
                if grid.stopping() {
                    return;
                }
                let coordinates = grid.coordinates(index);
                if let Err((fiber, fault)) = self.run_block(grid, coordinates) {
                    let thread = self.fibers.get(fiber).map_or([0; 3], |fiber| fiber.context.thread);
                    for fiber in &mut self.fibers {
                        if !fiber.reset() {
                            break;
                        }
                    }
                    let RawFault { kind, address, message } = fault;
                    grid.fail(Fault {
                        kind,
                        kernel: grid.kernel.to_owned(),
                        block: coordinates,
                        thread,
                        address,
                        message,
                    });
                    return;
                }
            }
        }
    }

    fn run_block(&mut self, grid: &Grid, coordinates: [u32; 3]) -> Result<(), Broken> {
        let block: *mut BlockState = &mut *self.block;
        self.block.begin(grid.launch.block.iter().product());
        let mut started = 0;
        loop {
            let state = &mut *self.block;
            let fiber = if let Some(fiber) = state.ready.pop_front() {
                fiber as usize
            } else if state.has_unstarted() {
                self.prepare(grid, started, coordinates, block)?;
                started += 1;
                started - 1
            } else if state.waiting > 0 && state.settle() {
                continue;
            } else if let Some(fiber) = state.yielded.pop_front() {
                fiber as usize
            } else if state.waiting > 0 {
                let message = format!("{} threads wait for others that never come", state.waiting);
                return Err((0, RawFault { kind: FaultKind::Deadlock, address: None, message }));
            } else {
                return Ok(());
            };
            match self.fibers[fiber].resume() {
                Back::Pause(Pause::Done | Pause::Wait) => {}
                Back::Pause(Pause::Yield) => self.block.yielded.push_back(fiber as u32),
                Back::Pause(Pause::Fault) => {
                    let fault = self.fibers[fiber].context.fault.take();
                    return Err((fiber, fault.unwrap_or_else(no_memory)));
                }
                Back::Trap(trap) => {
                    let (kind, address) = match trap {
                        Trap::Address(address) => (FaultKind::IllegalAddress, Some(address)),
                        Trap::StackOverflow => (FaultKind::StackOverflow, None),
                    };
                    return Err((fiber, RawFault { kind, address, message: String::new() }));
                }
            }
        }
    }

    /// Sets up fiber number `index` for a block.
    fn prepare(
        &mut self,
        grid: &Grid,
        index: usize,
        coordinates: [u32; 3],
        block: *mut BlockState,
    ) -> Result<(), Broken> {
        if index == self.fibers.len() {
            let Some(mut fiber) = Fiber::new() else { return Err((index, no_memory())) };
            fiber.context.fiber = index as u32;
            self.block.contexts.push(&mut *fiber.context);
            self.fibers.push(fiber);
        }
        let fiber = &mut self.fibers[index];
        fiber.reserve_local(grid.local_bytes);
        let context = &mut *fiber.context;
        context.helpers = helpers::TABLE.0.as_ptr();
        context.params = grid.launch.params.as_ptr();
        context.variables = grid.variables.as_ptr();
        context.functions = grid.code.functions.as_ptr();
        context.shared = self.shared.as_mut_ptr().cast();
        context.shared_size = u64::from(grid.shared_bytes.next_multiple_of(16));
        context.attention = Arc::as_ptr(&self.attention);
        context.block = block;
        context.block_index = coordinates;
        context.grid_size = grid.launch.grid;
        context.block_size = grid.launch.block;
        context.dynamic_shared = grid.launch.dynamic_shared;
        context.entry = Some(grid.code.entry);
        context.code = grid.code.range;
        context.grid = ptr::from_ref(grid).cast();
        Ok(())
    }
}

fn no_memory() -> RawFault {
    RawFault { kind: FaultKind::StackOverflow, address: None, message: "no memory for the threads' stacks".into() }
}

impl BlockState {
    /// Whether there are threads that have not started.
    fn has_unstarted(&self) -> bool {
        self.next_linear < self.total
    }
}

impl Context {
    /// A context that belongs to no block yet.
    pub fn empty() -> Context {
        Context {
            helpers: ptr::null(),
            params: ptr::null(),
            variables: ptr::null(),
            functions: ptr::null(),
            shared: ptr::null_mut(),
            shared_size: 0,
            local: ptr::null_mut(),
            local_size: 0,
            stack_limit: 0,
            attention: ptr::null(),
            block: ptr::null_mut(),
            block_index: [0; 3],
            grid_size: [0; 3],
            block_size: [0; 3],
            dynamic_shared: 0,
            thread: [0; 3],
            linear: 0,
            local_top: 0,
            entry: None,
            code: (0, 0),
            yielder: ptr::null(),
            grid: ptr::null(),
            fiber: 0,
            answer: 0,
            fault: None,
            scratch: Vec::new(),
        }
    }
}
