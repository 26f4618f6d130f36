//! Streams as queues of work.
//!
//! Each queue counts what was submitted and what is done; work `n` is done when `done ≥ n`. Work is run one at a time,
//! in order, by the thread that holds `running`: an executor thread, a caller whose synchronous work found the queue idle, or
//! one that waits for work on which no executor has started.
//! Work may wait for positions of other queues. A position always lies in the past of the one that waits for it, so
//! there are no cycles and one of them can always go on.
//!
//! The legacy default stream is ordered against the blocking streams of its context: its work waits for everything
//! submitted to them before, and their work waits for everything submitted to it before. `Context::order` makes
//! "before" the same for everyone.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use cuda_abi::error::*;
use parking_lot::{Condvar, Mutex};

use super::abi::CudaResult;
use super::context::Context;
use super::{executor, output};

/// Submitting to a queue this long waits until there is room, as natively.
const MAX_QUEUED: usize = 4096;

static NEXT_ID: AtomicU64 = AtomicU64::new(1);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Legacy,
    Blocking,
    NonBlocking,
}

pub(crate) enum Work {
    /// Dropped when the context is poisoned; an error poisons it.
    Run(Box<dyn FnOnce(&Context) -> CudaResult + Send>),
    /// Runs in any case and is told how the context is.
    Always(Box<dyn FnOnce(CUresult) + Send>),
}

impl Work {
    pub(crate) fn run(body: impl FnOnce(&Context) -> CudaResult + Send + 'static) -> Work {
        Work::Run(Box::new(body))
    }

    pub(crate) fn always(body: impl FnOnce(CUresult) + Send + 'static) -> Work {
        Work::Always(Box::new(body))
    }
}

/// A position in a queue that work waits for.
struct Position {
    queue: Arc<Queue>,
    count: u64,
}

struct Item {
    after: Vec<Position>,
    work: Work,
    /// It tells others that what came before is done.
    publishes: bool,
}

#[derive(Default)]
struct Inner {
    items: VecDeque<Item>,
    submitted: u64,
    done: u64,
    running: bool,
    /// Work that publishes has begun.
    publishing: bool,
}

pub(crate) struct Queue {
    pub context: Arc<Context>,
    /// The context's id when the queue was made.
    pub owner: u64,
    pub id: u64,
    pub kind: Kind,
    inner: Mutex<Inner>,
    progress: Condvar,
    closed: AtomicBool,
}

impl Queue {
    fn make(context: &Arc<Context>, kind: Kind) -> Arc<Queue> {
        Arc::new(Queue {
            context: context.clone(),
            owner: context.id(),
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            kind,
            inner: Mutex::default(),
            progress: Condvar::new(),
            closed: AtomicBool::new(false),
        })
    }

    /// The legacy queue of a context; the context keeps it.
    pub(crate) fn legacy(context: &Arc<Context>) -> Arc<Queue> {
        Queue::make(context, Kind::Legacy)
    }

    pub(crate) fn new(context: &Arc<Context>, kind: Kind) -> Arc<Queue> {
        let queue = Queue::make(context, kind);
        context.adopt(queue.clone());
        queue
    }

