//! What exists once in a process: the configuration, the devices, and whether `cuInit` was called.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use cuda_abi::error::*;

use super::abi::CudaResult;
use super::context::Context;
use super::device::Device;
use super::visible;

/// How many devices a process sees, and of what size.
#[derive(Clone, Debug)]
pub struct Config {
    pub devices: usize,
    /// Memory of each device in bytes.
    pub memory: u64,
}

impl Default for Config {
    fn default() -> Self {
        Config { devices: 1, memory: 4 << 30 }
    }
}

pub(crate) struct State {
    pub devices: Vec<Arc<Device>>,
}

static CONFIG: OnceLock<Config> = OnceLock::new();
/// The slots that this process may see at all.
static ONLY: OnceLock<Vec<usize>> = OnceLock::new();
static STATE: OnceLock<State> = OnceLock::new();
/// Set in a forked child: threads and memory of the parent are not there, so nothing works any more.
static FORKED: AtomicBool = AtomicBool::new(false);

thread_local! {
    static IN_CALLBACK: Cell<bool> = const { Cell::new(false) };
}

/// Fixes the configuration; the first one of a process stays.
pub(crate) fn configure(config: Config) {
    let _ = CONFIG.set(config);
}

/// Keeps all devices but these from the process, whatever its environment says; none: it sees all. The first word counts.
pub fn show_only(slots: Vec<usize>) {
    let _ = ONLY.set(slots);
}

/// `cuInit`.
pub(crate) fn initialise() -> CudaResult {
    if FORKED.load(Ordering::Relaxed) {
        return Err(CUDA_ERROR_NOT_INITIALIZED);
    }
    let config = CONFIG.get_or_init(Config::default);
    let state = STATE.get_or_init(|| {
        extern "C" fn in_child() {
            FORKED.store(true, Ordering::Relaxed);
        }
        // SAFETY: the handler only stores to an atomic.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
        let only = ONLY.get().filter(|only| !only.is_empty());
        let there: Vec<usize> =
            (0..config.devices).filter(|slot| only.is_none_or(|only| only.contains(slot))).collect();
        let slots = match std::env::var("CUDA_VISIBLE_DEVICES") {
            Ok(list) => visible::slots(&list, &there),
            Err(_) => there,
        };
        let made = slots.into_iter().enumerate();
        let devices = made.map(|(ordinal, slot)| Arc::new(Device::new(ordinal, slot, config.memory))).collect();
        State { devices }
    });
    if state.devices.is_empty() { Err(CUDA_ERROR_NO_DEVICE) } else { Ok(()) }
}

/// The state, if calls may be made at all.
pub(crate) fn state() -> CudaResult<&'static State> {
    if FORKED.load(Ordering::Relaxed) {
        return Err(CUDA_ERROR_NOT_INITIALIZED);
    }
    if IN_CALLBACK.try_with(Cell::get).unwrap_or(false) {
        return Err(CUDA_ERROR_NOT_PERMITTED);
    }
    STATE.get().filter(|state| !state.devices.is_empty()).ok_or(CUDA_ERROR_NOT_INITIALIZED)
}

/// All devices, for what may be done at any time, such as giving memory back.
pub(crate) fn devices() -> &'static [Arc<Device>] {
    STATE.get().map_or(&[], |state| &state.devices)
}

/// The device of an ordinal.
pub(crate) fn device(ordinal: i32) -> CudaResult<&'static Arc<Device>> {
    let devices = &state()?.devices;
    usize::try_from(ordinal).ok().and_then(|at| devices.get(at)).ok_or(CUDA_ERROR_INVALID_DEVICE)
}

/// The device of a context that exists.
pub(crate) fn device_of(context: &Context) -> &'static Arc<Device> {
    &devices()[context.device]
}

/// Runs a host function of the application, in which CUDA calls are not permitted.
pub(crate) fn in_callback(body: impl FnOnce()) {
    let _ = IN_CALLBACK.try_with(|flag| flag.set(true));
    body();
    let _ = IN_CALLBACK.try_with(|flag| flag.set(false));
}
