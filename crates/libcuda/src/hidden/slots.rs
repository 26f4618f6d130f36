//! The functions behind the slots that are known to be called.

use std::ffi::c_void;

use cuda_abi::error::*;
use cuda_abi::types::*;
use cuda_abi::wire::Kind;
use cuda_abi::wire::ops::TpcMap;

use crate::context::storage::{self, Destructor};
use crate::entry::{not_null, run};
use crate::{context, device, exports, handles, module, operation, stream};

pub(super) extern "C" fn succeed() -> CUresult {
    CUDA_SUCCESS
}

/// The handle of a device's primary context, without retaining or activating it.
pub(super) unsafe extern "C" fn primary_context(context: *mut CUcontext, device: CUdevice) -> CUresult {
    run("primary_context", || {
        device::find(device)?;
        // SAFETY: passed on.
        unsafe { device::put(context, context::primary_word(device) as CUcontext) }
    })
}

/// Loads the module that a registration wrapper leads to: how the 11.x runtimes load everything.
pub(super) unsafe extern "C" fn module_from_wrapper(module: *mut CUmodule, wrapper: *const c_void) -> CUresult {
    // SAFETY: passed on.
    unsafe { exports::cuModuleLoadData(module, wrapper) }
}

pub(super) unsafe extern "C" fn module_from_container(container: *const c_void, module: *mut CUmodule) -> CUresult {
    // SAFETY: passed on.
    unsafe { exports::cuModuleLoadData(module, container) }
}

pub(super) unsafe extern "C" fn launch(
    function: CUfunction,
    grid_x: u32,
    grid_y: u32,
    grid_z: u32,
    block_x: u32,
    block_y: u32,
    block_z: u32,
    shared: u32,
    stream: CUstream,
    extra: *mut *mut c_void,
) -> CUresult {
    let none = std::ptr::null_mut();
    // SAFETY: passed on.
    unsafe {
        exports::cuLaunchKernel(
            function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared, stream, none, extra,
        )
    }
}

/// Memory that stays zero: "no profiler wants to be called".
struct Zeros<const N: usize>([u8; N]);

static LARGE_FLAGS: Zeros<4096> = Zeros([0; 4096]);
static SMALL_FLAGS: Zeros<64> = Zeros([0; 64]);

unsafe fn flags(place: *mut *const c_void, count: *mut usize, area: *const u8, entries: usize) -> CUresult {
    // SAFETY: outputs of a slot that takes two pointers.
    unsafe {
        place.write(area.cast());
        count.write(entries);
    }
    CUDA_SUCCESS
}

pub(super) unsafe extern "C" fn large_flags(place: *mut *const c_void, count: *mut usize) -> CUresult {
    // SAFETY: passed on.
    unsafe { flags(place, count, LARGE_FLAGS.0.as_ptr(), 1024) }
}

pub(super) unsafe extern "C" fn small_flags(place: *mut *const c_void, count: *mut usize) -> CUresult {
    // SAFETY: passed on.
    unsafe { flags(place, count, SMALL_FLAGS.0.as_ptr(), 14) }
}

pub(super) unsafe extern "C" fn no_callbacks(_which: *const c_void, answer: *mut u64) -> CUresult {
    if !answer.is_null() {
        // SAFETY: not NULL; the rest is the caller's promise.
        unsafe { answer.write(0) };
    }
    CUDA_SUCCESS
}

/// As `cuCtxGetCurrent`, but an error when there is none.
pub(super) unsafe extern "C" fn current_context(context: *mut CUcontext) -> CUresult {
    run("current_context", || match context::current_word() {
        0 => Err(CUDA_ERROR_INVALID_CONTEXT),
        // SAFETY: passed on.
        word => unsafe { device::put(context, word as CUcontext) },
    })
}

/// NULL and -1 name the current context.
fn storage_context(context: CUcontext) -> CudaResult<u64> {
    match context as u64 {
        0 | u64::MAX => match context::current_word() {
            0 => Err(CUDA_ERROR_INVALID_CONTEXT),
            word => Ok(word),
        },
        word => Ok(word),
    }
}

pub(super) unsafe extern "C" fn storage_put(
    context: CUcontext,
    key: *mut c_void,
    value: *mut c_void,
    destructor: Destructor,
) -> CUresult {
    run("storage_put", || {
        storage::put(storage_context(context)?, key as usize, value as usize, destructor);
        Ok(())
    })
}

pub(super) unsafe extern "C" fn storage_delete(context: CUcontext, key: *mut c_void) -> CUresult {
    run("storage_delete", || storage::delete(storage_context(context)?, key as usize))
}

