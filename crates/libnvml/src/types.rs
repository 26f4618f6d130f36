//! The C types of NVML that we fill in.

pub(crate) use std::ffi::{c_char, c_void};

/// `nvmlDevice_t`: opaque to programs.
pub(crate) type Device = *const c_void;

/// `nvmlEventSet_t`: opaque to programs.
pub(crate) type EventSet = *const c_void;

/// What a hidden table is asked for by.
pub(crate) type TableId = [u8; 16];

/// `nvmlMemory_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Memory {
    pub total: u64,
    pub free: u64,
    pub used: u64,
}

/// `nvmlMemory_v2_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct MemoryV2 {
    pub version: u32,
    pub total: u64,
    pub reserved: u64,
    pub free: u64,
    pub used: u64,
}

/// `nvmlPciInfo_t` up to version 2.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct PciInfoLegacy {
    pub bus_id: [u8; 16],
    pub domain: u32,
    pub bus: u32,
    pub device: u32,
    pub pci_device: u32,
    pub pci_subsystem: u32,
    pub reserved: [u32; 4],
}

/// `nvmlPciInfo_t` of version 3.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct PciInfo {
    pub bus_id_legacy: [u8; 16],
    pub domain: u32,
    pub bus: u32,
    pub device: u32,
    pub pci_device: u32,
    pub pci_subsystem: u32,
    pub bus_id: [u8; 32],
}

/// `nvmlPciInfoExt_v1_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct PciInfoExt {
    pub version: u32,
    pub domain: u32,
    pub bus: u32,
    pub device: u32,
    pub pci_device: u32,
    pub pci_subsystem: u32,
    pub base_class: u32,
    pub sub_class: u32,
    pub bus_id: [u8; 32],
}

/// `nvmlUtilization_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Utilization {
    pub gpu: u32,
    pub memory: u32,
}

/// `nvmlProcessInfo_v1_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ProcessV1 {
    pub pid: u32,
    pub used: u64,
}

/// `nvmlProcessInfo_v2_t`, which version 3 of the functions also takes.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ProcessV2 {
    pub pid: u32,
    pub used: u64,
    pub gpu_instance: u32,
    pub compute_instance: u32,
}

/// `nvmlProcessDetail_v1_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ProcessDetail {
    pub pid: u32,
    pub used: u64,
    pub gpu_instance: u32,
    pub compute_instance: u32,
    pub protected: u64,
}

/// `nvmlProcessDetailList_v1_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ProcessDetailList {
    pub version: u32,
    pub mode: u32,
    pub count: u32,
    pub entries: *mut ProcessDetail,
}

/// `nvmlUUID_v1_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Uuid {
    pub version: u32,
    pub kind: u32,
    pub value: [u8; 41],
}

/// `nvmlFieldValue_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct FieldValue {
    pub field: u32,
    pub scope: u32,
    pub timestamp: i64,
    pub latency: i64,
    pub value_type: u32,
    pub code: u32,
    pub value: u64,
}

/// The version word of a versioned struct: its size and its number.
pub(crate) const fn version<T>(number: u32) -> u32 {
    size_of::<T>() as u32 | number << 24
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_words_are_those_of_the_public_bindings() {
        assert_eq!(version::<MemoryV2>(2), 0x0200_0028);
        assert_eq!(version::<PciInfoExt>(1), 0x0100_0040);
        assert_eq!(version::<ProcessDetailList>(1), 0x0100_0018);
        assert_eq!(version::<Uuid>(1), 0x0100_0034);
    }

    #[test]
    fn sizes_are_those_of_c() {
        assert_eq!((size_of::<PciInfo>(), size_of::<PciInfoLegacy>()), (68, 52));
        assert_eq!((size_of::<ProcessV1>(), size_of::<ProcessV2>(), size_of::<ProcessDetail>()), (16, 24, 32));
        assert_eq!(size_of::<FieldValue>(), 40);
    }
}
