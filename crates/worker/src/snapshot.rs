//! What a client must know of its devices to answer queries at home.

use cuda_abi::constants::device_attribute;
use cuda_abi::error::*;
use cuda_abi::types::*;
use cuda_abi::wire::ops::{AttributeAnswer, DeviceSnapshot, Snapshot, Start};
use cuda_abi::wire::{Array, List, MAX_DEVICES};

use super::ops::Reply;
use super::{Outcome, Refusal, Worker, succeed};

/// Attributes are numbered from 1; the driver refuses the numbers it does not know.
const ATTRIBUTES: u32 = 160;
const NAME: usize = 256;
const BUS_ID: usize = 64;

/// Attributes that are not as the driver says, because of the way memory is shared with the client.
const OURS: &[(u32, i32)] = &[
    // Kernels reach no memory of the client that it has not shared.
    (device_attribute::PAGEABLE_MEMORY_ACCESS, 0),
    // Managed memory is pinned memory, which both reach at any time.
    (device_attribute::CONCURRENT_MANAGED_ACCESS, 1),
    (device_attribute::CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM, 0),
    (device_attribute::PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES, 0),
    (device_attribute::DIRECT_MANAGED_MEM_ACCESS_FROM_HOST, 0),
    (device_attribute::GPU_DIRECT_RDMA_SUPPORTED, 0),
    // Descriptors alone.
    (device_attribute::MEMPOOL_SUPPORTED_HANDLE_TYPES, 1),
    (device_attribute::DMA_BUF_SUPPORTED, 0),
    // Through words in shared memory.
    (device_attribute::IPC_EVENT_SUPPORTED, 1),
    (device_attribute::HANDLE_TYPE_FABRIC_SUPPORTED, 0),
    (device_attribute::MULTICAST_SUPPORTED, 0),
];

/// What a device is, as the driver tells it.
struct Facts {
    name: [u8; NAME],
    uuid: CUuuid,
    bus_id: [u8; BUS_ID],
    total_memory: u64,
    attributes: Vec<AttributeAnswer>,
    peers: Vec<bool>,
}

/// Answers the first message.
pub(crate) fn send(worker: &Worker, reply: Reply<'_, '_, Start<'_>>) -> Outcome {
    let driver = &worker.driver;
    let (mut version, mut count) = (0, 0);
    // SAFETY: outputs are locals.
    unsafe {
        succeed((driver.cuDriverGetVersion)(&mut version))?;
        succeed((driver.cuDeviceGetCount)(&mut count))?;
    }
    let count = count.clamp(0, MAX_DEVICES as i32);
    let facts = (0..count).map(|ordinal| look_at(worker, ordinal, count)).collect::<Result<Vec<Facts>, Refusal>>()?;
    let devices: Vec<DeviceSnapshot<'_>> = facts
        .iter()
        .map(|facts| DeviceSnapshot {
            name: until_nul(&facts.name),
            uuid: facts.uuid,
            bus_id: until_nul(&facts.bus_id),
            total_memory: facts.total_memory,
            attributes: Array::new(&facts.attributes),
            peers: List::new(&facts.peers),
        })
        .collect();
    let driver_version = (version.max(0) as u32).min(cuda_abi::CUDA_VERSION);
    reply.send(&Snapshot { driver_version, devices: List::new(&devices) })
}

fn look_at(worker: &Worker, ordinal: i32, count: i32) -> Result<Facts, Refusal> {
    let driver = &worker.driver;
    let (mut device, mut total) = (0, 0usize);
    let mut name = [0; NAME];
    let mut bus_id = [0; BUS_ID];
    let mut uuid = CUuuid::default();
    // SAFETY: outputs are locals of the sizes given.
    unsafe {
        succeed((driver.cuDeviceGet)(&mut device, ordinal))?;
        succeed((driver.cuDeviceGetName)(name.as_mut_ptr().cast(), NAME as i32, device))?;
        succeed((driver.cuDeviceGetUuid_v2)(&mut uuid, device))?;
        succeed((driver.cuDeviceTotalMem_v2)(&mut total, device))?;
        succeed((driver.cuDeviceGetPCIBusId)(bus_id.as_mut_ptr().cast(), BUS_ID as i32, device))?;
    }
    let (_, total_memory) = worker.memory.info(worker.gpus.index(ordinal.unsigned_abs()), total as u64, total as u64);
    let attribute = |number| {
        let mut value = 0;
        // SAFETY: the output is a local.
        let result = unsafe { (driver.cuDeviceGetAttribute)(&mut value, number, device) };
        if result == CUDA_SUCCESS
            && let Some((_, ours)) = OURS.iter().find(|(ours, _)| *ours == number)
        {
            value = *ours;
        }
        AttributeAnswer { value, result }
    };
    let reaches = |peer| {
        let mut can = 0;
        // SAFETY: the output is a local.
        let result = unsafe { (driver.cuDeviceCanAccessPeer)(&mut can, device, peer) };
        result == CUDA_SUCCESS && can != 0
    };
    let attributes = (1..=ATTRIBUTES).map(attribute).collect();
    let peers = (0..count).map(reaches).collect();
    Ok(Facts { name, uuid, bus_id, total_memory, attributes, peers })
}

pub(crate) fn until_nul(bytes: &[u8]) -> &[u8] {
    &bytes[..bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len())]
}
