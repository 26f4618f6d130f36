//! Modules and libraries.

use std::ffi::{CStr, CString};

use cuda_abi::error::*;
use cuda_abi::image::{self, Image};
use cuda_abi::types::*;
use cuda_abi::wire::ops::{
    Described, FunctionsListed, GetFunction, GetGlobal, GetKernel, ImageLoad, ImageOrder, KernelFunction,
    LibraryKernels, LibraryLoad, LibraryModule, ModuleFunctions, ModuleLoad, Upload,
};
use cuda_abi::wire::{
    Kind as HandleKind, List, MAX_IMAGE, MAX_IMAGE_PARTS, MAX_NAME, Operation, Text, Typed, to_vec,
};

use crate::entry::{Cuda, not_null};
use crate::graph::capture;
use crate::jit::{Logs, Options};
use crate::{allocations, context, functions, handles, operation};

/// What an image becomes.
#[derive(Clone, Copy)]
enum As {
    Module,
    Library,
}

/// What a program was linked from goes along with what it became if it is no more than this. Nearly always the driver has
/// no use for it, and a library may have hundreds of megabytes.
const PARTS_AT_ONCE: usize = 16 << 20;

/// Sends an image and answers the handle of what was loaded.
///
/// # Safety
/// `code` must lead to an image that the driver accepts.
unsafe fn load(what: As, code: *const c_void, options: &Options) -> Cuda<u64> {
    not_null(code)?;
    // SAFETY: the caller's promise.
    let image = unsafe { image::at(code.cast()) }.ok_or(CUDA_ERROR_INVALID_IMAGE)?;
    load_image(what, &image, options)
}

fn load_image(what: As, image: &Image<'_>, options: &Options) -> Cuda<u64> {
    if image.parts.is_empty() {
        return load_with(what, image.main, &[], options);
    }
    let small = image.parts.iter().map(|part| part.len()).sum::<usize>() <= PARTS_AT_ONCE;
    let without = if small { Err(CUDA_ERROR_NO_BINARY_FOR_GPU) } else { load_with(what, image.main, &[], options) };
    match without {
        Err(CUDA_ERROR_NO_BINARY_FOR_GPU) => load_with(what, image.main, &image.parts, options),
        done => done,
    }
}

fn load_with(what: As, image: &[u8], parts: &[&[u8]], options: &Options) -> Cuda<u64> {
    // Each part brings its length and is padded.
    let bytes = parts.iter().fold(image.len(), |sum, part| sum + part.len() + 16);
    if bytes > MAX_IMAGE - 1024 || parts.len() > MAX_IMAGE_PARTS {
        return Err(CUDA_ERROR_OUT_OF_MEMORY);
    }
    if parts.is_empty() && options.is_empty() {
        return load_plain(what, image);
    }
    let start = std::time::Instant::now();
    let plain = options.plain();
    let images = [&[image], parts].concat();
    let upload = to_vec(&ImageOrder {
        into_library: matches!(what, As::Library),
        options: List::new(&plain),
        images: List::new(&images),
    });
    let request = ImageLoad { order: Upload::new(upload.len() as u64) };
    let (code, word, logs) =
        operation::upload(&upload, &request, |reply| (reply.code, reply.object.0, Logs::from(reply.logs)))?;
    options.answer(&logs, start);
    if code == CUDA_SUCCESS { Ok(handles::opened(word)) } else { Err(code) }
}

fn load_plain(what: As, image: &[u8]) -> Cuda<u64> {
    let len = image.len() as u64;
    match what {
        As::Module => {
            let request = ModuleLoad { image: Upload::new(len) };
            operation::upload(image, &request, |reply| handles::opened(reply.module.0))
        }
        As::Library => {
            let request = LibraryLoad { image: Upload::new(len) };
            operation::upload(image, &request, |reply| handles::opened(reply.library.0))
        }
    }
}

/// # Safety
/// `path` must be a NUL-terminated string.
unsafe fn load_file(what: As, path: *const c_char, options: &Options) -> Cuda<u64> {
    use std::os::unix::ffi::OsStrExt;
    not_null(path)?;
    // SAFETY: the caller's promise.
    let path = std::ffi::OsStr::from_bytes(unsafe { CStr::from_ptr(path) }.to_bytes());
    let mut bytes = std::fs::read(path).map_err(|_| CUDA_ERROR_FILE_NOT_FOUND)?;
    bytes.push(0);
    if !image::is_whole(&bytes) {
        return Err(CUDA_ERROR_INVALID_IMAGE);
    }
    bytes.pop();
    load_with(what, &bytes, &[], options)
}

/// # Safety
/// `name` must be NULL or a NUL-terminated string.
unsafe fn name<'a>(name: *const c_char) -> Cuda<&'a CStr> {
    not_null(name)?;
    // SAFETY: the caller's promise.
    let name = unsafe { CStr::from_ptr(name) };
    if name.count_bytes() <= MAX_NAME { Ok(name) } else { Err(CUDA_ERROR_NOT_FOUND) }
}

