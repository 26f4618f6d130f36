//! Images, and the functions and variables in them.

use std::ffi::c_void;
use std::sync::Arc;

use cuda_abi::error::*;
use cuda_abi::image;
use cuda_abi::types::*;
use cuda_abi::wire::{Kind, MAX_IMAGE, Reader, Writer};

use crate::dispatch::name;
use crate::handles::{Object, Parameters};
use crate::{Outcome, Refusal, Worker, succeed};

/// No kernel has more parameters: they are bytes, and there are at most so many.
const MAX_PARAMETERS: usize = cuda_abi::wire::MAX_PARAMS;
/// Attributes that a launch is checked against: threads per block, dynamic shared memory.
const LAUNCH_LIMITS: [u32; 2] = [0, 8];

pub fn image_part(worker: &Worker, lane: u32, message: &mut Reader<'_>) -> Outcome {
    let lane = if lane == idm::ring::NO_LANE { message.narrow()? } else { lane };
    let part = message.rest();
    let mut uploads = worker.uploads();
    if lane >= worker.lanes {
        return Err(Refusal::Malformed);
    }
    if uploads.bytes + part.len() > MAX_IMAGE {
        return Err(Refusal::Code(CUDA_ERROR_OUT_OF_MEMORY));
    }
    uploads.bytes += part.len();
    uploads.by_lane.entry(lane).or_default().extend_from_slice(part);
    Ok(CUDA_SUCCESS)
}

/// What the lane has uploaded, if all of it came.
pub fn take_upload(worker: &Worker, lane: u32, message: &mut Reader<'_>) -> Result<Vec<u8>, Refusal> {
    let len = message.word()?;
    message.end()?;
    let image = {
        let mut uploads = worker.uploads();
        let image = uploads.by_lane.remove(&lane).unwrap_or_default();
        uploads.bytes -= image.len();
        image
    };
    // Parts were refused, or the context went while they came.
    if image.len() as u64 != len {
        return Err(Refusal::Code(CUDA_ERROR_INVALID_IMAGE));
    }
    Ok(image)
}

/// The image that the lane has uploaded, if it is whole and what it says it is.
fn take_image(worker: &Worker, lane: u32, message: &mut Reader<'_>) -> Result<Vec<u8>, Refusal> {
    let mut image = take_upload(worker, lane, message)?;
    // PTX is text that ends with a NUL; for the others one more byte does no harm.
    image.push(0);
    if !image::is_whole(&image) {
        return Err(Refusal::Code(CUDA_ERROR_INVALID_IMAGE));
    }
    Ok(image)
}

pub fn load_module(worker: &Worker, lane: u32, message: &mut Reader<'_>, reply: &mut Writer<'_>) -> Outcome {
    let image = take_image(worker, lane, message)?;
    worker.handles.room()?;
    let charge = worker.memory.charge(image.len() as u64)?;
    let mut module = std::ptr::null_mut();
    // SAFETY: the image is whole; the driver makes its own copy.
    succeed(unsafe { (worker.driver.cuModuleLoadData)(&mut module, image.as_ptr().cast()) })?;
    let word = worker.handles.open(Kind::Module, module as u64, worker.context_tag())?;
    worker.handles.pays(word, charge);
    reply.word(word);
    Ok(CUDA_SUCCESS)
}

pub fn load_library(worker: &Worker, lane: u32, message: &mut Reader<'_>, reply: &mut Writer<'_>) -> Outcome {
    let image = take_image(worker, lane, message)?;
    worker.handles.room()?;
    let charge = worker.memory.charge(image.len() as u64)?;
    let mut library = std::ptr::null_mut();
    let (no_options, no_values) = (std::ptr::null_mut(), std::ptr::null_mut());
    // SAFETY: the image is whole; without BINARY_IS_PRESERVED the driver makes its own copy.
    succeed(unsafe {
        (worker.driver.cuLibraryLoadData)(
            &mut library,
            image.as_ptr().cast(),
            no_options,
            no_values,
            0,
            std::ptr::null_mut(),
            std::ptr::null_mut(),
            0,
        )
    })?;
    let word = worker.handles.open(Kind::Library, library as u64, 0)?;
    worker.handles.pays(word, charge);
    reply.word(word);
    Ok(CUDA_SUCCESS)
}

