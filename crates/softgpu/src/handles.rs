//! Handles are numbers, never addresses: what a caller passes is looked up, so garbage is an error and not a crash.
//! Numbers are never used again, so a handle of something destroyed stays invalid for ever.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cuda_abi::error::{CUDA_ERROR_INVALID_HANDLE, CUDA_ERROR_INVALID_VALUE};
use parking_lot::RwLock;

use super::abi::CudaResult;

/// What belongs to a context and ends with it.
pub(crate) trait Owned {
    /// The context's id.
    fn owner(&self) -> u64;
}

/// All live objects of one kind.
pub(crate) struct Table<T> {
    kind: u64,
    next: AtomicU64,
    live: RwLock<BTreeMap<u64, Arc<T>>>,
}

impl<T> Table<T> {
    /// `kind` tells the handles of different tables apart.
    pub(crate) const fn new(kind: u64) -> Self {
        Table { kind, next: AtomicU64::new(1), live: RwLock::new(BTreeMap::new()) }
    }

    /// Enters an object that wants to know its own handle.
    pub(crate) fn insert_with(&self, make: impl FnOnce(u64) -> T) -> (u64, Arc<T>) {
        // The low bits stay clear: callers may expect the alignment of a pointer.
        let handle = self.kind << 48 | self.next.fetch_add(1, Ordering::Relaxed) << 4;
        let object = Arc::new(make(handle));
        self.live.write().insert(handle, object.clone());
        (handle, object)
    }

    pub(crate) fn insert(&self, object: T) -> u64 {
        self.insert_with(|_| object).0
    }

    /// Enters an object again under the handle that it had.
    pub(crate) fn restore(&self, handle: u64, object: Arc<T>) {
        self.live.write().insert(handle, object);
    }

    /// The object of a handle. NULL is `CUDA_ERROR_INVALID_VALUE` for what has no default, as natively.
    pub(crate) fn get(&self, handle: u64) -> CudaResult<Arc<T>> {
        if handle == 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        self.live.read().get(&handle).cloned().ok_or(CUDA_ERROR_INVALID_HANDLE)
    }

    /// The handle of an object.
    pub(crate) fn find(&self, is_it: impl Fn(&T) -> bool) -> Option<u64> {
        self.live.read().iter().find(|(_, object)| is_it(object)).map(|(handle, _)| *handle)
    }

    /// Takes out what does not stay.
    pub(crate) fn retain(&self, stays: impl Fn(&T) -> bool) {
        self.live.write().retain(|_, object| stays(object));
    }

    /// Visits every live object.
    pub(crate) fn for_each(&self, visit: impl Fn(&T)) {
        self.live.read().values().for_each(|object| visit(object));
    }

    pub(crate) fn remove(&self, handle: u64) -> CudaResult<Arc<T>> {
        if handle == 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        self.live.write().remove(&handle).ok_or(CUDA_ERROR_INVALID_HANDLE)
    }
}

impl<T: Owned> Table<T> {
    /// Takes out everything that a context owns.
    pub(crate) fn remove_owned(&self, owner: u64) -> Vec<Arc<T>> {
        let mut live = self.live.write();
        let handles: Vec<u64> = live.iter().filter(|(_, object)| object.owner() == owner).map(|(h, _)| *h).collect();
        handles.iter().filter_map(|handle| live.remove(handle)).collect()
    }

    /// The same, telling `gone` each handle.
    pub(crate) fn forget(&self, owner: u64, gone: impl Fn(u64)) {
        self.live.write().retain(|handle, object| {
            let keep = object.owner() != owner;
            if !keep {
                gone(*handle);
            }
            keep
        });
    }
}

/// A handle as C sees it.
pub(crate) fn out(handle: u64) -> *mut c_void {
    handle as usize as *mut c_void
}

/// A handle as C gave it.
pub(crate) fn of(handle: *mut c_void) -> u64 {
    handle as usize as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_are_never_used_again() {
        let table = Table::new(7);
        let first = table.insert("a");
        assert_eq!(*table.get(first).unwrap(), "a");
        table.remove(first).unwrap();
        let second = table.insert("b");
        assert_ne!(first, second);
        assert_eq!(table.get(first), Err(CUDA_ERROR_INVALID_HANDLE));
        assert_eq!(table.get(0), Err(CUDA_ERROR_INVALID_VALUE));
    }
}
