//! The order in which the threads of a block run, where one fiber interleaves all of them.
//!
//! Each thread has a frame, which begins with a `Head`. Compiled code runs the threads of a range that may run, each until
//! it pauses or ends, and then asks here for the next range. Where lanes of a warp do things together a range is a warp,
//! which goes on until all of it waits at a barrier or has ended, and so where threads go through memory in strides, for
//! their neighbours to catch up; elsewhere it is the whole block.

use ptx_passes::ir::{BarrierOp, WarpOp};

use super::block::BarrierResult;
use super::context::{Context, Pause, RawFault, fail, suspend};
use super::fault::FaultKind;
use super::helpers::should_yield;
use super::stuck::Stuck;
use super::warp::{Group, Input};

/// The beginning of a thread's frame. Zero is a thread that has not begun.
#[repr(C)]
pub(crate) struct Head {
    /// Where it goes on.
    pub state: u32,
    pub status: u32,
    /// What it brings to a warp operation or a barrier, and then the answer.
    pub a: u64,
    pub bc: u64,
    pub mask: u32,
    /// The operation; of a barrier its number in the upper half.
    pub op: u32,
    /// Of a barrier its line.
    pub site: u64,
    pub unused: u64,
}

pub(crate) const HEAD: u32 = size_of::<Head>() as u32;

/// What a thread is doing, as compiled code writes it.
pub(crate) const RUNS: u32 = 0;
pub(crate) const AT_BARRIER: u32 = 1;
pub(crate) const IN_WARP: u32 = 2;
pub(crate) const ENDED: u32 = 3;
/// Its neighbours catch up; then it runs on.
pub(crate) const IN_LOOP: u32 = 4;

/// How far a block is.
#[derive(Default)]
pub struct Interleaving {
    begun: bool,
    /// The range that has just run.
    range: u32,
    /// Whether a thread that could have continued has yielded.
    yielded: bool,
}

struct Frames {
    base: *mut u8,
    stride: usize,
    total: u32,
    /// Threads in a range.
    span: u32,
}

impl Frames {
    #[expect(clippy::mut_from_ref, reason = "the frames are behind a pointer, and only one fiber knows it")]
    fn head(&self, thread: u32) -> &mut Head {
        debug_assert!(thread < self.total);
        // SAFETY: there is a frame for each thread of the block, and only the running fiber touches them.
        unsafe { &mut *self.base.add(thread as usize * self.stride).cast::<Head>() }
    }

    fn threads(&self, range: u32) -> std::ops::Range<u32> {
        let first = range * self.span;
        first..(first + self.span).min(self.total)
    }

    fn any_runs(&self, range: u32) -> bool {
        self.threads(range).any(|thread| self.head(thread).status == RUNS)
    }

    /// The states that threads of a range are in: a bit for each.
    fn states(&self, range: u32) -> u32 {
        self.threads(range).fold(0, |states, thread| states | 1 << (self.head(thread).status & 31))
    }

    /// Lets those go on that have let their neighbours catch up.
    fn next_rounds(&self, range: u32) {
        for thread in self.threads(range) {
            let head = self.head(thread);
            if head.status == IN_LOOP {
                head.status = RUNS;
            }
        }
    }

    fn ranges(&self) -> u32 {
        self.total.div_ceil(self.span)
    }

    /// First thread and how many, as compiled code takes it.
    fn answer(&self, range: u32) -> u64 {
        let threads = self.threads(range);
        u64::from(threads.start) | u64::from(threads.end - threads.start) << 32
    }

    /// Lets lanes go on whose group is complete. Groups that ask who runs along are taken as they are when `settle`.
    fn resolve(&self, range: u32, settle: bool) -> bool {
        let threads = self.threads(range);
        let first = threads.start;
        let (mut waiting, mut gone) = (0u32, 0u32);
        for thread in threads.clone() {
            match self.head(thread).status {
                IN_WARP => waiting |= 1 << (thread - first),
                ENDED => gone |= 1 << (thread - first),
                _ => {}
            }
        }
        if threads.len() < 32 {
            gone |= !0 << threads.len();
        }
        let mut woken = false;
        while waiting != 0 {
            let lane = waiting.trailing_zeros();
            let head = self.head(first + lane);
            let op = WarpOp::ALL.get(head.op as usize).copied().unwrap_or(WarpOp::Sync);
            let (mask, site) = (head.mask, head.site);
            let mut group = Group::new(op, mask | 1 << lane, site);
            for other in (lane..32).filter(|other| waiting & 1 << other != 0) {
                let head = self.head(first + other);
                if head.op == op as u32 && head.site == site && head.mask | 1 << other == group.mask() {
                    let input = Input { a: head.a, b: head.bc as u32, c: (head.bc >> 32) as u32 };
                    group.join(other, other, input);
                }
            }
            waiting &= !group.arrived();
            if group.complete(gone) || settle && op == WarpOp::ActiveMask {
                group.each_answer(|lane, answer| {
                    let head = self.head(first + lane);
                    head.a = answer;
                    head.status = RUNS;
                });
                woken = true;
            }
        }
        woken
    }

