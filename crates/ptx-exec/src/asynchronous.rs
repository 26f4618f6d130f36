//! `cp.async`, done at once, and `mbarrier`.
//!
//! A barrier is a word of memory: bits 0 to 19 how many arrivals are still pending in this phase, 20 to 39 how many a
//! phase begins with, 40 and up the number of the phase. Atomic operations keep it right, wherever it lies.

use std::sync::atomic::{AtomicU64, Ordering};

use ptx_passes::asynchronous::BarrierCall;
use ptx_passes::ir::Space;

use super::context::{Context, Pause, RawFault, fail, suspend};
use super::fault::FaultKind;
use super::helpers::{atomic_place_of, place_of};
use super::sanitize::hooks;

/// Words: base and offset of the target, the same of the source, bytes of the source, whether to ignore it.
///
/// # Safety
/// On the fiber of `context`, with nothing alive that needs dropping; there are six words.
pub(crate) unsafe fn copy(context: *mut Context, size: u64, words: *const u64) {
    // SAFETY: as promised; both places are checked before they are used.
    unsafe {
        let word = |at: usize| *words.add(at);
        let ignore = word(5) & 1 == 1;
        let taken = if ignore { 0 } else { (word(4) & 0xffff_ffff).min(size) as usize };
        let to = place_of(context, Space::Shared, word(0).wrapping_add(word(1)), size, true);
        let mut bytes = [0u8; 16];
        if taken > 0 {
            let from = place_of(context, Space::Global, word(2).wrapping_add(word(3)), size, false);
            std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), taken);
        }
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, size as usize);
    }
}

const COUNT: u64 = (1 << 20) - 1;

fn pending(state: u64) -> u64 {
    state & COUNT
}

fn expected(state: u64) -> u64 {
    state >> 20 & COUNT
}

fn phase(state: u64) -> u64 {
    state >> 40
}

/// After so many arrivals, of which some never come again; `None` when there are not as many.
fn arrive(state: u64, arrivals: u64, leaving: u64) -> Option<u64> {
    let left = pending(state).checked_sub(arrivals)?;
    let count = expected(state).checked_sub(leaving)?;
    Some(if left == 0 {
        count | count << 20 | (phase(state) + 1) << 40
    } else {
        left | count << 20 | phase(state) << 40
    })
}

/// Words: base and offset of the address, and a value or two.
///
/// # Safety
/// On the fiber of `context`, with nothing alive that needs dropping; there are four words.
pub(crate) unsafe fn barrier(context: *mut Context, code: u64, space: Space, words: *mut u64) {
    let call = BarrierCall::ALL.get((code & 15) as usize).copied().unwrap_or(BarrierCall::Invalidate);
    // SAFETY: as promised.
    unsafe {
        let value = *words.add(2);
        if call == BarrierCall::Pending {
            *words = pending(value);
            return;
        }
        let address = (*words).wrapping_add(*words.add(1));
        let cell = AtomicU64::from_ptr(atomic_place_of(context, space, address, 8).cast());
        let misused = |message: &'static str| -> ! {
            fail(context, RawFault { kind: FaultKind::Trap, address: Some(address), message: message.into() })
        };
        match call {
            BarrierCall::Init => {
                let count = value & 0xffff_ffff;
                if count == 0 || count > COUNT {
                    misused("mbarrier for no thread, or for too many");
                }
                cell.store(count | count << 20, Ordering::SeqCst);
            }
            BarrierCall::Arrive | BarrierCall::ArriveDrop | BarrierCall::ArriveCopiesCounted => {
                let count = if call == BarrierCall::Arrive { value & 0xffff_ffff } else { 1 };
                let leaving = u64::from(call == BarrierCall::ArriveDrop);
                let next = |state| arrive(state, count, leaving);
                match cell.fetch_update(Ordering::SeqCst, Ordering::SeqCst, next) {
                    Ok(before) => *words = before,
                    Err(_) => misused("more threads arrive at an mbarrier than it expects"),
                }
            }
            // The pending count goes up by one for the copies and down by one as they are done.
            BarrierCall::ArriveCopies | BarrierCall::Invalidate | BarrierCall::ExpectBytes | BarrierCall::Pending => {
            }
            BarrierCall::TestWait | BarrierCall::TryWait => {
                let over = |now: u64| phase(now) != phase(value);
                *words = u64::from(wait(context, cell, over));
                hooks::acquire(context, space, address);
            }
            BarrierCall::TestParity | BarrierCall::TryParity => {
                let over = |now: u64| phase(now) & 1 != value & 1;
                *words = u64::from(wait(context, cell, over));
                hooks::acquire(context, space, address);
            }
        }
    }
}

/// Lets others run before it says no.
unsafe fn wait(context: *mut Context, cell: &AtomicU64, over: impl Fn(u64) -> bool) -> bool {
    if over(cell.load(Ordering::SeqCst)) {
        return true;
    }
    // SAFETY: as promised by `barrier`; the grid is alive.
    unsafe {
        if (*(*context).grid).stopping() {
            fail(context, RawFault { kind: FaultKind::Stopped, address: None, message: String::new() });
        }
        suspend(context, Pause::Yield);
    }
    over(cell.load(Ordering::SeqCst))
}
