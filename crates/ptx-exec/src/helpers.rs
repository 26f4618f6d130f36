//! What compiled code calls for things that are too large to inline. One table holds them all; code finds it through
//! its context. Helpers run on fiber stacks: they own nothing while they touch a kernel's memory or suspend.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use ptx_passes::ir::{BarrierOp, Space, WarpOp};

use super::atomics;
use super::block::{BARRIERS, BarrierResult};
use super::context::{Context, Pause, RawFault, fail, suspend};
use super::fault::FaultKind;
use super::gate;
use super::half_math;
use super::interleave;
use super::marks;
use super::math;
use super::print;
use super::routines;
use super::sanitize::hooks::{self, Touch};
use super::warp::Input;
use crate::window;

/// Machine types of helper arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arg {
    I32,
    I64,
    F32,
    F64,
}

/// Addresses of all helpers.
pub(crate) struct Table(pub [*const (); COUNT]);
// SAFETY: function addresses never change.
unsafe impl Sync for Table {}

macro_rules! helpers {
    ($($(#[$doc:meta])* $name:ident ( $($arg:ident),* ) -> [ $($ret:ident)? ] = $function:path;)*) => {
        /// A helper, by its place in the table.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Helper { $($(#[$doc])* $name),* }

        const COUNT: usize = [$(Helper::$name),*].len();

        pub(crate) static TABLE: Table = Table([$($function as *const ()),*]);

        impl Helper {
            /// Arguments and result.
            pub(crate) fn signature(self) -> (&'static [Arg], Option<Arg>) {
                match self {
                    $(Helper::$name => (&[$(Arg::$arg),*], [$(Arg::$ret)?].first().copied()),)*
                }
            }
        }
    };
}

helpers! {
    /// context, address, `access_info`: ends the thread with a fault.
    Fault(I64, I64, I64) -> [] = fault;
    /// context, address, `access_info`: where a generic address outside of the window leads.
    Resolve(I64, I64, I64) -> [I64] = resolve;
    /// context, address, `access_info`: goes on only where no byte of the access is marked.
    Marked(I64, I64, I64) -> [] = marked;
    /// context, kind: ends the thread with a fault that has no address.
    Abort(I64, I32) -> [] = abort;
    /// context: the attention flag is up.
    Poll(I64) -> [] = poll;
    /// context, threads in a range: which threads run next.
    NextRange(I64, I32) -> [I64] = interleave::next_range;
    /// context: the attention flag is up where threads are interleaved.
    PollInterleaved(I64) -> [I32] = interleave::poll;
    /// context: the thread has ended.
    ThreadExit(I64) -> [] = thread_exit;
    /// context, operation, barrier, count, vote
    Barrier(I64, I32, I32, I32, I32) -> [I32] = barrier;
    /// context, operation, value, lane and clamp, mask, site
    Warp(I64, I32, I64, I64, I32, I64) -> [I64] = warp;
    /// context, address, `Touch`, value: an access, for the sanitizer
    Touch(I64, I64, I64, I64) -> [] = hooks::touch;
    /// context, nanoseconds
    Sleep(I64, I32) -> [] = sleep;
    /// which clock
    Clock(I32) -> [I64] = clock;
    /// context, format, arguments
    Printf(I64, I64, I64) -> [I32] = print::printf;
    /// context, message, file, line, function
    AssertFail(I64, I64, I64, I32, I64) -> [] = print::assert_fail;
    /// context, bytes
    Malloc(I64, I64) -> [I64] = malloc;
    /// context, address
    Free(I64, I64) -> [] = free;
    /// address, `AtomicOp` and type, operand, swap
    Atomic(I64, I32, I64, I64) -> [I64] = atomics::atomic;
    Sin(F32) -> [F32] = math::sin;
    Cos(F32) -> [F32] = math::cos;
    Ex2(F32) -> [F32] = math::ex2;
    Lg2(F32) -> [F32] = math::lg2;
    Tanh(F32) -> [F32] = math::tanh;
    /// operation and rounding, a, b, c
    Rounded32(I32, F32, F32, F32) -> [F32] = math::rounded32;
    Rounded64(I32, F64, F64, F64) -> [F64] = math::rounded64;
    /// rounding, value
    Narrow(I32, F64) -> [F32] = math::narrow;
    /// rounding and signedness, value
    IntTo32(I32, I64) -> [F32] = math::int_to_f32;
    IntTo64(I32, I64) -> [F64] = math::int_to_f64;
    /// format, value
    HalfToSingle(I32, I32) -> [F32] = half_math::to_f32;
    /// format and rounding, value
    DoubleToHalf(I32, F64) -> [I32] = half_math::from_f64;
    /// operation and format, a, b, c
    Half(I32, I32, I32, I32) -> [I32] = half_math::compute;
    /// context, routine, code, words in and out
    Runtime(I64, I32, I64, I64) -> [] = routines::runtime;
    /// n-th set bit: mask, base, offset
    Fns(I32, I32, I32) -> [I32] = math::fns;
}

/// What `Fault` and `Resolve` are told about an access: size, space and line.
pub(crate) fn access_info(size: u32, space: u32, line: u32) -> i64 {
    i64::from(size) | i64::from(space & 0x7f) << 8 | i64::from(line) << 16
}

fn access_fault(address: u64, info: i64) -> RawFault {
    let size = (info & SIZE_OF_ACCESS) as u64;
    let kind =
        if size > 0 && !address.is_multiple_of(size) { FaultKind::Misaligned } else { FaultKind::IllegalAddress };
    let space = ["generic", "global", "constant", "shared", "local", "parameter"];
    let space = space.get((info >> 8 & 0x7f) as usize).copied().unwrap_or("unknown");
    RawFault { kind, address: Some(address), message: format!("{size} bytes of {space} memory") }
}

extern "C" fn fault(context: *mut Context, address: u64, info: i64) {
    // SAFETY: called by compiled code on the running fiber; nothing to drop is alive.
    unsafe {
        (*context).line = (info >> 16) as u32;
        fail(context, access_fault(address, info))
    }
}

extern "C" fn marked(context: *mut Context, address: u64, info: i64) {
    if marks::is_marked(address, (info & SIZE_OF_ACCESS) as u64) {
        fault(context, address, info & !READ_ONLY);
    }
}

/// The bytes that a generic address stands for, when they are in shared, local or parameter memory.
pub(crate) fn aperture(context: &Context, address: u64, size: u64) -> Option<*mut u8> {
    let inside = |start: u64, bytes: u64| {
        let offset = address.wrapping_sub(start);
        (offset < bytes && bytes - offset >= size).then_some(offset as usize)
    };
    if let Some(offset) = inside(window::SHARED_APERTURE, context.shared_size) {
        return Some(context.shared.wrapping_add(offset));
    }
    if let Some(offset) = inside(window::LOCAL_APERTURE, context.local_size) {
        return Some(context.local.wrapping_add(offset));
    }
    None
}

extern "C" fn resolve(context: *mut Context, address: u64, info: i64) -> *mut u8 {
    let size = (info & SIZE_OF_ACCESS) as u64;
    // SAFETY: the context of the running fiber.
    let found = unsafe { aperture(&*context, address, size) };
    if let Some(pointer) = found.filter(|_| address.is_multiple_of(size)) {
        return pointer;
    }
    // Parameters may be read, and bit 15 tells that this access does not write.
    // SAFETY: as above.
    let params = unsafe {
        let grid = &*(*context).grid;
        ((*context).params, grid.launch.params.len() as u64)
    };
    let offset = address.wrapping_sub(window::PARAM_APERTURE);
    if info & READ_ONLY != 0 && address.is_multiple_of(size) && offset < params.1 && params.1 - offset >= size {
        return params.0.wrapping_add(offset as usize).cast_mut();
    }
    // SAFETY: called by compiled code on the running fiber; nothing to drop is alive.
    unsafe {
        if info >> 16 != 0 {
            (*context).line = (info >> 16) as u32;
        }
        fail(context, access_fault(address, info & !READ_ONLY))
    }
}

/// Where `size` bytes of a space are, after all checks; they must be aligned. A bad address ends the fiber.
///
/// # Safety
/// On the fiber of `context`, with nothing alive that needs dropping.
pub(crate) unsafe fn place_of(context: *mut Context, space: Space, address: u64, size: u64, write: bool) -> *mut u8 {
    // SAFETY: as promised.
    let pointer = unsafe { checked_place(context, space, address, size, write) };
    let touch = |touch: Touch| if write { touch.writes() } else { touch.reads() };
    told(context, space, address, size, touch);
    pointer
}

/// The same for a word that threads synchronise with.
///
/// # Safety
/// As for `place_of`.
pub(crate) unsafe fn atomic_place_of(context: *mut Context, space: Space, address: u64, size: u64) -> *mut u8 {
    // SAFETY: as promised.
    let pointer = unsafe { checked_place(context, space, address, size, true) };
    told(context, space, address, size, |touch| touch.reads().writes().strong(true).acquires(true));
    pointer
}

/// # Safety
/// As for `place_of`.
unsafe fn checked_place(context: *mut Context, space: Space, address: u64, size: u64, write: bool) -> *mut u8 {
    let info = access_info(size as u32, space as u32, 0);
    // SAFETY: the context of the running fiber.
    let place = unsafe { &*context };
    let inside = |base: *mut u8, room: u64| {
        let fits = address < room && room - address >= size && address.is_multiple_of(size);
        fits.then(|| base.wrapping_add(address as usize))
    };
    let in_window = address.wrapping_sub(window::BASE) < window::SIZE && address.is_multiple_of(size);
    let found = match space {
        Space::Shared => inside(place.shared, place.shared_size),
        Space::Local => inside(place.local, place.local_size),
        _ if in_window => (place.marks == 0 || !marks::is_marked(address, size)).then_some(address as *mut u8),
        Space::Generic => return resolve(context, address, info | if write { 0 } else { READ_ONLY }),
        _ => None,
    };
    match found {
        Some(pointer) => pointer,
        // SAFETY: as promised.
        None => unsafe { fail(context, access_fault(address, info)) },
    }
}

/// Tells the sanitizer of an access of a routine.
fn told(context: *mut Context, space: Space, address: u64, size: u64, how: impl FnOnce(Touch) -> Touch) {
    // SAFETY: the context of the running fiber.
    let line = unsafe {
        if (*(*context).block).shadow.is_none() {
            return;
        }
        (*context).line
    };
    hooks::touch(context, address, how(Touch::new(size as u32, space, line)).0, 0);
}

/// The bits of `access_info` that say how large an access is.
pub(crate) const SIZE_OF_ACCESS: i64 = 0xff;
/// Set in `access_info` of loads.
pub(crate) const READ_ONLY: i64 = 1 << 15;

/// Kinds of `Abort`.
pub(crate) const ABORT_KINDS: [FaultKind; 4] =
    [FaultKind::Trap, FaultKind::StackOverflow, FaultKind::IllegalTarget, FaultKind::Unsupported];

extern "C" fn abort(context: *mut Context, kind: i32) {
    let kind = ABORT_KINDS.get(kind as usize).copied().unwrap_or(FaultKind::Trap);
    // SAFETY: called by compiled code on the running fiber; nothing to drop is alive.
    unsafe { fail(context, RawFault { kind, address: None, message: String::new() }) }
}

extern "C" fn poll(context: *mut Context) {
    // SAFETY: the context of the running fiber; no reference outlives the suspension.
    unsafe {
        if should_yield(context) {
            suspend(context, Pause::Yield);
        }
    }
}

/// The attention flag is up in a loop. Whether the thread should let others run; a grid that is being stopped ends here.
///
/// # Safety
///
/// The context is that of the running fiber, and nothing that has to be dropped is alive in the caller.
pub(crate) unsafe fn should_yield(context: *mut Context) -> bool {
    // SAFETY: the running fiber's grid and flag are alive.
    unsafe {
        if (*(*context).grid).cooperative() {
            // The flag of a cooperative grid is always up, so that its blocks are scheduled soon; one poll in 32 is enough.
            (*context).polls = (*context).polls.wrapping_add(1);
            if !(*context).polls.is_multiple_of(32) {
                return false;
            }
        } else {
            (*(*context).attention).store(0, Ordering::Relaxed);
        }
        gate::pass(|| (*(*context).grid).stopping());
        if (*(*context).grid).stopping() {
            fail(context, RawFault { kind: FaultKind::Stopped, address: None, message: String::new() });
        }
    }
    true
}

extern "C" fn thread_exit(context: *mut Context) {
    // SAFETY: the fibers of a block run one at a time.
    unsafe { (*(*context).block).thread_exit((*context).linear) }
}

extern "C" fn barrier(context: *mut Context, op: i32, id: u32, count: u32, vote: i32) -> i32 {
    // SAFETY: the fibers of a block run one at a time, and no reference is held across the suspension.
    unsafe {
        let id = id as usize;
        let block = (*context).block;
        if id >= BARRIERS || count > (*block).total.next_multiple_of(32) {
            let message = format!("barrier {id} of {count} threads");
            fail(context, RawFault { kind: FaultKind::IllegalTarget, address: None, message });
        }
        let asked = count;
        // The hardware counts whole warps, so the last one may be short.
        let count = count.min((*block).total);
        let votes = op != BarrierOp::Sync as i32 && op != BarrierOp::Arrive as i32;
        if let Some(shadow) = &mut (*block).shadow {
            shadow.arrives(id, asked, (*context).linear, (*context).line, op != BarrierOp::Arrive as i32);
        }
        let done = (*block).arrive(id, count, votes.then_some(vote != 0));
        let result = match done {
            Some(result) => result,
            None if op == BarrierOp::Arrive as i32 => return 0,
            None => {
                let fiber = (*context).fiber;
                (*block).barriers[id].waiting.push(fiber);
                (*block).waiting += 1;
                suspend(context, Pause::Wait);
                BarrierResult::unpack((*context).answer)
            }
        };
        result.answer(op as u32) as i32
    }
}

pub(crate) extern "C" fn warp(context: *mut Context, op: i32, a: u64, bc: u64, mask: u32, site: u64) -> u64 {
    let op = WarpOp::ALL.get(op as usize).copied().unwrap_or(WarpOp::Sync);
    // SAFETY: the fibers of a block run one at a time, and nothing that needs dropping is alive at the suspension.
    unsafe {
        let block = (*context).block;
        let linear = (*context).linear;
        let input = Input { a, b: bc as u32, c: (bc >> 32) as u32 };
        let left = (*block).left(linear);
        if let Some(shadow) = &mut (*block).shadow {
            shadow.warp_begins(op, mask, linear, (*context).line, left);
        }
        let (own, woken) = (*block).warp(linear).arrive(op, mask, site, linear % 32, (*context).fiber, input);
        if own.is_some() {
            (*block).lanes_met(op, Some(linear), &woken);
        }
        (*block).wake_all(woken);
        match own {
            Some(answer) => answer,
            None => {
                (*block).waiting += 1;
                suspend(context, Pause::Wait);
                (*context).answer
            }
        }
    }
}

extern "C" fn malloc(context: *mut Context, bytes: u64) -> u64 {
    // SAFETY: the context of the running fiber and its grid are alive.
    let heap = unsafe { (*(*context).grid).launch.heap };
    heap.and_then(|heap| heap.take(bytes)).unwrap_or(0)
}

extern "C" fn free(context: *mut Context, address: u64) {
    // SAFETY: as above.
    let heap = unsafe { (*(*context).grid).launch.heap };
    if address != 0 && !heap.is_some_and(|heap| heap.give(address)) {
        let message = String::from("free() of a pointer that malloc() did not return, or that was freed already");
        // SAFETY: called by compiled code on the running fiber; what is dropped late is moved into the fault.
        unsafe { fail(context, RawFault { kind: FaultKind::Trap, address: Some(address), message }) }
    }
}

/// A wait as long as this is left to the operating system.
const WORTH_SLEEPING: Duration = Duration::from_micros(20);

extern "C" fn sleep(context: *mut Context, nanoseconds: u32) {
    let until = Instant::now() + Duration::from_nanos(u64::from(nanoseconds.min(1_000_000)));
    // SAFETY: as in `poll`.
    unsafe {
        loop {
            if (*(*context).grid).stopping() {
                fail(context, RawFault { kind: FaultKind::Stopped, address: None, message: String::new() });
            }
            suspend(context, Pause::Yield);
            let left = until.saturating_duration_since(Instant::now());
            match left {
                Duration::ZERO => return,
                // Shorter than it takes to wake up.
                _ if left < WORTH_SLEEPING => std::thread::yield_now(),
                // Others of its block had their turn, and a thread that waits needs no processor.
                _ => std::thread::sleep(left.min(WORTH_SLEEPING * 5)),
            }
        }
    }
}

extern "C" fn clock(which: i32) -> u64 {
    match which {
        // The global timer counts nanoseconds, the other one about a nanosecond per cycle.
        0 => SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_nanos() as u64),
        _ => {
            static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
            START.get_or_init(Instant::now).elapsed().as_nanos() as u64
        }
    }
}
