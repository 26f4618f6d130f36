//! Settings for dumps of the GPU's state. A dump would be of the worker, so none is ever written: what would ask for one is
//! refused, and the questions are answered as by a driver that was never told to write any.
#![allow(non_snake_case)]

use std::collections::HashMap;

use cuda_abi::border::{InOut, Untyped};
use cuda_abi::constants::coredump;
use cuda_abi::error::*;
use parking_lot::Mutex;

use crate::{context, session};

/// The longest name of a file or pipe, without the NUL.
const LONGEST: usize = 1023;

#[derive(Clone)]
struct Settings {
    trigger_host: bool,
    lightweight: bool,
    flags: u32,
    file: Vec<u8>,
    pipe: Vec<u8>,
}

impl Default for Settings {
    fn default() -> Settings {
        let name = |kind: &str| format!("{kind}.cuda.{}.{}", host(), std::process::id()).into_bytes();
        let (file, pipe) = (name("core"), name("corepipe"));
        Settings { trigger_host: true, lightweight: false, flags: 0, file, pipe }
    }
}

fn host() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim().to_owned()
}

/// By context; 0 are those of all that have none of their own.
static SETTINGS: Mutex<Option<HashMap<u64, Settings>>> = Mutex::new(None);

fn of(context: u64) -> Settings {
    let settings = SETTINGS.lock();
    let known = settings.as_ref().and_then(|known| known.get(&context).or_else(|| known.get(&0)));
    known.cloned().unwrap_or_default()
}

/// Writes a value and its size. A place that is too small, or none, only gets to know the size.
fn write(bytes: &[u8], value: Untyped, size: InOut<usize>) -> CudaResult {
    let room = size.take()?;
    size.put(bytes.len())?;
    if value.is_null() {
        return Ok(());
    }
    if room < bytes.len() {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    // SAFETY: by the API's contract there is room for as many bytes as `size` says.
    let place = unsafe { value.slice::<u8>(room) };
    place.put_list(bytes).map(|_| ())
}

fn get(context: u64, which: u32, value: Untyped, size: InOut<usize>) -> CudaResult {
    let settings = of(context);
    let text = |name: &[u8]| [name, &[0]].concat();
    match which {
        coredump::ENABLE_ON_EXCEPTION | coredump::ENABLE_USER_TRIGGER => write(&[0], value, size),
        coredump::TRIGGER_HOST => write(&[settings.trigger_host.into()], value, size),
        coredump::LIGHTWEIGHT => write(&[settings.lightweight.into()], value, size),
        coredump::FILE => write(&text(&settings.file), value, size),
        coredump::PIPE => write(&text(&settings.pipe), value, size),
        coredump::GENERATION_FLAGS => write(&settings.flags.to_ne_bytes(), value, size),
        _ => Err(CUDA_ERROR_INVALID_VALUE),
    }
}

fn set(context: u64, which: u32, value: Untyped, size: InOut<usize>) -> CudaResult {
    value.required()?;
    let room = size.take()?;
    let flag = || match room {
        // SAFETY: by the API's contract there are as many bytes as `size` says.
        1.. => unsafe { value.value::<u8>() }.take().map(|byte| byte != 0),
        0 => Err(CUDA_ERROR_INVALID_VALUE),
    };
    let number = || match room {
        // SAFETY: as above.
        4.. => unsafe { value.value::<[u8; 4]>() }.take().map(u32::from_ne_bytes),
        _ => Err(CUDA_ERROR_INVALID_VALUE),
    };
    let text = || {
        if room == 0 || room > LONGEST + 1 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        // SAFETY: as above; nothing behind the NUL is read.
        let bytes = unsafe { value.array::<u8>(room) };
        let mut text = Vec::new();
        for at in 0..room {
            match bytes.at(at)? {
                0 => break,
                byte => text.push(byte),
            }
        }
        Ok(text)
    };
    let mut settings = of(context);
    match which {
        coredump::ENABLE_ON_EXCEPTION | coredump::ENABLE_USER_TRIGGER if flag()? => {
            return Err(CUDA_ERROR_NOT_SUPPORTED);
        }
        coredump::ENABLE_ON_EXCEPTION | coredump::ENABLE_USER_TRIGGER => {}
        coredump::TRIGGER_HOST => settings.trigger_host = flag()?,
        coredump::LIGHTWEIGHT => settings.lightweight = flag()?,
        coredump::FILE => settings.file = text()?,
        coredump::PIPE => settings.pipe = text()?,
        coredump::GENERATION_FLAGS => settings.flags = number()?,
        _ => return Err(CUDA_ERROR_INVALID_VALUE),
    }
    SETTINGS.lock().get_or_insert_default().insert(context, settings);
    Ok(())
}

pub(crate) fn cuCoredumpGetAttribute(which: u32, value: Untyped, size: InOut<usize>) -> CudaResult {
    get(context::current()?, which, value, size)
}

pub(crate) fn cuCoredumpSetAttribute(which: u32, value: Untyped, size: InOut<usize>) -> CudaResult {
    set(context::current()?, which, value, size)
}

pub(crate) fn cuCoredumpGetAttributeGlobal(which: u32, value: Untyped, size: InOut<usize>) -> CudaResult {
    session::get()?;
    get(0, which, value, size)
}

pub(crate) fn cuCoredumpSetAttributeGlobal(which: u32, value: Untyped, size: InOut<usize>) -> CudaResult {
    session::get()?;
    set(0, which, value, size)
}
