//! How one OS thread runs blocks of a grid.
//!
//! A block runs in a `Slot`, which has fibers, shared memory and the block's state, and is kept for the next block.
//! Mostly one slot is enough: a block runs to its end before the next one begins. Blocks that wait for each other need
//! several. In a cooperative grid every block gets a slot at once, and all of them are scheduled in turn; in other grids a block
//! that has been spinning for a while lets others begin, because what it waits for may be one of them.

use std::cell::RefCell;
use std::ops::Range;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use super::block::BlockState;
use super::context::{Context, Pause, RawFault, Trap};
use super::fault::{Fault, FaultKind};
use super::fiber::{Back, Fiber};
use super::grid::Grid;
use super::{gate, helpers, sanitize, ticker};

/// Rounds in which every thread of a block only spins, after which another block may begin. A round takes a tick or more.
const SPIN_LIMIT: u32 = 20;
/// Blocks that spin at the same time on one OS thread, where the grid is not cooperative.
const MAX_SPINNING: usize = 64;

impl Grid<'_> {
    /// Works on the grid until no block is left. The thread's fibers and buffers are kept for the next grid.
    pub fn work(&self) {
        let _inside = gate::enter(|| self.stopping());
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
    slots: Vec<Slot>,
    attention: Arc<AtomicU32>,
}

/// What a block needs to run.
struct Slot {
    fibers: Vec<Fiber>,
    block: Box<BlockState>,
    shared: Vec<u128>,
    /// Frames of interleaved threads; a state of 0 is a thread that has not begun.
    frames: Vec<u128>,
    coordinates: [u32; 3],
    /// Fibers that have been set up for this block.
    started: usize,
}

/// How far a block has come.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Progress {
    Done,
    /// Every thread that could run has run, and would run on.
    Spinning,
}

/// How a block ended, when not well.
type Broken = (usize, RawFault);

impl Worker {
    fn new() -> Worker {
        let attention = Arc::new(AtomicU32::new(0));
        ticker::register(&attention);
        Worker { slots: Vec::new(), attention }
    }

    fn run(&mut self, grid: &Grid) {
        let mut blocks = 0..0;
        let mut running: Vec<usize> = Vec::new();
        let mut spins = 0;
        loop {
            gate::pass(|| grid.stopping());
            if grid.stopping() {
                return self.abandon(&running);
            }
            let alone = running.len() < MAX_SPINNING && spins >= SPIN_LIMIT;
            if running.is_empty() || grid.cooperative() || alone {
                spins = 0;
                match next(grid, &mut blocks) {
                    Some(index) => running.push(self.begin(grid, index, &running)),
                    None if running.is_empty() => return,
                    None => {}
                }
            }
            let mut at = 0;
            while at < running.len() {
                let slot = &mut self.slots[running[at]];
                match slot.run(grid, &self.attention) {
                    Ok(Progress::Done) => drop(running.swap_remove(at)),
                    Ok(Progress::Spinning) => at += 1,
                    Err((fiber, fault)) => {
                        slot.fail(grid, fiber, fault);
                        return self.abandon(&running);
                    }
                }
            }
            if !running.is_empty() {
                spins += 1;
            }
            if running.len() > 1 {
                std::thread::yield_now();
            }
        }
    }

    /// Gives a block a slot that is free.
    fn begin(&mut self, grid: &Grid, index: u64, running: &[usize]) -> usize {
        let free = (0..self.slots.len()).find(|slot| !running.contains(slot));
        let at = free.unwrap_or_else(|| {
            self.slots.push(Slot::new());
            self.slots.len() - 1
        });
        self.slots[at].begin(grid, index);
        at
    }

    /// Throws away what these slots were doing.
    fn abandon(&mut self, running: &[usize]) {
        for at in running {
            self.slots[*at].reset();
        }
    }
}

/// The next block of a range, or of the grid.
fn next(grid: &Grid, blocks: &mut Range<u64>) -> Option<u64> {
    blocks.next().or_else(|| {
        *blocks = grid.take()?;
        blocks.next()
    })
}

impl Slot {
    fn new() -> Slot {
        Slot {
            fibers: Vec::new(),
            block: Box::new(BlockState::new()),
            shared: Vec::new(),
            frames: Vec::new(),
            coordinates: [0; 3],
            started: 0,
        }
    }

    fn begin(&mut self, grid: &Grid, index: u64) {
        let words = (grid.shared_bytes as usize).div_ceil(16);
        if self.shared.len() < words {
            self.shared = vec![0; words];
        }
        let threads: u32 = grid.launch.block.iter().product();
        self.begin_frames(grid.code.frame_bytes as usize / 16, threads as usize);
        self.block.begin(threads);
        let sanitizer = grid.sanitizer.as_ref();
        self.block.shadow = sanitizer.map(|sanitizer| sanitizer.block(index, threads, grid.shared_bytes));
        if sanitizer.is_some() {
            self.shared.fill(sanitize::POISON);
        }
        self.coordinates = grid.coordinates(index);
        self.started = 0;
    }

