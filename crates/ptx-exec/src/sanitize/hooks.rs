//! What running code and the runtime tell the sanitizer.

use std::sync::Arc;

use parking_lot::Mutex;
use ptx_passes::ir::{Space, WarpOp};

use super::collect::{Collector, Raw};
use super::order::Order;
use super::shadow::{Access, Conflict, Does, Shadow};
use super::{Check, Checks, Where, init};
use crate::context::Context;
use crate::window;

/// What the blocks of a grid share.
pub(crate) struct Sanitizer {
    checks: Checks,
    common: Arc<Mutex<Common>>,
}

struct Common {
    /// The stamp of what happens now.
    now: u32,
    global: Shadow,
    found: Collector,
}

impl Common {
    /// Something happened that can order threads: what comes now is later.
    fn tick(&mut self) -> u32 {
        let then = self.now;
        self.now = self.now.saturating_add(1);
        then
    }
}

impl Sanitizer {
    pub(crate) fn new(checks: Checks) -> Sanitizer {
        let common = Common { now: 1, global: Shadow::default(), found: Collector::default() };
        Sanitizer { checks, common: Arc::new(Mutex::new(common)) }
    }

    pub(crate) fn block(&self, index: u64, threads: u32, shared: u32) -> Box<BlockShadow> {
        let mut order = Order::default();
        order.begin(threads as usize);
        Box::new(BlockShadow {
            checks: self.checks,
            common: self.common.clone(),
            index: index as u32,
            shared: Shadow::default(),
            written: vec![false; if self.checks.has(Check::Init) { shared as usize } else { 0 }],
            order,
            arrived: Vec::new(),
        })
    }

    /// What was found, and whether memory was not looked at for lack of room.
    pub(crate) fn finish(&self) -> (Vec<Raw>, bool) {
        let mut common = self.common.lock();
        (common.found.take(), common.global.full)
    }
}

/// A thread at a barrier.
struct Arrival {
    barrier: usize,
    thread: u32,
    line: u32,
    waits: bool,
}

/// What is known of a block.
pub struct BlockShadow {
    checks: Checks,
    common: Arc<Mutex<Common>>,
    index: u32,
    shared: Shadow,
    /// By byte of shared memory.
    written: Vec<bool>,
    order: Order,
    arrived: Vec<Arrival>,
}

/// What fills shared memory before a block begins, so that nothing of the block before looks right.
pub(crate) const POISON: u128 = 0xbad0_bad1_bad2_bad3_bad4_bad5_bad6_bad7;

/// An access as compiled code tells of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Touch(pub i64);

impl Touch {
    const SPACE: u32 = 8;
    const WRITES: i64 = 1 << 12;
    const READS: i64 = 1 << 13;
    const STRONG: i64 = 1 << 14;
    const ACQUIRES: i64 = 1 << 15;
    const VALUE: i64 = 1 << 16;
    const LINE: u32 = 24;

    pub(crate) fn new(size: u32, space: Space, line: u32) -> Touch {
        Touch(i64::from(size & 0xff) | (space as i64) << Self::SPACE | i64::from(line) << Self::LINE)
    }

    fn with(self, bit: i64) -> Touch {
        Touch(self.0 | bit)
    }

    pub(crate) fn reads(self) -> Touch {
        self.with(Self::READS)
    }

    pub(crate) fn writes(self) -> Touch {
        self.with(Self::WRITES)
    }

    /// Volatile, relaxed and more, and atomic.
    pub(crate) fn strong(self, yes: bool) -> Touch {
        if yes { self.with(Self::STRONG) } else { self }
    }

    pub(crate) fn acquires(self, yes: bool) -> Touch {
        if yes { self.with(Self::ACQUIRES) } else { self }
    }

    /// What is written comes along.
    pub(crate) fn value(self, yes: bool) -> Touch {
        if yes { self.with(Self::VALUE) } else { self }
    }

    fn has(self, bit: i64) -> bool {
        self.0 & bit != 0
    }

    fn does(self) -> &'static str {
        match (self.has(Self::READS), self.has(Self::WRITES)) {
            (true, true) => "atomic",
            (_, true) => "write",
            _ => "read",
        }
    }
}

/// Where an access leads: the memory, and where the bytes are. None: memory of the thread's own.
fn place(context: &Context, space: i64, address: u64) -> Option<(Where, *const u8)> {
    let shared =
        |offset: u64| Some((Where::Shared(offset), context.shared.cast_const().wrapping_add(offset as usize)));
    let global = || Some((Where::Global(address), address as *const u8));
    let offset = address.wrapping_sub(window::SHARED_APERTURE);
    match space {
        _ if space == Space::Shared as i64 => shared(address),
        _ if space == Space::Global as i64 => global(),
        _ if space != Space::Generic as i64 => None,
        _ if address.wrapping_sub(window::BASE) < window::SIZE => global(),
        _ if offset < window::APERTURE_SIZE => shared(offset),
        _ => None,
    }
}

