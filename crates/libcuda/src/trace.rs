//! `BULKHEAD_TRACE`: what a program calls, and what that costs. 1 prints a table when the program ends, 2 also a line for
//! each call. It goes to stderr, or to the end of the file that `BULKHEAD_TRACE_FILE` names. `timeline` writes a file in
//! which each call stands at its time, for viewers of traces.
//!
//! When it is off, a call pays one relaxed load. When it is on, each call opens a frame in its thread; what is sent while
//! the frame is open counts for it, and its figures go into one table at its end. A function that calls another of the
//! API has the other's time in its own, but not its messages. A forked child begins with an empty table and prints its
//! own.

mod messages;
mod report;
mod timeline;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Instant;

use cuda_abi::env_vars;
use cuda_abi::error::*;
pub(crate) use messages::kept;
use parking_lot::Mutex;
use timeline::Timeline;

const UNKNOWN: u8 = 0;
const OFF: u8 = 1;
const TABLE: u8 = 2;
const LINES: u8 = 3;
const TIMELINE: u8 = 4;

/// What the environment says; looked up at the first call, for nothing may happen when the library is loaded.
static LEVEL: AtomicU8 = AtomicU8::new(UNKNOWN);
static SUMMARY: Mutex<Summary> = Mutex::new(Summary::new());

thread_local! {
    /// Messages of the call that this thread is in.
    static FRAME: Cell<Traffic> = const { Cell::new(Traffic::NONE) };
}

/// What went to the worker and came back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Traffic {
    round_trips: u64,
    posted: u64,
    sent: u64,
    received: u64,
}

impl Traffic {
    const NONE: Traffic = Traffic { round_trips: 0, posted: 0, sent: 0, received: 0 };