/// Where each parameter of a function goes, asked of the driver once.
fn parameters(worker: &Worker, kind: Kind, raw: u64) -> Vec<(u64, u64)> {
    let mut found = Vec::new();
    while found.len() < MAX_PARAMETERS {
        let (mut offset, mut size) = (0, 0);
        // SAFETY: the object is the driver's own, of that kind; outputs are locals.
        let result = unsafe {
            match kind {
                Kind::Kernel => {
                    (worker.driver.cuKernelGetParamInfo)(raw as CUkernel, found.len(), &mut offset, &mut size)
                }
                _ => (worker.driver.cuFuncGetParamInfo)(raw as CUfunction, found.len(), &mut offset, &mut size),
            }
        };
        if result != CUDA_SUCCESS {
            break;
        }
        found.push((offset as u64, size as u64));
    }
    found
}

fn attribute(worker: &Worker, kind: Kind, raw: u64, which: u32) -> Option<i32> {
    let driver = &worker.driver;
    let mut value = 0;
    // SAFETY: the object is the driver's own, of that kind; the output is a local.
    let result = unsafe {
        match kind {
            Kind::Kernel => (driver.cuKernelGetAttribute)(&mut value, which, raw as CUkernel, worker.device().ok()?),
            _ => {
                let function = raw as CUfunction;
                match (driver.cuFuncGetAttribute)(&mut value, which, function) {
                    // One that was listed and not looked up by its name. A launch would load it, too.
                    CUDA_ERROR_FUNCTION_NOT_LOADED => {
                        succeed((driver.cuFuncLoad)(function)).ok()?;
                        (driver.cuFuncGetAttribute)(&mut value, which, function)
                    }
                    result => result,
                }
            }
        }
    };
    (result == CUDA_SUCCESS).then_some(value)
}

/// Gives a function or kernel its handle and writes its description: handle, parameter count, (offset, size)…, and, with
/// a context and if asked, the limits of a launch.
fn describe(
    worker: &Worker,
    kind: Kind,
    raw: u64,
    parent: Option<Arc<Object>>,
    limits: bool,
    reply: &mut Writer<'_>,
) -> Result<(), Refusal> {
    // Attributes first: asking for them loads the function, and only then does the driver know its parameters.
    let limits = LAUNCH_LIMITS.map(|which| {
        let asked = limits && worker.context_tag() != 0;
        if asked { attribute(worker, kind, raw, which) } else { None }
    });
    let parameters = parameters(worker, kind, raw);
    let bytes = parameters.iter().map(|(offset, size)| offset + size).max().unwrap_or(0) as u32;
    let (offsets, sizes) = parameters.iter().map(|(offset, size)| (*offset as u32, *size as u32)).unzip();
    let context = if kind == Kind::Kernel { 0 } else { worker.context_tag() };
    // Before it is loaded the driver knows no parameters, and a launch would pass none.
    let layout = limits[0].is_some().then_some(Parameters { offsets, sizes, bytes });
    reply.word(worker.handles.open_child(kind, raw, context, parent, layout)?);
    reply.word(parameters.len() as u64);
    for (offset, size) in parameters {
        reply.words(&[offset, size]);
    }
    for value in limits {
        reply.word(value.map_or(u64::MAX, |value| u64::from(value.max(0) as u32)));
    }
    Ok(())
}

pub fn describe_again(worker: &Worker, message: &mut Reader<'_>, reply: &mut Writer<'_>) -> Outcome {
    let object = worker.handles.get(message.word()?)?;
    message.end()?;
    if !matches!(object.kind, Kind::Function | Kind::Kernel) {
        return Err(Refusal::Code(CUDA_ERROR_INVALID_HANDLE));
    }
    describe(worker, object.kind, object.raw, object.parent.clone(), true, reply)?;
    Ok(CUDA_SUCCESS)
}

