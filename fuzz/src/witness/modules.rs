//! Modules, libraries, functions, links, launches. The same question has the same answer, as a driver's has.

use std::ffi::{CStr, c_char, c_void};

use cuda_abi::driver::Driver;
use cuda_abi::error::*;
use cuda_abi::types::*;
use cuda_abi::wire::Kind;

use super::State;
use super::state::{GLOBALS, touch};

pub(super) fn fill(driver: &mut Driver) {
    driver.cuModuleGetFunction = cuModuleGetFunction;
    driver.cuLibraryGetKernel = cuLibraryGetKernel;
    driver.cuKernelGetFunction = cuKernelGetFunction;
    driver.cuLibraryGetModule = cuLibraryGetModule;
    driver.cuFuncGetModule = cuFuncGetModule;
    driver.cuKernelGetLibrary = cuKernelGetLibrary;
    driver.cuModuleGetFunctionCount = cuModuleGetFunctionCount;
    driver.cuModuleEnumerateFunctions = cuModuleEnumerateFunctions;
    driver.cuLibraryGetKernelCount = cuLibraryGetKernelCount;
    driver.cuLibraryEnumerateKernels = cuLibraryEnumerateKernels;
    driver.cuFuncGetName = cuFuncGetName;
    driver.cuKernelGetName = cuKernelGetName;
    driver.cuFuncGetParamInfo = cuFuncGetParamInfo;
    driver.cuKernelGetParamInfo = cuKernelGetParamInfo;
    driver.cuFuncGetAttribute = cuFuncGetAttribute;
    driver.cuKernelGetAttribute = cuKernelGetAttribute;
    driver.cuModuleGetGlobal_v2 = cuModuleGetGlobal_v2;
    driver.cuLibraryGetGlobal = cuLibraryGetGlobal;
    driver.cuLinkComplete = cuLinkComplete;
    driver.cuLinkDestroy = cuLinkDestroy;
    driver.cuLaunchKernel = cuLaunchKernel;
    driver.cuLaunchKernelEx = cuLaunchKernelEx;
    driver.cuGetExportTable = cuGetExportTable;
}

/// The number of a name; none for names that nothing has.
unsafe fn name_of(witness: &State, name: *const c_char) -> Option<u64> {
    witness.reads_text(name);
    let bytes = unsafe { CStr::from_ptr(name) }.to_bytes();
    (bytes.len() < 64).then(|| bytes.iter().fold(1, |sum, byte| (sum * 31 + u64::from(*byte)) % 4))
}

/// What an owner has under a name.
fn named(witness: &mut State, owner_kind: Kind, owner: u64, kind: Kind, name: u64) -> Option<u64> {
    witness.uses(owner_kind, owner);
    if witness.current == 0 && kind != Kind::Kernel {
        return None;
    }
    if let Some(known) = witness.named.get(&(owner, name)) {
        return Some(*known);
    }
    // A kernel's function takes what the kernel does.
    let parameters = match owner_kind {
        Kind::Kernel => witness.objects.get(&owner).map_or(0, |kernel| kernel.detail),
        _ => name,
    };
    let detail = if kind == Kind::Module { 0 } else { parameters };
    let made = witness.make_of(kind, owner, detail);
    witness.named.insert((owner, name), made);
    Some(made)
}

unsafe extern "C" fn cuModuleGetFunction(out: *mut CUfunction, module: CUmodule, name: *const c_char) -> CUresult {
    let mut witness = State::lock("cuModuleGetFunction");
    let Some(name) = (unsafe { name_of(&witness, name) }) else { return CUDA_ERROR_NOT_FOUND };
    let found = named(&mut witness, Kind::Module, module as u64, Kind::Function, name);
    let Some(found) = found else { return CUDA_ERROR_INVALID_CONTEXT };
    unsafe { *out = found as CUfunction };
    CUDA_SUCCESS
}