/// An access that has passed all other checks, before it happens.
pub(crate) extern "C" fn touch(context: *mut Context, address: u64, touch: i64, value: u64) {
    // SAFETY: the context of the running fiber, whose block alone uses the shadow now; no reference outlives this call.
    let (thread, place, shadow) = unsafe {
        let place = place(&*context, touch >> Touch::SPACE & 15, address);
        ((*context).linear, place, (*(*context).block).shadow.as_deref_mut())
    };
    let (Some((place, bytes)), Some(shadow)) = (place, shadow) else { return };
    let touch = Touch(touch);
    let size = (touch.0 & 0xff) as usize;
    let unchanged = || {
        // SAFETY: another thread wrote there in this grid, so the memory is there; it may be unaligned for what we read.
        let old = unsafe { std::slice::from_raw_parts(bytes, size.min(8)) };
        touch.has(Touch::VALUE) && old == &value.to_le_bytes()[..size.min(8)]
    };
    shadow.touch(thread, place, touch, unchanged);
}

/// A thread reads, at a place that it has touched, what others wrote there meanwhile.
pub(crate) fn acquire(context: *mut Context, space: Space, address: u64) {
    // SAFETY: as in `touch`.
    unsafe {
        let (thread, place) = ((*context).linear as usize, place(&*context, space as i64, address));
        if let (Some((place, _)), Some(shadow)) = (place, &mut (*(*context).block).shadow) {
            shadow.acquire(thread, place);
        }
    }
}

impl BlockShadow {
    fn touch(&mut self, thread: u32, place: Where, touch: Touch, unchanged: impl Fn() -> bool) {
        let mut common = self.common.lock();
        let me = Access {
            stamp: common.now,
            block: self.index,
            line: (touch.0 >> Touch::LINE) as u32,
            thread: thread as u16,
            size: (touch.0 & 0xff) as u8,
            strong: touch.has(Touch::STRONG),
        };
        if self.checks.has(Check::Init) {
            let unwritten = initialised(&mut self.written, place, touch);
            if unwritten {
                let (here, place) = ((me, touch.does()), Some(place));
                let what = match place {
                    Some(Where::Shared(_)) => "read of shared memory that nobody wrote",
                    _ => "read of device memory that nobody wrote",
                };
                common.found.add(Raw { check: Check::Init, what, here, there: None, place, count: 1, hint: None });
            }
        }
        if !self.checks.has(Check::Races) {
            return;
        }
        let does = Does {
            reads: touch.has(Touch::READS),
            writes: touch.has(Touch::WRITES),
            acquires: touch.has(Touch::ACQUIRES),
        };
        let Common { global, .. } = &mut *common;
        let conflict = match place {
            Where::Shared(offset) => self.shared.visit(offset, me, does, &mut self.order),
            Where::Global(address) => global.visit(address, me, does, &mut self.order),
        };
        if me.strong && does.writes {
            common.tick();
        }
        let Some(Conflict { other, wrote, at }) = conflict else { return };
        // Threads that write what is there already (a flag that several set) do no harm.
        if does.writes && !does.reads && wrote && unchanged() {
            return;
        }
        let place = match place {
            Where::Shared(_) => Where::Shared(at),
            Where::Global(_) => Where::Global(at),
        };
        let one_warp = other.block == me.block && other.thread / 32 == me.thread / 32;
        // An instruction is over for all lanes before the next one begins.
        if one_warp && self.checks.lockstep() && other.line != me.line {
            return;
        }
        let hint = one_warp.then_some(
            "threads of one warp: if the program relies on warps that run in lockstep, as before Volta, --lockstep runs it so",
        );
        let what = match (other.block == me.block, one_warp) {
            (_, true) => "race between threads of one warp",
            (true, _) => "race between threads of one block",
            _ => "race between blocks",
        };
        let there = Some((other, if wrote { "write" } else { "read" }));
        let here = (me, touch.does());
        common.found.add(Raw { check: Check::Races, what, here, there, place: Some(place), count: 1, hint });
    }

    fn acquire(&mut self, thread: usize, place: Where) {
        match place {
            Where::Shared(offset) => self.shared.acquire(offset, thread, &mut self.order),
            Where::Global(address) => self.common.lock().global.acquire(address, thread, &mut self.order),
        }
    }

