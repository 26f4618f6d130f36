//! Modules and libraries, as what functions and kernels come from and go with.

use std::collections::HashMap;
use std::ffi::{CStr, CString};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cuda_abi::wire::Kind;
use parking_lot::{Mutex, RwLock};

use crate::handles;

static KNOWN: RwLock<Option<HashMap<u64, Arc<Owner>>>> = RwLock::new(None);

/// A module or library.
#[derive(Default)]
pub(crate) struct Owner {
    gone: AtomicBool,
    /// The library of a module that is one's.
    parent: Option<Arc<Owner>>,
    /// Functions or kernels by name, as they were looked up.
    names: Mutex<HashMap<CString, u64>>,
}

impl Owner {
    /// The one with this handle, which is live.
    pub(crate) fn of(word: u64) -> Arc<Owner> {
        if let Some(owner) = KNOWN.read().as_ref().and_then(|known| known.get(&word)) {
            return owner.clone();
        }
        KNOWN.write().get_or_insert_default().entry(word).or_default().clone()
    }

    #[inline]
    pub(crate) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire) || self.parent.as_ref().is_some_and(|parent| parent.is_gone())
    }

    /// What was looked up here by this name, if it is still there.
    pub(crate) fn named(&self, name: &CStr) -> Option<u64> {
        let word = *self.names.lock().get(name)?;
        handles::check(Kind::Function, word).ok()
    }

    pub(crate) fn name(&self, name: &CStr, word: u64) {
        self.names.lock().insert(name.to_owned(), word);
    }
}

/// A module that is a library's goes with the library.
pub(crate) fn adopt(module: u64, library: u64) {
    let parent = Some(Owner::of(library));
    let mut known = KNOWN.write();
    let known = known.get_or_insert_default();
    if known.get(&module).is_none_or(|owner| owner.parent.is_none()) {
        known.insert(module, Arc::new(Owner { parent, ..Owner::default() }));
    }
}

/// A module or library was unloaded, or went with its context: so have its functions.
pub(crate) fn gone(word: u64) {
    if let Some(owner) = KNOWN.write().as_mut().and_then(|known| known.remove(&word)) {
        owner.gone.store(true, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_came_from_a_library_goes_with_it() {
        const LIBRARY: u64 = 0x1111;
        const MODULE: u64 = 0x2222;
        const OTHER: u64 = 0x3333;
        adopt(MODULE, LIBRARY);
        let [library, module, other] = [LIBRARY, MODULE, OTHER].map(Owner::of);
        adopt(MODULE, LIBRARY);
        assert!(Arc::ptr_eq(&module, &Owner::of(MODULE)), "asked for twice, it is the same module");
        assert!(!library.is_gone() && !module.is_gone());
        gone(LIBRARY);
        assert!(library.is_gone() && module.is_gone() && !other.is_gone());
        // A handle of the same number later is another library.
        assert!(!Owner::of(LIBRARY).is_gone());
    }
}
