//! The ring, written by hand: every field of a record is the attacker's.

use std::ffi::c_void;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use cuda_abi::wire::Operation;
use cuda_abi::wire::ops::MemInfo;
use idm::region::Layout;
use idm::ring::RecordHeader;
use rustix::mm::{MapFlags, ProtFlags};
use zerocopy::IntoBytes;

use super::session::Session;

/// Where the ring's words lie: two status lines, then head, tail, three of progress, and the bells, each on a pair of
/// cache lines.
/// [`RawRing::check`] finds out whether that is still so.
const LINE: usize = 128;
const HEAD: usize = 2 * LINE;
const POSTED_BELL: usize = HEAD + 5 * LINE;
const DISPATCH: usize = HEAD + 7 * LINE;
const LANES: usize = DISPATCH + 2 * LINE;
const LANE: usize = 4 * LINE;
const PAGE: usize = 4096;

/// A second mapping of the region, through which anything can be written.
pub(super) struct RawRing {
    base: *mut u8,
    pub len: usize,
    ring: usize,
    capacity: u64,
    head: u64,
}

// SAFETY: raw memory that is meant to be fought over; every access is volatile or atomic.
unsafe impl Send for RawRing {}
// SAFETY: as above.
unsafe impl Sync for RawRing {}

impl RawRing {
    pub(super) fn map(fd: BorrowedFd<'_>, layout: &Layout, head: u64) -> RawRing {
        let len = layout.region_bytes().expect("the worker's layout is valid") as usize;
        // SAFETY: a new mapping.
        let base = unsafe {
            let prot = ProtFlags::READ | ProtFlags::WRITE;
            rustix::mm::mmap(std::ptr::null_mut(), len, prot, MapFlags::SHARED, fd, 0)
                .expect("the region can be mapped")
        };
        let flags = (LANES + layout.lanes as usize * LANE).next_multiple_of(PAGE);
        let ring = flags + layout.flags as usize * 8;
        RawRing { base: base.cast::<c_void>().cast(), len, ring, capacity: layout.ring_bytes, head }
    }

    /// An attack that writes elsewhere than it thinks would prove nothing: a message of the session must be found where
    /// the ring is believed to be.
    pub(super) fn check(&mut self, session: &mut Session) {
        let position = session.client.position();
        assert_eq!(self.read_word(HEAD), position, "the ring's head lies elsewhere");
        session.ask(&MemInfo {}, |_| ());
        let header = self.read_word(self.ring + (position % self.capacity) as usize);
        assert_eq!(header >> 32 & 0xffff, u64::from(MemInfo::CODE), "the ring lies elsewhere: {header:#x}");
        self.head = session.client.position();
    }

    /// Writes bytes anywhere.
    pub(super) fn write(&self, at: usize, bytes: &[u8]) {
        for (index, byte) in bytes.iter().enumerate() {
            if at + index < self.len {
                // SAFETY: within the mapping.
                unsafe { self.base.add(at + index).write_volatile(*byte) };
            }
        }
    }

    /// Where the payload of a record lies that begins at this position.
    pub(super) fn payload(&self, position: u64) -> usize {
        self.ring + (position % self.capacity) as usize + size_of::<RecordHeader>()
    }

    /// Writes a word at once, where it is aligned.
    pub(super) fn write_word(&self, at: usize, word: u64) {
        assert!(at.is_multiple_of(8) && at + 8 <= self.len, "within the region");
        // SAFETY: within the mapping, and aligned.
        unsafe { AtomicU64::from_ptr(self.base.add(at).cast()) }.store(word, Ordering::SeqCst);
    }

    pub(super) fn read_word(&self, at: usize) -> u64 {
        assert!(at.is_multiple_of(8) && at + 8 <= self.len, "within the region");
        // SAFETY: within the mapping, and aligned.
        unsafe { AtomicU64::from_ptr(self.base.add(at).cast()) }.load(Ordering::SeqCst)
    }

    /// Are these eight bytes anywhere in the region?
    pub(super) fn contains(&self, word: &[u8; 8]) -> bool {
        let word = u64::from_le_bytes(*word);
        // SAFETY: within the mapping, and aligned.
        (0..self.len / 8).any(|at| unsafe { self.base.cast::<u64>().add(at).read_volatile() } == word)
    }

    /// Puts a record where the next one belongs, moves the head by its footprint or as told, and rings.
    pub(super) fn post(&mut self, header: RecordHeader, payload: &[u8], advance: Option<u64>) {
        let place = self.ring + (self.head % self.capacity) as usize;
        let room = (self.capacity - self.head % self.capacity) as usize;
        let record = [header.as_bytes(), payload].concat();
        self.write(place, &record[..record.len().min(room)]);
        self.head = self.head.wrapping_add(advance.unwrap_or((record.len() as u64).next_multiple_of(64)));
        self.publish(self.head);
    }

    pub(super) fn publish(&self, head: u64) {
        // SAFETY: within the mapping, and aligned.
        unsafe { AtomicU64::from_ptr(self.base.add(HEAD).cast()) }.store(head, Ordering::SeqCst);
        // SAFETY: as above.
        let (signal, sleeping) = unsafe {
            (
                AtomicU32::from_ptr(self.base.add(POSTED_BELL).cast()),
                AtomicU32::from_ptr(self.base.add(POSTED_BELL + 4).cast()),
            )
        };
        sleeping.store(0, Ordering::SeqCst);
        signal.fetch_add(1, Ordering::SeqCst);
        // SAFETY: wakes threads that sleep on a word that we map.
        unsafe { libc::syscall(libc::SYS_futex, signal.as_ptr(), libc::FUTEX_WAKE, i32::MAX, 0, 0, 0) };
    }
}

impl Drop for RawRing {
    fn drop(&mut self) {
        // SAFETY: our own mapping.
        let _ = unsafe { rustix::mm::munmap(self.base.cast(), self.len) };
    }
}
