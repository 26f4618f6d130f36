//! What a client must know of its devices to answer queries at home.

use cuda_abi::driver::Driver;
use cuda_abi::error::*;
use cuda_abi::types::*;
use cuda_abi::wire::Writer;

use super::{Refusal, Worker, succeed};

/// Attributes are numbered from 1; the driver refuses the numbers it does not know.
const ATTRIBUTES: u32 = 160;
const NAME: usize = 256;

/// Attributes that are not as the driver says, because of the way memory is shared with the client.
const OURS: &[(u32, i32)] = &[
    (88, 0),  // PAGEABLE_MEMORY_ACCESS: kernels reach no memory of the client that it has not shared
    (89, 1),  // CONCURRENT_MANAGED_ACCESS: managed memory is pinned memory, which both reach at any time
    (91, 0),  // CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM
    (100, 0), // PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES
    (101, 0), // DIRECT_MANAGED_MEM_ACCESS_FROM_HOST
    (116, 0), // GPU_DIRECT_RDMA_SUPPORTED
    (119, 1), // MEMPOOL_SUPPORTED_HANDLE_TYPES: descriptors
    (124, 0), // DMA_BUF_SUPPORTED
    (125, 1), // IPC_EVENT_SUPPORTED: words of ours
    (128, 0), // HANDLE_TYPE_FABRIC_SUPPORTED
    (132, 0), // MULTICAST_SUPPORTED
];

/// Driver version, device count, then each device.
pub fn write(worker: &Worker, reply: &mut Writer<'_>) -> Result<(), Refusal> {
    let driver = &worker.driver;
    let (mut version, mut count) = (0, 0);
    // SAFETY: outputs are locals.
    unsafe {
        succeed((driver.cuDriverGetVersion)(&mut version))?;
        succeed((driver.cuDeviceGetCount)(&mut count))?;
    }
    let count = (count.max(0) as u32).min(super::state::MAX_DEVICES);
    reply.word(u64::from((version.max(0) as u32).min(cuda_abi::CUDA_VERSION)));
    reply.word(u64::from(count));
    for ordinal in 0..count {
        write_device(worker, driver, ordinal as i32, count as i32, reply)?;
    }
    Ok(())
}

fn write_device(
    worker: &Worker,
    driver: &Driver,
    ordinal: i32,
    count: i32,
    reply: &mut Writer<'_>,
) -> Result<(), Refusal> {
    let (mut device, mut total) = (0, 0usize);
    let mut name = [0u8; NAME];
    let mut bus = [0u8; 64];
    let mut uuid = CUuuid::default();
    // SAFETY: outputs are locals of the sizes given.
    unsafe {
        succeed((driver.cuDeviceGet)(&mut device, ordinal))?;
        succeed((driver.cuDeviceGetName)(name.as_mut_ptr().cast(), NAME as i32, device))?;
        succeed((driver.cuDeviceGetUuid_v2)(&mut uuid, device))?;
        succeed((driver.cuDeviceTotalMem_v2)(&mut total, device))?;
        succeed((driver.cuDeviceGetPCIBusId)(bus.as_mut_ptr().cast(), bus.len() as i32, device))?;
    }
    reply.bytes(until_nul(&name));
    reply.bytes(&uuid.0);
    reply.bytes(until_nul(&bus));
    let (_, total) = worker.memory.info(total as u64, total as u64);
    reply.word(total);
    reply.word(u64::from(ATTRIBUTES));
    for attribute in 1..=ATTRIBUTES {
        let mut value = 0;
        // SAFETY: the output is a local.
        let result = unsafe { (driver.cuDeviceGetAttribute)(&mut value, attribute, device) };
        if result == CUDA_SUCCESS
            && let Some((_, ours)) = OURS.iter().find(|(number, _)| *number == attribute)
        {
            value = *ours;
        }
        reply.word(u64::from(result) << 32 | u64::from(value as u32));
    }
    for peer in 0..count {
        let mut can = 0;
        // SAFETY: the output is a local.
        let result = unsafe { (driver.cuDeviceCanAccessPeer)(&mut can, device, peer) };
        reply.word(u64::from(result == CUDA_SUCCESS && can != 0));
    }
    Ok(())
}

pub fn until_nul(bytes: &[u8]) -> &[u8] {
    &bytes[..bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len())]
}
