//! Devices, answered from the snapshot that came with the connection.

use cuda_abi::border::{InSlice, Out, OutSlice, Str};
use cuda_abi::constants::{atomic_operation, device_attribute, exec_affinity, flush_rdma_writes, p2p_attribute};
use cuda_abi::error::*;
use cuda_abi::types::*;
use cuda_abi::wire::ops::{DeviceSnapshot, Snapshot};

use crate::entry::not_null;
use crate::session;

pub(crate) struct Devices {
    pub driver_version: u32,
    list: Vec<Device>,
}

pub(crate) struct Device {
    name: Vec<u8>,
    pub uuid: [u8; 16],
    bus_id: Vec<u8>,
    pub total_memory: u64,
    /// Result and value by attribute number; number 0 is not used.
    attributes: Vec<(CUresult, i32)>,
    peers: Vec<bool>,
}

impl Devices {
    pub(crate) fn new(snapshot: &Snapshot<'_>) -> Devices {
        Devices { driver_version: snapshot.driver_version, list: snapshot.devices.iter().map(Device::new).collect() }
    }

    pub(crate) fn count(&self) -> usize {
        self.list.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Device> {
        self.list.iter()
    }

    pub(crate) fn get(&self, device: CUdevice) -> CudaResult<&Device> {
        usize::try_from(device).ok().and_then(|at| self.list.get(at)).ok_or(CUDA_ERROR_INVALID_DEVICE)
    }
}

impl Device {
    fn new(device: DeviceSnapshot<'_>) -> Device {
        let answers = device.attributes.iter().map(|answer| (answer.result, answer.value));
        Device {
            name: device.name.to_vec(),
            uuid: device.uuid.0,
            bus_id: device.bus_id.to_vec(),
            total_memory: device.total_memory,
            attributes: std::iter::once((CUDA_ERROR_INVALID_VALUE, 0)).chain(answers).collect(),
            peers: device.peers.iter().collect(),
        }
    }

    pub(crate) fn attribute(&self, number: u32) -> CudaResult<i32> {
        match self.attributes.get(number as usize) {
            Some((CUDA_SUCCESS, value)) => Ok(*value),
            Some((code, _)) => Err(*code),
            None => Err(CUDA_ERROR_INVALID_VALUE),
        }
    }
}

pub(crate) fn find(device: CUdevice) -> CudaResult<&'static Device> {
    session::get()?.devices.get(device)
}

/// Whether the zone's GPUs are computed on the CPU.
pub(crate) fn is_soft() -> bool {
    find(0).is_ok_and(|device| device.name.starts_with(cuda_abi::driver::SOFTWARE_GPU.as_bytes()))
}

/// Writes an output that must be there.
///
/// # Safety
/// `to` is NULL or writable.
pub(crate) unsafe fn put<T>(to: *mut T, value: T) -> CudaResult {
    not_null(to)?;
    // SAFETY: not NULL; the rest is the caller's promise.
    unsafe { to.write(value) };
    Ok(())
}

#[allow(non_snake_case)]
pub(crate) mod api {
    use super::*;

    pub(crate) fn cuDeviceGet(device: Out<CUdevice>, ordinal: i32) -> CudaResult {
        find(ordinal)?;
        device.put(ordinal)
    }

    pub(crate) fn cuDeviceGetCount(count: Out<i32>) -> CudaResult {
        count.put(session::get()?.devices.count() as i32)
    }

    pub(crate) fn cuDeviceGetName(name: OutSlice<c_char>, _len: i32, dev: CUdevice) -> CudaResult {
        name.put_text(&find(dev)?.name)
    }

    pub(crate) fn cuDeviceGetUuid(uuid: Out<CUuuid>, dev: CUdevice) -> CudaResult {
        uuid.put(CUuuid(find(dev)?.uuid))
    }

    pub(crate) fn cuDeviceGetUuid_v2(uuid: Out<CUuuid>, dev: CUdevice) -> CudaResult {
        cuDeviceGetUuid(uuid, dev)
    }

    pub(crate) fn cuDeviceTotalMem_v2(bytes: Out<usize>, dev: CUdevice) -> CudaResult {
        bytes.put(find(dev)?.total_memory as usize)
    }

    pub(crate) fn cuDeviceGetAttribute(value: Out<i32>, attribute: u32, dev: CUdevice) -> CudaResult {
        value.required()?;
        value.put(find(dev)?.attribute(attribute)?)
    }

    pub(crate) fn cuDeviceGetPCIBusId(bus_id: OutSlice<c_char>, _len: i32, dev: CUdevice) -> CudaResult {
        bus_id.put_text(&find(dev)?.bus_id)
    }

    pub(crate) fn cuDeviceGetByPCIBusId(dev: Out<CUdevice>, bus_id: Str) -> CudaResult {
        let wanted = bus_id.text()?.to_bytes();
        let is_it = |device: &Device| {
            device.bus_id.eq_ignore_ascii_case(wanted)
                || device.bus_id.get(4..).is_some_and(|short| short.eq_ignore_ascii_case(wanted))
        };
        let at = session::get()?.devices.iter().position(is_it).ok_or(CUDA_ERROR_INVALID_DEVICE)?;
        dev.put(at as CUdevice)
    }

    pub(crate) fn cuDeviceComputeCapability(major: Out<i32>, minor: Out<i32>, dev: CUdevice) -> CudaResult {
        let device = find(dev)?;
        major.put(device.attribute(device_attribute::COMPUTE_CAPABILITY_MAJOR)?)?;
        minor.put(device.attribute(device_attribute::COMPUTE_CAPABILITY_MINOR)?)
    }

