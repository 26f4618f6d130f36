//! Swapping pages of this process for others with the same contents.
//!
//! Registered memory becomes shared memory at the address where the program has it, so that the worker can map it too;
//! unregistering puts private memory back. Each swap copies into a mapping elsewhere, then moves that mapping over the
//! pages in one step. What another thread writes to the pages between the copy and the move is lost: a program that
//! registers memory while it writes to it must expect that.
//!
//! The registry holds what is shared right now. A fork takes its lock, so it never sees a swap half done.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use parking_lot::Mutex;

use super::maps::{File, Mapped};

/// Pages of ours somewhere, unmapped when they go.
#[derive(Debug)]
pub struct Mapping {
    start: u64,
    len: u64,
}

impl Mapping {
    pub fn anonymous(len: u64) -> io::Result<Mapping> {
        Mapping::new(len, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1)
    }

    /// The pages of a file, touched here first, so that they are charged to this process's cgroup. A fork leaves them
    /// out.
    pub fn of_file(file: &OwnedFd, len: u64) -> io::Result<Mapping> {
        let mapping = Mapping::new(len, libc::MAP_SHARED | libc::MAP_POPULATE, file.as_raw_fd())?;
        // SAFETY: a mapping of ours.
        check(unsafe { libc::madvise(mapping.start as *mut _, len as usize, libc::MADV_DONTFORK) })?;
        Ok(mapping)
    }

    fn new(len: u64, flags: i32, file: i32) -> io::Result<Mapping> {
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at a place the kernel picks.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), len as usize, prot, flags, file, 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Mapping { start: start as u64, len })
    }

    #[cfg(test)]
    pub fn start(&self) -> u64 {
        self.start
    }

    /// Copies as many bytes from `source` as there is room for.
    ///
    /// # Safety
    /// `source` must be readable.
    unsafe fn fill(&self, source: u64) {
        // SAFETY: the mapping is ours alone and writable; the caller vouches for the source.
        unsafe { std::ptr::copy_nonoverlapping(source as *const u8, self.start as *mut u8, self.len as usize) };
    }

    /// Puts these pages in the place of those at `place`. Makes one system call and nothing else.
    ///
    /// # Safety
    /// Nothing may depend on what was mapped at `place`.
    pub unsafe fn move_to(&self, place: u64) -> io::Result<()> {
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        let (start, len) = (self.start as *mut libc::c_void, self.len as usize);
        // SAFETY: the caller's promise.
        let moved = unsafe { libc::mremap(start, len, len, flags, place as *mut libc::c_void) };
        if moved == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// As `move_to`, after which there is nothing left to unmap.
    ///
    /// # Safety
    /// As `move_to`.
    unsafe fn put_over(self, place: u64) -> io::Result<()> {
        // SAFETY: passed on.
        unsafe { self.move_to(place) }?;
        std::mem::forget(self);
        Ok(())
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: a mapping of ours that nobody has a pointer to any more.
        unsafe { libc::munmap(self.start as *mut _, self.len as usize) };
    }
}

fn check(result: i32) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// A range of the program's memory that is pages of a file of ours.
#[derive(Clone, Copy, Debug)]
pub struct Shared {
    pub base: u64,
    pub len: u64,
    file: File,
}

/// Private pages for a part of shared memory.
#[derive(Debug)]
pub struct Private {
    room: Mapping,
    pub place: u64,
    protection: i32,
}

impl Shared {
    /// Room for private copies of what is still there: a program may unmap its memory without unregistering it, and map
    /// something else there.
    pub fn make_room(&self, mapped: &[Mapped]) -> io::Result<Vec<Private>> {
        let mut rooms = Vec::new();
        for part in mapped.iter().filter(|part| part.shared && part.file == self.file) {
            let inside = part.range.start >= self.base && part.range.end <= self.base + self.len;
            if inside && part.offset == part.range.start - self.base {
                let room = Mapping::anonymous(part.range.end - part.range.start)?;
                rooms.push(Private { room, place: part.range.start, protection: part.protection() });
            }
        }
        Ok(rooms)
    }
}

impl Private {
    /// Copies the contents, and takes on the protection that the program gave the pages.
    ///
    /// # Safety
    /// The part must still be mapped.
    pub unsafe fn copy(&self) -> io::Result<()> {
        let (place, start, len) = (self.place as *mut _, self.room.start as *mut _, self.room.len as usize);
        let readable = self.protection & libc::PROT_READ != 0;
        // SAFETY: the part is mapped, by the caller's promise, and made readable for the moment of the copy.
        unsafe {
            if !readable {
                check(libc::mprotect(place, len, self.protection | libc::PROT_READ))?;
            }
            self.room.fill(self.place);
            if !readable {
                check(libc::mprotect(place, len, self.protection))?;
            }
            check(libc::mprotect(start, len, self.protection))
        }
    }

    /// Puts the private pages into place. Makes one system call and nothing else.
    ///
    /// # Safety
    /// As `Mapping::move_to`.
    pub unsafe fn move_into_place(&self) -> io::Result<()> {
        // SAFETY: passed on.
        unsafe { self.room.move_to(self.place) }
    }
}

pub struct Registry {
    pub shared: Vec<Shared>,
    /// What a forked child gets; filled only while a fork is under way.
    pub for_child: Vec<Private>,
}

pub static REGISTRY: Mutex<Registry> = Mutex::new(Registry { shared: Vec::new(), for_child: Vec::new() });

/// Makes `[base, base + room's length)` pages of the file that `room` maps.
///
/// # Safety
/// The range must be private memory, and `room` the whole of `file`.
pub unsafe fn share(base: u64, file: &OwnedFd, room: Mapping) -> io::Result<()> {
    // SAFETY: integers.
    let mut about: libc::stat64 = unsafe { std::mem::zeroed() };
    // SAFETY: the output is a local.
    check(unsafe { libc::fstat64(file.as_raw_fd(), &mut about) })?;
    let (major, minor) = (libc::major(about.st_dev), libc::minor(about.st_dev));
    let shared = Shared { base, len: room.len, file: File { major, minor, inode: about.st_ino } };
    let mut registry = REGISTRY.lock();
    // SAFETY: the caller's promise: the range is readable, and the same bytes are there afterwards.
    unsafe {
        room.fill(base);
        room.put_over(base)?;
    }
    registry.shared.push(shared);
    Ok(())
}

/// What is shared at this address.
pub fn find(base: u64) -> Option<Shared> {
    REGISTRY.lock().shared.iter().find(|shared| shared.base == base).copied()
}

/// Makes the range private memory again.
///
/// # Safety
/// `rooms` must be what `make_room` just gave for the range.
pub unsafe fn unshare(base: u64, rooms: Vec<Private>) -> io::Result<()> {
    let mut registry = REGISTRY.lock();
    registry.shared.retain(|shared| shared.base != base);
    for private in rooms {
        // SAFETY: these parts hold the file's pages, and the same bytes are there afterwards.
        unsafe {
            private.copy()?;
            private.room.put_over(private.place)?;
        }
    }
    Ok(())
}