pub(super) unsafe extern "C" fn storage_get(
    value: *mut *mut c_void,
    context: CUcontext,
    key: *mut c_void,
) -> CUresult {
    // Not through `run`: a miss is the normal case at first, and this is the most frequent call of all.
    let found = storage_context(context).and_then(|context| storage::get(context, key as usize));
    match found {
        Ok(found) => {
            // SAFETY: the caller passes a place for the value.
            unsafe { value.write(found as *mut c_void) };
            CUDA_SUCCESS
        }
        Err(code) => code,
    }
}

/// Writes 0 to the first output and leaves the second alone, as the driver does.
pub(super) unsafe extern "C" fn check_context(
    _context: CUcontext,
    answer: *mut u32,
    _other: *mut *mut c_void,
) -> CUresult {
    if !answer.is_null() {
        // SAFETY: not NULL; the rest is the caller's promise.
        unsafe { answer.write(0) };
    }
    CUDA_SUCCESS
}

pub(super) unsafe extern "C" fn context_device(context: CUcontext, device: *mut CUdevice) -> CUresult {
    // SAFETY: passed on.
    unsafe { exports::cuCtxGetDevice_v2(device, context) }
}

pub(super) unsafe extern "C" fn context_id(context: CUcontext, id: *mut u64) -> CUresult {
    // SAFETY: passed on.
    unsafe { exports::cuCtxGetId(context, id) }
}

/// The object behind a stream: its handle, which is as unique.
pub(super) unsafe extern "C" fn stream_object(
    _context: CUcontext,
    stream: CUstream,
    object: *mut *mut c_void,
    per_thread: i32,
) -> CUresult {
    run("stream_object", || {
        if stream as u64 == u64::MAX {
            return Err(CUDA_ERROR_INVALID_HANDLE);
        }
        let mut word = Ok(0);
        if per_thread != 0 {
            stream::per_thread(|| {
                word = stream::resolve(stream);
                CUDA_SUCCESS
            });
        } else {
            word = stream::resolve(stream);
        }
        // The default streams are numbers; an object must not be NULL.
        let object_word = word?.max(1);
        // SAFETY: passed on.
        unsafe { device::put(object, object_word as *mut c_void) }
    })
}

pub(super) unsafe extern "C" fn stream_identity(
    _context: CUcontext,
    object: *mut c_void,
    identity: *mut u64,
) -> CUresult {
    // SAFETY: passed on.
    run("stream_identity", || unsafe { device::put(identity, object as u64) })
}

type EachFunction = unsafe extern "C" fn(user: *mut c_void, function: CUfunction, owner: *mut c_void);

/// Calls back for each function of a module and answers their number. cuFFT finds its kernels so.
pub(super) unsafe extern "C" fn for_each_function(
    _context: CUcontext,
    module: CUmodule,
    callback: Option<EachFunction>,
    user: *mut c_void,
) -> i32 {
    let mut count = 0;
    run("for_each_function", || {
        let word = handles::check(Kind::Module, module as u64)?;
        for function in module::functions_of(word)? {
            count += 1;
            if let Some(callback) = callback {
                // SAFETY: the caller's function, called as it expects.
                unsafe { callback(user, function as CUfunction, module) };
            }
        }
        Ok(())
    });
    count
}

/// Which GPC each TPC belongs to, and its place there: two arrays from `malloc`, which slot 13 frees.
pub(super) unsafe extern "C" fn tpc_map(groups: *mut *mut u8, places: *mut *mut u8) -> CUresult {
    run("tpc_map", || {
        not_null(groups)?;
        not_null(places)?;
        context::current()?;
        operation::call(&TpcMap {}, |reply| {
            for (output, bytes) in [(groups, reply.groups), (places, reply.places)] {
                // SAFETY: a new block of at least one byte, filled before it is handed out; the output is not NULL.
                unsafe {
                    let block = libc::malloc(bytes.len().max(1)).cast::<u8>();
                    if !block.is_null() {
                        std::ptr::copy_nonoverlapping(bytes.as_ptr(), block, bytes.len());
                    }
                    output.write(block);
                }
            }
        })
    })
}

pub(super) unsafe extern "C" fn tpc_map_free(groups: *mut u8, places: *mut u8) -> CUresult {
    // SAFETY: blocks that `tpc_map` made.
    unsafe {
        libc::free(groups.cast());
        libc::free(places.cast());
    }
    CUDA_SUCCESS
}
