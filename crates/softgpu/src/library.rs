//! Libraries: code without a context, bound to each context that uses it; and their kernels.

use std::collections::HashMap;
use std::ffi::CString;
use std::sync::{Arc, Weak};

use cuda_abi::driver::Driver;
use cuda_abi::error::*;
use cuda_abi::types::*;
use parking_lot::Mutex;

use super::abi::*;
use super::context::{Context, current};
use super::function::{Settings, param_info};
use super::handles::{Table, of, out};
use super::jit_log::Log;
use super::module::{Module, load_file, load_pointer};
use super::state;

pub(crate) static LIBRARIES: Table<Library> = Table::new(8);
pub(crate) static KERNELS: Table<Kernel> = Table::new(9);

/// Contexts of all libraries, to find what ends with one.
static BOUND: Mutex<Vec<Weak<Library>>> = Mutex::new(Vec::new());

pub(crate) struct Library {
    handle: u64,
    code: Arc<ptx_exec::Module>,
    kernels: Mutex<Vec<u64>>,
    /// The module of each context, by its id.
    modules: Mutex<HashMap<u64, Arc<Module>>>,
}

pub(crate) struct Kernel {
    library: Arc<Library>,
    index: usize,
    name: CString,
    /// Settings for each device.
    settings: Mutex<HashMap<usize, Arc<Settings>>>,
}

impl Library {
    fn enter(code: Arc<ptx_exec::Module>) -> u64 {
        let (handle, library) = LIBRARIES.insert_with(|handle| Library {
            handle,
            code,
            kernels: Mutex::default(),
            modules: Mutex::default(),
        });
        let kernels = library.code.kernels().iter().enumerate().map(|(index, kernel)| {
            let name = CString::new(kernel.name.as_str()).unwrap_or_default();
            KERNELS.insert(Kernel { library: library.clone(), index, name, settings: Mutex::default() })
        });
        *library.kernels.lock() = kernels.collect();
        let mut bound = BOUND.lock();
        bound.retain(|library| library.strong_count() > 0);
        bound.push(Arc::downgrade(&library));
        handle
    }

    /// The library's module in a context, bound on first use.
    fn module(&self, context: &Arc<Context>) -> CudaResult<Arc<Module>> {
        let mut modules = self.modules.lock();
        if let Some(module) = modules.get(&context.id()) {
            return Ok(module.clone());
        }
        let module = Module::bind(context, self.code.clone())?;
        modules.insert(context.id(), module.clone());
        Ok(module)
    }
}

impl Kernel {
    fn code(&self) -> &ptx_exec::Kernel {
        &self.library.code.kernels()[self.index]
    }

    fn settings(&self, device: usize) -> Arc<Settings> {
        self.settings.lock().entry(device).or_insert_with(|| Settings::of(self.code())).clone()
    }

    /// The kernel's function in a context; they share their settings.
    pub(crate) fn function(&self, context: &Arc<Context>) -> CudaResult<u64> {
        let module = self.library.module(context)?;
        Ok(module.function(self.index, Some(self.settings(context.device))))
    }
}

/// Drops what libraries had in a context.
pub(crate) fn forget_context(owner: u64) {
    let libraries: Vec<Arc<Library>> = BOUND.lock().iter().filter_map(Weak::upgrade).collect();
    for library in libraries {
        let gone = library.modules.lock().remove(&owner);
        drop(gone);
    }
}

fn library(handle: CUlibrary) -> CudaResult<Arc<Library>> {
    state::state()?;
    LIBRARIES.get(of(handle)).map_err(|_| CUDA_ERROR_INVALID_HANDLE)
}

fn kernel(handle: CUkernel) -> CudaResult<Arc<Kernel>> {
    state::state()?;
    KERNELS.get(of(handle)).map_err(|_| CUDA_ERROR_INVALID_HANDLE)
}

unsafe fn cuLibraryLoadData(
    to: Out<CUlibrary>,
    code: *const c_void,
    options: InSlice<CUjit_option>,
    values: *mut *mut c_void,
    _count: u32,
    _library_options: InSlice<CUlibraryOption>,
    _library_values: InSlice<*mut c_void>,
    _library_count: u32,
) -> CudaResult {
    state::state()?;
    to.required()?;
    // SAFETY: passed on.
    let code = unsafe { load_pointer(code, &Log::of(options, values)?) }?;
    to.put(out(Library::enter(code)))
}

unsafe fn cuLibraryLoadFromFile(
    to: Out<CUlibrary>,
    name: Str,
    options: InSlice<CUjit_option>,
    values: *mut *mut c_void,
    _count: u32,
    _library_options: InSlice<CUlibraryOption>,
    _library_values: InSlice<*mut c_void>,
    _library_count: u32,
) -> CudaResult {
    state::state()?;
    to.required()?;
    // SAFETY: passed on.
    let log = unsafe { Log::of(options, values) }?;
    to.put(out(Library::enter(load_file(name, &log)?)))
}