/// As `name`, of a function: natively an empty one is a wrong value.
///
/// # Safety
/// As for `name`.
unsafe fn function_name<'a>(text: *const c_char) -> Cuda<&'a CStr> {
    // SAFETY: the caller's promise.
    let name = unsafe { name(text) }?;
    if name.is_empty() { Err(CUDA_ERROR_INVALID_VALUE) } else { Ok(name) }
}

/// Looks a function up and answers its handle.
fn look_up<R>(request: &R, name: &CStr) -> Cuda<u64>
where
    R: for<'m> Operation<Reply<'m> = Described<'m>>,
{
    // The worker looks at more than the program asked for, which no capture forbids the program.
    capture::unaffected(|| operation::call(request, |about| functions::remember(&about, name.to_owned())))
}

/// Handles of everything that can be launched in a module or library. A reply holds as many as fit; the rest is asked for
/// again.
fn enumerate<R>(ask: impl Fn(usize) -> R) -> Cuda<Vec<u64>>
where
    R: for<'m> Operation<Reply<'m> = FunctionsListed<'m>>,
{
    let mut found = Vec::new();
    loop {
        let known = found.len();
        let total = operation::call(&ask(known), |reply| -> Cuda<usize> {
            for listed in reply.functions.iter() {
                let name = CString::new(listed.name).map_err(|_| CUDA_ERROR_UNKNOWN)?;
                found.push(functions::remember(&listed.about, name));
            }
            Ok(reply.total)
        })??;
        if found.len() >= total {
            return Ok(found);
        }
        if found.len() == known {
            return Err(CUDA_ERROR_UNKNOWN);
        }
    }
}

/// All functions of a module.
pub fn functions_of(module: u64) -> Cuda<Vec<u64>> {
    enumerate(|skip| ModuleFunctions { module: Typed(module), skip })
}

/// Looks a variable up: its address and size.
fn global(owner: u64, name: &CStr) -> Cuda<(u64, u64)> {
    let request = GetGlobal { owner: Typed(owner), name: Text(name.to_bytes()) };
    let (address, bytes) = operation::call(&request, |reply| (reply.address, reply.bytes))?;
    allocations::add_global(address, bytes, context::current_device().unwrap_or(0), context::current_word());
    Ok((address, bytes))
}

#[allow(non_snake_case)]
pub mod api {
    use super::*;
    use crate::device::put;

    const LAZY: u32 = 2;
    const EAGER: u32 = 1;

    pub unsafe fn cuModuleGetLoadingMode(mode: *mut u32) -> Cuda {
        let eager = std::env::var_os("CUDA_MODULE_LOADING").is_some_and(|value| value.eq_ignore_ascii_case("EAGER"));
        // SAFETY: passed on.
        unsafe { put(mode, if eager { EAGER } else { LAZY }) }
    }

    pub unsafe fn cuModuleLoadData(module: *mut CUmodule, code: *const c_void) -> Cuda {
        // SAFETY: passed on.
        unsafe { cuModuleLoadDataEx(module, code, 0, std::ptr::null_mut(), std::ptr::null_mut()) }
    }

    pub unsafe fn cuModuleLoadDataEx(
        module: *mut CUmodule,
        code: *const c_void,
        count: u32,
        options: *mut u32,
        values: *mut *mut c_void,
    ) -> Cuda {
        not_null(module)?;
        context::current()?;
        // SAFETY: passed on.
        unsafe {
            let options = Options::of(count, options, values)?;
            put(module, load(As::Module, code, &options)? as CUmodule)
        }
    }

    pub unsafe fn cuModuleLoadFatBinary(module: *mut CUmodule, code: *const c_void) -> Cuda {
        // SAFETY: passed on.
        unsafe { cuModuleLoadData(module, code) }
    }

    pub unsafe fn cuModuleLoad(module: *mut CUmodule, path: *const c_char) -> Cuda {
        not_null(module)?;
        context::current()?;
        // SAFETY: passed on.
        unsafe { put(module, load_file(As::Module, path, &Options::default())? as CUmodule) }
    }

    pub unsafe fn cuModuleGetFunction(function: *mut CUfunction, module: CUmodule, text: *const c_char) -> Cuda {
        not_null(function)?;
        let module = Typed(handles::check(HandleKind::Module, module as u64)?);
        // SAFETY: passed on.
        unsafe {
            let name = function_name(text)?;
            put(function, look_up(&GetFunction { module, name: Text(name.to_bytes()) }, name)? as CUfunction)
        }
    }

    pub unsafe fn cuModuleEnumerateFunctions(functions: *mut CUfunction, count: u32, module: CUmodule) -> Cuda {
        not_null(functions)?;
        let module = handles::check(HandleKind::Module, module as u64)?;
        for (at, word) in functions_of(module)?.into_iter().take(count as usize).enumerate() {
            // SAFETY: `count` elements, by the caller's promise.
            unsafe { functions.add(at).write(word as CUfunction) };
        }
        Ok(())
    }

