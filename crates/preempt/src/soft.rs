//! The work of a worker on the software GPU.
//!
//! Its threads look at a word of a shared page whenever they look up from a kernel (every millisecond, also in a loop that
//! never ends), and sleep while it says *stopped*. So calls go on that need no kernel, as they do on a GPU whose channels
//! are disabled; a process that is stopped as a whole (`SIGSTOP`, the freezer) would not even answer `cuMemAlloc`.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};
use rustix::thread::futex;

use crate::preemptor::{Costs, PreemptError, Preemptor};

const SIZE: usize = 4096;
/// A kernel looks up every millisecond; on a busy machine its threads may not run for a while.
const STOP_TIMEOUT: Duration = Duration::from_secs(2);
const LOOK_EVERY: Duration = Duration::from_micros(200);

/// The words of the page.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Words {
    /// 1 while no kernel may run.
    pub stopped: AtomicU32,
    /// Threads that run kernels.
    pub running: AtomicU32,
    slice: AtomicU64,
}

/// The page in memory.
struct Mapping(NonNull<Words>);

// SAFETY: the words are atomics, and are mapped as long as this lives.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn new(page: impl AsFd) -> io::Result<Self> {
        // Of a smaller file, reads would end us.
        let seals = rustix::fs::fcntl_get_seals(&page)?;
        if !seals.contains(SealFlags::SHRINK) || rustix::fs::fstat(&page)?.st_size < SIZE as i64 {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the size of the page is not sealed"));
        }
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let start = unsafe { rustix::mm::mmap(std::ptr::null_mut(), SIZE, prot, MapFlags::SHARED, page, 0)? };
        NonNull::new(start.cast()).map(Self).ok_or_else(|| io::ErrorKind::OutOfMemory.into())
    }

    fn words(&self) -> &Words {
        // SAFETY: mapped while `self` lives, aligned to a page, and any bytes are valid atomics.
        unsafe { self.0.as_ref() }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and nobody borrows from it any more.
        let _ = unsafe { rustix::mm::munmap(self.0.as_ptr().cast(), SIZE) };
    }
}

/// Makes the page of this process's software GPU; its words are there for as long as the process is.
pub fn make_page() -> io::Result<(OwnedFd, &'static Words)> {
    let page = rustix::fs::memfd_create("bulkhead-soft-run", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    rustix::fs::ftruncate(&page, SIZE as u64)?;
    rustix::fs::fcntl_add_seals(&page, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    let mapping = Box::leak(Box::new(Mapping::new(&page)?));
    Ok((page, mapping.words()))
}

/// A software GPU, by its page.
pub struct Soft(Mapping);

impl Soft {
    /// Over the page of a worker.
    pub fn new(page: impl AsFd) -> io::Result<Self> {
        Ok(Self(Mapping::new(page)?))
    }
}

impl Preemptor for Soft {
    fn costs(&self) -> Costs {
        let tick = Duration::from_millis(1);
        Costs { slice: Duration::ZERO, stop: tick, stop_endless: tick, resume: Duration::from_micros(50) }
    }

    /// The kernel's scheduler shares the processors; the word only says what was asked for.
    fn set_slice(&mut self, slice: Duration) -> Result<(), PreemptError> {
        self.0.words().slice.store(slice.as_micros() as u64, Ordering::Relaxed);
        Ok(())
    }

    fn stop(&mut self) -> Result<(), PreemptError> {
        let words = self.0.words();
        // SYNC POINT: who stops sets the word before it counts who runs; who runs is counted before it reads the word.
        words.stopped.store(1, Ordering::SeqCst);
        let start = Instant::now();
        while words.running.load(Ordering::SeqCst) > 0 {
            if start.elapsed() > STOP_TIMEOUT {
                let _ = self.resume();
                return Err(PreemptError::StillRunning(STOP_TIMEOUT));
            }
            std::thread::sleep(LOOK_EVERY);
        }
        Ok(())
    }

    fn resume(&mut self) -> Result<(), PreemptError> {
        let words = self.0.words();
        words.stopped.store(0, Ordering::SeqCst);
        let _ = futex::wake(&words.stopped, futex::Flags::empty(), i32::MAX as u32);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_that_does_not_stop_is_let_go_on() {
        let (page, words) = make_page().unwrap();
        let mut soft = Soft::new(&page).unwrap();
        soft.stop().unwrap();
        assert_eq!(words.stopped.load(Ordering::SeqCst), 1);
        soft.resume().unwrap();
        words.running.store(1, Ordering::SeqCst);
        assert!(matches!(soft.stop(), Err(PreemptError::StillRunning(_))));
        assert_eq!(words.stopped.load(Ordering::SeqCst), 0);
    }

    #[test]
    fn a_page_that_could_shrink_is_refused() {
        let page = rustix::fs::memfd_create("page", MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&page, SIZE as u64).unwrap();
        assert!(Soft::new(&page).is_err());
        assert!(Soft::new(std::fs::File::open("/dev/null").unwrap()).is_err());
    }
}
