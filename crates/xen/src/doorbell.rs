//! idm's doorbell between two kernels: sleeping on this side, and an event channel to the other.
//!
//! Threads of this process sleep on the region's words as a private futex: the pages belong to no file that a shared
//! one could be keyed by, and nobody else of this kernel sleeps there. An event says only "look again": the thread that
//! takes events wakes everybody who sleeps, and idm's waiters look for themselves. There are few sleepers, for a side
//! that has work does not sleep.
//!
//! # Which events are sent
//!
//! A bell calls `wake` only when somebody left a mark that he sleeps. On top of that, each direction has a word `under
//! way` in the region: the sender sets it and sends an event only if it was not set; the receiver clears it, *then*
//! wakes. So however many bells ring, at most one event is under way.
//!
//! # Why no wake-up is lost
//!
//! The sender moves a bell's signal, then sets the word. The receiver clears the word, then looks at who sleeps. If the
//! sender found the word set, its signal had moved before the receiver cleared it, and the sleeper is woken by that
//! very look, or finds that its signal has moved before it sleeps.
//!
//! # What a hostile peer can do
//!
//! It can set or clear both words, and send events without end. The first loses wake-ups that were meant for itself, or
//! makes us send it events that it does not need; the second costs one thread of the process that serves it.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use idm::PeerGone;
use idm::doorbell::Doorbell;
use idm::region::TransportWords;
use parking_lot::Mutex;
use rustix::event::EventfdFlags;
use rustix::thread::futex::{self, Flags, Timespec};

use crate::counts;
use crate::sys::XenError;
use crate::sys::evtchn::Channel;

/// Which end of the region this process is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    Client,
    Server,
}

/// Words of the region, by their use.
mod word {
    pub(crate) const TO_SERVER_UNDER_WAY: usize = 0;
    pub(crate) const TO_CLIENT_UNDER_WAY: usize = 1;
    /// 1 as long as that side has the region mapped; its kernel clears it. The client, which makes the region, sets both.
    pub(crate) const CLIENT_ALIVE: usize = 2;
    pub(crate) const SERVER_ALIVE: usize = 3;
}

impl Side {
    fn sends(self) -> usize {
        match self {
            Self::Client => word::TO_SERVER_UNDER_WAY,
            Self::Server => word::TO_CLIENT_UNDER_WAY,
        }
    }

    fn other(self) -> Self {
        match self {
            Self::Client => Self::Server,
            Self::Server => Self::Client,
        }
    }

    fn alive(self) -> usize {
        match self {
            Self::Client => word::CLIENT_ALIVE,
            Self::Server => word::SERVER_ALIVE,
        }
    }

    /// The byte of the region that this side's kernel clears when the side ends: the low byte of its word.
    pub fn alive_byte(self) -> usize {
        idm::region::Region::transport_offset() + 4 * self.alive()
    }
}

pub struct EventDoorbell {
    side: Side,
    channel: Channel,
    words: TransportWords,
    /// The words that threads of this process sleep on, as addresses; one entry for each sleeper.
    sleepers: Mutex<Vec<usize>>,
    stop: OwnedFd,
}

/// Ends a doorbell's `serve` when dropped.
pub struct StopEvents(Arc<EventDoorbell>);

impl Drop for StopEvents {
    fn drop(&mut self) {
        let _ = rustix::io::write(&self.0.stop, &1u64.to_ne_bytes());
    }
}

impl EventDoorbell {
    pub fn new(side: Side, channel: Channel, words: TransportWords) -> Result<Arc<Self>, XenError> {
        let stop = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let stop = stop.map_err(|source| XenError { what: "make an eventfd", source: source.into() })?;
        if side == Side::Client {
            // Both: the server may have come and gone before this side looks for the first time.
            words.get(Side::Client.alive()).store(1, Ordering::Release);
            words.get(Side::Server.alive()).store(1, Ordering::Release);
        }
        Ok(Arc::new(Self { side, channel, words, sleepers: Mutex::default(), stop }))
    }

    pub fn stopper(self: &Arc<Self>) -> StopEvents {
        StopEvents(self.clone())
    }

    pub fn channel(&self) -> &Channel {
        &self.channel
    }

    /// Takes events until the other side is gone, which ends every wait, or until it is stopped. For a thread of its own.
    pub fn serve(&self, gone: &PeerGone) {
        while !gone.is_set() && self.peer_is_alive() {
            // Not being able to wait counts as the other side's end: better to end than to hang.
            if self.channel.wait_or(Some(self.stop.as_fd()), None).is_err() {
                break;
            }
            self.take_event();
            if rustix::io::read(&self.stop, &mut [0; 8]).is_ok() {
                return;
            }
        }
        gone.set();
        gone.linger();
    }

    /// The client says that it is about to end, and waits until the server has unmapped the region. Grants that are given
    /// up while the other side has them mapped stay taken until the kernel looks again, a few each second.
    /// Whether it has: false when the time was up.
    pub fn leave(&self, timeout: Duration) -> bool {
        let start = Instant::now();
        self.words.get(self.side.alive()).store(0, Ordering::Release);
        if self.channel.notify().is_err() {
            return false;
        }
        while self.peer_is_alive() {
            if start.elapsed() >= timeout {
                return false;
            }
            // Another thread takes the events.
            std::thread::sleep(Duration::from_millis(1));
        }
        true
    }

    fn peer_is_alive(&self) -> bool {
        self.words.get(self.side.other().alive()).load(Ordering::Acquire) != 0
    }

    fn take_event(&self) {
        // SYNC POINT: a sender moves its signal, then finds the word set or sets it; we clear the word, then wake. So a
        // signal that moved before we cleared is seen by the thread that we wake.
        self.words.get(self.side.other().sends()).swap(0, Ordering::AcqRel);
        for address in self.sleepers.lock().iter() {
            // SAFETY: the thread that put it there borrows the word until it has taken it out again, under this lock.
            wake(unsafe { &*(*address as *const AtomicU32) });
        }
    }

    fn has_woken(&self, word: &AtomicU32) {
        let mut sleepers = self.sleepers.lock();
        let address = word.as_ptr() as usize;
        if let Some(index) = sleepers.iter().position(|sleeper| *sleeper == address) {
            sleepers.swap_remove(index);
        }
    }
}

fn wake(word: &AtomicU32) {
    let _ = futex::wake(word, Flags::PRIVATE, i32::MAX as u32);
}

impl Doorbell for EventDoorbell {
    fn sleep(&self, word: &AtomicU32, expected: u32, timeout: Option<Duration>) {
        self.sleepers.lock().push(word.as_ptr() as usize);
        let timeout = timeout.and_then(|time| Timespec::try_from(time).ok());
        // Every outcome (woken, moved on, interrupted, time is up) means the same: look again.
        let _ = futex::wait(word, Flags::PRIVATE, expected, timeout.as_ref());
        self.has_woken(word);
    }

    fn wake(&self, word: &AtomicU32) {
        wake(word);
        // SYNC POINT: as in `take_event`; the signal has moved before.
        if self.words.get(self.side.sends()).swap(1, Ordering::AcqRel) == 0 {
            // A channel that cannot be used has no other side any more, which `serve` finds out.
            let _ = self.channel.notify();
        } else {
            counts::suppressed(1);
        }
    }

    fn wake_here(&self, word: &AtomicU32) {
        wake(word);
    }
}
