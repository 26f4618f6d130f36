//! What GPUs a machine has and how they reach each other, as one process tells another.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// All GPUs of a backend.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Survey {
    /// `nvidia` or `soft`.
    pub backend: String,
    /// CUDA's version that the driver knows, like 13.0.
    pub cuda_version: String,
    /// The version of NVIDIA's driver, as NVML tells it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub driver_version: Option<String>,
    /// Why NVML could not be asked: then links, MIG and the like are not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub without_nvml: Option<String>,
    /// In the driver's order.
    pub gpus: Vec<Gpu>,
    /// From each GPU to each other, in the order of `gpus`.
    pub links: Vec<Vec<Link>>,
}

/// A GPU.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gpu {
    /// Its place in the driver's order.
    pub index: u32,
    /// The product's name.
    pub name: String,
    /// As nvidia-smi writes it.
    pub uuid: String,
    /// `domain:bus:device.function`, in hexadecimal.
    pub pci_bus_id: String,
    /// Bytes that it has.
    pub memory_bytes: u64,
    /// How many multiprocessors it has.
    pub multiprocessors: u32,
    /// Like 9.0.
    pub compute_capability: String,
    /// Kernels reach the pageable memory of their process (HMM or ATS).
    pub pageable_memory_access: bool,
    /// Where the GPU can be cut.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mig: Option<Mig>,
    /// Where it has any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nvlink: Option<NvLink>,
    /// "default", "exclusive process" or "prohibited".
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compute_mode: Option<String>,
    /// Whether its memory corrects errors; none where that cannot be known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ecc: Option<bool>,
    /// The N of /dev/nvidiaN.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub minor: Option<u32>,
    /// Of the memory that its PCI slot is near to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub numa_node: Option<u32>,
}

/// Its slices, which are instances to the driver, where the GPU can be cut.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mig {
    /// The GPU is cut, or can be cut now.
    pub enabled: bool,
    /// What it is cut into.
    pub slices: Vec<Slice>,
}

/// A MIG instance.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Slice {
    /// Its place among those of its GPU.
    pub index: u32,
    /// The product's name and its profile.
    pub name: String,
    /// As nvidia-smi writes it.
    pub uuid: String,
    /// Its size, like `1g.18gb`.
    pub profile: String,
    /// Bytes that it has.
    pub memory_bytes: u64,
    /// How many multiprocessors it has.
    pub multiprocessors: u32,
    /// As the driver numbers it within the GPU.
    pub gpu_instance: u32,
    /// As the driver numbers it within the GPU instance.
    pub compute_instance: u32,
}

/// The NVLinks of a GPU.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NvLink {
    /// Of NVLink.
    pub version: u32,
    /// Links that are up.
    pub active: u32,
    /// Links that end in a switch, through which all others are reached.
    pub to_switches: u32,
    /// Links by the PCI address of what they end in.
    pub to: BTreeMap<String, u32>,
}

/// How one GPU reaches another.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Link {
    /// What lies between them.
    pub kind: Kind,
    /// Kernels of one may use memory of the other.
    pub peer_access: bool,
    /// So may their atomics.
    pub native_atomics: bool,
    /// The driver's own order: less is faster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rank: Option<i32>,
}

/// What lies between two GPUs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// It is the same one.
    Itself,
    /// So many NVLinks.
    NvLink(u32),
    /// They are on one board.
    SameBoard,
    /// One PCIe switch.
    PcieSwitch,
    /// Several PCIe switches.
    PcieSwitches,
    /// A PCIe host bridge.
    HostBridge,
    /// The bridges of one NUMA node.
    NumaNode,
    /// The link between CPUs.
    System,
    /// The machine's memory: GPUs that are computed on the CPU.
    Memory,
    /// Nobody could tell.
    #[default]
    Unknown,
}

impl Kind {
    /// As in the table, where NVIDIA's short names are what people know.
    pub fn short(self) -> String {
        match self {
            Self::Itself => "X".to_owned(),
            Self::NvLink(links) => format!("NV{links}"),
            Self::SameBoard => "PSB".to_owned(),
            Self::PcieSwitch => "PIX".to_owned(),
            Self::PcieSwitches => "PXB".to_owned(),
            Self::HostBridge => "PHB".to_owned(),
            Self::NumaNode => "NODE".to_owned(),
            Self::System => "SYS".to_owned(),
            Self::Memory => "MEM".to_owned(),
            Self::Unknown => "?".to_owned(),
        }
    }

    /// For people, under the table.
    pub fn meaning(self) -> &'static str {
        match self {
            Self::Itself => "itself",
            Self::NvLink(_) => "so many NVLinks",
            Self::SameBoard => "on one board",
            Self::PcieSwitch => "one PCIe switch between",
            Self::PcieSwitches => "several PCIe switches between",
            Self::HostBridge => "a PCIe host bridge between",
            Self::NumaNode => "host bridges of one NUMA node between",
            Self::System => "the link between CPUs between",
            Self::Memory => "the machine's memory: GPUs computed on the CPU",
            Self::Unknown => "not known",
        }
    }
}
