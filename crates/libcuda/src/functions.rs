//! Functions and kernels: what is learned once, when they are looked up.

use std::ffi::CString;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use cuda_abi::border::Out;
use cuda_abi::constants::function_attribute;
use cuda_abi::error::*;
use cuda_abi::types::*;
use cuda_abi::wire::ops::{Describe, Described, SetFunctionAttribute};
use cuda_abi::wire::{Handle, Typed};
use parking_lot::RwLock;

use crate::graph::capture;
use crate::{handles, operation};

pub(crate) struct Function {
    pub word: u64,
    /// Offset and size of each parameter.
    pub params: Vec<(usize, usize)>,
    pub param_bytes: usize,
    /// Most threads in a block and most bytes of dynamic shared memory, as far as the driver told.
    pub max_threads: Option<u32>,
    pub max_dynamic_shared: AtomicU32,
    pub name: CString,
}

/// By the index of their handles, which are few and used again.
static KNOWN: RwLock<Vec<Option<Arc<Function>>>> = RwLock::new(Vec::new());

fn index_of(word: u64) -> Option<usize> {
    Handle::from_word(word).map(|handle| handle.index as usize)
}

/// Remembers what a reply says of a function; answers its handle.
pub(crate) fn remember(about: &Described<'_>, name: CString) -> u64 {
    let word = handles::opened(about.handle.0);
    let params: Vec<(usize, usize)> =
        about.parameters.iter().map(|parameter| (parameter.offset as usize, parameter.size as usize)).collect();
    let max_dynamic_shared = AtomicU32::new(about.max_dynamic_shared.unwrap_or(u32::MAX));
    let param_bytes = params.iter().map(|(offset, size)| offset + size).max().unwrap_or(0);
    let max_threads = about.max_threads;
    let function = Function { word, params, param_bytes, max_threads, max_dynamic_shared, name };
    if let Some(index) = index_of(word) {
        let mut known = KNOWN.write();
        if known.len() <= index {
            known.resize(index + 1, None);
        }
        known[index] = Some(Arc::new(function));
    }
    word
}

/// A function with everything a launch must know. What was looked up without a context is not loaded yet, and the driver
/// does not know its parameters before it is.
pub(crate) fn loaded(function: CUfunction) -> CudaResult<Arc<Function>> {
    let known = find(function)?;
    if known.max_threads.is_some() {
        return Ok(known);
    }
    // Natively a launch loads its function whatever is being captured.
    capture::unaffected(|| {
        let request = Describe { function: Typed(known.word) };
        operation::call(&request, |about| remember(&about, known.name.clone()))
    })?;
    find(function)
}

/// A function or kernel that the program knows.
pub(crate) fn find(function: CUfunction) -> CudaResult<Arc<Function>> {
    let word = handles::check(cuda_abi::wire::Kind::Function, function as u64)?;
    let known = KNOWN.read();
    let found = index_of(word).and_then(|index| known.get(index)?.as_ref()).filter(|known| known.word == word);
    found.cloned().ok_or(CUDA_ERROR_INVALID_HANDLE)
}

/// Sets an attribute, and remembers the one that launches are checked against.
fn set_attribute(function: CUfunction, attribute: u32, value: i32, device: CUdevice) -> CudaResult {
    let function = find(function)?;
    let request = SetFunctionAttribute { function: Typed(function.word), attribute, value, device };
    operation::call(&request, |()| ())?;
    if attribute == function_attribute::MAX_DYNAMIC_SHARED_SIZE_BYTES {
        function.max_dynamic_shared.store(value.max(0) as u32, Ordering::Relaxed);
    }
    Ok(())
}

#[allow(non_snake_case)]
pub(crate) mod api {
    use super::*;

    pub(crate) fn cuFuncGetName(name: Out<*const c_char>, function: CUfunction) -> CudaResult {
        // The text lives as long as its function is known.
        name.put(find(function)?.name.as_ptr())
    }

    pub(crate) fn cuKernelGetName(name: Out<*const c_char>, kernel: CUkernel) -> CudaResult {
        cuFuncGetName(name, kernel)
    }

    pub(crate) fn cuFuncSetAttribute(function: CUfunction, attribute: u32, value: i32) -> CudaResult {
        set_attribute(function, attribute, value, 0)
    }

    pub(crate) fn cuKernelSetAttribute(attribute: u32, value: i32, kernel: CUkernel, device: CUdevice) -> CudaResult {
        set_attribute(kernel, attribute, value, device)
    }

    pub(crate) fn cuFuncGetParamInfo(
        function: CUfunction,
        index: usize,
        offset: Out<usize>,
        size: Out<usize>,
    ) -> CudaResult {
        offset.required()?;
        let function = loaded(function)?;
        let (at, len) = *function.params.get(index).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        size.put_if(len);
        offset.put(at)
    }

    pub(crate) fn cuKernelGetParamInfo(
        kernel: CUkernel,
        index: usize,
        offset: Out<usize>,
        size: Out<usize>,
    ) -> CudaResult {
        cuFuncGetParamInfo(kernel, index, offset, size)
    }
}
