//! Finding out which lanes need a thread.

use std::sync::Arc;

use super::{DispatchWords, LaneExecutor, MAX_LANES, PENDING_WORDS};
use crate::doorbell::{Bell, Doorbell, Waiter};
use crate::gone::{Gone, PeerGone};
use crate::region::Shared;
use crate::sync::Ordering;

/// Hands out a `LaneExecutor` for each lane on which a client blocks for the first time. One thread of the server
/// sits in `next` and starts a thread for what it gets.
pub struct Dispatcher {
    words: Shared<DispatchWords>,
    waiter: Waiter,
    /// Lanes that exist and have no thread yet. Private: the client's bits only choose among these.
    unattended: [u64; PENDING_WORDS],
    start: Box<dyn Fn(u32) -> LaneExecutor + Send>,
}

impl Dispatcher {
    pub(crate) fn new(
        words: Shared<DispatchWords>,
        lanes: u32,
        start: Box<dyn Fn(u32) -> LaneExecutor + Send>,
        doorbell: &Arc<dyn Doorbell>,
        gone: &PeerGone,
    ) -> Self {
        let mut unattended = [0; PENDING_WORDS];
        for lane in 0..lanes.min(MAX_LANES) {
            unattended[lane as usize / 64] |= 1 << (lane % 64);
        }
        let bell = Bell::new(words.project(|w| &w.bell.0), doorbell.clone());
        Self { words, waiter: Waiter::new(bell, gone), unattended, start }
    }

    /// Waits until a lane needs a thread.
    pub fn next(&mut self) -> Result<LaneExecutor, Gone> {
        let Self { words, waiter, unattended, start } = self;
        let found = waiter.wait(None, || {
            words.pending.iter().zip(unattended.iter_mut()).zip(0u32..).find_map(|((pending, unattended), word)| {
                let wanted = pending.load(Ordering::Relaxed) & *unattended;
                if wanted == 0 {
                    return None;
                }
                let bit = wanted & wanted.wrapping_neg();
                // SYNC POINT: the request's number is published before the pending bit (Release), and the dispatcher
                // takes the bit (Acquire) before the lane's new thread looks for the request.
                pending.fetch_and(!bit, Ordering::Acquire);
                *unattended &= !bit;
                Some(word * 64 + bit.trailing_zeros())
            })
        })?;
        let lane = start(found.ok_or(Gone)?);
        lane.attend();
        Ok(lane)
    }
}
