//! Modules: code bound to a context, with its variables in that context's memory.

use std::collections::HashMap;
use std::ffi::CString;
use std::sync::Arc;

use cuda_abi::constants::loading_mode;
use cuda_abi::driver::Driver;
use cuda_abi::error::*;
use cuda_abi::image::Image;
use cuda_abi::types::*;
use fatbin::ImageError;
use parking_lot::Mutex;
use ptx_exec::{Program, Reference, Variable};

use super::abi::*;
use super::attributes::{MAJOR, MINOR};
use super::context::{Context, current};
use super::function::{FUNCTIONS, Function, Settings};
use super::handles::{Owned, Table, of, out};
use super::jit_log::Log;
use super::memory::alloc;
use super::memory::map::{self, Kind, Region};
use super::{array, heap, library, link, notice, references, state, texture};

/// The capability that images are chosen for.
pub(crate) const CAPABILITY: u32 = (MAJOR * 10 + MINOR) as u32;

/// The PTX of CUDA 13.x: later ones add instructions and take none away.
const PTX_VERSION: u32 = 99;

pub(crate) static MODULES: Table<Module> = Table::new(6);

pub(crate) struct Module {
    pub handle: u64,
    owner: u64,
    pub context: Arc<Context>,
    pub code: Arc<ptx_exec::Module>,
    pub program: Program,
    variables: Vec<u64>,
    /// Handles of the functions that were asked for, by the kernel's index.
    functions: Mutex<HashMap<usize, u64>>,
}

impl Owned for Module {
    fn owner(&self) -> u64 {
        self.owner
    }
}

impl Drop for Module {
    /// Grids hold their module: memory goes when the last one is done.
    fn drop(&mut self) {
        let own = self.code.variables().iter().zip(&self.variables).filter(|(variable, _)| !variable.external);
        free_variables(self.owner, &own.map(|(_, base)| *base).collect::<Vec<_>>());
    }
}

fn free_variables(owner: u64, variables: &[u64]) {
    for base in variables {
        // The context may have ended and the address be in use again.
        if map::find(*base).is_some_and(|region: Region| region.base == *base && region.owner == owner) {
            let _ = alloc::free(*base);
        }
    }
}

impl Module {
    /// Binds code to a context.
    pub(crate) fn bind(context: &Arc<Context>, code: Arc<ptx_exec::Module>) -> CudaResult<Arc<Module>> {
        let owner = context.id();
        let mut variables = Vec::new();
        let defined = |name: &str| code.variables().iter().position(|other| !other.external && other.name == name);
        let placed = code.variables().iter().try_for_each(|variable| {
            // Declared in one text and defined in another: the definition has the memory.
            let elsewhere = variable.external && defined(&variable.name).is_some();
            variables.push(if elsewhere { 0 } else { place(context, variable)? });
            Ok(())
        });
        if let Err(code) = placed {
            free_variables(owner, &variables);
            return Err(code);
        }
        for (at, variable) in code.variables().iter().enumerate().filter(|(_, variable)| variable.external) {
            variables[at] = defined(&variable.name).map_or(0, |other| variables[other]);
        }
        for (index, _) in code.variables().iter().enumerate().filter(|(_, variable)| !variable.external) {
            initialise(&code, index, &variables);
        }
        let program = code.clone().link(&variables);
        let context = context.clone();
        let functions = Mutex::default();
        let (_, module) =
            MODULES.insert_with(|handle| Module { handle, owner, context, code, program, variables, functions });
        Ok(module)
    }

    /// The function of a kernel, the same handle each time.
    pub(crate) fn function(self: &Arc<Self>, index: usize, settings: Option<Arc<Settings>>) -> u64 {
        let mut functions = self.functions.lock();
        *functions.entry(index).or_insert_with(|| {
            let kernel = &self.code.kernels()[index];
            let settings = settings.unwrap_or_else(|| Settings::of(kernel));
            let name = CString::new(kernel.name.as_str()).unwrap_or_default();
            FUNCTIONS.insert(Function { module: self.clone(), index, settings, name })
        })
    }

