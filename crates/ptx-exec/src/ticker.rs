//! Raises the attention flag of every working thread now and then, so that compiled loops look up: for the stop flag,
//! and to let other threads of their block run. Compiled code polls one word of memory, which costs next to nothing.

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::thread::{self, Thread};
use std::time::Duration;

use parking_lot::Mutex;

const TICK: Duration = Duration::from_millis(1);
/// Ticks without a grid after which the ticker sleeps until there is one.
const IDLE_TICKS: u32 = 200;

static FLAGS: Mutex<Vec<Weak<AtomicU32>>> = Mutex::new(Vec::new());
static ACTIVE: AtomicUsize = AtomicUsize::new(0);
/// 1 while the ticker sleeps.
static ASLEEP: AtomicU32 = AtomicU32::new(0);
static TICKER: OnceLock<Thread> = OnceLock::new();

/// Adds a thread's flag; it is forgotten when the thread drops it.
pub(crate) fn register(flag: &Arc<AtomicU32>) {
    FLAGS.lock().push(Arc::downgrade(flag));
}

/// Keeps the ticker going.
pub(crate) struct Ticking(());

/// Starts the ticker, or keeps it awake.
pub(crate) fn tick() -> Ticking {
    // SYNC POINT: a grid counts itself before it looks whether the ticker sleeps; the ticker says that it sleeps
    // before it looks at the count.
    ACTIVE.fetch_add(1, Ordering::SeqCst);
    let ticker = TICKER.get_or_init(|| {
        thread::Builder::new()
            .name("softgpu-ticker".into())
            .spawn(run)
            .map_or_else(|_| thread::current(), |handle| handle.thread().clone())
    });
    if ASLEEP.load(Ordering::SeqCst) == 1 {
        ticker.unpark();
    }
    Ticking(())
}

impl Drop for Ticking {
    fn drop(&mut self) {
        ACTIVE.fetch_sub(1, Ordering::SeqCst);
    }
}

fn run() {
    let mut idle = 0;
    loop {
        thread::sleep(TICK);
        if ACTIVE.load(Ordering::SeqCst) == 0 {
            idle += 1;
            if idle < IDLE_TICKS {
                continue;
            }
            // SYNC POINT: a grid counts itself before it looks whether the ticker sleeps; the ticker says that it
            // sleeps before it looks at the count.
            ASLEEP.store(1, Ordering::SeqCst);
            while ACTIVE.load(Ordering::SeqCst) == 0 {
                thread::park();
            }
            ASLEEP.store(0, Ordering::SeqCst);
        }
        idle = 0;
        FLAGS.lock().retain(|flag| match flag.upgrade() {
            Some(flag) => {
                flag.store(1, Ordering::Relaxed);
                true
            }
            None => false,
        });
    }
}