fn cuLibraryUnload(handle: CUlibrary) -> CudaResult {
    let library = library(handle)?;
    let _ = LIBRARIES.remove(library.handle);
    for kernel in std::mem::take(&mut *library.kernels.lock()) {
        let _ = KERNELS.remove(kernel);
    }
    for module in std::mem::take(&mut *library.modules.lock()).into_values() {
        module.unload();
    }
    Ok(())
}

fn cuLibraryGetKernel(to: Out<CUkernel>, handle: CUlibrary, name: Str) -> CudaResult {
    to.required()?;
    let name = text(name)?;
    let library = library(handle)?;
    let index = library.code.kernels().iter().position(|kernel| kernel.name == name);
    let kernel = index.and_then(|index| library.kernels.lock().get(index).copied());
    to.put(out(kernel.ok_or(CUDA_ERROR_NOT_FOUND)?))
}

fn cuLibraryGetKernelCount(count: Out<u32>, handle: CUlibrary) -> CudaResult {
    count.put(library(handle)?.code.kernels().len() as u32)
}

fn cuLibraryEnumerateKernels(to: OutSlice<CUkernel>, _count: u32, handle: CUlibrary) -> CudaResult {
    let all: Vec<CUkernel> = library(handle)?.kernels.lock().iter().map(|kernel| out(*kernel)).collect();
    to.put_list(&all).map(|_| ())
}

fn cuLibraryGetModule(to: Out<CUmodule>, handle: CUlibrary) -> CudaResult {
    to.required()?;
    let library = library(handle)?;
    to.put(out(library.module(&current()?)?.handle))
}

fn cuLibraryGetGlobal(dptr: Out<CUdeviceptr>, bytes: Out<usize>, handle: CUlibrary, name: Str) -> CudaResult {
    let name = text(name)?;
    valid(!(dptr.is_null() && bytes.is_null()))?;
    let library = library(handle)?;
    let (address, size) = library.module(&current()?)?.global(&name)?;
    dptr.put_if(address);
    bytes.put_if(size as usize);
    Ok(())
}

fn cuLibraryGetManaged(_: Out<CUdeviceptr>, _: Out<usize>, handle: CUlibrary, name: Str) -> CudaResult {
    name.required()?;
    library(handle)?;
    // Each context has variables of its own; PTX has no managed ones.
    Err(CUDA_ERROR_NOT_FOUND)
}

fn cuKernelGetFunction(to: Out<CUfunction>, handle: CUkernel) -> CudaResult {
    to.required()?;
    let kernel = kernel(handle)?;
    to.put(out(kernel.function(&current()?)?))
}

fn cuKernelGetAttribute(pi: Out<i32>, attribute: u32, handle: CUkernel, dev: CUdevice) -> CudaResult {
    pi.required()?;
    let kernel = kernel(handle)?;
    let device = state::device(dev)?;
    pi.put(kernel.settings(device.ordinal).get(kernel.code(), attribute)?)
}

fn cuKernelSetAttribute(attribute: u32, value: i32, handle: CUkernel, dev: CUdevice) -> CudaResult {
    let kernel = kernel(handle)?;
    let device = state::device(dev)?;
    kernel.settings(device.ordinal).set(kernel.code(), attribute, value)
}

fn cuKernelSetCacheConfig(handle: CUkernel, config: u32, dev: CUdevice) -> CudaResult {
    kernel(handle)?;
    state::device(dev)?;
    valid(config <= 3)
}

fn cuKernelGetName(name: Out<*const c_char>, handle: CUkernel) -> CudaResult {
    // The kernel, and with it the name, lives as long as its library is loaded.
    name.put(kernel(handle)?.name.as_ptr())
}

fn cuKernelGetLibrary(to: Out<CUlibrary>, handle: CUkernel) -> CudaResult {
    to.put(out(kernel(handle)?.library.handle))
}

fn cuKernelGetParamInfo(handle: CUkernel, index: usize, offset: Out<usize>, size: Out<usize>) -> CudaResult {
    param_info(kernel(handle)?.code(), index, offset, size)
}

pub(crate) fn fill(table: Driver) -> Driver {
    entries!(
        table,
        cuLibraryLoadData,
        cuLibraryLoadFromFile,
        cuLibraryUnload,
        cuLibraryGetKernel,
        cuLibraryGetKernelCount,
        cuLibraryEnumerateKernels,
        cuLibraryGetModule,
        cuLibraryGetGlobal,
        cuLibraryGetManaged,
        cuKernelGetFunction,
        cuKernelGetAttribute,
        cuKernelSetAttribute,
        cuKernelSetCacheConfig,
        cuKernelGetName,
        cuKernelGetLibrary,
        cuKernelGetParamInfo
    )
}
