//! Context-local storage: values that libraries (each copy of libcudart) attach to a context.

use std::collections::HashMap;

use cuda_abi::error::*;
use cuda_abi::types::*;
use parking_lot::RwLock;

/// Called when the context goes.
pub(crate) type Destructor = Option<unsafe extern "C" fn(CUcontext, *mut c_void, *mut c_void)>;

struct Stored {
    value: usize,
    destructor: Destructor,
}

type Values = HashMap<(u64, usize), Stored>;

static VALUES: RwLock<Option<Values>> = RwLock::new(None);

pub(crate) fn put(context: u64, key: usize, value: usize, destructor: Destructor) {
    VALUES.write().get_or_insert_default().insert((context, key), Stored { value, destructor });
}

pub(crate) fn get(context: u64, key: usize) -> CudaResult<usize> {
    let values = VALUES.read();
    let found = values.as_ref().and_then(|values| values.get(&(context, key)));
    found.map(|stored| stored.value).ok_or(CUDA_ERROR_INVALID_HANDLE)
}

pub(crate) fn delete(context: u64, key: usize) -> CudaResult {
    let removed = VALUES.write().as_mut().and_then(|values| values.remove(&(context, key)));
    removed.map(|_| ()).ok_or(CUDA_ERROR_INVALID_HANDLE)
}

/// Ends all values of a context.
pub(crate) fn destroy(context: u64) {
    let mut gone = Vec::new();
    if let Some(values) = VALUES.write().as_mut() {
        gone.extend(values.extract_if(|(owner, _), _| *owner == context));
    }
    // Outside the lock: destructors may call us.
    for ((_, key), stored) in gone {
        if let Some(destructor) = stored.destructor {
            // SAFETY: the library that stored the value gave the destructor for it.
            unsafe { destructor(context as CUcontext, key as *mut c_void, stored.value as *mut c_void) };
        }
    }
}