    fn report(&self, what: &'static str, here: (u32, u32, &'static str), there: Option<(u32, u32, &'static str)>) {
        if !self.checks.has(Check::Sync) {
            return;
        }
        let site = |(thread, line, does): (u32, u32, &'static str)| {
            (Access { block: self.index, thread: thread as u16, line, ..Access::default() }, does)
        };
        let (here, there) = (site(here), there.map(site));
        let raw = Raw { check: Check::Sync, what, here, there, place: None, count: 1, hint: None };
        self.common.lock().found.add(raw);
    }

    /// A thread comes to a barrier.
    pub(crate) fn arrives(&mut self, barrier: usize, count: u32, thread: u32, line: u32, waits: bool) {
        if !count.is_multiple_of(32) {
            self.report("barrier for a number of threads that is no multiple of 32", (thread, line, "barrier"), None);
        }
        self.arrived.push(Arrival { barrier, thread, line, waits });
    }

    /// All came that a barrier waited for: `counted` of them, or 0 for all that have not left.
    pub(crate) fn met(&mut self, barrier: usize, counted: u32, exited: Option<u32>) {
        let (here, rest): (Vec<_>, Vec<_>) = self.arrived.drain(..).partition(|arrival| arrival.barrier == barrier);
        self.arrived = rest;
        let Some(first) = here.first() else { return };
        // Lanes of a warp must be at the same barrier; if it is the block's, all threads.
        let apart = |other: &&Arrival| {
            let near = counted == 0 && barrier == 0 || other.thread / 32 == first.thread / 32;
            near && other.line != first.line
        };
        if let Some(other) = here.iter().find(apart) {
            let there = Some((other.thread, other.line, "barrier"));
            self.report("barrier in divergent code", (first.thread, first.line, "barrier"), there);
        }
        if let Some(gone) = exited.filter(|_| counted == 0) {
            let there = Some((gone, 0, "exit"));
            self.report("barrier that a thread has left without", (first.thread, first.line, "barrier"), there);
        }
        let now = self.common.lock().tick();
        if counted == 0 {
            self.order.met(now);
        } else {
            let threads: Vec<(usize, bool)> =
                here.iter().map(|arrival| (arrival.thread as usize, arrival.waits)).collect();
            self.order.some_met(now, &threads);
        }
    }

    /// A lane begins something that all lanes of a mask do.
    pub(crate) fn warp_begins(&mut self, op: WarpOp, mask: u32, thread: u32, line: u32, exited: u32) {
        if matches!(op, WarpOp::ActiveMask | WarpOp::Together) {
            return;
        }
        if mask & 1 << (thread % 32) == 0 {
            self.report("warp function whose mask excludes its caller", (thread, line, "call"), None);
        }
        if mask & exited != 0 {
            let there = Some((thread / 32 * 32 + (mask & exited).trailing_zeros(), 0, "exit"));
            self.report("warp function whose mask names a lane that has exited", (thread, line, "call"), there);
        }
    }

    /// A lane has ended for which another one waits.
    pub(crate) fn missed(&self, waits: u32, line: u32, gone: u32) {
        let there = Some((gone, 0, "exit"));
        self.report("warp function whose mask names a lane that has exited", (waits, line, "call"), there);
    }

    pub(crate) fn lockstep(&self) -> bool {
        self.checks.lockstep()
    }

    /// Lanes have done something together.
    pub(crate) fn lanes_met(&mut self, op: WarpOp, threads: &mut [usize]) {
        if op == WarpOp::ActiveMask && !self.checks.lockstep() {
            return;
        }
        threads.sort_unstable();
        let now = self.common.lock().tick();
        self.order.lanes_met(now, threads);
    }

    /// Threads wait for ever.
    pub(crate) fn stuck(&mut self, thread: u32, line: u32) {
        self.report("threads wait for threads that never arrive", (thread, line, "wait"), None);
    }
}

/// Takes note of an access in the bits of what was written. True where it reads what was not.
fn initialised(written: &mut [bool], place: Where, touch: Touch) -> bool {
    let size = (touch.0 & 0xff) as u64;
    match place {
        Where::Shared(offset) => {
            let Some(bytes) = written.get_mut(offset as usize..(offset + size) as usize) else { return false };
            let unwritten = touch.has(Touch::READS) && bytes.contains(&false);
            // Each place is reported once.
            bytes.fill(true);
            unwritten
        }
        Where::Global(address) => {
            let unwritten = touch.has(Touch::READS) && init::first_unwritten(address, size).is_some();
            if unwritten || touch.has(Touch::WRITES) {
                init::wrote(address, size);
            }
            unwritten
        }
    }
}