pub fn get_function(worker: &Worker, message: &mut Reader<'_>, reply: &mut Writer<'_>) -> Outcome {
    let owner = worker.handles.pin(Kind::Module, message.word()?)?;
    let module = owner.raw as CUmodule;
    let name = name(message)?;
    message.end()?;
    worker.handles.room()?;
    let mut function = std::ptr::null_mut();
    // SAFETY: the module is the client's; the output is a local.
    succeed(unsafe { (worker.driver.cuModuleGetFunction)(&mut function, module, name.as_ptr()) })?;
    describe(worker, Kind::Function, function as u64, Some(owner), true, reply)?;
    Ok(CUDA_SUCCESS)
}

pub fn get_kernel(worker: &Worker, message: &mut Reader<'_>, reply: &mut Writer<'_>) -> Outcome {
    let owner = worker.handles.pin(Kind::Library, message.word()?)?;
    let library = owner.raw as CUlibrary;
    let name = name(message)?;
    message.end()?;
    worker.handles.room()?;
    let mut kernel = std::ptr::null_mut();
    // SAFETY: the library is the client's; the output is a local.
    succeed(unsafe { (worker.driver.cuLibraryGetKernel)(&mut kernel, library, name.as_ptr()) })?;
    describe(worker, Kind::Kernel, kernel as u64, Some(owner), true, reply)?;
    Ok(CUDA_SUCCESS)
}

pub fn kernel_function(worker: &Worker, message: &mut Reader<'_>, reply: &mut Writer<'_>) -> Outcome {
    let kernel = worker.handles.get(message.word()?)?;
    message.end()?;
    if kernel.kind != Kind::Kernel {
        return Err(Refusal::Code(CUDA_ERROR_INVALID_HANDLE));
    }
    worker.handles.room()?;
    let mut function = std::ptr::null_mut();
    // SAFETY: the kernel is the client's; the output is a local.
    succeed(unsafe { (worker.driver.cuKernelGetFunction)(&mut function, kernel.raw as CUkernel) })?;
    describe(worker, Kind::Function, function as u64, kernel.parent.clone(), true, reply)?;
    Ok(CUDA_SUCCESS)
}

pub fn library_module(worker: &Worker, message: &mut Reader<'_>, reply: &mut Writer<'_>) -> Outcome {
    let owner = worker.handles.pin(Kind::Library, message.word()?)?;
    let library = owner.raw as CUlibrary;
    message.end()?;
    worker.handles.room()?;
    let mut module = std::ptr::null_mut();
    // SAFETY: the library is the client's; the output is a local.
    succeed(unsafe { (worker.driver.cuLibraryGetModule)(&mut module, library) })?;
    // No context: a library's module goes with the library, not with the context.
    reply.word(worker.handles.open_child(Kind::Module, module as u64, 0, Some(owner), None)?);
    Ok(CUDA_SUCCESS)
}

pub fn module_functions(worker: &Worker, message: &mut Reader<'_>, reply: &mut Writer<'_>) -> Outcome {
    let owner = worker.handles.pin(Kind::Module, message.word()?)?;
    let skip = message.narrow()?;
    message.end()?;
    let (driver, module) = (&worker.driver, owner.raw as CUmodule);
    let mut count = 0;
    // SAFETY: the module is the client's; the output is a local.
    succeed(unsafe { (driver.cuModuleGetFunctionCount)(&mut count, module) })?;
    let mut functions: Vec<CUfunction> = vec![std::ptr::null_mut(); count as usize];
    // SAFETY: the array has as many places as are said.
    succeed(unsafe { (driver.cuModuleEnumerateFunctions)(functions.as_mut_ptr(), count, module) })?;
    list(worker, Kind::Function, &owner, &functions, skip, driver.cuFuncGetName, reply)
}