    fn plus(self, other: Traffic) -> Traffic {
        Traffic {
            round_trips: self.round_trips + other.round_trips,
            posted: self.posted + other.posted,
            sent: self.sent + other.sent,
            received: self.received + other.received,
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Counts {
    calls: u64,
    failed: u64,
    last_failure: CUresult,
    traffic: Traffic,
    nanoseconds: u64,
}

/// Everything that is printed at the end.
struct Summary {
    functions: BTreeMap<&'static str, Counts>,
    /// Hidden tables that are not known, and slots that have no function, with how often they were asked for.
    tables: BTreeMap<u128, u64>,
    slots: BTreeMap<(u128, usize), u64>,
    /// The file of a timeline, once there is something to write.
    timeline: Option<Timeline>,
}

impl Summary {
    const fn new() -> Self {
        Summary { functions: BTreeMap::new(), tables: BTreeMap::new(), slots: BTreeMap::new(), timeline: None }
    }

    fn record(&mut self, name: &'static str, code: CUresult, traffic: Traffic, nanoseconds: u64) {
        let new = Counts { calls: 0, failed: 0, last_failure: 0, traffic: Traffic::NONE, nanoseconds: 0 };
        let counts = self.functions.entry(name).or_insert(new);
        counts.calls += 1;
        // Asking whether something is done and hearing "not yet" is no failure.
        if code != CUDA_SUCCESS && code != CUDA_ERROR_NOT_READY {
            counts.failed += 1;
            counts.last_failure = code;
        }
        counts.traffic = counts.traffic.plus(traffic);
        counts.nanoseconds += nanoseconds;
    }
}

/// A call that is under way.
pub(crate) struct Call {
    start: Instant,
    /// The frame of the function that made this call, if that was one of ours.
    outer: Traffic,
}

/// Opens a frame, if somebody wants to know.
#[inline]
pub(crate) fn enter() -> Option<Call> {
    if LEVEL.load(Ordering::Relaxed) == OFF { None } else { begin() }
}

#[cold]
fn begin() -> Option<Call> {
    (level() != OFF).then(|| Call { start: Instant::now(), outer: FRAME.replace(Traffic::NONE) })
}

/// Closes the frame.
#[cold]
pub(crate) fn leave(call: Call, name: &'static str, code: CUresult) {
    let time = call.start.elapsed();
    let traffic = FRAME.replace(call.outer);
    let nanoseconds = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    let mut summary = SUMMARY.lock();
    if level() == TIMELINE {
        summary.timeline.get_or_insert_with(Timeline::begin).add(name, code, traffic, call.start, time);
        return;
    }
    summary.record(name, code, traffic, nanoseconds);
    drop(summary);
    if level() == LINES {
        report::line(name, code, traffic, time);
    }
}

#[cold]
fn add(traffic: Traffic) {
    FRAME.set(FRAME.get().plus(traffic));
}

/// A message was posted that nobody waits for.
#[inline]
pub(crate) fn posted(bytes: usize) {
    if LEVEL.load(Ordering::Relaxed) > OFF {
        add(Traffic { posted: 1, sent: bytes as u64, ..Traffic::NONE });
    }
}

/// A request was answered.
#[inline]
pub(crate) fn round_trip(sent: usize, received: usize) {
    if LEVEL.load(Ordering::Relaxed) > OFF {
        add(Traffic { round_trips: 1, sent: sent as u64, received: received as u64, posted: 0 });
    }
}

/// Somebody asked for a hidden table that we do not have.
pub(crate) fn unknown_table(id: u128) {
    if level() != OFF {
        *SUMMARY.lock().tables.entry(id).or_default() += 1;
    }
}

/// Somebody called a slot of a hidden table that has no function.
pub(crate) fn unknown_slot(table: u128, slot: usize) {
    if level() != OFF {
        *SUMMARY.lock().slots.entry((table, slot)).or_default() += 1;
    }
}

fn level() -> u8 {
    match LEVEL.load(Ordering::Relaxed) {
        UNKNOWN => start(),
        level => level,
    }
}

fn start() -> u8 {
    let level = match env_vars::trace_level() {
        _ if env_vars::wants_timeline() => TIMELINE,
        0 => OFF,
        1 => TABLE,
        _ => LINES,
    };
    // One thread of several that come here at once does what is to be done once.
    if LEVEL.compare_exchange(UNKNOWN, level, Ordering::Relaxed, Ordering::Relaxed).is_ok() && level != OFF {
        // SAFETY: the handlers touch the summary alone.
        unsafe {
            libc::atexit(at_exit);
            libc::pthread_atfork(Some(before_fork), Some(after_fork), Some(in_forked_child));
        }
    }
    level
}

extern "C" fn at_exit() {
    if level() == TIMELINE {
        // Libraries that are unloaded later still call us, and the file is closed by then.
        LEVEL.store(OFF, Ordering::Relaxed);
        if let Some(timeline) = SUMMARY.lock().timeline.take() {
            timeline.end();
        }
        return;
    }
    let text = report::table(&SUMMARY.lock());
    #[cfg(feature = "xen")]
    let text = text + &through_xen();
    env_vars::print_trace(&text);
}

/// What was asked of the hypervisor, in a guest.
#[cfg(feature = "xen")]
fn through_xen() -> String {
    let counts = xen::counts::read();
    if counts.grant_batches > 0 { format!("bulkhead: through Xen: {counts}\n") } else { String::new() }
}

/// The summary stays locked over the fork, so that the child finds it whole.
extern "C" fn before_fork() {
    std::mem::forget(SUMMARY.lock());
}

extern "C" fn after_fork() {
    // SAFETY: locked by this thread before the fork.
    unsafe { SUMMARY.force_unlock() };
}

extern "C" fn in_forked_child() {
    // SAFETY: locked by this thread before the fork, and the child has no other.
    unsafe {
        // The parent's entries are forgotten, not freed: its allocator may have been locked by another thread.
        std::mem::forget(std::mem::replace(&mut *SUMMARY.data_ptr(), Summary::new()));
        SUMMARY.force_unlock();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MESSAGE: Traffic = Traffic { round_trips: 1, posted: 2, sent: 30, received: 4 };

    #[test]
    fn calls_add_up() {
        let mut summary = Summary::new();
        summary.record("cuB", CUDA_SUCCESS, MESSAGE, 10);
        summary.record("cuB", CUDA_ERROR_INVALID_VALUE, MESSAGE, 5);
        summary.record("cuB", CUDA_ERROR_NOT_READY, Traffic::NONE, 5);
        let counts = summary.functions["cuB"];
        assert_eq!((counts.calls, counts.failed, counts.last_failure), (3, 1, CUDA_ERROR_INVALID_VALUE));
        assert_eq!(counts.nanoseconds, 20);
        assert_eq!(counts.traffic, Traffic { round_trips: 2, posted: 4, sent: 60, received: 8 });
    }

    #[test]
    fn the_dearest_function_comes_first_and_gaps_are_named() {
        let mut summary = Summary::new();
        summary.record("cuCheap", CUDA_SUCCESS, Traffic::NONE, 10);
        summary.record("cuDear", CUDA_SUCCESS, MESSAGE, 5_000_000);
        summary.record("cuGap", CUDA_ERROR_NOT_SUPPORTED, Traffic::NONE, 1);
        summary.tables.insert(0xabc, 2);
        summary.slots.insert((0xdef, 7), 3);
        let text = report::table(&summary);
        let at = |part: &str| text.find(part).unwrap_or_else(|| panic!("{part} is not in {text}"));
        assert!(at("cuDear") < at("cuCheap"));
        assert!(at("not supported: cuGap (1)") > at("cuCheap"));
        at("00000000000000000000000000000abc (2)");
        at("00000000000000000000000000000def slot 7 (3)");
    }
}
