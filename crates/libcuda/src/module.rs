//! Modules and libraries.

use std::ffi::CStr;

use cuda_abi::constants::loading_mode;
use cuda_abi::error::*;
use cuda_abi::image::{self, Image};
use cuda_abi::types::*;
use cuda_abi::wire::{Kind as HandleKind, MAX_IMAGE, MAX_IMAGE_PARTS, MAX_NAME, Op};

use crate::entry::{Cuda, not_null};
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

fn load_plain(what: As, image: &[u8]) -> Cuda<u64> {
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

/// Looks a function up in its owner and answers its handle.
fn look_up(op: Op, owner: u64, name: &CStr) -> Cuda<u64> {
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
pub fn enumerate(op: Op, owner: u64) -> Cuda<Vec<u64>> {
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
fn global(owner: u64, name: &CStr) -> Cuda<(u64, u64)> {
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
    use crate::device::put;

    pub unsafe fn cuModuleGetLoadingMode(mode: *mut u32) -> Cuda {
        let eager = std::env::var_os("CUDA_MODULE_LOADING").is_some_and(|value| value.eq_ignore_ascii_case("EAGER"));
        // SAFETY: passed on.
        unsafe { put(mode, if eager { loading_mode::EAGER } else { loading_mode::LAZY }) }
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
            let options = Options::of(cuda_abi::border::InSlice::from_raw(options, count.into()), values)?;
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
        let module = handles::check(HandleKind::Module, module as u64)?;
        // SAFETY: passed on.
        unsafe { put(function, look_up(Op::GetFunction, module, name(text)?)? as CUfunction) }
    }

    pub unsafe fn cuModuleEnumerateFunctions(functions: *mut CUfunction, count: u32, module: CUmodule) -> Cuda {
        not_null(functions)?;
        let module = handles::check(HandleKind::Module, module as u64)?;
        for (at, word) in enumerate(Op::ModuleFunctions, module)?.into_iter().take(count as usize).enumerate() {
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
            let options =
                Options::of(cuda_abi::border::InSlice::from_raw(jit_options, jit_count.into()), jit_values)?;
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
            let options =
                Options::of(cuda_abi::border::InSlice::from_raw(jit_options, jit_count.into()), jit_values)?;
            put(library, load_file(As::Library, path, &options)? as CUlibrary)
        }
    }

    pub unsafe fn cuLibraryGetKernel(kernel: *mut CUkernel, library: CUlibrary, text: *const c_char) -> Cuda {
        not_null(kernel)?;
        let library = handles::check(HandleKind::Library, library as u64)?;
        // SAFETY: passed on.
        unsafe { put(kernel, look_up(Op::GetKernel, library, name(text)?)? as CUkernel) }
    }

    pub unsafe fn cuLibraryEnumerateKernels(kernels: *mut CUkernel, count: u32, library: CUlibrary) -> Cuda {
        not_null(kernels)?;
        let library = handles::check(HandleKind::Library, library as u64)?;
        for (at, word) in enumerate(Op::LibraryKernels, library)?.into_iter().take(count as usize).enumerate() {
            // SAFETY: `count` elements, by the caller's promise.
            unsafe { kernels.add(at).write(word as CUkernel) };
        }
        Ok(())
    }

    pub unsafe fn cuLibraryGetModule(module: *mut CUmodule, library: CUlibrary) -> Cuda {
        not_null(module)?;
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
        // SAFETY: passed on.
        unsafe { put(function, word as CUfunction) }
    }
}