    fn find(&self, name: &str, reference: Option<Reference>) -> CudaResult<usize> {
        let fits =
            |variable: &Variable| variable.name == name && !variable.external && variable.reference == reference;
        self.code.variables().iter().position(fits).ok_or(CUDA_ERROR_NOT_FOUND)
    }

    /// Address and size of a variable.
    pub(crate) fn global(&self, name: &str) -> CudaResult<(u64, u64)> {
        let at = self.find(name, None)?;
        Ok((self.variables[at], self.code.variables()[at].size))
    }

    /// Address of a reference to an image.
    pub(crate) fn reference(&self, name: &str, kind: Reference) -> CudaResult<u64> {
        Ok(self.variables[self.find(name, Some(kind))?])
    }

    /// Takes the module and its functions out of the tables.
    pub(crate) fn unload(&self) {
        if !self.variables.is_empty() {
            // Copies that were submitted may still use them. Errors are reported where the program synchronises.
            let _ = self.context.synchronize();
        }
        for handle in std::mem::take(&mut *self.functions.lock()).into_values() {
            let _ = FUNCTIONS.remove(handle);
        }
        references::forget(|owner| owner == self.handle);
        let _ = MODULES.remove(self.handle);
    }
}

fn place(context: &Context, variable: &Variable) -> CudaResult<u64> {
    if variable.external {
        notice::once(format!("undefined variable {} in the image", variable.name));
        return Err(CUDA_ERROR_INVALID_PTX);
    }
    alloc::allocate(context, variable.size.max(1), Kind::Device { pool: None })
}

/// Fresh memory is zero; the rest of a variable's value is written here.
fn initialise(code: &ptx_exec::Module, index: usize, variables: &[u64]) {
    let (address, bytes) = (variables[index], code.initial_bytes(index, variables));
    let count = bytes.len().min(code.variables()[index].size as usize);
    // SAFETY: the memory was just allocated with the variable's size and is not known elsewhere.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), address as *mut u8, count) };
}

/// The functions of modules that end with their context.
pub(crate) fn forget_context(owner: u64) {
    heap::forget_context(owner);
    link::forget_context(owner);
    texture::forget_context(owner);
    array::forget_context(owner);
    library::forget_context(owner);
    drop(FUNCTIONS.remove_owned(owner));
    for module in MODULES.remove_owned(owner) {
        references::forget(|owner| owner == module.handle);
        module.functions.lock().clear();
    }
}

/// Parses an image.
fn load(image: &Image<'_>, log: &Log) -> CudaResult<Arc<ptx_exec::Module>> {
    let text = fatbin::linked_text(image, CAPABILITY).map_err(|error| refuse(error, log))?;
    let module = ptx_exec::Module::from_ptx(&text).map_err(|error| {
        log.write(&error.to_string());
        notice::once(error.to_string());
        CUDA_ERROR_INVALID_PTX
    })?;
    if module.version() > PTX_VERSION {
        let (have, most) = (module.version(), PTX_VERSION);
        let text = |version: u32| format!("{}.{}", version / 10, version % 10);
        let message =
            format!("PTX version {} is not supported, the newest supported version is {}", text(have), text(most));
        log.write(&message);
        notice::once(message);
        return Err(CUDA_ERROR_UNSUPPORTED_PTX_VERSION);
    }
    Ok(Arc::new(module))
}

/// Parses an image that is known by its address only.
///
/// # Safety
/// `image` is NULL or an image.
pub(crate) unsafe fn load_pointer(image: *const c_void, log: &Log) -> CudaResult<Arc<ptx_exec::Module>> {
    valid(!image.is_null())?;
    // SAFETY: by the API's contract it is an image, and stays so during the call.
    let image = unsafe { cuda_abi::image::at(image.cast()) }.ok_or_else(|| refuse(ImageError::Unknown, log))?;
    load(&image, log)
}

/// Parses an image in a file.
pub(crate) fn load_file(name: Str, log: &Log) -> CudaResult<Arc<ptx_exec::Module>> {
    let bytes = std::fs::read(text(name)?).map_err(|_| CUDA_ERROR_FILE_NOT_FOUND)?;
    load(&Image { main: &bytes, parts: Vec::new() }, log)
}

