//! The threads that help with large grids. The thread that launches works too, so none is needed for small ones.

use std::sync::{Arc, OnceLock};
use std::thread;

use parking_lot::{Condvar, Mutex};

use super::grid::Grid;

/// A grid that helpers may join. The pointer is valid while the job is in the queue or has helpers.
struct Job {
    grid: *const Grid<'static>,
    helpers: Mutex<usize>,
    left: Condvar,
}

// SAFETY: a grid is shared by design; `run` keeps it alive until the last helper has left.
unsafe impl Send for Job {}
// SAFETY: as above.
unsafe impl Sync for Job {}

struct Pool {
    queue: Mutex<Vec<Arc<Job>>>,
    work: Condvar,
    threads: usize,
}

/// Number of threads that may work on one grid: all cores, or `BULKHEAD_SOFT_THREADS`.
pub fn width() -> usize {
    static WIDTH: OnceLock<usize> = OnceLock::new();
    *WIDTH.get_or_init(|| {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let limit = std::env::var(cuda_abi::env_vars::SOFT_THREADS).ok().and_then(|text| text.parse().ok());
        limit.unwrap_or(cores).clamp(1, 1024)
    })
}

fn pool() -> &'static Pool {
    static POOL: OnceLock<Pool> = OnceLock::new();
    let mut fresh = false;
    let pool = POOL.get_or_init(|| {
        fresh = true;
        Pool { queue: Mutex::new(Vec::new()), work: Condvar::new(), threads: width() - 1 }
    });
    if fresh {
        for index in 0..pool.threads {
            // A pool that is too small is slower, nothing else.
            let _ = thread::Builder::new().name(format!("softgpu-{index}")).spawn(help);
        }
    }
    pool
}

fn help() {
    let pool = pool();
    let mut queue = pool.queue.lock();
    loop {
        let Some(job) = queue.first().cloned() else {
            pool.work.wait(&mut queue);
            continue;
        };
        // Joined under the queue's lock: a thread that takes the job out of the queue sees us.
        *job.helpers.lock() += 1;
        drop(queue);
        // SAFETY: `run` waits for us before the grid goes away.
        unsafe { (*job.grid).work() };
        queue = pool.queue.lock();
        queue.retain(|other| !Arc::ptr_eq(other, &job));
        *job.helpers.lock() -= 1;
        job.left.notify_all();
    }
}

/// Runs a grid to its end, with the help of the pool when it has several blocks.
pub(crate) fn run(grid: &Grid) {
    // One thread, so that what the sanitizer finds does not depend on timing.
    if grid.blocks() <= 1 || width() == 1 || grid.sanitizer.is_some() {
        grid.work();
        return;
    }
    let pool = pool();
    let grid_pointer = std::ptr::from_ref(grid).cast::<Grid<'static>>();
    let job = Arc::new(Job { grid: grid_pointer, helpers: Mutex::new(0), left: Condvar::new() });
    pool.queue.lock().push(job.clone());
    let wanted = (grid.blocks() - 1).min(pool.threads as u64);
    for _ in 0..wanted {
        pool.work.notify_one();
    }
    grid.work();
    pool.queue.lock().retain(|other| !Arc::ptr_eq(other, &job));
    let mut helpers = job.helpers.lock();
    while *helpers > 0 {
        job.left.wait(&mut helpers);
    }
}
