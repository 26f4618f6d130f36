//! Images, and the functions and variables in them.

use std::ffi::c_void;
use std::sync::Arc;

use cuda_abi::constants::function_attribute;
use cuda_abi::error::*;
use cuda_abi::image;
use cuda_abi::types::*;
use cuda_abi::wire::ops::{
    Describe, Described, FunctionAttribute, FunctionAttributes, FunctionAttributesFound, FunctionsListed,
    GetFunction, GetFunctionAttribute, GetGlobal, GetKernel, GlobalFound, ImagePart, KernelFunction, LibraryKernels,
    LibraryLoad, LibraryLoaded, LibraryModule, Listed, ModuleFunctions, ModuleLoad, ModuleLoaded, Parameter,
    SetFunctionAttribute, Upload,
};
use cuda_abi::wire::{Array, Kind, MAX_IMAGE, Operation, Rest, Typed};

use super::Reply;
use crate::handles::{Object, Parameters};
use crate::{Outcome, Refusal, Worker, succeed};

/// No kernel has more parameters: they are bytes, and there are at most so many.
const MAX_PARAMETERS: usize = cuda_abi::wire::MAX_PARAMS;
/// All attributes that CUDA's runtime asks for, two of them without a public name. Clients are told them together, because
/// programs ask for one after the other.
const ATTRIBUTES: std::ops::RangeInclusive<u32> = 0..=function_attribute::CLUSTER_SCHEDULING_POLICY_PREFERENCE + 2;

