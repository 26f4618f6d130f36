//! Modules and libraries.

use std::ffi::{CStr, CString};

use cuda_abi::border::{InSlice, Out, OutSlice, Str};
use cuda_abi::constants::{device_attribute, loading_mode};
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

use crate::device::Device;
use crate::entry::not_null;
use crate::functions::Question;
use crate::functions::owners::{self, Owner};
use crate::graph::capture;
use crate::jit::{Logs, Options};
use crate::{allocations, carry, context, functions, handles, hint, operation, session};

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
unsafe fn load(what: As, code: *const c_void, options: &Options) -> CudaResult<u64> {
    not_null(code)?;
    // SAFETY: the caller's promise.
    let image = unsafe { image::at(code.cast()) }.ok_or(CUDA_ERROR_INVALID_IMAGE)?;
    load_image(what, &image, options).inspect_err(|code| hint::refused(*code))
}

fn load_image(what: As, image: &Image<'_>, options: &Options) -> CudaResult<u64> {
    if image.parts.is_empty() {
        return load_fitting(what, image.main, options);
    }
    let small = image.parts.iter().map(|part| part.len()).sum::<usize>() <= PARTS_AT_ONCE;
    let without = if small { Err(CUDA_ERROR_NO_BINARY_FOR_GPU) } else { load_with(what, image.main, &[], options) };
    match without {
        Err(CUDA_ERROR_NO_BINARY_FOR_GPU) => load_with(what, image.main, &image.parts, options),
        done => done,
    }
}

/// Loads an image without what no device of this zone can run: libraries have code for half a dozen generations of GPUs.
fn load_fitting(what: As, image: &[u8], options: &Options) -> CudaResult<u64> {
    let major = |device: &Device| device.attribute(device_attribute::COMPUTE_CAPABILITY_MAJOR).ok()?.try_into().ok();
    let majors: Option<Vec<u32>> = session::get()?.devices.iter().map(major).collect();
    let fitting = match majors.and_then(|majors| image::for_generations(image, &majors)) {
        Some(fitting) => load_with(what, &fitting, &[], options),
        None => Err(CUDA_ERROR_NO_BINARY_FOR_GPU),
    };
    match fitting {
        // The driver may know better what it can run.
        Err(CUDA_ERROR_NO_BINARY_FOR_GPU) => load_with(what, image, &[], options),
        done => done,
    }
}