unsafe extern "C" fn cuLibraryGetKernel(out: *mut CUkernel, library: CUlibrary, name: *const c_char) -> CUresult {
    let mut witness = State::lock("cuLibraryGetKernel");
    let Some(name) = (unsafe { name_of(&witness, name) }) else { return CUDA_ERROR_NOT_FOUND };
    let found = named(&mut witness, Kind::Library, library as u64, Kind::Kernel, name);
    unsafe { *out = found.unwrap_or(0) as CUkernel };
    CUDA_SUCCESS
}

unsafe extern "C" fn cuKernelGetFunction(out: *mut CUfunction, kernel: CUkernel) -> CUresult {
    let mut witness = State::lock("cuKernelGetFunction");
    let found = named(&mut witness, Kind::Kernel, kernel as u64, Kind::Function, 0);
    let Some(found) = found else { return CUDA_ERROR_INVALID_CONTEXT };
    unsafe { *out = found as CUfunction };
    CUDA_SUCCESS
}

unsafe extern "C" fn cuLibraryGetModule(out: *mut CUmodule, library: CUlibrary) -> CUresult {
    let mut witness = State::lock("cuLibraryGetModule");
    const MODULE: u64 = 100;
    let found = named(&mut witness, Kind::Library, library as u64, Kind::Module, MODULE);
    let Some(found) = found else { return CUDA_ERROR_INVALID_CONTEXT };
    unsafe { *out = found as CUmodule };
    CUDA_SUCCESS
}

/// The parent of something, if it is of this kind.
fn parent(witness: &mut State, value: u64, kind: Kind) -> Option<u64> {
    let parent = witness.objects.get(&value)?.parent;
    witness.objects.get(&parent).filter(|object| object.kind == kind).map(|_| parent)
}

unsafe extern "C" fn cuFuncGetModule(out: *mut CUmodule, function: CUfunction) -> CUresult {
    let mut witness = State::lock("cuFuncGetModule");
    witness.uses(Kind::Function, function as u64);
    let Some(found) = parent(&mut witness, function as u64, Kind::Module) else { return CUDA_ERROR_NOT_FOUND };
    unsafe { *out = found as CUmodule };
    CUDA_SUCCESS
}

unsafe extern "C" fn cuKernelGetLibrary(out: *mut CUlibrary, kernel: CUkernel) -> CUresult {
    let mut witness = State::lock("cuKernelGetLibrary");
    witness.uses(Kind::Kernel, kernel as u64);
    let Some(found) = parent(&mut witness, kernel as u64, Kind::Library) else { return CUDA_ERROR_NOT_FOUND };
    unsafe { *out = found as CUlibrary };
    CUDA_SUCCESS
}

/// The children of one kind.
fn children(witness: &mut State, owner_kind: Kind, owner: u64, kind: Kind) -> Vec<u64> {
    let all = witness.object(owner_kind, owner).map_or(Vec::new(), |owner| owner.children.clone());
    all.into_iter().filter(|child| witness.objects.get(child).is_some_and(|child| child.kind == kind)).collect()
}

unsafe extern "C" fn cuModuleGetFunctionCount(count: *mut u32, module: CUmodule) -> CUresult {
    let mut witness = State::lock("cuModuleGetFunctionCount");
    let found = children(&mut witness, Kind::Module, module as u64, Kind::Function).len();
    unsafe { *count = found as u32 };
    CUDA_SUCCESS
}

unsafe extern "C" fn cuModuleEnumerateFunctions(out: *mut CUfunction, count: u32, module: CUmodule) -> CUresult {
    let mut witness = State::lock("cuModuleEnumerateFunctions");
    let found = children(&mut witness, Kind::Module, module as u64, Kind::Function);
    for (at, value) in found.into_iter().take(count as usize).enumerate() {
        unsafe { *out.add(at) = value as CUfunction };
    }
    CUDA_SUCCESS
}

