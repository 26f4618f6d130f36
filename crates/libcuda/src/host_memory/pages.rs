//! Swapping pages of this process for others with the same contents.
//!
//! Registered memory becomes pages of a file of ours, which the worker maps too; unregistering puts private memory back.
//! Each swap copies the contents to where the new pages are mapped already, then maps those over the old ones in one
//! step. What another thread writes between the copy and that step is lost: a program that registers memory while it
//! writes to it must expect that.
//!
//! The file is mapped twice here: where the program has its memory, and at the alias, which the program cannot take away
//! or protect. The registry holds what is shared right now. A fork takes its lock, so it never sees a swap half done.

use std::io;
use std::os::fd::AsRawFd;

use parking_lot::Mutex;

use super::arena::Arena;
use super::maps::{File, Mapped};

/// Pages of ours somewhere, unmapped when they go.
#[derive(Debug)]
struct Mapping {
    start: u64,
    len: u64,
}

impl Mapping {
    fn anonymous(len: u64) -> io::Result<Mapping> {
        let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping at a place the kernel picks.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), len as usize, prot, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Mapping { start: start as u64, len })
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
pub(super) struct Shared {
    base: u64,
    len: u64,
    alias: u64,
    file: File,
    /// Where in the file the range begins.
    offset: u64,
}

/// Private pages for a part of shared memory.
#[derive(Debug)]
pub(super) struct Private {
    room: Mapping,
    /// Where they go.
    place: u64,
    /// Where the contents are.
    source: u64,
    /// What the program may do with the pages it has there.
    protection: i32,
}

impl Shared {
    /// Room for private copies of what is still there: a program may unmap its memory without unregistering it, and map
    /// something else there.
    pub(super) fn make_room(&self, mapped: &[Mapped]) -> io::Result<Vec<Private>> {
        let mut rooms = Vec::new();
        for part in mapped.iter().filter(|part| part.shared && part.file == self.file) {
            let inside = part.range.start >= self.base && part.range.end <= self.base + self.len;
            let within = part.range.start.wrapping_sub(self.base);
            if inside && part.offset == self.offset + within {
                let room = Mapping::anonymous(part.range.end - part.range.start)?;
                let (place, source) = (part.range.start, self.alias + within);
                rooms.push(Private { room, place, source, protection: part.protection() });
            }
        }
        Ok(rooms)
    }
}

impl Private {
    /// Copies the contents.
    ///
    /// # Safety
    /// The alias must still be mapped.
    pub(super) unsafe fn copy(&self) -> io::Result<()> {
        let (start, len) = (self.room.start as *mut u8, self.room.len as usize);
        // SAFETY: the room is ours alone; the caller vouches for the source.
        unsafe {
            std::ptr::copy_nonoverlapping(self.source as *const u8, start, len);
            check(libc::mprotect(start.cast(), len, self.protection))
        }
    }

    /// Puts the copy into place. Makes one system call and nothing else. Once it is there the room is not to be dropped.
    ///
    /// # Safety
    /// The place must be the part's, or nobody's.
    pub(super) unsafe fn move_into_place(&self) -> io::Result<()> {
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        let (start, len) = (self.room.start as *mut libc::c_void, self.room.len as usize);
        // SAFETY: the caller's promise.
        let moved = unsafe { libc::mremap(start, len, len, flags, self.place as *mut libc::c_void) };
        if moved == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

pub(super) struct Registry {
    pub shared: Vec<Shared>,
    /// What a forked child gets; filled only while a fork is under way.
    pub for_child: Vec<Private>,
}

pub(super) static REGISTRY: Mutex<Registry> = Mutex::new(Registry { shared: Vec::new(), for_child: Vec::new() });

/// Makes `[base, base + len)` pages of the arena, which is mapped at `alias` already.
///
/// # Safety
/// The range must be private memory, and the arena as long.
pub(super) unsafe fn share(base: u64, alias: u64, len: u64, arena: &Arena) -> io::Result<()> {
    let (file, offset) = arena.place();
    // SAFETY: integers.
    let mut about: libc::stat64 = unsafe { std::mem::zeroed() };
    // SAFETY: the output is a local.
    check(unsafe { libc::fstat64(file.as_raw_fd(), &mut about) })?;
    let (major, minor) = (libc::major(about.st_dev), libc::minor(about.st_dev));
    let shared = Shared { base, len, alias, file: File { major, minor, inode: about.st_ino }, offset };
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_SHARED | libc::MAP_FIXED | libc::MAP_POPULATE;
    let mut registry = REGISTRY.lock();
    // SAFETY: the caller's promise: the range is readable, and the same bytes are there afterwards.
    unsafe {
        std::ptr::copy_nonoverlapping(base as *const u8, alias as *mut u8, len as usize);
        let mapped = libc::mmap(base as *mut _, len as usize, prot, flags, file.as_raw_fd(), offset as libc::off_t);
        if mapped == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // A forked child gets a copy instead.
        libc::madvise(mapped, len as usize, libc::MADV_DONTFORK);
    }
    registry.shared.push(shared);
    Ok(())
}

/// What is shared at this address.
pub(super) fn find(base: u64) -> Option<Shared> {
    REGISTRY.lock().shared.iter().find(|shared| shared.base == base).copied()
}

/// Makes the range private memory again.
///
/// # Safety
/// `rooms` must be what `make_room` just gave for the range, and its alias still be mapped.
pub(super) unsafe fn unshare(base: u64, rooms: Vec<Private>) -> io::Result<()> {
    let mut registry = REGISTRY.lock();
    registry.shared.retain(|shared| shared.base != base);
    for private in rooms {
        // SAFETY: these parts hold the file's pages, and the same bytes are there afterwards.
        unsafe {
            private.copy()?;
            private.move_into_place()?;
        }
        std::mem::forget(private.room);
    }
    Ok(())
}
