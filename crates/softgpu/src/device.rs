//! Devices and what can be asked of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cuda_abi::constants::p2p_attribute;
use cuda_abi::driver::Driver;
use cuda_abi::error::*;
use cuda_abi::types::*;
use parking_lot::Mutex;

use super::abi::*;
use super::attributes as is;
use super::context::Context;
use super::memory::pool::Pool;
use super::state;

const NAME: &str = cuda_abi::driver::SOFTWARE_GPU;

pub(crate) struct Device {
    pub ordinal: usize,
    /// Its place among all devices, also those that the process does not see.
    slot: usize,
    /// Memory in bytes, and how much of it is handed out.
    pub memory: u64,
    used: AtomicU64,
    pub primary: Mutex<Primary>,
    /// The primary context: one object for ever, alive between the first retain and the last release.
    pub context: Arc<Context>,
    pub pools: Mutex<Pools>,
}

/// The state of the primary context.
#[derive(Default)]
pub(crate) struct Primary {
    pub retained: u32,
    pub flags: u32,
}

/// The pool that the device started with, and the one that `cuMemAllocAsync` uses now.
#[derive(Default)]
pub(crate) struct Pools {
    pub default: Option<Arc<Pool>>,
    pub current: Option<Arc<Pool>>,
}

impl Device {
    pub(crate) fn new(ordinal: usize, slot: usize, memory: u64) -> Device {
        Device {
            ordinal,
            slot,
            memory,
            used: AtomicU64::new(0),
            primary: Mutex::default(),
            context: Context::primary(ordinal),
            pools: Mutex::default(),
        }
    }

    /// Takes `bytes` from the device's memory.
    pub(crate) fn charge(&self, bytes: u64) -> CudaResult {
        let fits = |used: u64| used.checked_add(bytes).filter(|sum| *sum <= self.memory);
        let charged = self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits);
        charged.map(|_| ()).map_err(|_| CUDA_ERROR_OUT_OF_MEMORY)
    }

    /// Gives `bytes` back.
    pub(crate) fn discharge(&self, bytes: u64) {
        self.used.fetch_sub(bytes, Ordering::Relaxed);
    }

    pub(crate) fn free(&self) -> u64 {
        self.memory - self.used.load(Ordering::Relaxed)
    }

    fn bus_id(&self) -> String {
        bus_id(self.slot)
    }
}

/// The PCI address of a software GPU.
pub fn bus_id(slot: usize) -> String {
    format!("0000:{:02X}:00.0", slot + 1)
}

/// Unique for each device of this machine's software GPUs; valid as a version 8 UUID.
pub(crate) fn uuid(slot: usize) -> [u8; 16] {
    let mut uuid = *b"blkhd\0\x80\0\x80softgpu";
    uuid[15] = slot as u8;
    uuid
}

fn cuInit(flags: u32) -> CudaResult {
    valid(flags == 0)?;
    state::initialise()
}

fn cuDriverGetVersion(version: Out<i32>) -> CudaResult {
    version.put(cuda_abi::CUDA_VERSION as i32)
}

fn cuDeviceGet(device: Out<CUdevice>, ordinal: i32) -> CudaResult {
    device.required()?;
    state::device(ordinal)?;
    device.put(ordinal)
}

fn cuDeviceGetCount(count: Out<i32>) -> CudaResult {
    count.put(state::state()?.devices.len() as i32)
}

fn cuDeviceGetName(name: OutSlice<c_char>, _len: i32, dev: CUdevice) -> CudaResult {
    state::device(dev)?;
    name.put_text(NAME.as_bytes())
}

fn cuDeviceGetUuid(to: Out<CUuuid>, dev: CUdevice) -> CudaResult {
    to.put(CUuuid(uuid(state::device(dev)?.slot)))
}

fn cuDeviceTotalMem_v2(bytes: Out<usize>, dev: CUdevice) -> CudaResult {
    bytes.put(state::device(dev)?.memory as usize)
}

fn cuDeviceGetAttribute(pi: Out<i32>, attribute: u32, dev: CUdevice) -> CudaResult {
    pi.required()?;
    let device = state::device(dev)?;
    pi.put(is::value(attribute, device.slot).ok_or(CUDA_ERROR_INVALID_VALUE)?)
}

