//! Functions and kernels: what is learned once, when they are looked up, and what is remembered of them.

mod answers;
pub(crate) mod owners;

use std::ffi::CStr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use cuda_abi::border::Out;
use cuda_abi::constants::function_attribute::{MAX_DYNAMIC_SHARED_SIZE_BYTES, MAX_THREADS_PER_BLOCK};
use cuda_abi::error::*;
use cuda_abi::types::*;
use cuda_abi::wire::ops::{Describe, Described, GetFunctionAttribute, SetFunctionAttribute};
use cuda_abi::wire::{Handle, Kind, Typed};
use parking_lot::{Mutex, RwLock};

use self::answers::{Answers, Family};
use self::owners::Owner;
use crate::graph::capture;
use crate::remembered::Launched;
use crate::{carry, context, handles, operation, session};

pub(crate) struct Function {
    pub word: u64,
    /// Offset and size of each parameter.
    pub params: Vec<(usize, usize)>,
    pub param_bytes: usize,
    /// Most threads in a block, once the driver told.
    pub max_threads: Option<u32>,
    is_kernel: bool,
    family: Arc<Family>,
    owner: Arc<Owner>,
    /// Attributes: of a kernel on each device, of a function in the first place.
    answers: Box<[OnceLock<Box<Answers>>]>,
    /// A kernel's functions by context, as they were asked for.
    in_contexts: Mutex<Vec<(u64, u64)>>,
    /// It was launched before.
    launched: AtomicBool,
}

impl Function {
    pub(crate) fn name(&self) -> &CStr {
        &self.family.name
    }

    /// What is known of it on a device: of a function, wherever it is.
    fn answers(&self, device: CUdevice) -> Option<&Answers> {
        let place = if self.is_kernel { usize::try_from(device).ok()? } else { 0 };
        Some(self.answers.get(place)?.get_or_init(|| Box::new(Answers::new())))
    }

    /// Takes note that a launch was posted.
    #[inline]
    pub(crate) fn note_launch(&self) {
        if !self.launched.load(Ordering::Relaxed) {
            self.launched.store(true, Ordering::Relaxed);
            drop(Launched);
        }
    }

    /// The most bytes of dynamic shared memory that a launch may ask for, as far as the driver tells.
    pub(crate) fn max_dynamic_shared(&self) -> CudaResult<u32> {
        const WHICH: u32 = MAX_DYNAMIC_SHARED_SIZE_BYTES;
        let device = context::current_device()?;
        let (changes, answers) = (self.family.changes(), self.answers(device));
        let known =
            answers.and_then(|answers| answers.get(changes, WHICH).or_else(|| answers.was_set(changes, WHICH)));
        let value = match known {
            Some(value) => Ok(value),
            None => capture::unaffected(|| ask_attribute(self, WHICH, self.is_kernel.then_some(device))),
        };
        Ok(value.map_or(u32::MAX, |value| value.max(0) as u32))
    }
}

/// By the index of their handles, which are few and used again.
static KNOWN: RwLock<Vec<Option<Arc<Function>>>> = RwLock::new(Vec::new());

fn index_of(word: u64) -> Option<usize> {
    Handle::from_word(word).map(|handle| handle.index as usize)
}

/// A question about a function of this name, to be made before it is asked.
pub(crate) struct Question {
    family: Arc<Family>,
    owner: Arc<Owner>,
    changes: u32,
}

impl Question {
    /// About a function or kernel of a module or library.
    pub(crate) fn new(name: &CStr, owner: u64) -> Self {
        Self::of(Family::named(name), Owner::of(owner))
    }

    /// About a function that goes with another one.
    pub(crate) fn like(function: &Function) -> Self {
        Self::of(function.family.clone(), function.owner.clone())
    }

    fn of(family: Arc<Family>, owner: Arc<Owner>) -> Self {
        let changes = family.changes();
        Question { family, owner, changes }
    }

    /// Remembers what a reply says of a function; answers its handle.
    pub(crate) fn remember(self, about: &Described<'_>) -> u64 {
        let word = handles::opened(about.handle.0);
        let params: Vec<(usize, usize)> =
            about.parameters.iter().map(|parameter| (parameter.offset as usize, parameter.size as usize)).collect();
        let told = |which| about.attributes.iter().find(|attribute| attribute.which == which);
        let is_kernel = Handle::from_word(word).is_some_and(|handle| handle.kind == Kind::Kernel);
        let devices = session::get().map_or(1, |session| session.devices.count());
        let function = Function {
            word,
            param_bytes: params.iter().map(|(offset, size)| offset + size).max().unwrap_or(0),
            params,
            max_threads: told(MAX_THREADS_PER_BLOCK).map(|attribute| attribute.value.max(0) as u32),
            is_kernel,
            family: self.family,
            owner: self.owner,
            answers: (0..if is_kernel { devices } else { 1 }).map(|_| OnceLock::new()).collect(),
            in_contexts: Mutex::default(),
            launched: AtomicBool::new(false),
        };
        if let Some(answers) = context::current_device().ok().and_then(|device| function.answers(device)) {
            answers.keep(self.changes, &about.attributes);
        }
        if let Some(index) = index_of(word) {
            let mut known = KNOWN.write();
            if known.len() <= index {
                known.resize(index + 1, None);
            }
            known[index] = Some(Arc::new(function));
        }
        word
    }
}

/// A function with everything a launch must know. What was looked up without a context is not loaded yet, and the driver
/// does not know its parameters before it is.
pub(crate) fn loaded(function: CUfunction) -> CudaResult<Arc<Function>> {
    let known = find(function)?;
    if known.max_threads.is_some() {
        return Ok(known);
    }
    // Natively a launch loads its function whatever is being captured.
    capture::unaffected(|| {
        let question = Question::like(&known);
        operation::call(&Describe { function: Typed(known.word) }, |about| question.remember(&about))
    })?;
    find(function)
}