unsafe extern "C" fn cuLibraryGetKernelCount(count: *mut u32, library: CUlibrary) -> CUresult {
    let mut witness = State::lock("cuLibraryGetKernelCount");
    let found = children(&mut witness, Kind::Library, library as u64, Kind::Kernel).len();
    unsafe { *count = found as u32 };
    CUDA_SUCCESS
}

unsafe extern "C" fn cuLibraryEnumerateKernels(out: *mut CUkernel, count: u32, library: CUlibrary) -> CUresult {
    let mut witness = State::lock("cuLibraryEnumerateKernels");
    let found = children(&mut witness, Kind::Library, library as u64, Kind::Kernel);
    for (at, value) in found.into_iter().take(count as usize).enumerate() {
        unsafe { *out.add(at) = value as CUkernel };
    }
    CUDA_SUCCESS
}

unsafe extern "C" fn cuFuncGetName(name: *mut *const c_char, function: CUfunction) -> CUresult {
    State::lock("cuFuncGetName").uses(Kind::Function, function as u64);
    unsafe { *name = c"function".as_ptr() };
    CUDA_SUCCESS
}

unsafe extern "C" fn cuKernelGetName(name: *mut *const c_char, kernel: CUkernel) -> CUresult {
    State::lock("cuKernelGetName").uses(Kind::Kernel, kernel as u64);
    unsafe { *name = c"kernel".as_ptr() };
    CUDA_SUCCESS
}

/// How many parameters of 8 bytes a function has.
fn parameters(witness: &State, function: u64) -> usize {
    witness.objects.get(&function).map_or(0, |function| function.detail as usize)
}

unsafe fn param_info(witness: &State, function: u64, index: usize, offset: *mut usize, size: *mut usize) -> CUresult {
    if index >= parameters(witness, function) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    unsafe {
        *offset = index * 8;
        if !size.is_null() {
            *size = 8;
        }
    }
    CUDA_SUCCESS
}

unsafe extern "C" fn cuFuncGetParamInfo(
    function: CUfunction,
    index: usize,
    offset: *mut usize,
    size: *mut usize,
) -> CUresult {
    let mut witness = State::lock("cuFuncGetParamInfo");
    witness.uses(Kind::Function, function as u64);
    unsafe { param_info(&witness, function as u64, index, offset, size) }
}

unsafe extern "C" fn cuKernelGetParamInfo(
    kernel: CUkernel,
    index: usize,
    offset: *mut usize,
    size: *mut usize,
) -> CUresult {
    let mut witness = State::lock("cuKernelGetParamInfo");
    witness.uses(Kind::Kernel, kernel as u64);
    unsafe { param_info(&witness, kernel as u64, index, offset, size) }
}

unsafe extern "C" fn cuFuncGetAttribute(value: *mut i32, _: u32, function: CUfunction) -> CUresult {
    let mut witness = State::lock("cuFuncGetAttribute");
    witness.uses(Kind::Function, function as u64);
    unsafe { *value = 1024 };
    if witness.chance(64) { CUDA_ERROR_FUNCTION_NOT_LOADED } else { CUDA_SUCCESS }
}

unsafe extern "C" fn cuKernelGetAttribute(value: *mut i32, _: u32, kernel: CUkernel, _: CUdevice) -> CUresult {
    State::lock("cuKernelGetAttribute").uses(Kind::Kernel, kernel as u64);
    unsafe { *value = 1024 };
    CUDA_SUCCESS
}

/// A variable of a module or library: one each.
unsafe fn global(
    mut witness: std::sync::MutexGuard<'_, State>,
    kind: Kind,
    owner: u64,
    (address, bytes): (*mut u64, *mut usize),
    name: *const c_char,
) -> CUresult {
    const BYTES: u64 = 4096;
    if unsafe { name_of(&witness, name) }.is_none() {
        return CUDA_ERROR_NOT_FOUND;
    }
    let Some(object) = witness.object(kind, owner) else { return CUDA_ERROR_INVALID_HANDLE };
    let start = GLOBALS + owner % (1 << 40) / 64 * (2 * BYTES);
    object.detail = start;
    witness.globals.insert(start, BYTES);
    unsafe {
        *address = start;
        *bytes = BYTES as usize;
    }
    CUDA_SUCCESS
}