    pub unsafe fn cuModuleGetGlobal_v2(
        dptr: *mut CUdeviceptr,
        bytes: *mut usize,
        module: CUmodule,
        text: *const c_char,
    ) -> Cuda {
        let module = handles::check(HandleKind::Module, module as u64)?;
        // SAFETY: passed on.
        unsafe { write_global(dptr, bytes, global(module, name(text)?)?) }
    }

    /// # Safety
    /// Either output is NULL or writable.
    unsafe fn write_global(dptr: *mut CUdeviceptr, bytes: *mut usize, (address, len): (u64, u64)) -> Cuda {
        // SAFETY: the caller's promise.
        unsafe {
            if !dptr.is_null() {
                dptr.write(address);
            }
            if !bytes.is_null() {
                bytes.write(len as usize);
            }
        }
        Ok(())
    }

    #[allow(clippy::too_many_arguments)]
    pub unsafe fn cuLibraryLoadData(
        library: *mut CUlibrary,
        code: *const c_void,
        jit_options: *mut u32,
        jit_values: *mut *mut c_void,
        jit_count: u32,
        _options: *mut u32,
        _values: *mut *mut c_void,
        _count: u32,
    ) -> Cuda {
        not_null(library)?;
        // SAFETY: passed on.
        unsafe {
            let options = Options::of(jit_count, jit_options, jit_values)?;
            put(library, load(As::Library, code, &options)? as CUlibrary)
        }
    }

    #[allow(clippy::too_many_arguments)]
    pub unsafe fn cuLibraryLoadFromFile(
        library: *mut CUlibrary,
        path: *const c_char,
        jit_options: *mut u32,
        jit_values: *mut *mut c_void,
        jit_count: u32,
        _options: *mut u32,
        _values: *mut *mut c_void,
        _count: u32,
    ) -> Cuda {
        not_null(library)?;
        // SAFETY: passed on.
        unsafe {
            let options = Options::of(jit_count, jit_options, jit_values)?;
            put(library, load_file(As::Library, path, &options)? as CUlibrary)
        }
    }

    pub unsafe fn cuLibraryGetKernel(kernel: *mut CUkernel, library: CUlibrary, text: *const c_char) -> Cuda {
        not_null(kernel)?;
        let library = Typed(handles::check(HandleKind::Library, library as u64)?);
        // SAFETY: passed on.
        unsafe {
            let name = function_name(text)?;
            put(kernel, look_up(&GetKernel { library, name: Text(name.to_bytes()) }, name)? as CUkernel)
        }
    }

    pub unsafe fn cuLibraryEnumerateKernels(kernels: *mut CUkernel, count: u32, library: CUlibrary) -> Cuda {
        not_null(kernels)?;
        let library = Typed(handles::check(HandleKind::Library, library as u64)?);
        let words = enumerate(|skip| LibraryKernels { library, skip })?;
        for (at, word) in words.into_iter().take(count as usize).enumerate() {
            // SAFETY: `count` elements, by the caller's promise.
            unsafe { kernels.add(at).write(word as CUkernel) };
        }
        Ok(())
    }

    pub unsafe fn cuLibraryGetModule(module: *mut CUmodule, library: CUlibrary) -> Cuda {
        not_null(module)?;
        let library = Typed(handles::check(HandleKind::Library, library as u64)?);
        let word = operation::call(&LibraryModule { library }, |reply| handles::opened(reply.module.0))?;
        // SAFETY: passed on.
        unsafe { put(module, word as CUmodule) }
    }

    pub unsafe fn cuLibraryGetGlobal(
        dptr: *mut CUdeviceptr,
        bytes: *mut usize,
        library: CUlibrary,
        text: *const c_char,
    ) -> Cuda {
        let library = handles::check(HandleKind::Library, library as u64)?;
        // SAFETY: passed on.
        unsafe { write_global(dptr, bytes, global(library, name(text)?)?) }
    }

    pub unsafe fn cuLibraryGetUnifiedFunction(
        _function: *mut *mut c_void,
        _library: CUlibrary,
        _symbol: *const c_char,
    ) -> Cuda {
        // Exists only where the CPU can run the GPU's code.
        Err(CUDA_ERROR_NOT_FOUND)
    }

    pub unsafe fn cuKernelGetFunction(function: *mut CUfunction, kernel: CUkernel) -> Cuda {
        not_null(function)?;
        let known = functions::find(kernel)?;
        let kernel = Typed(handles::check(HandleKind::Kernel, kernel as u64)?);
        let word = look_up(&KernelFunction { kernel }, &known.name)?;
        // SAFETY: passed on.
        unsafe { put(function, word as CUfunction) }
    }
}
