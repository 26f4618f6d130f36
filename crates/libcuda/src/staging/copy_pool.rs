//! The copy pool: threads that help with large copies, because one processor alone moves memory more slowly than the bus does.
//!
//! One copy has the pool at a time; a thread that finds it busy copies alone. Helpers are started by the first large copy, take
//! no signals and sleep between copies.

use std::sync::OnceLock;

use parking_lot::{Condvar, Mutex};

use crate::session;

/// More processors than this do not make the bus faster.
const MOST: usize = 7;

/// What is being done. The pointer is valid while the job is in the slot or `inside` is above 0.
#[derive(Clone, Copy)]
struct Job(*const (dyn Fn() + Sync));

// SAFETY: what it points to may be used from any thread.
unsafe impl Send for Job {}

#[derive(Default)]
struct Slot {
    job: Option<Job>,
    /// How many more helpers the job wants.
    wanted: usize,
    /// How many are at it.
    inside: usize,
}

#[derive(Default)]
struct CopyPool {
    slot: Mutex<Slot>,
    called: Condvar,
    left: Condvar,
    helpers: usize,
}

fn pool() -> &'static CopyPool {
    static POOL: OnceLock<&'static CopyPool> = OnceLock::new();
    POOL.get_or_init(|| {
        // Half of what this process may use: the worker needs its share.
        let processors = std::thread::available_parallelism().map_or(1, |count| count.get());
        let helpers = (processors / 2).saturating_sub(1).min(MOST);
        let pool: &CopyPool = Box::leak(Box::new(CopyPool { helpers, ..CopyPool::default() }));
        session::without_signals(|| {
            for _ in 0..helpers {
                let _ = std::thread::Builder::new().name("bulkhead-copy".into()).spawn(|| help(pool));
            }
        });
        pool
    })
}

fn help(pool: &CopyPool) {
    let mut slot = pool.slot.lock();
    loop {
        match slot.job.filter(|_| slot.wanted > 0) {
            Some(job) => {
                slot.wanted -= 1;
                slot.inside += 1;
                drop(slot);
                // SAFETY: `inside` counts us, so the caller waits for us before the job ends.
                unsafe { (*job.0)() };
                slot = pool.slot.lock();
                slot.inside -= 1;
                pool.left.notify_all();
            }
            None => pool.called.wait(&mut slot),
        }
    }
}

/// How many can work on a large copy, the caller included.
pub(super) fn threads() -> usize {
    pool().helpers + 1
}

/// Runs `work` here and on up to `helpers` others at once; returns when all have left it. It must not panic.
pub(super) fn together(helpers: usize, work: &(dyn Fn() + Sync)) {
    if helpers == 0 {
        return work();
    }
    let pool = pool();
    let mut slot = pool.slot.lock();
    if slot.job.is_some() {
        drop(slot);
        return work();
    }
    // SAFETY: only the lifetime is forgotten; below nobody leaves before all helpers have.
    let forever = unsafe { std::mem::transmute::<*const (dyn Fn() + Sync + '_), *const (dyn Fn() + Sync)>(work) };
    slot.job = Some(Job(forever));
    slot.wanted = helpers;
    drop(slot);
    pool.called.notify_all();
    work();
    let mut slot = pool.slot.lock();
    slot.wanted = 0;
    while slot.inside > 0 {
        pool.left.wait(&mut slot);
    }
    slot.job = None;
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn everything_is_done_once_and_by_the_time_it_returns() {
        let (next, sum) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let work = || {
            loop {
                let at = next.fetch_add(1, Ordering::Relaxed);
                if at >= 1000 {
                    return;
                }
                sum.fetch_add(at, Ordering::Relaxed);
            }
        };
        std::thread::scope(|scope| {
            // The second finds the pool busy, or not: either way all is done.
            scope.spawn(|| together(threads() - 1, &work));
            together(threads() - 1, &work);
        });
        assert_eq!(sum.into_inner(), 999 * 1000 / 2);
    }
}