    /// Nothing more will be submitted; what is queued still runs.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    pub(crate) fn has_work(&self) -> bool {
        let inner = self.inner.lock();
        inner.done < inner.submitted
    }

    /// The same for somebody who asks whether a stream is done. He may ask because he has seen an event happen or a word
    /// written that the last work of the stream was to publish: then that work is about to end, and he is told so.
    pub(crate) fn is_busy(&self) -> bool {
        let mut inner = self.inner.lock();
        while inner.publishing && inner.done + 1 == inner.submitted {
            self.progress.wait(&mut inner);
        }
        inner.done < inner.submitted
    }

    /// Everything submitted until now, if any of it is not done.
    fn pending(self: &Arc<Self>) -> Option<Position> {
        let inner = self.inner.lock();
        (inner.done < inner.submitted).then(|| Position { queue: self.clone(), count: inner.submitted })
    }

    /// What work submitted now has to wait for, besides this queue itself. Called with `Context::order` held.
    fn after(&self) -> Vec<Position> {
        match self.kind {
            Kind::NonBlocking => Vec::new(),
            Kind::Blocking => self.context.legacy_if_used().and_then(|legacy| legacy.pending()).into_iter().collect(),
            Kind::Legacy => {
                let queues = self.context.queues();
                queues.iter().filter(|queue| queue.kind == Kind::Blocking).filter_map(Queue::pending).collect()
            }
        }
    }

    /// Is the legacy queue, or one that its next work would wait for, busy?
    pub(crate) fn is_pending(&self) -> bool {
        self.is_busy() || self.context.queues().iter().any(|queue| queue.kind == Kind::Blocking && queue.is_busy())
    }

    /// Puts work into the queue; answers with its position.
    pub(crate) fn submit(self: &Arc<Self>, work: Work) -> u64 {
        self.submit_item(work, false)
    }

    /// Puts in work that tells others that what came before is done.
    pub(crate) fn publish(self: &Arc<Self>, work: Work) -> u64 {
        self.submit_item(work, true)
    }

    fn submit_item(self: &Arc<Self>, work: Work, publishes: bool) -> u64 {
        self.wait_for_room();
        let _order = (self.kind != Kind::NonBlocking).then(|| self.context.order.lock());
        let after = self.after();
        let mut inner = self.inner.lock();
        self.push(&mut inner, Item { after, work, publishes })
    }

    fn push(self: &Arc<Self>, inner: &mut Inner, item: Item) -> u64 {
        inner.items.push_back(item);
        inner.submitted += 1;
        if !inner.running {
            inner.running = true;
            executor::take(self.clone());
        }
        inner.submitted
    }

    /// Runs work in its place in the queue and returns when it is done: at once in this thread if nothing comes before.
    pub(crate) fn perform(self: &Arc<Self>, work: Work) -> CudaResult {
        let order = (self.kind != Kind::NonBlocking).then(|| self.context.order.lock());
        let after = self.after();
        let mut inner = self.inner.lock();
        if inner.running || !after.is_empty() {
            let count = self.push(&mut inner, Item { after, work, publishes: false });
            drop(order);
            self.wait_locked(inner, count);
        } else {
            inner.running = true;
            inner.submitted += 1;
            drop((inner, order));
            self.execute(work);
            let (next, _) = self.finish();
            self.hand_over(next);
        }
        output::flush();
        self.context.health()
    }

    /// Leaves an item that was taken out, and what comes after it, to an executor.
    fn hand_over(self: &Arc<Self>, item: Option<Item>) {
        if let Some(item) = item {
            self.inner.lock().items.push_front(item);
            executor::take(self.clone());
        }
    }

    /// Waits for everything submitted until now. If no thread has started on it yet, the caller does the work itself,
    /// which is faster than waiting for one to wake up.
    pub(crate) fn wait_all(self: &Arc<Self>) {
        let count = self.inner.lock().submitted;
        self.help(count);
        self.wait(count);
        output::flush();
    }

    /// Does the work up to a position in this thread, if no other has started on it.
    pub(crate) fn help(self: &Arc<Self>, count: u64) {
        if executor::steal(self) {
            self.drain(count);
        }
    }

    fn wait(&self, count: u64) {
        self.wait_locked(self.inner.lock(), count);
    }

    fn wait_locked(&self, mut inner: parking_lot::MutexGuard<'_, Inner>, count: u64) {
        while inner.done < count {
            self.progress.wait(&mut inner);
        }
    }

    fn wait_for_room(&self) {
        let mut inner = self.inner.lock();
        while inner.items.len() >= MAX_QUEUED {
            self.progress.wait(&mut inner);
        }
    }

    /// Runs until the queue is empty, or until `count` is done and the rest can be left to an executor. Called by who
    /// has taken the queue.
    pub(crate) fn drain(self: &Arc<Self>, count: u64) {
        let mut inner = self.inner.lock();
        let mut next = inner.items.pop_front();
        let done = inner.done;
        drop(inner);
        if done >= count {
            // Others were faster; what is left may take for ever, and is not the caller's to wait for.
            return self.hand_over(next);
        }
        while let Some(item) = next {
            for position in item.after {
                position.queue.wait(position.count);
            }
            if item.publishes {
                self.inner.lock().publishing = true;
            }
            self.execute(item.work);
            let (following, done) = self.finish();
            if done >= count {
                return self.hand_over(following);
            }
            next = following;
        }
    }

    /// Counts the running work as done and takes the next, or gives up `running`.
    fn finish(&self) -> (Option<Item>, u64) {
        let mut inner = self.inner.lock();
        inner.done += 1;
        inner.publishing = false;
        self.progress.notify_all();
        let next = inner.items.pop_front();
        inner.running = next.is_some();
        (next, inner.done)
    }

    fn execute(&self, work: Work) {
        let context = &self.context;
        let outcome = catch_unwind(AssertUnwindSafe(|| match work {
            Work::Run(body) if context.runs() => body(context),
            Work::Run(_) => Ok(()),
            Work::Always(body) => {
                body(context.health().err().unwrap_or(CUDA_SUCCESS));
                Ok(())
            }
        }));
        if let Err(code) = outcome.unwrap_or(Err(CUDA_ERROR_UNKNOWN)) {
            context.poison(code);
        }
    }
}
