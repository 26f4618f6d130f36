//! A forked child has a private copy of registered memory, as natively.
//!
//! Registered pages are shared memory, so a fork leaves them out of the child. The contents are copied before the fork:
//! what the parent writes right after it must not show in the child. The parent gives the copy up afterwards, the child
//! moves it to where the pages were. The registry stays locked in between, and in the child for good: there is no
//! session in it, so nothing there looks at the registry again.

use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::lock_api::MutexGuard;

use super::maps;
use super::pages::{REGISTRY, Registry};

/// Has forks take care of registered memory from now on. Must not be called with the registry locked: the C library may
/// hold a lock of its own over a fork's handlers.
pub(super) fn install() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        // SAFETY: the handlers stay loaded: this library is never unloaded once a session is open.
        unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) };
    });
}

/// Set in a forked child, whose own forks are none of our business.
static IS_CHILD: AtomicBool = AtomicBool::new(false);

extern "C" fn before() {
    if IS_CHILD.load(Ordering::Relaxed) {
        return;
    }
    let mut registry = REGISTRY.lock();
    if !registry.shared.is_empty()
        && let Err(error) = copy_all(&mut registry)
    {
        eprintln!("bulkhead: a forked child does not get all of its registered memory: {error}");
    }
    // Unlocked after the fork.
    MutexGuard::leak(registry);
}

fn copy_all(registry: &mut Registry) -> std::io::Result<()> {
    let mapped = maps::read()?;
    for shared in &registry.shared {
        for private in shared.make_room(&mapped)? {
            // SAFETY: what is in the registry has its alias.
            unsafe { private.copy() }?;
            registry.for_child.push(private);
        }
    }
    Ok(())
}

extern "C" fn in_parent() {
    if IS_CHILD.load(Ordering::Relaxed) {
        return;
    }
    // SAFETY: this thread locked the registry before the fork.
    unsafe {
        (*REGISTRY.data_ptr()).for_child.clear();
        REGISTRY.force_unlock();
    }
}

/// Other threads' locks, the allocator's for one, may be held for ever here: system calls only.
extern "C" fn in_child() {
    if IS_CHILD.swap(true, Ordering::Relaxed) {
        return;
    }
    // SAFETY: this thread locked the registry before the fork, and is the only one here. The fork left holes where the
    // copies go.
    unsafe {
        for private in &(*REGISTRY.data_ptr()).for_child {
            let _ = private.move_into_place();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;
    use std::sync::atomic::AtomicU64;

    use parking_lot::Mutex;

    use super::super::arena::{Arena, make_file};
    use super::super::{PAGE, maps::Backing, pages};
    use super::*;

    /// A fork sees what all tests have shared, so one runs at a time.
    static ALONE: Mutex<()> = Mutex::new(());
    const LEN: u64 = 4 * PAGE;

    fn words(base: u64) -> &'static [AtomicU64] {
        // SAFETY: every test maps this much and never unmaps what it looks at.
        unsafe { std::slice::from_raw_parts(base as *const _, LEN as usize / 8) }
    }

    fn map(flags: i32, file: i32) -> u64 {
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), LEN as usize, prot, flags, file, 0) };
        assert_ne!(start, libc::MAP_FAILED);
        start as u64
    }

    fn private_pages() -> u64 {
        map(libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1)
    }

    /// Gives the alias, which stands for the worker's mapping too.
    fn share(base: u64) -> u64 {
        let file = make_file(LEN).unwrap();
        let alias = map(libc::MAP_SHARED, file.as_raw_fd());
        // SAFETY: private pages of the test's own.
        unsafe { pages::share(base, alias, LEN, &Arena::File(file)) }.unwrap();
        alias
    }

    fn unshare(base: u64) {
        let rooms = pages::find(base).unwrap().make_room(&maps::read().unwrap()).unwrap();
        // SAFETY: just made.
        unsafe { pages::unshare(base, rooms) }.unwrap();
    }

    fn backing(base: u64, len: u64) -> Backing {
        maps::backing(&maps::read().unwrap(), base, len)
    }

    #[test]
    fn pages_are_shared_and_private_again() {
        let _alone = ALONE.lock();
        let base = private_pages();
        words(base)[3].store(7, Ordering::Relaxed);
        let alias = share(base);
        assert!(matches!(backing(base, LEN), Backing::Other(_)));
        let there = words(alias);
        assert_eq!(there[3].load(Ordering::Relaxed), 7);
        there[600].store(8, Ordering::Relaxed);
        assert_eq!(words(base)[600].load(Ordering::Relaxed), 8);
        unshare(base);
        assert_eq!(backing(base, LEN), Backing::Private);
        there[3].store(9, Ordering::Relaxed);
        assert_eq!(words(base)[3].load(Ordering::Relaxed), 7);
        assert_eq!(words(base)[600].load(Ordering::Relaxed), 8);
    }

    #[test]
    fn what_the_program_mapped_over_it_stays() {
        let _alone = ALONE.lock();
        let base = private_pages();
        words(base)[0].store(1, Ordering::Relaxed);
        share(base);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        // SAFETY: pages of the test's own; a read-only page has no writers.
        unsafe {
            libc::mmap((base + PAGE) as *mut _, PAGE as usize, libc::PROT_READ, flags, -1, 0);
            libc::munmap((base + 2 * PAGE) as *mut _, PAGE as usize);
            libc::mprotect((base + 3 * PAGE) as *mut _, PAGE as usize, libc::PROT_NONE);
        }
        unshare(base);
        assert_eq!(words(base)[0].load(Ordering::Relaxed), 1);
        let mapped = maps::read().unwrap();
        let at = |place: u64| mapped.iter().find(|part| part.range.contains(&place));
        assert_eq!(at(base).unwrap().protection(), libc::PROT_READ | libc::PROT_WRITE);
        assert_eq!(at(base + PAGE).unwrap().protection(), libc::PROT_READ);
        assert!(at(base + 2 * PAGE).is_none_or(|part| part.file.inode == 0 || !part.shared));
        assert_eq!(at(base + 3 * PAGE).unwrap().protection(), libc::PROT_NONE);
        assert!(!at(base + 3 * PAGE).unwrap().shared);
    }

    #[test]
    fn a_child_has_its_own() {
        let _alone = ALONE.lock();
        install();
        let base = private_pages();
        words(base)[0].store(1, Ordering::Relaxed);
        let alias = share(base);
        // SAFETY: the child does nothing but loads, stores and its exit.
        let status = unsafe {
            let child = libc::fork();
            if child == 0 {
                let seen = words(base)[0].load(Ordering::Relaxed);
                words(base)[0].store(5, Ordering::Relaxed);
                libc::_exit(if seen == 1 { 0 } else { 1 });
            }
            words(base)[0].store(2, Ordering::Relaxed);
            let mut status = -1;
            assert_eq!(libc::waitpid(child, &mut status, 0), child);
            status
        };
        assert_eq!(status, 0);
        assert_eq!(words(base)[0].load(Ordering::Relaxed), 2);
        assert_eq!(words(alias)[0].load(Ordering::Relaxed), 2);
        assert!(REGISTRY.lock().for_child.is_empty());
        unshare(base);
    }
}
