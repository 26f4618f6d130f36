//! The first message: what the driver reads from its environment, then the driver starts.

use std::ffi::OsStr;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::Ordering;

use cuda_abi::error::*;
use cuda_abi::plan;
use cuda_abi::types::c_void;
use cuda_abi::wire::{Reader, Writer};
use idm::bootstrap::{self, Handover};

use crate::worker::{Outcome, Refusal, Worker, snapshot, succeed};

const MAX_VARIABLES: u64 = 64;
const MAX_VALUE: usize = 4096;

/// Variables that the driver itself acts on. Others (search paths, debug hooks) stay outside: they would act on this
/// process, not on the client.
const PASSED_ON: &[&str] = &[
    "CUDA_VISIBLE_DEVICES",
    "CUDA_DEVICE_ORDER",
    "CUDA_MODULE_LOADING",
    "CUDA_MODULE_DATA_LOADING",
    "CUDA_DEVICE_MAX_CONNECTIONS",
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_FORCE_PTX_JIT",
    "CUDA_DISABLE_PTX_JIT",
    "CUDA_FORCE_JIT",
    "CUDA_DISABLE_JIT",
    "CUDA_AUTO_BOOST",
    "CUDA_SCALE_LAUNCH_QUEUES",
    "CUDA_GRAPHS_USE_NODE_PRIORITY",
];

pub fn start(worker: &Worker, message: &mut Reader<'_>, reply: &mut Writer<'_>) -> Outcome {
    if worker.started.swap(true, Ordering::AcqRel) {
        return Err(Refusal::Malformed);
    }
    let count = message.word()?;
    if count > MAX_VARIABLES {
        return Err(Refusal::Malformed);
    }
    for _ in 0..count {
        let (name, value) = (message.bytes()?, message.bytes()?);
        let known = PASSED_ON.iter().any(|known| known.as_bytes() == name);
        if value.len() > MAX_VALUE || value.contains(&0) {
            return Err(Refusal::Malformed);
        }
        if known {
            // SAFETY: the driver has not started and no other thread of ours reads the environment.
            unsafe { std::env::set_var(OsStr::from_bytes(name), OsStr::from_bytes(value)) };
        }
    }
    message.end()?;
    take_over_output(worker);
    // SAFETY: the driver's first call.
    succeed(unsafe { (worker.driver.cuInit)(0) })?;
    reserve_device_range(worker)?;
    snapshot::write(worker, reply)?;
    Ok(CUDA_SUCCESS)
}

/// The driver prints what kernels print: it goes to the client's own output, whose descriptor came on the socket.
fn take_over_output(worker: &Worker) {
    if let Ok((_, fds)) = bootstrap::recv::<Handover>(worker.socket.as_fd())
        && let [output] = &fds[..]
    {
        // SAFETY: descriptor 1 is this process's to replace; nothing of ours writes to it.
        unsafe { libc::dup2(std::os::fd::AsRawFd::as_raw_fd(output), 1) };
    }
}

/// Takes the device range of the address plan from the driver: every mapping of ours goes there.
fn reserve_device_range(worker: &Worker) -> Result<(), Refusal> {
    let mut address = 0;
    let size = plan::DEVICE_SIZE as usize;
    // SAFETY: the output is a local.
    let result = unsafe { (worker.driver.cuMemAddressReserve)(&mut address, size, 0, plan::DEVICE_BASE, 0) };
    if result == CUDA_ERROR_NO_DEVICE {
        return Ok(());
    }
    succeed(result)?;
    if address != plan::DEVICE_BASE {
        tracing::error!(address, "the driver refuses the address plan");
        return Err(Refusal::Code(CUDA_ERROR_SYSTEM_NOT_READY));
    }
    Ok(())
}

/// Lets the GPU write completion words and read the staging area. Needs a current context.
pub fn register_region(worker: &Worker) -> Result<(), Refusal> {
    const PORTABLE_AND_MAPPED: u32 = 3;
    let flags = (worker.flags.as_ptr(), worker.flags.count() * size_of::<u64>());
    let bulk = (worker.bulk.as_ptr(), worker.bulk.len() as usize);
    for (start, len) in [flags, bulk] {
        // SAFETY: both are parts of the region, which stays mapped as long as the process lives.
        let result =
            unsafe { (worker.driver.cuMemHostRegister_v2)(start.cast::<c_void>(), len, PORTABLE_AND_MAPPED) };
        if result != CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED {
            succeed(result)?;
        }
    }
    Ok(())
}