pub(super) fn image_part(worker: &Worker, lane: u32, request: ImagePart<'_>) -> Outcome {
    let lane = if lane == idm::ring::NO_LANE { request.lane } else { lane };
    let part = request.part.0;
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
pub(super) fn take_upload<T>(worker: &Worker, lane: u32, upload: Upload<T>) -> Result<Vec<u8>, Refusal> {
    let image = {
        let mut uploads = worker.uploads();
        let image = uploads.by_lane.remove(&lane).unwrap_or_default();
        uploads.bytes -= image.len();
        image
    };
    // Parts were refused, or the context went while they came.
    if image.len() as u64 != upload.bytes {
        return Err(Refusal::Code(CUDA_ERROR_INVALID_IMAGE));
    }
    Ok(image)
}

/// The image that the lane has uploaded, if it is whole and what it says it is.
fn take_image<T>(worker: &Worker, lane: u32, upload: Upload<T>) -> Result<Vec<u8>, Refusal> {
    let mut image = take_upload(worker, lane, upload)?;
    // PTX is text that ends with a NUL; for the others one more byte does no harm.
    image.push(0);
    if !image::is_whole(&image) {
        return Err(Refusal::Code(CUDA_ERROR_INVALID_IMAGE));
    }
    Ok(image)
}

pub(super) fn load_module(
    worker: &Worker,
    lane: u32,
    request: ModuleLoad,
    reply: Reply<'_, '_, ModuleLoad>,
) -> Outcome {
    let image = take_image(worker, lane, request.image)?;
    worker.handles.room()?;
    let charge = worker.memory.charge(worker.gpu(), image.len() as u64)?;
    let mut module = std::ptr::null_mut();
    // SAFETY: the image is whole; the driver makes its own copy.
    succeed(unsafe { (worker.driver.cuModuleLoadData)(&mut module, image.as_ptr().cast()) })?;
    let word = worker.handles.open(Kind::Module, module as u64, worker.context_tag())?;
    worker.handles.pays(word, charge);
    reply.send(&ModuleLoaded { module: Typed(word) })
}

pub(super) fn load_library(
    worker: &Worker,
    lane: u32,
    request: LibraryLoad,
    reply: Reply<'_, '_, LibraryLoad>,
) -> Outcome {
    let image = take_image(worker, lane, request.image)?;
    worker.handles.room()?;
    let charge = worker.memory.charge(worker.gpu(), image.len() as u64)?;
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
    reply.send(&LibraryLoaded { library: Typed(word) })
}

/// Where each parameter of a function goes, asked of the driver once.
fn parameters(worker: &Worker, kind: Kind, raw: u64) -> Vec<Parameter> {
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
        found.push(Parameter { offset: offset as u32, size: size as u32 });
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

/// All that the driver knows of a function's attributes; `ask` asks for one.
fn all_attributes(mut ask: impl FnMut(u32) -> Option<i32>) -> Vec<FunctionAttribute> {
    ATTRIBUTES.filter_map(|which| Some(FunctionAttribute { which, value: ask(which)? })).collect()
}

/// What is told of a function or kernel.
struct Description {
    handle: u64,
    parameters: Vec<Parameter>,
    attributes: Vec<FunctionAttribute>,
}

impl Description {
    fn as_reply(&self) -> Described<'_> {
        Described {
            handle: Typed(self.handle),
            parameters: Array::new(&self.parameters),
            attributes: FunctionAttributes::new(&self.attributes),
        }
    }
}

/// Gives a function or kernel its handle and describes it: with a context and if asked, with its attributes.
fn describe(
    worker: &Worker,
    kind: Kind,
    raw: u64,
    parent: Option<Arc<Object>>,
    loads: bool,
) -> Result<Description, Refusal> {
    // Attributes first: asking for them loads the function, and only then does the driver know its parameters.
    let is_loaded = loads && worker.context_tag() != 0 && attribute(worker, kind, raw, *ATTRIBUTES.start()).is_some();
    let ask = |which| if is_loaded { attribute(worker, kind, raw, which) } else { None };
    let attributes = all_attributes(ask);
    let parameters = parameters(worker, kind, raw);
    let bytes = parameters.iter().map(|parameter| parameter.offset.saturating_add(parameter.size)).max().unwrap_or(0);
    let (offsets, sizes) = parameters.iter().map(|parameter| (parameter.offset, parameter.size)).unzip();
    let context = if kind == Kind::Kernel { 0 } else { worker.context_tag() };
    // Before it is loaded the driver knows no parameters, and a launch would pass none.
    let layout = is_loaded.then_some(Parameters { offsets, sizes, bytes });
    let handle = worker.handles.open_child(kind, raw, context, parent, layout)?;
    Ok(Description { handle, parameters, attributes })
}

/// Answers with the description of a function or kernel.
fn send_described<R>(
    worker: &Worker,
    kind: Kind,
    raw: u64,
    parent: Option<Arc<Object>>,
    reply: Reply<'_, '_, R>,
) -> Outcome
where
    R: for<'m> Operation<Reply<'m> = Described<'m>>,
{
    reply.send(&describe(worker, kind, raw, parent, true)?.as_reply())
}

pub(super) fn describe_again(worker: &Worker, request: Describe, reply: Reply<'_, '_, Describe>) -> Outcome {
    let object = worker.handles.find(request.function)?;
    send_described(worker, object.kind, object.raw, object.parent().cloned(), reply)
}

pub(super) fn get_function(
    worker: &Worker,
    request: GetFunction<'_>,
    reply: Reply<'_, '_, GetFunction<'_>>,
) -> Outcome {
    let owner = worker.handles.find(request.module)?;
    let name = request.name.to_c_string()?;
    worker.handles.room()?;
    let mut function = std::ptr::null_mut();
    // SAFETY: the module is the client's; the output is a local.
    succeed(unsafe { (worker.driver.cuModuleGetFunction)(&mut function, owner.raw as CUmodule, name.as_ptr()) })?;
    send_described(worker, Kind::Function, function as u64, Some(owner), reply)
}

pub(super) fn get_kernel(worker: &Worker, request: GetKernel<'_>, reply: Reply<'_, '_, GetKernel<'_>>) -> Outcome {
    let owner = worker.handles.find(request.library)?;
    let name = request.name.to_c_string()?;
    worker.handles.room()?;
    let mut kernel = std::ptr::null_mut();
    // SAFETY: the library is the client's; the output is a local.
    succeed(unsafe { (worker.driver.cuLibraryGetKernel)(&mut kernel, owner.raw as CUlibrary, name.as_ptr()) })?;
    send_described(worker, Kind::Kernel, kernel as u64, Some(owner), reply)
}

pub(super) fn kernel_function(
    worker: &Worker,
    request: KernelFunction,
    reply: Reply<'_, '_, KernelFunction>,
) -> Outcome {
    let kernel = worker.handles.find(request.kernel)?;
    worker.handles.room()?;
    let mut function = std::ptr::null_mut();
    // SAFETY: the kernel is the client's; the output is a local.
    succeed(unsafe { (worker.driver.cuKernelGetFunction)(&mut function, kernel.raw as CUkernel) })?;
    send_described(worker, Kind::Function, function as u64, kernel.parent().cloned(), reply)
}

pub(super) fn library_module(
    worker: &Worker,
    request: LibraryModule,
    reply: Reply<'_, '_, LibraryModule>,
) -> Outcome {
    let owner = worker.handles.find(request.library)?;
    worker.handles.room()?;
    let mut module = std::ptr::null_mut();
    // SAFETY: the library is the client's; the output is a local.
    succeed(unsafe { (worker.driver.cuLibraryGetModule)(&mut module, owner.raw as CUlibrary) })?;
    // No context: a library's module goes with the library, not with the context.
    let word = worker.handles.open_child(Kind::Module, module as u64, 0, Some(owner), None)?;
    reply.send(&ModuleLoaded { module: Typed(word) })
}

pub(super) fn module_functions(
    worker: &Worker,
    request: ModuleFunctions,
    reply: Reply<'_, '_, ModuleFunctions>,
) -> Outcome {
    let owner = worker.handles.find(request.module)?;
    let (driver, module) = (&worker.driver, owner.raw as CUmodule);
    let mut count = 0;
    // SAFETY: the module is the client's; the output is a local.
    succeed(unsafe { (driver.cuModuleGetFunctionCount)(&mut count, module) })?;
    let mut functions: Vec<CUfunction> = vec![std::ptr::null_mut(); count as usize];
    // SAFETY: the array has as many places as are said.
    succeed(unsafe { (driver.cuModuleEnumerateFunctions)(functions.as_mut_ptr(), count, module) })?;
    list(worker, Kind::Function, &owner, &functions, request.skip, driver.cuFuncGetName, reply)
}

pub(super) fn library_kernels(
    worker: &Worker,
    request: LibraryKernels,
    reply: Reply<'_, '_, LibraryKernels>,
) -> Outcome {
    let owner = worker.handles.find(request.library)?;
    let (driver, library) = (&worker.driver, owner.raw as CUlibrary);
    let mut count = 0;
    // SAFETY: the library is the client's; the output is a local.
    succeed(unsafe { (driver.cuLibraryGetKernelCount)(&mut count, library) })?;
    let mut kernels: Vec<CUkernel> = vec![std::ptr::null_mut(); count as usize];
    // SAFETY: the array has as many places as are said.
    succeed(unsafe { (driver.cuLibraryEnumerateKernels)(kernels.as_mut_ptr(), count, library) })?;
    list(worker, Kind::Kernel, &owner, &kernels, request.skip, driver.cuKernelGetName, reply)
}

type GetName = unsafe extern "C" fn(*mut *const c_char, *mut c_void) -> CUresult;

/// Describes functions or kernels, from the `skip`-th on, as many as the reply has room for.
fn list<R>(
    worker: &Worker,
    kind: Kind,
    owner: &Arc<Object>,
    objects: &[*mut c_void],
    skip: usize,
    get_name: GetName,
    reply: Reply<'_, '_, R>,
) -> Outcome
where
    R: for<'m> Operation<Reply<'m> = FunctionsListed<'m>>,
{
    let writer = reply.begin(&FunctionsListed { total: objects.len(), functions: Rest::new(&[]) });
    for object in objects.iter().skip(skip) {
        let about = describe(worker, kind, *object as u64, Some(owner.clone()), false)?;
        let mut text = std::ptr::null();
        // SAFETY: the object is of a live owner; the name, which ends with a NUL, lives as long as that.
        let name = unsafe {
            let named = get_name(&mut text, *object) == CUDA_SUCCESS && !text.is_null();
            if named { std::ffi::CStr::from_ptr(text).to_bytes() } else { &[] }
        };
        if !writer.append(&Listed { about: about.as_reply(), name }) {
            break;
        }
    }
    Ok(CUDA_SUCCESS)
}

pub(super) fn get_global(worker: &Worker, request: GetGlobal<'_>, reply: Reply<'_, '_, GetGlobal<'_>>) -> Outcome {
    let owner = worker.handles.find(request.owner)?;
    let name = request.name.to_c_string()?;
    let (mut address, mut bytes) = (0, 0);
    let driver = &worker.driver;
    let raw = owner.raw as *mut c_void;
    // SAFETY: the owner is the client's; outputs are locals.
    succeed(unsafe {
        match owner.kind {
            Kind::Library => (driver.cuLibraryGetGlobal)(&mut address, &mut bytes, raw, name.as_ptr()),
            _ => (driver.cuModuleGetGlobal_v2)(&mut address, &mut bytes, raw, name.as_ptr()),
        }
    })?;
    worker.memory.add_global(&owner, address, bytes as u64);
    reply.send(&GlobalFound { address, bytes: bytes as u64 })
}

/// The answer is that of the attribute asked for; the others are told if the driver knows them.
pub(super) fn get_function_attribute(
    worker: &Worker,
    request: GetFunctionAttribute,
    reply: Reply<'_, '_, GetFunctionAttribute>,
) -> Outcome {
    let GetFunctionAttribute { function, attribute: wanted, device } = request;
    let object = worker.handles.find(function)?;
    if device.is_some() && object.kind != Kind::Kernel {
        return Err(Refusal::Code(CUDA_ERROR_INVALID_HANDLE));
    }
    let (driver, raw) = (&worker.driver, object.raw as *mut c_void);
    let ask = |which| {
        let mut value = 0;
        // SAFETY: the object is the client's, of that kind; the output is a local.
        let result = unsafe {
            match device {
                Some(device) => (driver.cuKernelGetAttribute)(&mut value, which, raw, device),
                None => (driver.cuFuncGetAttribute)(&mut value, which, raw),
            }
        };
        succeed(result).map(|()| value)
    };
    let value = ask(wanted)?;
    let mut attributes = all_attributes(|which| if which == wanted { Some(value) } else { ask(which).ok() });
    if !ATTRIBUTES.contains(&wanted) {
        attributes.push(FunctionAttribute { which: wanted, value });
    }
    reply.send(&FunctionAttributesFound { attributes: FunctionAttributes::new(&attributes) })
}

pub(super) fn set_function_attribute(worker: &Worker, request: SetFunctionAttribute) -> Outcome {
    let SetFunctionAttribute { function, attribute, value, device } = request;
    let object = worker.handles.find(function)?;
    let raw = object.raw as *mut c_void;
    // SAFETY: the object is the client's, of that kind.
    Ok(unsafe {
        match object.kind {
            Kind::Kernel => (worker.driver.cuKernelSetAttribute)(attribute, value, raw, device),
            _ => (worker.driver.cuFuncSetAttribute)(raw, attribute, value),
        }
    })
}