fn refuse(error: ImageError, log: &Log) -> CUresult {
    log.write(&error.to_string());
    notice::once(error.to_string());
    match error {
        ImageError::NoPtx | ImageError::Specific(..) => CUDA_ERROR_NO_BINARY_FOR_GPU,
        _ => CUDA_ERROR_INVALID_IMAGE,
    }
}

pub(crate) fn module(handle: CUmodule) -> CudaResult<Arc<Module>> {
    state::state()?;
    MODULES.get(of(handle)).map_err(|_| CUDA_ERROR_INVALID_HANDLE)
}

unsafe fn cuModuleLoadData(module: Out<CUmodule>, image: *const c_void) -> CudaResult {
    module.required()?;
    let context = current()?;
    // SAFETY: passed on.
    let code = unsafe { load_pointer(image, &Log::default()) }?;
    module.put(out(Module::bind(&context, code)?.handle))
}

unsafe fn cuModuleLoadDataEx(
    module: Out<CUmodule>,
    image: *const c_void,
    _count: u32,
    options: InSlice<CUjit_option>,
    values: *mut *mut c_void,
) -> CudaResult {
    module.required()?;
    let context = current()?;
    // SAFETY: passed on.
    let log = unsafe { Log::of(options, values) }?;
    // SAFETY: passed on.
    let code = unsafe { load_pointer(image, &log) }?;
    module.put(out(Module::bind(&context, code)?.handle))
}

fn cuModuleLoad(module: Out<CUmodule>, name: Str) -> CudaResult {
    module.required()?;
    let context = current()?;
    module.put(out(Module::bind(&context, load_file(name, &Log::default())?)?.handle))
}

fn cuModuleUnload(handle: CUmodule) -> CudaResult {
    let module = module(handle)?;
    module.context.usable()?;
    module.unload();
    Ok(())
}

fn cuModuleGetFunction(to: Out<CUfunction>, handle: CUmodule, name: Str) -> CudaResult {
    to.required()?;
    let name = text(name)?;
    valid(!name.is_empty())?;
    let module = module(handle)?;
    module.context.usable()?;
    let index = module.code.kernels().iter().position(|kernel| kernel.name == name);
    to.put(out(module.function(index.ok_or(CUDA_ERROR_NOT_FOUND)?, None)))
}

fn cuModuleGetFunctionCount(count: Out<u32>, handle: CUmodule) -> CudaResult {
    count.required()?;
    count.put(module(handle)?.code.kernels().len() as u32)
}

fn cuModuleEnumerateFunctions(to: OutSlice<CUfunction>, count: u32, handle: CUmodule) -> CudaResult {
    valid(count > 0)?;
    let module = module(handle)?;
    let all: Vec<CUfunction> = (0..module.code.kernels().len()).map(|at| out(module.function(at, None))).collect();
    to.put_list(&all).map(|_| ())
}

fn cuModuleGetGlobal_v2(dptr: Out<CUdeviceptr>, bytes: Out<usize>, handle: CUmodule, name: Str) -> CudaResult {
    let name = text(name)?;
    valid(!(dptr.is_null() && bytes.is_null()))?;
    let module = module(handle)?;
    module.context.usable()?;
    let (address, size) = module.global(&name)?;
    dptr.put_if(address);
    bytes.put_if(size as usize);
    Ok(())
}

fn cuModuleGetLoadingMode(mode: Out<CUmoduleLoadingMode>) -> CudaResult {
    state::state()?;
    mode.put(loading_mode::LAZY)
}

pub(crate) fn fill(table: Driver) -> Driver {
    entries!(
        table,
        cuModuleLoadData,
        cuModuleLoadDataEx,
        cuModuleLoadFatBinary = cuModuleLoadData,
        cuModuleLoad,
        cuModuleUnload,
        cuModuleGetFunction,
        cuModuleGetFunctionCount,
        cuModuleEnumerateFunctions,
        cuModuleGetGlobal_v2,
        cuModuleGetLoadingMode
    )
}
