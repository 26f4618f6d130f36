//! Host memory that holds what was on the GPU.
//!
//! It is memory of this worker's, so the cgroup of its zone pays for it, and it goes with the process, however that ends. It
//! is never written to swap: it is locked as it is touched, and where this process may not lock so much, the workers' cgroup
//! has no swap (`sandbox::cgroup`). It is in no core dump either. Huge pages save most of the time that touching fresh
//! memory takes.

use std::io;

use rustix::mm::{Advice, MapFlags, MlockFlags, ProtFlags};

const HUGE: usize = 2 << 20;

pub(super) struct HostStore {
    /// As the kernel gave it, and its length.
    mapping: (*mut u8, usize),
    start: *mut u8,
    len: usize,
}

// SAFETY: plain memory; who writes where is up to those who copy.
unsafe impl Send for HostStore {}
// SAFETY: as above.
unsafe impl Sync for HostStore {}

impl HostStore {
    /// So many bytes, of which none is there until it is written.
    pub(super) fn new(len: u64) -> io::Result<Self> {
        let too_long = || io::Error::from(io::ErrorKind::OutOfMemory);
        let len = usize::try_from(len).map_err(|_| too_long())?.max(1);
        let room = len.checked_add(HUGE).ok_or_else(too_long)?;
        let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::NORESERVE);
        // SAFETY: a new mapping at a place that the kernel chooses.
        let mapped = unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), room, prot, flags)? }.cast::<u8>();
        let start = mapped.wrapping_add(mapped.align_offset(HUGE));
        for advice in [Advice::LinuxHugepage, Advice::LinuxDontDump, Advice::LinuxDontFork] {
            // SAFETY: our own mapping, of which nobody knows yet. Where the kernel does not want to, it works without.
            let _ = unsafe { rustix::mm::madvise(mapped.cast(), room, advice) };
        }
        // SAFETY: as above.
        let _ = unsafe { rustix::mm::mlock_with(mapped.cast(), room, MlockFlags::ONFAULT) };
        Ok(Self { mapping: (mapped, room), start, len })
    }

    /// Where a stretch of it begins.
    ///
    /// # Panics
    /// If it has no such stretch.
    pub(super) fn at(&self, offset: u64, len: u64) -> *mut u8 {
        let end = offset.checked_add(len).and_then(|end| usize::try_from(end).ok());
        assert!(end.is_some_and(|end| end <= self.len), "a stretch beyond the end of the store");
        self.start.wrapping_add(offset as usize)
    }
}

impl Drop for HostStore {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, and nobody copies any more.
        let _ = unsafe { rustix::mm::munmap(self.mapping.0.cast(), self.mapping.1) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_has_as_much_as_was_asked_for_and_no_more() {
        let store = HostStore::new(3 * HUGE as u64).unwrap();
        assert!((store.at(0, 1) as usize).is_multiple_of(HUGE), "huge pages fit");
        // SAFETY: the last byte of it.
        unsafe { store.at(3 * HUGE as u64 - 1, 1).write(7) };
        assert!(std::panic::catch_unwind(|| store.at(3 * HUGE as u64, 1)).is_err());
        assert!(std::panic::catch_unwind(|| store.at(u64::MAX, 2)).is_err());
        assert!(HostStore::new(u64::MAX).is_err());
    }
}