pub fn library_kernels(worker: &Worker, message: &mut Reader<'_>, reply: &mut Writer<'_>) -> Outcome {
    let owner = worker.handles.pin(Kind::Library, message.word()?)?;
    let skip = message.narrow()?;
    message.end()?;
    let (driver, library) = (&worker.driver, owner.raw as CUlibrary);
    let mut count = 0;
    // SAFETY: the library is the client's; the output is a local.
    succeed(unsafe { (driver.cuLibraryGetKernelCount)(&mut count, library) })?;
    let mut kernels: Vec<CUkernel> = vec![std::ptr::null_mut(); count as usize];
    // SAFETY: the array has as many places as are said.
    succeed(unsafe { (driver.cuLibraryEnumerateKernels)(kernels.as_mut_ptr(), count, library) })?;
    list(worker, Kind::Kernel, &owner, &kernels, skip, driver.cuKernelGetName, reply)
}

type GetName = unsafe extern "C" fn(*mut *const c_char, *mut c_void) -> CUresult;

/// Describes functions or kernels, from the `skip`-th on, as many as the reply has room for.
fn list(
    worker: &Worker,
    kind: Kind,
    owner: &Arc<Object>,
    objects: &[*mut c_void],
    skip: usize,
    get_name: GetName,
    reply: &mut Writer<'_>,
) -> Outcome {
    reply.word(objects.len() as u64);
    let mut scratch = vec![0; reply.room()];
    for object in objects.iter().skip(skip) {
        let mut entry = Writer::new(&mut scratch);
        describe(worker, kind, *object as u64, Some(owner.clone()), false, &mut entry)?;
        let mut text = std::ptr::null();
        // SAFETY: the object is of a live owner; the name lives as long as that.
        let named = unsafe { get_name(&mut text, *object) };
        write_name(named, text, &mut entry);
        match entry.finish() {
            Ok(len) if len <= reply.room() => reply.raw(&scratch[..len]),
            _ => break,
        }
    }
    Ok(CUDA_SUCCESS)
}

fn write_name(result: CUresult, text: *const c_char, reply: &mut Writer<'_>) {
    if result == CUDA_SUCCESS && !text.is_null() {
        // SAFETY: the driver gave a NUL-terminated string.
        reply.bytes(unsafe { std::ffi::CStr::from_ptr(text) }.to_bytes());
    } else {
        reply.bytes(&[]);
    }
}

pub fn get_global(worker: &Worker, message: &mut Reader<'_>, reply: &mut Writer<'_>) -> Outcome {
    let word = message.word()?;
    let owner = worker.handles.get(word)?;
    let name = name(message)?;
    message.end()?;
    let (mut address, mut bytes) = (0, 0);
    let driver = &worker.driver;
    let raw = owner.raw as *mut c_void;
    // SAFETY: the owner is the client's; outputs are locals.
    succeed(unsafe {
        match owner.kind {
            Kind::Module => (driver.cuModuleGetGlobal_v2)(&mut address, &mut bytes, raw, name.as_ptr()),
            Kind::Library => (driver.cuLibraryGetGlobal)(&mut address, &mut bytes, raw, name.as_ptr()),
            _ => return Err(Refusal::Code(CUDA_ERROR_INVALID_HANDLE)),
        }
    })?;
    worker.memory.add_global(word, address, bytes as u64);
    reply.words(&[address, bytes as u64]);
    Ok(CUDA_SUCCESS)
}

pub fn set_function_attribute(worker: &Worker, message: &mut Reader<'_>) -> Outcome {
    let object = worker.handles.get(message.word()?)?;
    let attribute = message.narrow()?;
    let value = message.narrow::<u32>()? as i32;
    let device = message.narrow::<u32>()? as i32;
    message.end()?;
    let raw = object.raw as *mut c_void;
    // SAFETY: the object is the client's, of that kind.
    Ok(unsafe {
        match object.kind {
            Kind::Kernel => (worker.driver.cuKernelSetAttribute)(attribute, value, raw, device),
            Kind::Function => (worker.driver.cuFuncSetAttribute)(raw, attribute, value),
            _ => CUDA_ERROR_INVALID_HANDLE,
        }
    })
}
