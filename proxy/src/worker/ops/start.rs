//! The first message: what the driver reads from its environment, then the driver starts.

use std::ffi::OsStr;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::Ordering;
use std::time::Duration;

use cuda_abi::error::*;
use cuda_abi::plan;
use cuda_abi::types::c_void;
use cuda_abi::wire::{DRIVER_VARIABLES, Reader, Writer};
use idm::bootstrap::{self, Handover};

use crate::worker::{Outcome, Refusal, Worker, snapshot, succeed};

/// A descriptor is on the socket before the message that speaks of it; a client that sends none is not waited for.
pub const HANDOVER_TIME: Duration = Duration::from_secs(1);

const MAX_VARIABLES: u64 = 64;
const MAX_VALUE: usize = 4096;

pub fn start(worker: &Worker, message: &mut Reader<'_>, reply: &mut Writer<'_>) -> Outcome {
    if worker.greeted.swap(true, Ordering::AcqRel) {
        return Err(Refusal::Malformed);
    }
    let count = message.word()?;
    if count > MAX_VARIABLES {
        return Err(Refusal::Malformed);
    }
    for _ in 0..count {
        let (name, value) = (message.bytes()?, message.bytes()?);
        let known = DRIVER_VARIABLES.iter().any(|known| known.as_bytes() == name);
        if value.len() > MAX_VALUE || value.contains(&0) {
            return Err(Refusal::Malformed);
        }
        if known {
            // SAFETY: until `started` is set no other thread calls the driver, and nobody else reads the environment.
            unsafe { std::env::set_var(OsStr::from_bytes(name), OsStr::from_bytes(value)) };
        }
    }
    message.end()?;
    take_over_output(worker);
    // SAFETY: the driver's first call.
    succeed(unsafe { (worker.driver.cuInit)(0) })?;
    reserve_device_range(worker)?;
    snapshot::write(worker, reply)?;
    worker.started.store(true, Ordering::Release);
    Ok(CUDA_SUCCESS)
}

/// The driver prints what kernels print: it goes to the client's own output, whose descriptor came on the socket.
fn take_over_output(worker: &Worker) {
    if let Ok((_, fds)) = bootstrap::recv_within::<Handover>(worker.socket.as_fd(), HANDOVER_TIME)
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
