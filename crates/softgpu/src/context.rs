//! Contexts: which one is current in a thread, what belongs to one, and the error that ends one.
//!
//! A context is *alive* between its creation (for the primary one: the first retain) and its end. A fault of a kernel
//! *poisons* it: the running grids are stopped, what is queued is dropped, and every later call returns the same code
//! until the context ends.

use std::cell::RefCell;
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use cuda_abi::error::*;
use parking_lot::Mutex;

use super::abi::CudaResult;
use super::handles::Table;
use super::queue::Queue;
use super::{event, memory, module, state, stream};

pub(crate) static CONTEXTS: Table<Context> = Table::new(1);
static NEXT_ID: AtomicU64 = AtomicU64::new(1);

pub(crate) struct Context {
    pub handle: u64,
    pub device: usize,
    pub is_primary: bool,
    /// Unique for each life of a context, never used again.
    id: AtomicU64,
    pub flags: AtomicU32,
    alive: AtomicBool,
    error: AtomicU32,
    /// Ends grids and waits of this context.
    pub stop: AtomicBool,
    pub settings: Mutex<Settings>,
    /// Held while work is put into the legacy stream or into one that synchronises with it, so that all agree on the
    /// order of such work.
    pub order: Mutex<()>,
    streams: Mutex<Streams>,
    pub peers: Mutex<HashSet<u64>>,
}

/// What `cuCtxSetLimit` and its like store.
pub(crate) struct Settings {
    pub limits: [usize; 7],
    pub cache: u32,
    pub shared: u32,
}

/// The queues of a context: all that may still have work.
#[derive(Default)]
struct Streams {
    legacy: Option<Arc<Queue>>,
    others: Others<Arc<Queue>>,
}

/// A list from which what is over is taken out now and then: whoever adds one pays for looking at one.
struct Others<T> {
    list: Vec<T>,
    /// How long the list is when it is looked through next.
    tidy_at: usize,
}

impl<T> Default for Others<T> {
    fn default() -> Self {
        Others { list: Vec::new(), tidy_at: Self::FEW }
    }
}

impl<T> Others<T> {
    /// Shorter lists are not looked through.
    const FEW: usize = 16;

    fn push(&mut self, item: T, is_over: impl Fn(&T) -> bool) {
        if self.list.len() >= self.tidy_at {
            self.list.retain(|item| !is_over(item));
            self.tidy_at = (2 * self.list.len()).max(Self::FEW);
        }
        self.list.push(item);
    }
}

impl Default for Settings {
    fn default() -> Self {
        // Stack, printf buffer, heap, depth, pending launches, L2 fetch granularity, persisting L2.
        Settings { limits: [1024, 7_340_032, 8 << 20, 0, 2048, 64, 0], cache: 0, shared: 1 }
    }
}

impl Context {
    fn new(handle: u64, device: usize, is_primary: bool, flags: u32) -> Context {
        Context {
            handle,
            device,
            is_primary,
            id: AtomicU64::new(NEXT_ID.fetch_add(1, Ordering::Relaxed)),
            flags: AtomicU32::new(flags),
            alive: AtomicBool::new(!is_primary),
            error: AtomicU32::new(CUDA_SUCCESS),
            stop: AtomicBool::new(false),
            settings: Mutex::default(),
            order: Mutex::new(()),
            streams: Mutex::default(),
            peers: Mutex::default(),
        }
    }

    /// The primary context of a device, not yet alive.
    pub(crate) fn primary(device: usize) -> Arc<Context> {
        CONTEXTS.insert_with(|handle| Context::new(handle, device, true, 0)).1
    }

    pub(crate) fn create(device: usize, flags: u32) -> Arc<Context> {
        CONTEXTS.insert_with(|handle| Context::new(handle, device, false, flags)).1
    }

    pub(crate) fn id(&self) -> u64 {
        self.id.load(Ordering::Relaxed)
    }

    pub(crate) fn is_alive(&self) -> bool {
        self.alive.load(Ordering::Acquire)
    }