    pub(crate) fn cuDeviceGetProperties(prop: Out<CUdevprop>, dev: CUdevice) -> CudaResult {
        let device = find(dev)?;
        let at = |number: u32| device.attribute(number).unwrap_or(0);
        let properties = CUdevprop {
            max_threads_per_block: at(device_attribute::MAX_THREADS_PER_BLOCK),
            max_threads_dim: [
                at(device_attribute::MAX_BLOCK_DIM_X),
                at(device_attribute::MAX_BLOCK_DIM_Y),
                at(device_attribute::MAX_BLOCK_DIM_Z),
            ],
            max_grid_size: [
                at(device_attribute::MAX_GRID_DIM_X),
                at(device_attribute::MAX_GRID_DIM_Y),
                at(device_attribute::MAX_GRID_DIM_Z),
            ],
            shared_mem_per_block: at(device_attribute::MAX_SHARED_MEMORY_PER_BLOCK),
            total_constant_memory: at(device_attribute::TOTAL_CONSTANT_MEMORY),
            simd_width: at(device_attribute::WARP_SIZE),
            mem_pitch: at(device_attribute::MAX_PITCH),
            regs_per_block: at(device_attribute::MAX_REGISTERS_PER_BLOCK),
            clock_rate: at(device_attribute::CLOCK_RATE),
            texture_align: at(device_attribute::TEXTURE_ALIGNMENT),
        };
        prop.put(properties)
    }

    pub(crate) fn cuDeviceCanAccessPeer(can: Out<i32>, dev: CUdevice, peer: CUdevice) -> CudaResult {
        find(peer)?;
        let answer = find(dev)?.peers.get(peer as usize).copied().unwrap_or(false);
        can.put(i32::from(answer))
    }

    pub(crate) fn cuDeviceGetP2PAttribute(
        value: Out<i32>,
        attribute: u32,
        src: CUdevice,
        dst: CUdevice,
    ) -> CudaResult {
        if src == dst
            || !(p2p_attribute::PERFORMANCE_RANK..=p2p_attribute::ONLY_PARTIAL_NATIVE_ATOMIC_SUPPORTED)
                .contains(&attribute)
        {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        find(dst)?;
        let can = find(src)?.peers.get(dst as usize).copied().unwrap_or(false);
        value.put(i32::from(can && attribute == p2p_attribute::ACCESS_SUPPORTED))
    }

    /// Parts of a device's processors are given out by MPS, which is not here.
    pub(crate) fn cuDeviceGetExecAffinitySupport(supported: Out<i32>, kind: u32, dev: CUdevice) -> CudaResult {
        find(dev)?;
        if kind != exec_affinity::SM_COUNT {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        supported.put(0)
    }

    /// Says of no operation that it is atomic beyond the device.
    fn no_atomics(capabilities: OutSlice<u32>, operations: InSlice<u32>) -> CudaResult {
        capabilities.required()?;
        operations.required()?;
        for at in 0..operations.len() {
            if operations.at(at)? > atomic_operation::FLOAT_MAX {
                return Err(CUDA_ERROR_INVALID_VALUE);
            }
            capabilities.put_at(at, 0)?;
        }
        if operations.is_empty() { Err(CUDA_ERROR_INVALID_VALUE) } else { Ok(()) }
    }

    pub(crate) fn cuDeviceGetHostAtomicCapabilities(
        capabilities: OutSlice<u32>,
        operations: InSlice<CUatomicOperation>,
        _count: u32,
        dev: CUdevice,
    ) -> CudaResult {
        find(dev)?;
        no_atomics(capabilities, operations)
    }

    pub(crate) fn cuDeviceGetP2PAtomicCapabilities(
        capabilities: OutSlice<u32>,
        operations: InSlice<CUatomicOperation>,
        _count: u32,
        src: CUdevice,
        dst: CUdevice,
    ) -> CudaResult {
        find(src)?;
        find(dst)?;
        if src == dst {
            return Err(CUDA_ERROR_INVALID_DEVICE);
        }
        no_atomics(capabilities, operations)
    }

    /// Accepted, and never called: it would tell of memory taken from a process, which nobody does here. The handle only
    /// has to be unlike NULL.
    pub(crate) fn cuDeviceRegisterAsyncNotification(
        dev: CUdevice,
        callback: CUasyncCallback,
        _user: *mut c_void,
        handle: Out<CUasyncCallbackHandle>,
    ) -> CudaResult {
        find(dev)?;
        not_null(callback)?;
        handle.put(1 as CUasyncCallbackHandle)
    }

    pub(crate) fn cuDeviceUnregisterAsyncNotification(dev: CUdevice, handle: CUasyncCallbackHandle) -> CudaResult {
        find(dev)?;
        not_null(handle)
    }

    /// A program in a zone has no device that writes to the GPU past the CPU, so all its writes are there.
    pub(crate) fn cuFlushGPUDirectRDMAWrites(target: u32, scope: u32) -> CudaResult {
        crate::context::current()?;
        let known = target == flush_rdma_writes::TARGET_CURRENT_CONTEXT
            && matches!(scope, flush_rdma_writes::TO_OWNER | flush_rdma_writes::TO_ALL_DEVICES);
        if known { Ok(()) } else { Err(CUDA_ERROR_INVALID_VALUE) }
    }
}
