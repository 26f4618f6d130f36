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
use crate::exec;

pub static LIBRARIES: Table<Library> = Table::new(8);
pub static KERNELS: Table<Kernel> = Table::new(9);

/// Contexts of all libraries, to find what ends with one.
static BOUND: Mutex<Vec<Weak<Library>>> = Mutex::new(Vec::new());

pub struct Library {
    handle: u64,
    code: Arc<exec::Module>,
    kernels: Mutex<Vec<u64>>,
    /// The module of each context, by its id.
    modules: Mutex<HashMap<u64, Arc<Module>>>,
}

pub struct Kernel {
    library: Arc<Library>,
    index: usize,
    name: CString,
    /// Settings for each device.
    settings: Mutex<HashMap<usize, Arc<Settings>>>,
}

impl Library {
    fn enter(code: Arc<exec::Module>) -> u64 {
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
    fn module(&self, context: &Arc<Context>) -> Answer<Arc<Module>> {
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
    fn code(&self) -> &exec::Kernel {
        &self.library.code.kernels()[self.index]
    }

    fn settings(&self, device: usize) -> Arc<Settings> {
        self.settings.lock().entry(device).or_insert_with(|| Settings::of(self.code())).clone()
    }

    /// The kernel's function in a context; they share their settings.
    pub fn function(&self, context: &Arc<Context>) -> Answer<u64> {
        let module = self.library.module(context)?;
        Ok(module.function(self.index, Some(self.settings(context.device))))
    }
}

/// Drops what libraries had in a context.
pub fn forget_context(owner: u64) {
    let libraries: Vec<Arc<Library>> = BOUND.lock().iter().filter_map(Weak::upgrade).collect();
    for library in libraries {
        let gone = library.modules.lock().remove(&owner);
        drop(gone);
    }
}

fn library(handle: CUlibrary) -> Answer<Arc<Library>> {
    state::state()?;
    LIBRARIES.get(of(handle)).map_err(|_| CUDA_ERROR_INVALID_HANDLE)
}

fn kernel(handle: CUkernel) -> Answer<Arc<Kernel>> {
    state::state()?;
    KERNELS.get(of(handle)).map_err(|_| CUDA_ERROR_INVALID_HANDLE)
}

unsafe extern "C" fn cuLibraryLoadData(
    to: *mut CUlibrary,
    code: *const c_void,
    options: *mut CUjit_option,
    values: *mut *mut c_void,
    count: u32,
    _library_options: *mut CUlibraryOption,
    _library_values: *mut *mut c_void,
    _library_count: u32,
) -> CUresult {
    call(|| {
        state::state()?;
        required(to)?;
        let log = Log::of(count, options, values)?;
        put(to, out(Library::enter(load_pointer(code, &log)?)))
    })
}

unsafe extern "C" fn cuLibraryLoadFromFile(
    to: *mut CUlibrary,
    name: *const c_char,
    options: *mut CUjit_option,
    values: *mut *mut c_void,
    count: u32,
    _library_options: *mut CUlibraryOption,
    _library_values: *mut *mut c_void,
    _library_count: u32,
) -> CUresult {
    call(|| {
        state::state()?;
        required(to)?;
        let log = Log::of(count, options, values)?;
        put(to, out(Library::enter(load_file(name, &log)?)))
    })
}

unsafe extern "C" fn cuLibraryUnload(handle: CUlibrary) -> CUresult {
    call(|| {
        let library = library(handle)?;
        let _ = LIBRARIES.remove(library.handle);
        for kernel in std::mem::take(&mut *library.kernels.lock()) {
            let _ = KERNELS.remove(kernel);
        }
        for module in std::mem::take(&mut *library.modules.lock()).into_values() {
            module.unload();
        }
        Ok(())
    })
}

unsafe extern "C" fn cuLibraryGetKernel(to: *mut CUkernel, handle: CUlibrary, name: *const c_char) -> CUresult {
    call(|| {
        required(to)?;
        let name = text(name)?;
        let library = library(handle)?;
        let index = library.code.kernels().iter().position(|kernel| kernel.name == name);
        let kernel = index.and_then(|index| library.kernels.lock().get(index).copied());
        put(to, out(kernel.ok_or(CUDA_ERROR_NOT_FOUND)?))
    })
}

unsafe extern "C" fn cuLibraryGetKernelCount(count: *mut u32, handle: CUlibrary) -> CUresult {
    call(|| put(count, library(handle)?.code.kernels().len() as u32))
}

unsafe extern "C" fn cuLibraryEnumerateKernels(to: *mut CUkernel, count: u32, handle: CUlibrary) -> CUresult {
    call(|| {
        let all: Vec<CUkernel> = library(handle)?.kernels.lock().iter().map(|kernel| out(*kernel)).collect();
        put_list(to, count as usize, &all).map(|_| ())
    })
}

unsafe extern "C" fn cuLibraryGetModule(to: *mut CUmodule, handle: CUlibrary) -> CUresult {
    call(|| {
        required(to)?;
        let library = library(handle)?;
        put(to, out(library.module(&current()?)?.handle))
    })
}

unsafe extern "C" fn cuLibraryGetGlobal(
    dptr: *mut CUdeviceptr,
    bytes: *mut usize,
    handle: CUlibrary,
    name: *const c_char,
) -> CUresult {
    call(|| {
        let name = text(name)?;
        valid(!(dptr.is_null() && bytes.is_null()))?;
        let library = library(handle)?;
        let (address, size) = library.module(&current()?)?.global(&name)?;
        put_if(dptr, address);
        put_if(bytes, size as usize);
        Ok(())
    })
}

unsafe extern "C" fn cuLibraryGetManaged(
    _: *mut CUdeviceptr,
    _: *mut usize,
    handle: CUlibrary,
    name: *const c_char,
) -> CUresult {
    call(|| {
        required(name)?;
        library(handle)?;
        // Variables of PTX are the module's, in each context anew; none is managed.
        Err(CUDA_ERROR_NOT_FOUND)
    })
}

unsafe extern "C" fn cuKernelGetFunction(to: *mut CUfunction, handle: CUkernel) -> CUresult {
    call(|| {
        required(to)?;
        let kernel = kernel(handle)?;
        put(to, out(kernel.function(&current()?)?))
    })
}

unsafe extern "C" fn cuKernelGetAttribute(pi: *mut i32, attribute: u32, handle: CUkernel, dev: CUdevice) -> CUresult {
    call(|| {
        required(pi)?;
        let kernel = kernel(handle)?;
        let device = state::device(dev)?;
        put(pi, kernel.settings(device.ordinal).get(kernel.code(), attribute)?)
    })
}

unsafe extern "C" fn cuKernelSetAttribute(attribute: u32, value: i32, handle: CUkernel, dev: CUdevice) -> CUresult {
    call(|| {
        let kernel = kernel(handle)?;
        let device = state::device(dev)?;
        kernel.settings(device.ordinal).set(kernel.code(), attribute, value)
    })
}

unsafe extern "C" fn cuKernelSetCacheConfig(handle: CUkernel, config: u32, dev: CUdevice) -> CUresult {
    call(|| {
        kernel(handle)?;
        state::device(dev)?;
        valid(config <= 3)
    })
}

unsafe extern "C" fn cuKernelGetName(name: *mut *const c_char, handle: CUkernel) -> CUresult {
    // The kernel, and with it the name, lives as long as its library is loaded.
    call(|| put(name, kernel(handle)?.name.as_ptr()))
}

unsafe extern "C" fn cuKernelGetLibrary(to: *mut CUlibrary, handle: CUkernel) -> CUresult {
    call(|| put(to, out(kernel(handle)?.library.handle)))
}

unsafe extern "C" fn cuKernelGetParamInfo(
    handle: CUkernel,
    index: usize,
    offset: *mut usize,
    size: *mut usize,
) -> CUresult {
    call(|| param_info(kernel(handle)?.code(), index, offset, size))
}

pub fn fill(table: Driver) -> Driver {
    Driver {
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
        cuKernelGetParamInfo,
        ..table
    }
}
