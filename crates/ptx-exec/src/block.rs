//! A block while it runs: which threads have started, who waits for whom.

use std::collections::VecDeque;

use ptx_passes::ir::WarpOp;

use super::context::Context;
use super::interleave::Interleaving;
use super::sanitize::BlockShadow;
use super::stuck::Stuck;
use super::warp::Warp;

/// Barriers of a block.
pub(crate) const BARRIERS: usize = 16;

/// The state that the fibers of a block share. They run one at a time, on one OS thread.
#[repr(C)]
pub struct BlockState {
    /// The thread that starts next. Compiled code advances it.
    pub next: [u32; 3],
    pub next_linear: u32,
    pub total: u32,
    // From here on only Rust looks.
    pub exited: u32,
    /// Fibers that may run on.
    pub ready: VecDeque<u32>,
    /// Fibers that can run, but have used up their time slice.
    pub yielded: VecDeque<u32>,
    /// Number of fibers that wait for others.
    pub waiting: u32,
    pub barriers: [Barrier; BARRIERS],
    pub warps: Vec<Warp>,
    /// Where one fiber runs all threads.
    pub interleaving: Interleaving,
    /// Contexts of the fibers by number.
    pub contexts: Vec<*mut Context>,
    /// What the sanitizer knows of the block, where it looks.
    pub shadow: Option<Box<BlockShadow>>,
    /// The thread that ended last.
    last_exit: u32,
}

/// A named barrier.
#[derive(Default)]
pub struct Barrier {
    pub arrived: u32,
    /// Threads it waits for; 0 means all of the block.
    pub expected: u32,
    pub waiting: Vec<u32>,
    pub count: u32,
    /// Whether a thread at the barrier asks how the others voted.
    pub votes: bool,
}

impl BlockState {
    pub fn new() -> BlockState {
        BlockState {
            next: [0; 3],
            next_linear: 0,
            total: 0,
            exited: 0,
            ready: VecDeque::new(),
            yielded: VecDeque::new(),
            waiting: 0,
            barriers: Default::default(),
            warps: Vec::new(),
            interleaving: Interleaving::default(),
            contexts: Vec::new(),
            shadow: None,
            last_exit: 0,
        }
    }

    /// Makes ready for a fresh block of `total` threads; the previous one has ended, however it did.
    pub fn begin(&mut self, total: u32) {
        self.next = [0; 3];
        self.next_linear = 0;
        self.total = total;
        self.exited = 0;
        self.ready.clear();
        self.yielded.clear();
        self.waiting = 0;
        for barrier in &mut self.barriers {
            if barrier.arrived != 0 {
                barrier.arrived = 0;
                barrier.count = 0;
                barrier.votes = false;
                barrier.waiting.clear();
            }
        }
        self.warps.clear();
        self.interleaving = Interleaving::default();
    }

    /// The warp of a thread, with lanes beyond the end of the block marked as gone.
    pub fn warp(&mut self, linear: u32) -> &mut Warp {
        let index = (linear / 32) as usize;
        while self.warps.len() <= index {
            let first = self.warps.len() as u32 * 32;
            let lanes = (self.total - first).min(32);
            self.warps.push(Warp::new(if lanes == 32 { 0 } else { !0 << lanes }));
        }
        &mut self.warps[index]
    }

    /// Lets a waiting fiber run on with an answer.
    pub fn wake(&mut self, fiber: u32, answer: u64) {
        // SAFETY: contexts of the block's fibers live as long as the block; the fiber is not running.
        unsafe { (*self.contexts[fiber as usize]).answer = answer };
        self.waiting -= 1;
        self.ready.push_back(fiber);
    }

    /// One more thread reaches barrier `id`. The result, if that completed the barrier.
    pub fn arrive(&mut self, id: usize, expected: u32, vote: Option<bool>) -> Option<BarrierResult> {
        let barrier = &mut self.barriers[id];
        barrier.votes |= vote.is_some();
        barrier.arrived += 1;
        barrier.expected = expected;
        barrier.count += u32::from(vote == Some(true));
        self.complete(id)
    }