    /// What everybody waits for who will never get it.
    fn stuck(&self, size: [u32; 3]) -> Stuck {
        let mut stuck = Stuck { total: self.total, size, ..Stuck::default() };
        for thread in 0..self.total {
            let head = self.head(thread);
            match head.status {
                ENDED => stuck.ended += 1,
                AT_BARRIER => stuck.at_barrier(head.op >> 16, 0, thread),
                _ => stuck.in_warps += 1,
            }
        }
        stuck
    }

    /// Lets everybody go on if all who are left wait at one barrier.
    fn release(&self) -> bool {
        let mut at = None;
        let (mut yes, mut of) = (0, 0);
        for thread in 0..self.total {
            let head = self.head(thread);
            match head.status {
                ENDED => {}
                AT_BARRIER if *at.get_or_insert(head.op >> 16) == head.op >> 16 => {
                    of += 1;
                    yes += u32::from(head.a != 0);
                }
                _ => return false,
            }
        }
        let result = BarrierResult { count: yes, of };
        for thread in 0..self.total {
            let head = self.head(thread);
            if head.status == AT_BARRIER {
                head.a = result.answer(head.op & 0xffff);
                head.status = RUNS;
            }
        }
        of > 0
    }
}

impl BarrierResult {
    /// What a thread gets that asked with this operation.
    pub fn answer(self, op: u32) -> u64 {
        u64::from(match op {
            _ if op == BarrierOp::Popc as u32 => self.count,
            _ if op == BarrierOp::And as u32 => u32::from(self.count == self.of),
            _ if op == BarrierOp::Or as u32 => u32::from(self.count != 0),
            _ => 0,
        })
    }
}

/// The threads that run next: the first one, and in the upper half how many. None when all have ended.
pub(crate) extern "C" fn next_range(context: *mut Context, span: u32) -> u64 {
    // SAFETY: called by compiled code on the running fiber, which alone uses the block's state and frames; no reference to
    // them outlives a suspension.
    unsafe {
        let block = (*context).block;
        let stride = (*(*context).grid).code.frame_bytes as usize;
        let total = (*block).total;
        let frames = Frames { base: (*context).frames, stride, total, span: span.max(1).min(total) };
        let state = &raw mut (*block).interleaving;
        if !(*state).begun {
            // All threads are taken at once: should this fiber pause, no other may start any of them.
            (*block).next_linear = total;
            *state = Interleaving { begun: true, range: 0, yielded: false };
            return frames.answer(0);
        }
        let range = (*state).range;
        let states = frames.states(range);
        if states & 1 << IN_LOOP != 0 {
            frames.next_rounds(range);
            // A thread that runs has polled: should these wait for others, those must run.
            if states & 1 << RUNS == 0 {
                return frames.answer(range);
            }
        }
        if states & 1 << IN_WARP != 0 && frames.resolve(range, false) {
            return frames.answer(range);
        }
        (*state).yielded |= states & 1 << RUNS != 0;
        if let Some(next) = (range + 1..frames.ranges()).find(|range| frames.any_runs(*range)) {
            (*state).range = next;
            return frames.answer(next);
        }
        // All ranges have run.
        if std::mem::take(&mut (*state).yielded) {
            suspend(context, Pause::Yield);
        }
        // A thread that runs keeps the others from being released.
        let released = frames.release().then_some(0);
        if let Some(range) = released.or_else(|| (0..frames.ranges()).find(|range| frames.any_runs(*range))) {
            (*state).range = range;
            return frames.answer(range);
        }
        if (0..frames.total).all(|thread| frames.head(thread).status == ENDED) {
            return 0;
        }
        match (0..frames.ranges()).find(|range| frames.resolve(*range, true)) {
            Some(range) => {
                (*state).range = range;
                frames.answer(range)
            }
            None => {
                let size = (*context).block_size;
                let message = frames.stuck(size).to_string();
                let waits = |thread: &u32| frames.head(*thread).status == AT_BARRIER;
                if let Some(thread) = (0..frames.total).find(waits) {
                    (*context).line = frames.head(thread).site as u32;
                    (*context).thread = [thread % size[0], thread / size[0] % size[1], thread / size[0] / size[1]];
                }
                fail(context, RawFault { kind: FaultKind::Deadlock, address: None, message })
            }
        }
    }
}

/// The attention flag is up in a loop. Whether the thread should let others run.
pub(crate) extern "C" fn poll(context: *mut Context) -> u32 {
    // SAFETY: called by compiled code with the context of the running fiber.
    u32::from(unsafe { should_yield(context) })
}