/// A function or kernel that the program knows.
pub(crate) fn find(function: CUfunction) -> CudaResult<Arc<Function>> {
    let word = handles::check(Kind::Function, function as u64)?;
    let known = KNOWN.read();
    let found = index_of(word).and_then(|index| known.get(index)?.as_ref()).filter(|known| known.word == word);
    found.filter(|known| !known.owner.is_gone()).cloned().ok_or(CUDA_ERROR_INVALID_HANDLE)
}

/// A kernel's function in the current context, if it was asked for before; `ask` asks.
pub(crate) fn in_context(kernel: &Function, ask: impl FnOnce() -> CudaResult<u64>) -> CudaResult<u64> {
    let context = context::current()?;
    let known = kernel.in_contexts.lock().iter().find(|(owner, _)| *owner == context).map(|(_, word)| *word);
    // It goes with the context, whose handle may be the same as before.
    if let Some(word) = known.filter(|word| find(*word as CUfunction).is_ok()) {
        return Ok(word);
    }
    let word = ask()?;
    let mut known = kernel.in_contexts.lock();
    known.retain(|(owner, _)| *owner != context);
    known.push((context, word));
    Ok(word)
}

/// Asks for an attribute, and keeps all that are told with it. With a device, of a kernel there.
fn ask_attribute(function: &Function, which: u32, device: Option<CUdevice>) -> CudaResult<i32> {
    let changes = function.family.changes();
    let request = GetFunctionAttribute { function: Typed(function.word), attribute: which, device };
    operation::call(&request, |reply| {
        // Of a kernel that is taken for a function, what counts is the context.
        if let Some(answers) =
            function.answers(device.unwrap_or(0)).filter(|_| device.is_some() || !function.is_kernel)
        {
            answers.keep(changes, &reply.attributes);
        }
        reply.attributes.iter().find(|attribute| attribute.which == which).map(|attribute| attribute.value)
    })?
    .ok_or(CUDA_ERROR_UNKNOWN)
}

fn attribute(function: &Function, which: u32, device: Option<CUdevice>) -> CudaResult<i32> {
    carry::check_fault(session::get()?)?;
    let known = match device {
        None if function.is_kernel || context::tag_or_none() == 0 => None,
        _ => function.answers(device.unwrap_or(0)).and_then(|answers| answers.get(function.family.changes(), which)),
    };
    known.map_or_else(|| ask_attribute(function, which, device), Ok)
}

/// Sets an attribute. Some programs do so before every launch: what was set last through the same handle is set.
fn set_attribute(function: CUfunction, attribute: u32, value: i32, device: CUdevice) -> CudaResult {
    let function = find(function)?;
    carry::check_fault(session::get()?)?;
    let answers = function.answers(device);
    let _setting = function.family.setting.lock();
    let changes = function.family.changes();
    if answers.and_then(|answers| answers.was_set(changes, attribute)) == Some(value) {
        return Ok(());
    }
    let request = SetFunctionAttribute { function: Typed(function.word), attribute, value, device };
    let set = operation::call(&request, |()| ());
    function.family.changed();
    // One change, which is this one: if something else has changed meanwhile, it is not believed.
    if let (Ok(()), Some(answers)) = (set, answers) {
        answers.keep_set(changes.wrapping_add(1), attribute, value);
    }
    set
}

#[allow(non_snake_case)]
pub(crate) mod api {
    use super::*;

    pub(crate) fn cuFuncGetName(name: Out<*const c_char>, function: CUfunction) -> CudaResult {
        // The text lives as long as its function is known.
        name.put(find(function)?.name().as_ptr())
    }

    pub(crate) fn cuKernelGetName(name: Out<*const c_char>, kernel: CUkernel) -> CudaResult {
        cuFuncGetName(name, kernel)
    }

    pub(crate) fn cuFuncGetAttribute(value: Out<i32>, which: u32, function: CUfunction) -> CudaResult {
        value.required()?;
        let function = find(function)?;
        value.put(attribute(&function, which, None)?)
    }

    pub(crate) fn cuKernelGetAttribute(
        value: Out<i32>,
        which: u32,
        kernel: CUkernel,
        device: CUdevice,
    ) -> CudaResult {
        value.required()?;
        handles::check(Kind::Kernel, kernel as u64)?;
        let kernel = find(kernel)?;
        value.put(attribute(&kernel, which, Some(device))?)
    }

    pub(crate) fn cuFuncSetAttribute(function: CUfunction, attribute: u32, value: i32) -> CudaResult {
        set_attribute(function, attribute, value, 0)
    }

    pub(crate) fn cuKernelSetAttribute(attribute: u32, value: i32, kernel: CUkernel, device: CUdevice) -> CudaResult {
        set_attribute(kernel, attribute, value, device)
    }

    pub(crate) fn cuFuncGetParamInfo(
        function: CUfunction,
        index: usize,
        offset: Out<usize>,
        size: Out<usize>,
    ) -> CudaResult {
        offset.required()?;
        let function = loaded(function)?;
        let (at, len) = *function.params.get(index).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        size.put_if(len);
        offset.put(at)
    }

    pub(crate) fn cuKernelGetParamInfo(
        kernel: CUkernel,
        index: usize,
        offset: Out<usize>,
        size: Out<usize>,
    ) -> CudaResult {
        cuFuncGetParamInfo(kernel, index, offset, size)
    }
}