unsafe extern "C" fn cuModuleGetGlobal_v2(
    address: *mut CUdeviceptr,
    bytes: *mut usize,
    module: CUmodule,
    name: *const c_char,
) -> CUresult {
    unsafe { global(State::lock("cuModuleGetGlobal_v2"), Kind::Module, module as u64, (address, bytes), name) }
}

unsafe extern "C" fn cuLibraryGetGlobal(
    address: *mut CUdeviceptr,
    bytes: *mut usize,
    library: CUlibrary,
    name: *const c_char,
) -> CUresult {
    unsafe { global(State::lock("cuLibraryGetGlobal"), Kind::Library, library as u64, (address, bytes), name) }
}

unsafe extern "C" fn cuLinkComplete(state: CUlinkState, image: *mut *mut c_void, size: *mut usize) -> CUresult {
    static IMAGE: [u8; 4096] = [7; 4096];
    let mut witness = State::lock("cuLinkComplete");
    witness.uses(Kind::LinkState, state as u64);
    if let Some(code) = witness.fails() {
        return code;
    }
    unsafe { (*image, *size) = (IMAGE.as_ptr().cast_mut().cast(), IMAGE.len()) };
    CUDA_SUCCESS
}

unsafe extern "C" fn cuLinkDestroy(state: CUlinkState) -> CUresult {
    State::lock("cuLinkDestroy").ends(Kind::LinkState, state as u64);
    CUDA_SUCCESS
}

/// A launch reads every parameter of the function, and nothing more is said to be there.
pub(super) unsafe fn check_parameters(
    witness: &State,
    function: u64,
    pointers: *mut *mut c_void,
    extra: *mut *mut c_void,
) {
    assert!(extra.is_null(), "a launch with extra parameters");
    for at in 0..parameters(witness, function) {
        assert!(!pointers.is_null(), "a launch without parameters");
        touch(unsafe { *pointers.add(at) }.cast_const().cast(), 8);
    }
}

#[allow(clippy::too_many_arguments)]
unsafe extern "C" fn cuLaunchKernel(
    function: CUfunction,
    _: u32,
    _: u32,
    _: u32,
    _: u32,
    _: u32,
    _: u32,
    _: u32,
    stream: CUstream,
    parameters: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> CUresult {
    let mut witness = State::lock("cuLaunchKernel");
    witness.uses(Kind::Function, function as u64);
    witness.uses(Kind::Stream, stream as u64);
    unsafe { check_parameters(&witness, function as u64, parameters, extra) };
    let used = witness.used(function as u64);
    witness.capture(stream as u64, vec![used]);
    witness.fails().unwrap_or(CUDA_SUCCESS)
}

unsafe extern "C" fn cuLaunchKernelEx(
    config: *const CUlaunchConfig,
    function: CUfunction,
    parameters: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> CUresult {
    let mut witness = State::lock("cuLaunchKernelEx");
    witness.uses(Kind::Function, function as u64);
    witness.reads(config, 1);
    let config = unsafe { &*config };
    witness.uses(Kind::Stream, config.stream as u64);
    if config.num_attrs > 0 {
        witness.reads(config.attrs.cast_const(), config.num_attrs.into());
    }
    unsafe { check_parameters(&witness, function as u64, parameters, extra) };
    let used = witness.used(function as u64);
    witness.capture(config.stream as u64, vec![used]);
    witness.fails().unwrap_or(CUDA_SUCCESS)
}

unsafe extern "C" fn cuGetExportTable(_: *mut *const c_void, _: *const CUuuid) -> CUresult {
    CUDA_ERROR_NOT_SUPPORTED
}