    fn begin_frames(&mut self, words: usize, threads: usize) {
        if words == 0 {
            return;
        }
        if self.frames.len() < words * threads {
            self.frames = vec![0; words * threads];
        }
        self.frames.chunks_exact_mut(words).take(threads).for_each(|frame| frame[0] = 0);
    }

    /// Fibers that were in the middle of something start over.
    fn reset(&mut self) {
        for fiber in &mut self.fibers {
            if !fiber.reset() {
                break;
            }
        }
    }

    fn fail(&mut self, grid: &Grid, fiber: usize, fault: RawFault) {
        let thread = self.fibers.get(fiber).map_or([0; 3], |fiber| fiber.context.thread);
        let RawFault { kind, address, message } = fault;
        let (kernel, block) = (grid.kernel.to_owned(), self.coordinates);
        let line = self.fibers.get(fiber).map(|fiber| fiber.context.line).filter(|line| *line != 0);
        grid.fail(Fault { kind, kernel, block, thread, address, message, line, source: None });
    }

    /// Runs the block until it is done or only spins.
    fn run(&mut self, grid: &Grid, attention: &Arc<AtomicU32>) -> Result<Progress, Broken> {
        let mut slices = self.block.yielded.len();
        loop {
            let state = &mut *self.block;
            let fiber = if let Some(fiber) = state.ready.pop_front() {
                fiber as usize
            } else if state.has_unstarted() {
                self.prepare(grid, self.started, attention)?;
                self.started += 1;
                self.started - 1
            } else if state.waiting > 0 && state.settle() {
                continue;
            } else if let Some(fiber) = (slices > 0).then(|| state.yielded.pop_front()).flatten() {
                slices -= 1;
                fiber as usize
            } else if !state.yielded.is_empty() {
                return Ok(Progress::Spinning);
            } else if state.waiting > 0 {
                let message = state.stuck(grid.launch.block);
                // One that waits, so that the report has its place.
                let waiting = state.barriers.iter().flat_map(|barrier| &barrier.waiting);
                let first = waiting.min_by_key(|fiber| self.fibers[**fiber as usize].context.linear);
                let fiber = first.map_or(0, |fiber| *fiber as usize);
                if let Some(shadow) = &mut state.shadow {
                    shadow.stuck(self.fibers[fiber].context.linear, self.fibers[fiber].context.line);
                }
                return Err((fiber, RawFault { kind: FaultKind::Deadlock, address: None, message }));
            } else {
                return Ok(Progress::Done);
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
                        Trap::Address { address, pc } => {
                            self.fibers[fiber].context.line = grid.code.line_of(pc);
                            (FaultKind::IllegalAddress, Some(address))
                        }
                        Trap::StackOverflow { pc } => {
                            self.fibers[fiber].context.line = grid.code.line_near(pc);
                            (FaultKind::StackOverflow, None)
                        }
                    };
                    return Err((fiber, RawFault { kind, address, message: String::new() }));
                }
            }
        }
    }

    /// Sets up fiber number `index` for a block.
    fn prepare(&mut self, grid: &Grid, index: usize, attention: &Arc<AtomicU32>) -> Result<(), Broken> {
        let block: *mut BlockState = &mut *self.block;
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
        context.shared_size = u64::from(grid.shared_bytes);
        context.attention = if grid.cooperative() { &ALWAYS } else { Arc::as_ptr(attention) };
        context.block = block;
        context.block_index = self.coordinates;
        context.grid_size = grid.launch.grid;
        context.block_size = grid.launch.block;
        context.dynamic_shared = grid.launch.dynamic_shared;
        context.line = 0;
        context.frames = self.frames.as_mut_ptr().cast();
        context.marks = grid.marks;
        context.workspace = grid.launch.workspace.unwrap_or(0);
        context.entry = Some(grid.code.entry);
        context.code = grid.code.range;
        context.grid = ptr::from_ref(grid).cast();
        Ok(())
    }
}

/// The flag of blocks that wait for each other: their loops look up each time.
static ALWAYS: AtomicU32 = AtomicU32::new(1);

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
            workspace: 0,
            frames: ptr::null_mut(),
            marks: 0,
            line: 0,
            thread: [0; 3],
            linear: 0,
            local_top: 0,
            entry: None,
            code: (0, 0),
            yielder: ptr::null(),
            grid: ptr::null(),
            fiber: 0,
            polls: 0,
            answer: 0,
            fault: None,
            scratch: Vec::new(),
        }
    }
}
