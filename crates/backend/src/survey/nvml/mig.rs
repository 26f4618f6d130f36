//! GPUs that are cut into instances.

use super::{Device, Nvml, PciInfo, normal, text};
use crate::survey::{Gpu, Mig, Slice};

const MAX_GPUS: u32 = 64;
const MAX_SLICES: u32 = 64;

/// `nvmlDeviceAttributes_t`.
#[derive(Default)]
#[repr(C)]
struct Attributes {
    multiprocessors: u32,
    engines: [u32; 5],
    gpu_slices: u32,
    compute_slices: u32,
    memory_mib: u64,
}

/// `nvmlMemory_t`.
#[derive(Default)]
#[repr(C)]
struct Memory {
    total: u64,
    free: u64,
    used: u64,
}

impl Nvml {
    /// A struct of a device.
    fn filled<T: Default>(&self, name: &[u8], device: Device) -> Option<T> {
        type Call<T> = unsafe extern "C" fn(Device, *mut T) -> u32;
        let mut value = T::default();
        // SAFETY: NVIDIA's library; callers name the struct that the function fills.
        unsafe { (self.0.get::<Call<T>>(name).ok()?(device, &mut value) == 0).then_some(value) }
    }

    /// One of several things of a device, by its place among them.
    fn part(&self, name: &[u8], device: Device, index: u32) -> Option<Device> {
        type Call = unsafe extern "C" fn(Device, u32, *mut Device) -> u32;
        let mut part = std::ptr::null_mut();
        // SAFETY: as above.
        unsafe { (self.0.get::<Call>(name).ok()?(device, index, &mut part) == 0).then_some(part) }
    }

    fn devices(&self) -> Vec<Device> {
        type Count = unsafe extern "C" fn(*mut u32) -> u32;
        type ByIndex = unsafe extern "C" fn(u32, *mut Device) -> u32;
        let mut count = 0;
        // SAFETY: as above.
        unsafe {
            let Ok(ask) = self.0.get::<Count>(b"nvmlDeviceGetCount_v2\0") else { return Vec::new() };
            let Ok(find) = self.0.get::<ByIndex>(b"nvmlDeviceGetHandleByIndex_v2\0") else { return Vec::new() };
            if ask(&mut count) != 0 {
                return Vec::new();
            }
            let device = |index| {
                let mut device = std::ptr::null_mut();
                (find(index, &mut device) == 0).then_some(device)
            };
            (0..count.min(MAX_GPUS)).filter_map(device).collect()
        }
    }

    /// None for a GPU that cannot be cut.
    pub(super) fn mig(&self, device: Device) -> Option<Mig> {
        type Mode = unsafe extern "C" fn(Device, *mut u32, *mut u32) -> u32;
        let (mut current, mut pending) = (0, 0);
        // SAFETY: as above.
        let told = unsafe { self.0.get::<Mode>(b"nvmlDeviceGetMigMode\0").ok()?(device, &mut current, &mut pending) };
        if told != 0 {
            return None;
        }
        let most = self.number(b"nvmlDeviceGetMaxMigDeviceCount\0", device).unwrap_or(0).min(MAX_SLICES);
        // A GPU that could be cut further has places at which nothing is.
        let slice = |index| self.slice(index, self.part(b"nvmlDeviceGetMigDeviceHandleByIndex\0", device, index)?);
        Some(Mig { enabled: current != 0, slices: (0..most).filter_map(slice).collect() })
    }

    fn slice(&self, index: u32, slice: Device) -> Option<Slice> {
        let attributes: Attributes = self.filled(b"nvmlDeviceGetAttributes_v2\0", slice).unwrap_or_default();
        let name = self.text(b"nvmlDeviceGetName\0", slice).unwrap_or_default();
        Some(Slice {
            index,
            uuid: self.text(b"nvmlDeviceGetUUID\0", slice)?,
            profile: profile(&name, &attributes),
            name,
            memory_bytes: attributes.memory_mib << 20,
            multiprocessors: attributes.multiprocessors,
            gpu_instance: self.number(b"nvmlDeviceGetGpuInstanceId\0", slice)?,
            compute_instance: self.number(b"nvmlDeviceGetComputeInstanceId\0", slice)?,
        })
    }

    pub(super) fn cut_gpus(&self) -> Vec<Gpu> {
        let gpu = |device: Device| {
            let mig = self.mig(device).filter(|mig| mig.enabled)?;
            let pci: PciInfo = self.filled(b"nvmlDeviceGetPciInfo_v3\0", device)?;
            let memory: Memory = self.filled(b"nvmlDeviceGetMemoryInfo\0", device).unwrap_or_default();
            Some(Gpu {
                name: self.text(b"nvmlDeviceGetName\0", device).unwrap_or_default(),
                uuid: self.text(b"nvmlDeviceGetUUID\0", device)?,
                pci_bus_id: normal(&text(&pci.bus_id)),
                memory_bytes: memory.total,
                compute_capability: self.capability(device).unwrap_or_default(),
                minor: self.number(b"nvmlDeviceGetMinorNumber\0", device),
                mig: Some(mig),
                ..Gpu::default()
            })
        };
        self.devices().into_iter().filter_map(gpu).collect()
    }

    fn capability(&self, device: Device) -> Option<String> {
        type Call = unsafe extern "C" fn(Device, *mut i32, *mut i32) -> u32;
        let (mut major, mut minor) = (0, 0);
        // SAFETY: as above.
        let told = unsafe {
            let call = self.0.get::<Call>(b"nvmlDeviceGetCudaComputeCapability\0").ok()?;
            call(device, &mut major, &mut minor)
        };
        (told == 0).then(|| format!("{major}.{minor}"))
    }
}

/// As `nvidia-smi` writes it, which is how the name ends.
fn profile(name: &str, attributes: &Attributes) -> String {
    if let Some((_, profile)) = name.rsplit_once(" MIG ") {
        return profile.trim().to_owned();
    }
    let Attributes { gpu_slices, compute_slices, memory_mib, .. } = attributes;
    let gib = memory_mib.div_ceil(1024);
    let part = if compute_slices == gpu_slices { String::new() } else { format!("{compute_slices}c.") };
    format!("{part}{gpu_slices}g.{gib}gb")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn profiles_are_named_as_people_know_them() {
        let of = |gpu_slices, compute_slices| Attributes {
            gpu_slices,
            compute_slices,
            memory_mib: 4864,
            ..Attributes::default()
        };
        assert_eq!(profile("NVIDIA A100-SXM4-40GB MIG 1g.5gb+me", &of(1, 1)), "1g.5gb+me");
        assert_eq!(profile("", &of(1, 1)), "1g.5gb");
        assert_eq!(profile("", &of(3, 1)), "1c.3g.5gb");
    }
}