fn load_with(what: As, image: &[u8], parts: &[&[u8]], options: &Options) -> CudaResult<u64> {
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

fn load_plain(what: As, image: &[u8]) -> CudaResult<u64> {
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

fn load_file(what: As, path: Str, options: &Options) -> CudaResult<u64> {
    use std::os::unix::ffi::OsStrExt;
    let path = std::ffi::OsStr::from_bytes(path.text()?.to_bytes());
    let mut bytes = std::fs::read(path).map_err(|_| CUDA_ERROR_FILE_NOT_FOUND)?;
    bytes.push(0);
    if !image::is_whole(&bytes) {
        return Err(CUDA_ERROR_INVALID_IMAGE);
    }
    bytes.pop();
    load_fitting(what, &bytes, options).inspect_err(|code| hint::refused(*code))
}

/// A name of a length that names have.
fn name(name: Str<'_>) -> CudaResult<&CStr> {
    let name = name.text()?;
    if name.count_bytes() <= MAX_NAME { Ok(name) } else { Err(CUDA_ERROR_NOT_FOUND) }
}

/// As `name`, of a function: natively an empty one is a wrong value.
fn function_name(text: Str<'_>) -> CudaResult<&CStr> {
    let name = name(text)?;
    if name.is_empty() { Err(CUDA_ERROR_INVALID_VALUE) } else { Ok(name) }
}

/// Asks for a function and answers its handle.
fn look_up<R>(request: &R, question: Question) -> CudaResult<u64>
where
    R: for<'m> Operation<Reply<'m> = Described<'m>>,
{
    // The worker looks at more than the program asked for, which no capture forbids the program.
    capture::unaffected(|| operation::call(request, |about| question.remember(&about)))
}

/// A function or kernel of a module or library, by its name: the driver answers the same one each time.
fn look_up_named<R>(request: &R, owner: u64, name: &CStr) -> CudaResult<u64>
where
    R: for<'m> Operation<Reply<'m> = Described<'m>>,
{
    let known = Owner::of(owner);
    if let Some(word) = known.named(name).filter(|word| functions::find(*word as CUfunction).is_ok()) {
        carry::check_fault(session::get()?)?;
        return Ok(word);
    }
    let word = look_up(request, Question::new(name, owner))?;
    known.name(name, word);
    Ok(word)
}

/// Handles of everything that can be launched in a module or library. A reply holds as many as fit; the rest is asked for
/// again.
fn enumerate<R>(owner: u64, ask: impl Fn(usize) -> R) -> CudaResult<Vec<u64>>
where
    R: for<'m> Operation<Reply<'m> = FunctionsListed<'m>>,
{
    let mut found = Vec::new();
    loop {
        let known = found.len();
        let total = operation::call(&ask(known), |reply| -> CudaResult<usize> {
            for listed in reply.functions.iter() {
                let name = CString::new(listed.name).map_err(|_| CUDA_ERROR_UNKNOWN)?;
                found.push(Question::new(&name, owner).remember(&listed.about));
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
pub(crate) fn functions_of(module: u64) -> CudaResult<Vec<u64>> {
    enumerate(module, |skip| ModuleFunctions { module: Typed(module), skip })
}

/// Looks a variable up: its address and size.
fn global(owner: u64, name: &CStr) -> CudaResult<(u64, u64)> {
    let request = GetGlobal { owner: Typed(owner), name: Text(name.to_bytes()) };
    let (address, bytes) = operation::call(&request, |reply| (reply.address, reply.bytes))?;
    allocations::add_global(address, bytes, context::current_device().unwrap_or(0), context::current_word());
    Ok((address, bytes))
}

#[allow(non_snake_case)]
pub(crate) mod api {
    use super::*;

    pub(crate) fn cuModuleGetLoadingMode(mode: Out<CUmoduleLoadingMode>) -> CudaResult {
        let eager = std::env::var_os("CUDA_MODULE_LOADING").is_some_and(|value| value.eq_ignore_ascii_case("EAGER"));
        mode.put(if eager { loading_mode::EAGER } else { loading_mode::LAZY })
    }

    pub(crate) unsafe fn cuModuleLoadData(module: Out<CUmodule>, code: *const c_void) -> CudaResult {
        // SAFETY: passed on.
        unsafe { cuModuleLoadDataEx(module, code, 0, InSlice::none(), std::ptr::null_mut()) }
    }

    pub(crate) unsafe fn cuModuleLoadDataEx(
        module: Out<CUmodule>,
        code: *const c_void,
        _count: u32,
        options: InSlice<CUjit_option>,
        values: *mut *mut c_void,
    ) -> CudaResult {
        module.required()?;
        context::current()?;
        // SAFETY: passed on.
        let word = unsafe { load(As::Module, code, &Options::of(options, values)?)? };
        module.put(word as CUmodule)
    }

    pub(crate) unsafe fn cuModuleLoadFatBinary(module: Out<CUmodule>, code: *const c_void) -> CudaResult {
        // SAFETY: passed on.
        unsafe { cuModuleLoadData(module, code) }
    }

    pub(crate) fn cuModuleLoad(module: Out<CUmodule>, path: Str) -> CudaResult {
        module.required()?;
        context::current()?;
        module.put(load_file(As::Module, path, &Options::default())? as CUmodule)
    }

    pub(crate) fn cuModuleGetFunction(function: Out<CUfunction>, module: CUmodule, text: Str) -> CudaResult {
        function.required()?;
        let module = Typed(handles::check(HandleKind::Module, module as u64)?);
        let name = function_name(text)?;
        let request = GetFunction { module, name: Text(name.to_bytes()) };
        function.put(look_up_named(&request, module.0, name)? as CUfunction)
    }

    pub(crate) fn cuModuleEnumerateFunctions(
        functions: OutSlice<CUfunction>,
        count: u32,
        module: CUmodule,
    ) -> CudaResult {
        functions.required()?;
        let module = handles::check(HandleKind::Module, module as u64)?;
        for (at, word) in functions_of(module)?.into_iter().take(count as usize).enumerate() {
            functions.put_at(at, word as CUfunction)?;
        }
        Ok(())
    }

    pub(crate) fn cuModuleGetGlobal_v2(
        dptr: Out<CUdeviceptr>,
        bytes: Out<usize>,
        module: CUmodule,
        text: Str,
    ) -> CudaResult {
        let module = handles::check(HandleKind::Module, module as u64)?;
        write_global(dptr, bytes, global(module, name(text)?)?);
        Ok(())
    }

    fn write_global(dptr: Out<CUdeviceptr>, bytes: Out<usize>, (address, len): (u64, u64)) {
        dptr.put_if(address);
        bytes.put_if(len as usize);
    }

    #[allow(clippy::too_many_arguments)]
    pub(crate) unsafe fn cuLibraryLoadData(
        library: Out<CUlibrary>,
        code: *const c_void,
        jit_options: InSlice<CUjit_option>,
        jit_values: *mut *mut c_void,
        _jit_count: u32,
        _options: InSlice<CUlibraryOption>,
        _values: InSlice<*mut c_void>,
        _count: u32,
    ) -> CudaResult {
        library.required()?;
        // SAFETY: passed on.
        let word = unsafe { load(As::Library, code, &Options::of(jit_options, jit_values)?)? };
        library.put(word as CUlibrary)
    }

    #[allow(clippy::too_many_arguments)]
    pub(crate) unsafe fn cuLibraryLoadFromFile(
        library: Out<CUlibrary>,
        path: Str,
        jit_options: InSlice<CUjit_option>,
        jit_values: *mut *mut c_void,
        _jit_count: u32,
        _options: InSlice<CUlibraryOption>,
        _values: InSlice<*mut c_void>,
        _count: u32,
    ) -> CudaResult {
        library.required()?;
        // SAFETY: passed on.
        let options = unsafe { Options::of(jit_options, jit_values)? };
        library.put(load_file(As::Library, path, &options)? as CUlibrary)
    }

    pub(crate) fn cuLibraryGetKernel(kernel: Out<CUkernel>, library: CUlibrary, text: Str) -> CudaResult {
        kernel.required()?;
        let library = Typed(handles::check(HandleKind::Library, library as u64)?);
        let name = function_name(text)?;
        let request = GetKernel { library, name: Text(name.to_bytes()) };
        kernel.put(look_up_named(&request, library.0, name)? as CUkernel)
    }

    pub(crate) fn cuLibraryEnumerateKernels(
        kernels: OutSlice<CUkernel>,
        count: u32,
        library: CUlibrary,
    ) -> CudaResult {
        kernels.required()?;
        let library = Typed(handles::check(HandleKind::Library, library as u64)?);
        let words = enumerate(library.0, |skip| LibraryKernels { library, skip })?;
        for (at, word) in words.into_iter().take(count as usize).enumerate() {
            kernels.put_at(at, word as CUkernel)?;
        }
        Ok(())
    }

    pub(crate) fn cuLibraryGetModule(module: Out<CUmodule>, library: CUlibrary) -> CudaResult {
        module.required()?;
        let library = Typed(handles::check(HandleKind::Library, library as u64)?);
        let word = operation::call(&LibraryModule { library }, |reply| handles::opened(reply.module.0))?;
        owners::adopt(word, library.0);
        module.put(word as CUmodule)
    }

    pub(crate) fn cuLibraryGetGlobal(
        dptr: Out<CUdeviceptr>,
        bytes: Out<usize>,
        library: CUlibrary,
        text: Str,
    ) -> CudaResult {
        let library = handles::check(HandleKind::Library, library as u64)?;
        write_global(dptr, bytes, global(library, name(text)?)?);
        Ok(())
    }

    pub(crate) fn cuLibraryGetUnifiedFunction(
        _function: Out<*mut c_void>,
        _library: CUlibrary,
        _symbol: Str,
    ) -> CudaResult {
        // Exists only where the CPU can run the GPU's code.
        Err(CUDA_ERROR_NOT_FOUND)
    }

    pub(crate) fn cuKernelGetFunction(function: Out<CUfunction>, kernel: CUkernel) -> CudaResult {
        function.required()?;
        let known = functions::find(kernel)?;
        let kernel = Typed(handles::check(HandleKind::Kernel, kernel as u64)?);
        carry::check_fault(session::get()?)?;
        let word = functions::in_context(&known, || look_up(&KernelFunction { kernel }, Question::like(&known)))?;
        function.put(word as CUfunction)
    }
}
