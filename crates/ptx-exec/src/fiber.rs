//! Fibers: each runs the threads of a block one after another, and stays with a thread that has to wait.

use std::cell::RefCell;

use corosensei::{Coroutine, CoroutineResult};

use super::context::{Context, Pause, Trap};
use super::signal;
use super::stack::{self, FiberStack};

type Routine = Coroutine<*mut Context, Pause, Trap, FiberStack>;

/// A fiber with its context, which never moves.
pub(crate) struct Fiber {
    routine: Option<Routine>,
    pub context: Box<Context>,
    local: Vec<u64>,
}

thread_local! {
    /// Stacks that no fiber of this thread uses.
    static STACKS: RefCell<Vec<FiberStack>> = const { RefCell::new(Vec::new()) };
}

fn take_stack() -> Option<FiberStack> {
    STACKS.with_borrow_mut(|stacks| {
        if stacks.is_empty() {
            *stacks = stack::slab();
        }
        stacks.pop()
    })
}

/// Why a fiber came back.
pub(crate) enum Back {
    Pause(Pause),
    Trap(Trap),
}

impl Fiber {
    /// A fiber that has not started, or nothing when there is no memory for its stack.
    pub(crate) fn new() -> Option<Fiber> {
        let mut fiber = Fiber { routine: None, context: Box::new(Context::empty()), local: Vec::new() };
        fiber.start().then_some(fiber)
    }

    fn start(&mut self) -> bool {
        let Some(stack) = take_stack() else { return false };
        self.context.stack_limit = stack.code_limit();
        let routine = Coroutine::with_stack(stack, |yielder, context: *mut Context| {
            // SAFETY: the context is boxed in the fiber that owns this coroutine, and outlives it.
            unsafe { (*context).yielder = yielder };
            loop {
                // SAFETY: the scheduler has set up the context for this entry point before it resumed the fiber.
                unsafe {
                    if let Some(entry) = (*context).entry {
                        entry(context);
                    }
                }
                yielder.suspend(Pause::Done);
            }
        });
        self.routine = Some(routine);
        true
    }

    /// Gives the fiber at least this much local memory.
    pub(crate) fn reserve_local(&mut self, bytes: u64) {
        let words = bytes.div_ceil(16) as usize * 2;
        if self.local.len() < words {
            self.local = vec![0; words];
        }
        self.context.local = self.local.as_mut_ptr().cast();
        self.context.local_size = bytes;
    }

    /// Runs the fiber until it pauses.
    pub(crate) fn resume(&mut self) -> Back {
        let context: *mut Context = &mut *self.context;
        let Some(routine) = self.routine.as_mut() else { return Back::Pause(Pause::Fault) };
        let handler = routine.trap_handler();
        let result = signal::guarded(&handler, self.context.code, || routine.resume(context));
        match result {
            CoroutineResult::Yield(pause) => Back::Pause(pause),
            CoroutineResult::Return(trap) => Back::Trap(trap),
        }
    }

    /// Throws away what the fiber was doing, so that it can be used again. False when it cannot.
    pub(crate) fn reset(&mut self) -> bool {
        self.abandon();
        self.start()
    }

    fn abandon(&mut self) {
        if let Some(mut routine) = self.routine.take() {
            // SAFETY: the fiber's stack holds compiled code's frames and helpers', and neither has anything to drop.
            unsafe { routine.force_reset() };
            let stack = routine.into_stack();
            // When the thread is ending, the list is gone and the stack goes with us.
            let _ = STACKS.try_with(|stacks| {
                if let Ok(mut stacks) = stacks.try_borrow_mut() {
                    stacks.push(stack);
                }
            });
        }
    }
}

impl Drop for Fiber {
    fn drop(&mut self) {
        self.abandon();
    }
}