    fn complete(&mut self, id: usize) -> Option<BarrierResult> {
        let alive = self.total - self.exited;
        let barrier = &mut self.barriers[id];
        let expected = if barrier.expected == 0 { alive } else { barrier.expected };
        if barrier.arrived == 0 || barrier.arrived < expected {
            return None;
        }
        let result = BarrierResult { count: barrier.count, of: barrier.arrived };
        if let Some(shadow) = &mut self.shadow {
            shadow.met(id, barrier.expected, (self.exited > 0).then_some(self.last_exit));
        }
        barrier.arrived = 0;
        barrier.count = 0;
        let mut waiting = std::mem::take(&mut barrier.waiting);
        if result.count == 0 && !self.barriers[id].votes {
            // No thread asks for the result: leave the contexts alone, they are far apart in memory.
            self.waiting -= waiting.len() as u32;
            self.ready.extend(waiting.drain(..));
        } else {
            for fiber in waiting.drain(..) {
                self.wake(fiber, result.pack());
            }
            self.barriers[id].votes = false;
        }
        // Keeps its memory for the next time.
        self.barriers[id].waiting = waiting;
        Some(result)
    }

    /// What everybody waits for who will never get it.
    pub fn stuck(&self, size: [u32; 3]) -> String {
        let mut stuck = Stuck { total: self.total, ended: self.exited, size, ..Stuck::default() };
        for (id, barrier) in self.barriers.iter().enumerate().filter(|(_, barrier)| barrier.arrived != 0) {
            for fiber in &barrier.waiting {
                // SAFETY: contexts of the block's fibers live as long as the block; none of them is running.
                stuck.at_barrier(id as u32, barrier.expected, unsafe { (*self.contexts[*fiber as usize]).linear });
            }
        }
        let at_barriers = stuck.barriers.values().map(|(_, threads)| threads.len() as u32).sum::<u32>();
        stuck.in_warps = self.waiting.saturating_sub(at_barriers);
        stuck.to_string()
    }

    /// A thread has ended: no barrier waits for it any more.
    pub fn thread_exit(&mut self, linear: u32) {
        self.exited += 1;
        self.last_exit = linear;
        for id in 0..BARRIERS {
            if self.barriers[id].arrived != 0 && self.barriers[id].expected == 0 {
                self.complete(id);
            }
        }
        let lane = linear % 32;
        let warp = self.warp(linear);
        warp.exited |= 1 << lane;
        if !warp.groups.is_empty() {
            let missed = warp.miss(lane);
            let woken = warp.complete_groups();
            self.lanes_met(WarpOp::Sync, None, &woken);
            if let (true, Some(shadow), Some((fiber, _))) = (missed, &mut self.shadow, woken.first()) {
                // SAFETY: contexts of the block's fibers live as long as the block; that one waits.
                let waits = unsafe { &*self.contexts[*fiber as usize] };
                shadow.missed(waits.linear, waits.line, linear);
            }
            self.wake_all(woken);
        }
    }

    /// Tells the sanitizer which lanes have done something together: one that runs, and those that are woken.
    pub fn lanes_met(&mut self, op: WarpOp, running: Option<u32>, woken: &[(u32, u64)]) {
        let Some(shadow) = &mut self.shadow else { return };
        // SAFETY: contexts of the block's fibers live as long as the block; these fibers are not running.
        let waiting = woken.iter().map(|(fiber, _)| unsafe { (*self.contexts[*fiber as usize]).linear });
        let mut threads: Vec<usize> = waiting.chain(running).map(|thread| thread as usize).collect();
        shadow.lanes_met(op, &mut threads);
    }

    /// The lanes of a thread's warp that were there and have ended.
    pub fn left(&mut self, linear: u32) -> u32 {
        let lanes = (self.total - linear / 32 * 32).min(32);
        let there = if lanes == 32 { !0 } else { (1 << lanes) - 1 };
        self.warp(linear).exited & there
    }

    /// Wakes fibers with their answers.
    pub fn wake_all(&mut self, woken: Vec<(u32, u64)>) {
        for (fiber, answer) in woken {
            self.wake(fiber, answer);
        }
    }

    /// When no thread can run: answers those who asked which lanes run along with them. True when there were any.
    pub fn settle(&mut self) -> bool {
        let mut any = false;
        for index in 0..self.warps.len() {
            let lockstep = self.shadow.as_ref().is_some_and(|shadow| shadow.lockstep());
            let woken = if lockstep { self.warps[index].settle_first() } else { self.warps[index].settle() };
            self.lanes_met(WarpOp::ActiveMask, None, &woken);
            any |= !woken.is_empty();
            self.wake_all(woken);
        }
        any
    }
}

/// How the threads at a barrier voted.
#[derive(Clone, Copy, Debug)]
pub struct BarrierResult {
    pub count: u32,
    pub of: u32,
}

impl BarrierResult {
    /// As the answer to a fiber.
    pub fn pack(self) -> u64 {
        u64::from(self.count) | u64::from(self.of) << 32
    }

    pub fn unpack(answer: u64) -> BarrierResult {
        BarrierResult { count: answer as u32, of: (answer >> 32) as u32 }
    }
}
