//! Devices, answered from the snapshot that came with the connection.

use cuda_abi::error::*;
use cuda_abi::types::*;
use cuda_abi::wire::ops::{DeviceSnapshot, Snapshot};

use crate::entry::{Cuda, not_null};
use crate::session;

pub struct Devices {
    pub driver_version: u32,
    list: Vec<Device>,
}

pub struct Device {
    name: Vec<u8>,
    pub uuid: [u8; 16],
    bus_id: Vec<u8>,
    pub total_memory: u64,
    /// Result and value by attribute number; number 0 is not used.
    attributes: Vec<(CUresult, i32)>,
    peers: Vec<bool>,
}

impl Devices {
    pub fn new(snapshot: &Snapshot<'_>) -> Devices {
        Devices { driver_version: snapshot.driver_version, list: snapshot.devices.iter().map(Device::new).collect() }
    }

    pub fn count(&self) -> usize {
        self.list.len()
    }

    pub fn iter(&self) -> impl Iterator<Item = &Device> {
        self.list.iter()
    }

    pub fn get(&self, device: CUdevice) -> Cuda<&Device> {
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

    pub fn attribute(&self, number: u32) -> Cuda<i32> {
        match self.attributes.get(number as usize) {
            Some((CUDA_SUCCESS, value)) => Ok(*value),
            Some((code, _)) => Err(*code),
            None => Err(CUDA_ERROR_INVALID_VALUE),
        }
    }
}

pub fn find(device: CUdevice) -> Cuda<&'static Device> {
    session::get()?.devices.get(device)
}

/// Copies text and a NUL into the caller's buffer, cut where it ends.
unsafe fn write_text(text: &[u8], into: *mut c_char, len: i32) -> Cuda {
    not_null(into)?;
    let room = usize::try_from(len).ok().filter(|len| *len > 0).ok_or(CUDA_ERROR_INVALID_VALUE)?;
    let count = text.len().min(room - 1);
    // SAFETY: the caller vouches for `len` writable bytes.
    unsafe {
        std::ptr::copy_nonoverlapping(text.as_ptr(), into.cast(), count);
        into.add(count).write(0);
    }
    Ok(())
}

/// Writes an output that must be there.
///
/// # Safety
/// `to` is NULL or writable.
pub unsafe fn put<T>(to: *mut T, value: T) -> Cuda {
    not_null(to)?;
    // SAFETY: not NULL; the rest is the caller's promise.
    unsafe { to.write(value) };
    Ok(())
}

#[allow(non_snake_case)]
pub mod api {
    use super::*;

    pub unsafe fn cuDeviceGet(device: *mut CUdevice, ordinal: i32) -> Cuda {
        find(ordinal)?;
        // SAFETY: passed on.
        unsafe { put(device, ordinal) }
    }

    pub unsafe fn cuDeviceGetCount(count: *mut i32) -> Cuda {
        // SAFETY: passed on.
        unsafe { put(count, session::get()?.devices.count() as i32) }
    }

    pub unsafe fn cuDeviceGetName(name: *mut c_char, len: i32, dev: CUdevice) -> Cuda {
        // SAFETY: passed on.
        unsafe { write_text(&find(dev)?.name, name, len) }
    }

    pub unsafe fn cuDeviceGetUuid(uuid: *mut CUuuid, dev: CUdevice) -> Cuda {
        // SAFETY: passed on.
        unsafe { put(uuid, CUuuid(find(dev)?.uuid)) }
    }

    pub unsafe fn cuDeviceGetUuid_v2(uuid: *mut CUuuid, dev: CUdevice) -> Cuda {
        // SAFETY: passed on.
        unsafe { cuDeviceGetUuid(uuid, dev) }
    }

    pub unsafe fn cuDeviceTotalMem_v2(bytes: *mut usize, dev: CUdevice) -> Cuda {
        // SAFETY: passed on.
        unsafe { put(bytes, find(dev)?.total_memory as usize) }
    }

    pub unsafe fn cuDeviceGetAttribute(value: *mut i32, attribute: u32, dev: CUdevice) -> Cuda {
        not_null(value)?;
        // SAFETY: passed on.
        unsafe { put(value, find(dev)?.attribute(attribute)?) }
    }

    pub unsafe fn cuDeviceGetPCIBusId(bus_id: *mut c_char, len: i32, dev: CUdevice) -> Cuda {
        // SAFETY: passed on.
        unsafe { write_text(&find(dev)?.bus_id, bus_id, len) }
    }

    pub unsafe fn cuDeviceGetByPCIBusId(dev: *mut CUdevice, bus_id: *const c_char) -> Cuda {
        not_null(bus_id)?;
        // SAFETY: a NUL-terminated string, by the caller's promise.
        let wanted = unsafe { std::ffi::CStr::from_ptr(bus_id) }.to_bytes();
        let is_it = |device: &Device| {
            device.bus_id.eq_ignore_ascii_case(wanted)
                || device.bus_id.get(4..).is_some_and(|short| short.eq_ignore_ascii_case(wanted))
        };
        let at = session::get()?.devices.iter().position(is_it).ok_or(CUDA_ERROR_INVALID_DEVICE)?;
        // SAFETY: passed on.
        unsafe { put(dev, at as CUdevice) }
    }