fn cuDeviceComputeCapability(major: Out<i32>, minor: Out<i32>, dev: CUdevice) -> CudaResult {
    state::device(dev)?;
    minor.required()?;
    major.put(is::MAJOR)?;
    minor.put(is::MINOR)
}

fn cuDeviceGetProperties(prop: Out<CUdevprop>, dev: CUdevice) -> CudaResult {
    state::device(dev)?;
    prop.put(CUdevprop {
        max_threads_per_block: is::MAX_THREADS as i32,
        max_threads_dim: is::MAX_BLOCK.map(|n| n as i32),
        max_grid_size: is::MAX_GRID.map(|n| n as i32),
        shared_mem_per_block: is::SHARED_PER_BLOCK as i32,
        total_constant_memory: is::CONSTANT_MEMORY,
        simd_width: 32,
        mem_pitch: i32::MAX,
        regs_per_block: is::REGISTERS as i32,
        clock_rate: is::CLOCK_KHZ,
        texture_align: is::TEXTURE_ALIGNMENT,
    })
}

fn cuDeviceGetPCIBusId(pci_bus_id: OutSlice<c_char>, _len: i32, dev: CUdevice) -> CudaResult {
    pci_bus_id.put_text(state::device(dev)?.bus_id().as_bytes())
}

fn cuDeviceGetByPCIBusId(dev: Out<CUdevice>, pci_bus_id: Str) -> CudaResult {
    dev.required()?;
    let wanted = text(pci_bus_id)?.to_ascii_uppercase();
    let short = |id: &str| id.trim_start_matches("0000:").trim_end_matches(".0").to_owned();
    let devices = &state::state()?.devices;
    let found = devices.iter().find(|device| short(&device.bus_id()) == short(&wanted));
    dev.put(found.ok_or(CUDA_ERROR_INVALID_DEVICE)?.ordinal as i32)
}

fn cuDeviceCanAccessPeer(can: Out<i32>, dev: CUdevice, peer: CUdevice) -> CudaResult {
    can.required()?;
    let (one, other) = (state::device(dev)?, state::device(peer)?);
    can.put(i32::from(one.ordinal != other.ordinal))
}

fn cuDeviceGetP2PAttribute(value: Out<i32>, attribute: u32, src: CUdevice, dst: CUdevice) -> CudaResult {
    value.required()?;
    if state::device(src)?.ordinal == state::device(dst)?.ordinal {
        return Err(CUDA_ERROR_INVALID_DEVICE);
    }
    match attribute {
        // Rank; arrays; partial atomics only.
        p2p_attribute::PERFORMANCE_RANK
        | p2p_attribute::ARRAY_ACCESS_SUPPORTED
        | p2p_attribute::ONLY_PARTIAL_NATIVE_ATOMIC_SUPPORTED => value.put(0),
        // Access and atomics: all devices share the machine's memory.
        p2p_attribute::ACCESS_SUPPORTED | p2p_attribute::NATIVE_ATOMIC_SUPPORTED => value.put(1),
        _ => Err(CUDA_ERROR_INVALID_VALUE),
    }
}

fn cuDeviceGetTexture1DLinearMaxWidth(width: Out<usize>, _format: u32, _channels: u32, dev: CUdevice) -> CudaResult {
    let device = state::device(dev)?;
    width.put(is::value(69, device.slot).unwrap_or(0) as usize)
}

pub(crate) fn fill(table: Driver) -> Driver {
    entries!(
        table,
        cuInit,
        cuDriverGetVersion,
        cuDeviceGet,
        cuDeviceGetCount,
        cuDeviceGetName,
        cuDeviceGetUuid,
        cuDeviceGetUuid_v2 = cuDeviceGetUuid,
        cuDeviceTotalMem_v2,
        cuDeviceGetAttribute,
        cuDeviceComputeCapability,
        cuDeviceGetProperties,
        cuDeviceGetPCIBusId,
        cuDeviceGetByPCIBusId,
        cuDeviceCanAccessPeer,
        cuDeviceGetP2PAttribute,
        cuDeviceGetTexture1DLinearMaxWidth
    )
}
