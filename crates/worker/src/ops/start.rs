//! The first message: what the driver reads from its environment, then the driver starts.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::Ordering;
use std::time::Duration;

use cuda_abi::constants::host_register_flag;
use cuda_abi::error::*;
use cuda_abi::plan;
use cuda_abi::types::c_void;
use cuda_abi::wire::DRIVER_VARIABLES;
use cuda_abi::wire::ops::Start;
use idm::bootstrap::{self, Handover};

use super::Reply;
use crate::state::Startup;
use crate::{Outcome, Refusal, Worker, snapshot, succeed};
use backend::VISIBLE;
use backend::calls::{self, Phase};
use control::mig;

/// A descriptor is on the socket before the message that speaks of it; a client that sends none is not waited for.
pub(crate) const HANDOVER_TIME: Duration = Duration::from_secs(1);

pub(crate) fn start(worker: &Worker, request: Start<'_>, reply: Reply<'_, '_, Start<'_>>) -> Outcome {
    if worker.greeted.swap(true, Ordering::AcqRel) {
        return Err(Refusal::Malformed);
    }
    let known = |name: &[u8]| DRIVER_VARIABLES.iter().any(|known| known.as_bytes() == name);
    let variables: Vec<(&OsStr, &OsStr)> = request
        .variables
        .iter()
        .filter(|variable| known(variable.name.0))
        .map(|variable| (OsStr::from_bytes(variable.name.0), OsStr::from_bytes(variable.value.0)))
        .collect();
    take_over_output(worker);
    start_driver(worker, &variables)?;
    let started = snapshot::send(worker, reply)?;
    come_under_supervision(worker)?;
    worker.started.store(true, Ordering::Release);
    calls::enter(Phase::Started);
    Ok(started)
}

/// From here on the client's wishes are served, and the worker may fall to them.
fn come_under_supervision(worker: &Worker) -> Result<(), Refusal> {
    let Some(seal) = worker.take_seal() else { return Ok(()) };
    // With its first context the driver library has made the kernel driver's clients, and none can be made any more. A zone that has
    // no room for one is told so when it asks.
    let _ = super::context::use_primary(worker, 0);
    seal().map_err(|error| {
        tracing::error!(%error, "cannot come under supervision");
        Refusal::Unsupervised
    })
}

/// Starts the driver, once. A spare worker does so before it has a client, and then it is too late for variables: a
/// client that has some asks for a worker of its own.
fn start_driver(worker: &Worker, variables: &[(&OsStr, &OsStr)]) -> Result<(), Refusal> {
    let mut starting = worker.starting();
    let code = match *starting {
        Startup::Done(_) if !variables.is_empty() => return Err(Refusal::Malformed),
        Startup::Done(code) => code,
        Startup::NotYet => {
            for (name, value) in variables {
                let value = among_own(name, value);
                // SAFETY: until the driver has started no other thread calls it, and nobody else reads the environment.
                unsafe { std::env::set_var(name, value) };
            }
            // SAFETY: the driver's first call.
            let code = match unsafe { (worker.driver.cuInit)(0) } {
                CUDA_SUCCESS => match worker.gpus.learn(&worker.driver) {
                    CUDA_SUCCESS => reserve_device_range(worker),
                    code => code,
                },
                code => code,
            };
            *starting = Startup::Done(code);
            code
        }
    };
    succeed(code)
}

/// A worker with a MIG instance shows it alone, whatever its client asks to see.
fn among_own(name: &OsStr, value: &OsStr) -> OsString {
    match std::env::var(VISIBLE) {
        Ok(own) if name == VISIBLE => mig::visible(&value.to_string_lossy(), &own).into(),
        _ => value.to_owned(),
    }
}

/// What a spare worker does ahead of its client: start the driver and make the context that nearly every client uses. If
/// that fails, the client is told when it asks for the same.
pub(crate) fn warm_up(worker: &Worker) {
    if start_driver(worker, &[]).is_ok() {
        let _ = super::context::hold_primary(worker, 0);
    }
}

/// The driver prints what kernels print: it goes to the client's own output, whose descriptor came on the socket.
fn take_over_output(worker: &Worker) {
    if let Some(guest) = worker.guest() {
        // A guest's client asks for what was printed.
        if let Ok(output) = guest.make_output() {
            // SAFETY: as below.
            unsafe { libc::dup2(std::os::fd::AsRawFd::as_raw_fd(&output), 1) };
        }
        return;
    }
    if let Ok((_, fds)) = bootstrap::recv_within::<Handover>(worker.socket(), HANDOVER_TIME)
        && let [output] = &fds[..]
    {
        // SAFETY: descriptor 1 is this process's to replace; nothing of ours writes to it.
        unsafe { libc::dup2(std::os::fd::AsRawFd::as_raw_fd(output), 1) };
    }
}

/// Takes the device range of the address plan from the driver: every mapping of ours goes there.
fn reserve_device_range(worker: &Worker) -> CUresult {
    let mut address = 0;
    let size = plan::DEVICE_SIZE as usize;
    // SAFETY: the output is a local.
    match unsafe { (worker.driver.cuMemAddressReserve)(&mut address, size, 0, plan::DEVICE_BASE, 0) } {
        CUDA_SUCCESS if address != plan::DEVICE_BASE => {
            tracing::error!(address, "the driver refuses the address plan");
            CUDA_ERROR_SYSTEM_NOT_READY
        }
        // Nothing to reserve for.
        CUDA_ERROR_NO_DEVICE => CUDA_SUCCESS,
        code => code,
    }
}

/// Lets a device write completion words and read the staging area. Its context is current.
pub(crate) fn register_region(worker: &Worker, device: u32) -> Result<(), Refusal> {
    let flags = (worker.flags.as_ptr().cast::<u8>(), worker.flags.count() * size_of::<u64>());
    let bulk = (worker.bulk.as_ptr().cast::<u8>(), worker.bulk.len() as usize);
    for (start, len) in [flags, bulk, worker.turns.marks(worker.gpus.index(device)).memory()] {
        register(worker, start, len)?;
    }
    Ok(())
}

/// Lets the GPU read and write what has been added to the staging area; where it has no context yet, `register_region` will.
/// In a primary context, as the rest of it: a registration ends with its context.
pub(crate) fn register_staging(worker: &Worker, start: *mut u8, len: usize) -> Result<(), Refusal> {
    const MOST_DEVICES: u32 = 64;
    let Some(held) = (1..=MOST_DEVICES).find(|index| worker.handles.context(*index).is_some()) else { return Ok(()) };
    let _context = worker.enter(held)?;
    register(worker, start, len)
}

/// Of the region, or of the worker's own marks: they stay where they are as long as the process lives.
fn register(worker: &Worker, start: *mut u8, len: usize) -> Result<(), Refusal> {
    const PORTABLE_AND_MAPPED: u32 = host_register_flag::PORTABLE | host_register_flag::DEVICE_MAP;
    // SAFETY: memory that is there as long as the process lives.
    let result = unsafe { (worker.driver.cuMemHostRegister_v2)(start.cast::<c_void>(), len, PORTABLE_AND_MAPPED) };
    if result == CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED { Ok(()) } else { succeed(result) }
}
