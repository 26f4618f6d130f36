//! Host functions: the driver calls us when a stream gets to one, the client runs it, the stream goes on.
//!
//! The client's dispatcher asks for the next function with a blocking request, in which it also says that it has run the
//! one before.

use std::collections::{HashSet, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use cuda_abi::types::c_void;

#[derive(Default)]
pub struct Callbacks {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    due: VecDeque<u64>,
    running: HashSet<u64>,
}

impl Callbacks {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the next function that is due, after taking note that `done` has been run.
    pub fn next(&self, done: u64) -> u64 {
        let mut state = self.state();
        if state.running.remove(&done) {
            self.changed.notify_all();
        }
        loop {
            if let Some(id) = state.due.pop_front() {
                return id;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Has the client run a function, and waits until it has.
    fn run(&self, id: u64) {
        let mut state = self.state();
        state.due.push_back(id);
        state.running.insert(id);
        self.changed.notify_all();
        while state.running.contains(&id) {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// What the driver gets as a host function's argument.
pub struct Due {
    pub callbacks: Arc<Callbacks>,
    pub id: u64,
}

impl Due {
    pub fn into_argument(self) -> *mut c_void {
        Box::into_raw(Box::new(self)).cast()
    }
}

/// The host function that the driver calls.
///
/// # Safety
/// `argument` comes from [`Due::into_argument`], and each is passed once.
pub unsafe extern "C" fn run_in_client(argument: *mut c_void) {
    // SAFETY: the caller's promise.
    let due = unsafe { Box::from_raw(argument.cast::<Due>()) };
    due.callbacks.run(due.id);
}
