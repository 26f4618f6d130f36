//! The threads that run queues: as many as there are queues with work, none that has nothing to do for long.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::queue::Queue;

/// How long a thread waits for another queue before it ends.
const LINGER: Duration = Duration::from_secs(5);

struct Pool {
    ready: VecDeque<Arc<Queue>>,
    idle: usize,
}

static POOL: Mutex<Pool> = Mutex::new(Pool { ready: VecDeque::new(), idle: 0 });
static READY: Condvar = Condvar::new();

/// Has a thread drain the queue. Never waits: work of one queue may be what another waits for, so each queue with work
/// needs a thread of its own.
pub(crate) fn take(queue: Arc<Queue>) {
    let mut pool = POOL.lock();
    pool.ready.push_back(queue);
    if pool.idle >= pool.ready.len() {
        READY.notify_one();
        return;
    }
    drop(pool);
    let spawned = std::thread::Builder::new().name("softgpu-stream".into()).spawn(work);
    if let Err(error) = spawned {
        // A thread that becomes free will take it.
        super::notice::say(&format!("cannot start a thread for a stream: {error}"));
    }
}

/// Takes a queue back on which no thread has started.
pub(crate) fn steal(queue: &Arc<Queue>) -> bool {
    let mut pool = POOL.lock();
    let at = pool.ready.iter().position(|ready| Arc::ptr_eq(ready, queue));
    at.is_some_and(|at| pool.ready.remove(at).is_some())
}

fn work() {
    let mut pool = POOL.lock();
    loop {
        if let Some(queue) = pool.ready.pop_front() {
            drop(pool);
            queue.drain(u64::MAX);
            drop(queue);
            pool = POOL.lock();
            continue;
        }
        pool.idle += 1;
        let timed_out = READY.wait_for(&mut pool, LINGER).timed_out();
        pool.idle -= 1;
        if timed_out && pool.ready.is_empty() {
            return;
        }
    }
}
