//! Modules and libraries.

use std::ffi::CStr;

use cuda_abi::border::{InSlice, Out, OutSlice, Str};
use cuda_abi::constants::loading_mode;
use cuda_abi::error::*;
use cuda_abi::image::{self, Image};
use cuda_abi::types::*;
use cuda_abi::wire::{Kind as HandleKind, MAX_IMAGE, MAX_IMAGE_PARTS, MAX_NAME, Op};

use crate::entry::not_null;
use crate::graph::capture;
use crate::jit::{self, Logs, Options};
use crate::{allocations, carry, context, functions, handles};

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
    load_image(what, &image, options)
}

fn load_image(what: As, image: &Image<'_>, options: &Options) -> CudaResult<u64> {
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
    let mut upload = Vec::with_capacity(bytes + 1024);
    jit::word(&mut upload, u64::from(matches!(what, As::Library)));
    options.upload(&mut upload);
    jit::word(&mut upload, 1 + parts.len() as u64);
    for bytes in [image].iter().chain(parts) {
        jit::bytes(&mut upload, bytes);
    }
    let (mut code, mut word, mut logs) = (CUDA_ERROR_UNKNOWN, 0, Logs::default());
    carry::upload(Op::ImageLoad, &upload, |reader| {
        (code, word) = (reader.narrow()?, reader.word()?);
        logs = Logs::read(reader)?;
        Ok(())
    })?;
    options.answer(&logs, start);
    if code == CUDA_SUCCESS { Ok(handles::opened(word)) } else { Err(code) }
}

fn load_plain(what: As, image: &[u8]) -> CudaResult<u64> {
    let op = match what {
        As::Module => Op::ModuleLoad,
        As::Library => Op::LibraryLoad,
    };
    let mut word = 0;
    carry::upload(op, image, |reader| {
        word = handles::opened(reader.word()?);
        Ok(())
    })?;
    Ok(word)
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
    load_with(what, &bytes, &[], options)
}

/// A name of a length that names have.
fn name(name: Str<'_>) -> CudaResult<&CStr> {
    let name = name.text()?;
    if name.count_bytes() <= MAX_NAME { Ok(name) } else { Err(CUDA_ERROR_NOT_FOUND) }
}