    pub unsafe fn cuDeviceComputeCapability(major: *mut i32, minor: *mut i32, dev: CUdevice) -> Cuda {
        let device = find(dev)?;
        // SAFETY: passed on.
        unsafe {
            put(major, device.attribute(75)?)?;
            put(minor, device.attribute(76)?)
        }
    }

    pub unsafe fn cuDeviceGetProperties(prop: *mut CUdevprop, dev: CUdevice) -> Cuda {
        let device = find(dev)?;
        let [threads, dim, grid, shared, constant, warp, pitch, registers, clock, align] =
            [1, 2, 5, 8, 9, 10, 11, 12, 13, 14].map(|number| number as u32);
        let at = |number: u32| device.attribute(number).unwrap_or(0);
        let properties = CUdevprop {
            max_threads_per_block: at(threads),
            max_threads_dim: [at(dim), at(dim + 1), at(dim + 2)],
            max_grid_size: [at(grid), at(grid + 1), at(grid + 2)],
            shared_mem_per_block: at(shared),
            total_constant_memory: at(constant),
            simd_width: at(warp),
            mem_pitch: at(pitch),
            regs_per_block: at(registers),
            clock_rate: at(clock),
            texture_align: at(align),
        };
        // SAFETY: passed on.
        unsafe { put(prop, properties) }
    }

    pub unsafe fn cuDeviceCanAccessPeer(can: *mut i32, dev: CUdevice, peer: CUdevice) -> Cuda {
        find(peer)?;
        let answer = find(dev)?.peers.get(peer as usize).copied().unwrap_or(false);
        // SAFETY: passed on.
        unsafe { put(can, i32::from(answer)) }
    }

    pub unsafe fn cuDeviceGetP2PAttribute(value: *mut i32, attribute: u32, src: CUdevice, dst: CUdevice) -> Cuda {
        const ACCESS_SUPPORTED: u32 = 2;
        if src == dst || !(1..=5).contains(&attribute) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        find(dst)?;
        let can = find(src)?.peers.get(dst as usize).copied().unwrap_or(false);
        // SAFETY: passed on.
        unsafe { put(value, i32::from(can && attribute == ACCESS_SUPPORTED)) }
    }

    /// Parts of a device's processors are given out by MPS, which is not here.
    pub unsafe fn cuDeviceGetExecAffinitySupport(supported: *mut i32, kind: u32, dev: CUdevice) -> Cuda {
        const SM_COUNT: u32 = 0;
        find(dev)?;
        if kind != SM_COUNT {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        // SAFETY: passed on.
        unsafe { put(supported, 0) }
    }

    /// Says of no operation that it is atomic beyond the device.
    ///
    /// # Safety
    /// Both arrays have `count` elements or are NULL.
    unsafe fn no_atomics(capabilities: *mut u32, operations: *const u32, count: u32) -> Cuda {
        const LAST: u32 = 12;
        not_null(capabilities)?;
        not_null(operations)?;
        for at in 0..count as usize {
            // SAFETY: not NULL; the rest is the caller's promise.
            unsafe {
                if *operations.add(at) > LAST {
                    return Err(CUDA_ERROR_INVALID_VALUE);
                }
                capabilities.add(at).write(0);
            }
        }
        if count == 0 { Err(CUDA_ERROR_INVALID_VALUE) } else { Ok(()) }
    }

    pub unsafe fn cuDeviceGetHostAtomicCapabilities(
        capabilities: *mut u32,
        operations: *const u32,
        count: u32,
        dev: CUdevice,
    ) -> Cuda {
        find(dev)?;
        // SAFETY: passed on.
        unsafe { no_atomics(capabilities, operations, count) }
    }

    pub unsafe fn cuDeviceGetP2PAtomicCapabilities(
        capabilities: *mut u32,
        operations: *const u32,
        count: u32,
        src: CUdevice,
        dst: CUdevice,
    ) -> Cuda {
        find(src)?;
        find(dst)?;
        if src == dst {
            return Err(CUDA_ERROR_INVALID_DEVICE);
        }
        // SAFETY: passed on.
        unsafe { no_atomics(capabilities, operations, count) }
    }

    /// Accepted, and never called: it would tell of memory taken from a process, which nobody does here. The handle only
    /// has to be unlike NULL.
    pub unsafe fn cuDeviceRegisterAsyncNotification(
        dev: CUdevice,
        callback: CUasyncCallback,
        _user: *mut c_void,
        handle: *mut CUasyncCallbackHandle,
    ) -> Cuda {
        find(dev)?;
        not_null(callback)?;
        // SAFETY: passed on.
        unsafe { put(handle, 1 as CUasyncCallbackHandle) }
    }

    pub unsafe fn cuDeviceUnregisterAsyncNotification(dev: CUdevice, handle: CUasyncCallbackHandle) -> Cuda {
        find(dev)?;
        not_null(handle)
    }

    /// A program in a zone has no device that writes to the GPU past the CPU, so all its writes are there.
    pub unsafe fn cuFlushGPUDirectRDMAWrites(target: u32, scope: u32) -> Cuda {
        const CURRENT_CONTEXT: u32 = 0;
        const TO_OWNER: u32 = 100;
        const TO_ALL_DEVICES: u32 = 200;
        crate::context::current()?;
        let known = target == CURRENT_CONTEXT && matches!(scope, TO_OWNER | TO_ALL_DEVICES);
        if known { Ok(()) } else { Err(CUDA_ERROR_INVALID_VALUE) }
    }
}