    /// Begins a new life of a primary context.
    pub(crate) fn revive(&self, flags: u32) {
        self.id.store(NEXT_ID.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
        self.flags.store(flags, Ordering::Relaxed);
        self.alive.store(true, Ordering::Release);
    }

    /// The error that poisoned the context, if any.
    pub(crate) fn health(&self) -> CudaResult {
        match self.error.load(Ordering::Acquire) {
            CUDA_SUCCESS => Ok(()),
            code => Err(code),
        }
    }

    /// May work of this context still be run?
    pub(crate) fn runs(&self) -> bool {
        !self.stop.load(Ordering::Relaxed) && self.health().is_ok()
    }

    /// The first error stays.
    pub(crate) fn poison(&self, code: CUresult) {
        let _ = self.error.compare_exchange(CUDA_SUCCESS, code, Ordering::AcqRel, Ordering::Relaxed);
        self.stop.store(true, Ordering::Release);
    }

    /// The context is alive and healthy.
    pub(crate) fn usable(&self) -> CudaResult {
        if !self.is_alive() {
            return Err(CUDA_ERROR_CONTEXT_IS_DESTROYED);
        }
        self.health()
    }

    /// The queue of the legacy default stream.
    pub(crate) fn legacy(self: &Arc<Self>) -> Arc<Queue> {
        self.streams.lock().legacy.get_or_insert_with(|| Queue::legacy(self)).clone()
    }

    /// The legacy queue, if anything was ever put into it.
    pub(crate) fn legacy_if_used(&self) -> Option<Arc<Queue>> {
        self.streams.lock().legacy.clone()
    }

    pub(crate) fn adopt(&self, queue: Arc<Queue>) {
        let mut streams = self.streams.lock();
        // Streams that were destroyed stay until their work is done.
        streams.others.push(queue, |queue| queue.is_closed() && !queue.has_work());
    }

    /// All queues that may have work, but for the legacy one.
    pub(crate) fn queues(&self) -> Vec<Arc<Queue>> {
        self.streams.lock().others.list.clone()
    }

    /// Waits for all work that was submitted until now.
    pub(crate) fn synchronize(&self) -> CudaResult {
        for queue in self.queues().into_iter().chain(self.legacy_if_used()) {
            queue.wait_all();
        }
        self.health()
    }

    /// Ends the context: stops its work and frees what it owns.
    pub(crate) fn end(&self) {
        if !self.alive.swap(false, Ordering::AcqRel) {
            return;
        }
        self.stop.store(true, Ordering::Release);
        let _ = self.synchronize();
        let id = self.id();
        drop(stream::STREAMS.remove_owned(id));
        drop(event::EVENTS.remove_owned(id));
        module::forget_context(id);
        memory::free_context(id);
        self.peers.lock().clear();
        *self.streams.lock() = Streams::default();
        *self.settings.lock() = Settings::default();
        self.error.store(CUDA_SUCCESS, Ordering::Release);
        self.stop.store(false, Ordering::Release);
    }
}

thread_local! {
    static STACK: RefCell<Vec<Arc<Context>>> = const { RefCell::new(Vec::new()) };
}

/// Works on the thread's stack of contexts. A thread that is ending has none.
pub(crate) fn with_stack<R: Default>(body: impl FnOnce(&mut Vec<Arc<Context>>) -> R) -> R {
    STACK.try_with(|stack| body(&mut stack.borrow_mut())).unwrap_or_default()
}

/// The thread's current context, whatever its state.
pub(crate) fn top() -> Option<Arc<Context>> {
    with_stack(|stack| stack.last().cloned())
}

/// The current context, if calls may be made in it.
pub(crate) fn current() -> CudaResult<Arc<Context>> {
    state::state()?;
    let context = top().ok_or(CUDA_ERROR_INVALID_CONTEXT)?;
    context.usable()?;
    Ok(context)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn a_new_stream_does_not_look_at_all_others() {
        const MANY: usize = 10_000;
        let (mut others, looked) = (Others::default(), Cell::new(0));
        for number in 0..MANY {
            others.push(number, |_| {
                looked.set(looked.get() + 1);
                false
            });
        }
        assert!(looked.get() <= 2 * MANY, "{} looks", looked.get());
        // Those that are over do not pile up.
        for number in 0..4 * MANY {
            others.push(number, |_| true);
        }
        assert!(others.list.len() <= 2 * MANY);
    }
}