/// Looks a function up in its owner and answers its handle.
fn look_up(op: Op, owner: u64, name: &CStr) -> CudaResult<u64> {
    if name.is_empty() {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let mut word = 0;
    // The worker looks at more than the program asked for, which no capture forbids the program.
    capture::unaffected(|| {
        carry::call(
            op as u16,
            |writer| {
                writer.word(owner);
                writer.bytes(name.to_bytes());
            },
            |reader| {
                word = functions::read(reader, Some(name))?;
                Ok(())
            },
        )
    })?;
    Ok(word)
}

/// Handles of everything that can be launched in a module or library. A reply holds as many as fit; the rest is asked for
/// again.
pub fn enumerate(op: Op, owner: u64) -> CudaResult<Vec<u64>> {
    let mut found = Vec::new();
    loop {
        let (mut total, known) = (0, found.len());
        carry::call(
            op as u16,
            |writer| writer.words(&[owner, known as u64]),
            |reader| {
                total = reader.narrow()?;
                while !reader.is_empty() {
                    found.push(functions::read(reader, None)?);
                }
                Ok(())
            },
        )?;
        if found.len() >= total {
            return Ok(found);
        }
        if found.len() == known {
            return Err(CUDA_ERROR_UNKNOWN);
        }
    }
}

/// Looks a variable up: its address and size.
fn global(owner: u64, name: &CStr) -> CudaResult<(u64, u64)> {
    let (mut address, mut bytes) = (0, 0);
    carry::call(
        Op::GetGlobal as u16,
        |writer| {
            writer.word(owner);
            writer.bytes(name.to_bytes());
        },
        |reader| {
            (address, bytes) = (reader.word()?, reader.word()?);
            Ok(())
        },
    )?;
    allocations::add_global(address, bytes, context::current_device().unwrap_or(0), context::current_word());
    Ok((address, bytes))
}

#[allow(non_snake_case)]
pub mod api {
    use super::*;

    pub fn cuModuleGetLoadingMode(mode: Out<CUmoduleLoadingMode>) -> CudaResult {
        let eager = std::env::var_os("CUDA_MODULE_LOADING").is_some_and(|value| value.eq_ignore_ascii_case("EAGER"));
        mode.put(if eager { loading_mode::EAGER } else { loading_mode::LAZY })
    }

    pub unsafe fn cuModuleLoadData(module: Out<CUmodule>, code: *const c_void) -> CudaResult {
        // SAFETY: passed on.
        unsafe { cuModuleLoadDataEx(module, code, 0, InSlice::none(), std::ptr::null_mut()) }
    }

    pub unsafe fn cuModuleLoadDataEx(
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

    pub unsafe fn cuModuleLoadFatBinary(module: Out<CUmodule>, code: *const c_void) -> CudaResult {
        // SAFETY: passed on.
        unsafe { cuModuleLoadData(module, code) }
    }

    pub fn cuModuleLoad(module: Out<CUmodule>, path: Str) -> CudaResult {
        module.required()?;
        context::current()?;
        module.put(load_file(As::Module, path, &Options::default())? as CUmodule)
    }

    pub fn cuModuleGetFunction(function: Out<CUfunction>, module: CUmodule, text: Str) -> CudaResult {
        function.required()?;
        let module = handles::check(HandleKind::Module, module as u64)?;
        function.put(look_up(Op::GetFunction, module, name(text)?)? as CUfunction)
    }

    pub fn cuModuleEnumerateFunctions(functions: OutSlice<CUfunction>, count: u32, module: CUmodule) -> CudaResult {
        functions.required()?;
        let module = handles::check(HandleKind::Module, module as u64)?;
        for (at, word) in enumerate(Op::ModuleFunctions, module)?.into_iter().take(count as usize).enumerate() {
            functions.put_at(at, word as CUfunction)?;
        }
        Ok(())
    }

    pub fn cuModuleGetGlobal_v2(
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
    pub unsafe fn cuLibraryLoadData(
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
    pub unsafe fn cuLibraryLoadFromFile(
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

    pub fn cuLibraryGetKernel(kernel: Out<CUkernel>, library: CUlibrary, text: Str) -> CudaResult {
        kernel.required()?;
        let library = handles::check(HandleKind::Library, library as u64)?;
        kernel.put(look_up(Op::GetKernel, library, name(text)?)? as CUkernel)
    }

    pub fn cuLibraryEnumerateKernels(kernels: OutSlice<CUkernel>, count: u32, library: CUlibrary) -> CudaResult {
        kernels.required()?;
        let library = handles::check(HandleKind::Library, library as u64)?;
        for (at, word) in enumerate(Op::LibraryKernels, library)?.into_iter().take(count as usize).enumerate() {
            kernels.put_at(at, word as CUkernel)?;
        }
        Ok(())
    }

    pub fn cuLibraryGetModule(module: Out<CUmodule>, library: CUlibrary) -> CudaResult {
        module.required()?;
        let library = handles::check(HandleKind::Library, library as u64)?;
        let mut word = 0;
        carry::call(
            Op::LibraryModule as u16,
            |writer| writer.word(library),
            |reader| {
                word = handles::opened(reader.word()?);
                Ok(())
            },
        )?;
        module.put(word as CUmodule)
    }

    pub fn cuLibraryGetGlobal(
        dptr: Out<CUdeviceptr>,
        bytes: Out<usize>,
        library: CUlibrary,
        text: Str,
    ) -> CudaResult {
        let library = handles::check(HandleKind::Library, library as u64)?;
        write_global(dptr, bytes, global(library, name(text)?)?);
        Ok(())
    }

    pub fn cuLibraryGetUnifiedFunction(_function: Out<*mut c_void>, _library: CUlibrary, _symbol: Str) -> CudaResult {
        // Exists only where the CPU can run the GPU's code.
        Err(CUDA_ERROR_NOT_FOUND)
    }

    pub fn cuKernelGetFunction(function: Out<CUfunction>, kernel: CUkernel) -> CudaResult {
        function.required()?;
        let known = functions::find(kernel)?;
        let kernel = handles::check(HandleKind::Kernel, kernel as u64)?;
        let mut word = 0;
        capture::unaffected(|| {
            carry::call(
                Op::KernelFunction as u16,
                |writer| writer.word(kernel),
                |reader| {
                    word = functions::read(reader, Some(&known.name))?;
                    Ok(())
                },
            )
        })?;
        function.put(word as CUfunction)
    }
}
