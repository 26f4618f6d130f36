//! Host functions: the driver calls us when a stream gets to one, the client runs it, the stream goes on.
//!
//! The client knows each function by a number. What the driver is given as a host function's argument is that number and
//! whether a graph has it, so there is nothing to free and nothing that could be used after it was freed. The client's
//! dispatcher asks for the next function with a blocking request, in which it also says that it has run the one before.
//! The same function may be under way more than once, by several launches of graphs: a ticket tells the runs apart.

use std::collections::{HashSet, VecDeque};

use cuda_abi::types::c_void;
use cuda_abi::wire::callback;
use parking_lot::{Condvar, Mutex, MutexGuard};

/// A worker has one client, and the driver calls back without saying for whom.
pub(crate) static CALLBACKS: Callbacks = Callbacks::new();

pub(crate) struct Callbacks {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    due: VecDeque<Due>,
    running: Option<HashSet<u64>>,
    last_ticket: u64,
}

/// Something for the client to do.
#[derive(Clone, Copy)]
pub(crate) struct Due {
    /// 0 if nobody waits for it.
    pub ticket: u64,
    pub id: u64,
    pub what: u64,
}

impl Callbacks {
    const fn new() -> Callbacks {
        let state = State { due: VecDeque::new(), running: None, last_ticket: 0 };
        Callbacks { state: Mutex::new(state), changed: Condvar::new() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Waits for the next thing that is due, after taking note that the one with the ticket `done` has been run.
    pub(crate) fn next(&self, done: u64) -> Due {
        let mut state = self.state();
        if state.running.get_or_insert_default().remove(&done) {
            self.changed.notify_all();
        }
        loop {
            if let Some(due) = state.due.pop_front() {
                return due;
            }
            self.changed.wait(&mut state);
        }
    }

    /// Has the client run a function, and waits until it has.
    fn run(&self, id: u64, what: u64) {
        let mut state = self.state();
        state.last_ticket += 1;
        let ticket = state.last_ticket;
        state.due.push_back(Due { ticket, id, what });
        state.running.get_or_insert_default().insert(ticket);
        self.changed.notify_all();
        while state.running.as_ref().is_some_and(|running| running.contains(&ticket)) {
            self.changed.wait(&mut state);
        }
    }

    /// Tells the client that nobody will run a function any more.
    fn forget(&self, id: u64) {
        self.state().due.push_back(Due { ticket: 0, id, what: callback::DROP });
        self.changed.notify_all();
    }
}

/// A function's number as the argument of one of the functions below.
pub(crate) fn argument(id: u64) -> *mut c_void {
    id as *mut c_void
}

/// The host function of a stream.
pub(crate) unsafe extern "C" fn run_in_client(argument: *mut c_void) {
    CALLBACKS.run(argument as u64, callback::ONCE);
}

/// The host function of a graph, which may run again.
pub(crate) unsafe extern "C" fn run_again_in_client(argument: *mut c_void) {
    CALLBACKS.run(argument as u64, callback::KEEP);
}

/// The destructor of an object that graphs hold.
pub(crate) unsafe extern "C" fn drop_in_client(argument: *mut c_void) {
    CALLBACKS.forget(argument as u64);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_may_be_under_way_twice() {
        static OWN: Callbacks = Callbacks::new();
        std::thread::scope(|scope| {
            let first = scope.spawn(|| OWN.run(7, callback::KEEP));
            let second = scope.spawn(|| OWN.run(7, callback::KEEP));
            let one = OWN.next(0);
            let other = OWN.next(0);
            assert_eq!((one.id, other.id, one.what), (7, 7, callback::KEEP));
            assert_ne!(one.ticket, other.ticket);
            OWN.forget(7);
            assert_eq!(OWN.next(one.ticket).what, callback::DROP);
            OWN.forget(8);
            assert_eq!(OWN.next(other.ticket).id, 8);
            first.join().unwrap();
            second.join().unwrap();
        });
    }
}
