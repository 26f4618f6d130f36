//! What GPUs a machine has and how they reach each other, and whether a program can use one: for people, not for the
//! proxy. Each runs in a process of its own, since it loads a driver: the broker never does, and a driver that hangs or
//! crashes takes nobody along.

mod driver;
mod nvml;
pub mod selftest;
pub(crate) mod simulated;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::backend::Backend;
use crate::worker::WorkerError;

pub use nvml::NvmlError;

/// All GPUs of a backend.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Survey {
    pub backend: String,
    /// CUDA's version that the driver knows, like 13.0.
    pub cuda_version: String,
    /// The version of NVIDIA's driver, as NVML tells it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub driver_version: Option<String>,
    /// Why NVML could not be asked: then links, MIG and the like are not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub without_nvml: Option<String>,
    pub gpus: Vec<Gpu>,
    /// From each GPU to each other, in the order of `gpus`.
    pub links: Vec<Vec<Link>>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gpu {
    pub index: u32,
    pub name: String,
    /// As nvidia-smi writes it.
    pub uuid: String,
    pub pci_bus_id: String,
    pub memory_bytes: u64,
    pub multiprocessors: u32,
    /// Like 9.0.
    pub compute_capability: String,
    /// Kernels reach the pageable memory of their process (HMM or ATS).
    pub pageable_memory_access: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mig: Option<Mig>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nvlink: Option<NvLink>,
    /// "default", "exclusive process" or "prohibited".
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compute_mode: Option<String>,
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
    pub enabled: bool,
    pub slices: Vec<Slice>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Slice {
    /// Its place among those of its GPU.
    pub index: u32,
    pub name: String,
    pub uuid: String,
    /// Its size, like `1g.18gb`.
    pub profile: String,
    pub memory_bytes: u64,
    pub multiprocessors: u32,
    pub gpu_instance: u32,
    pub compute_instance: u32,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NvLink {
    pub version: u32,
    /// Links that are up.
    pub active: u32,
    /// Links that end in a switch, through which all others are reached.
    pub to_switches: u32,
    /// Links by the PCI address of what they end in.
    pub to: BTreeMap<String, u32>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Link {
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

#[derive(Debug, thiserror::Error)]
pub enum SurveyError {
    #[error(transparent)]
    Driver(#[from] WorkerError),
    #[error("the driver answers {call} with {name} ({code})", name = cuda_abi::error::name(*code))]
    Cuda { call: &'static str, code: u32 },
}

/// Looks at all GPUs of a backend. Call it in a process that does nothing else.
pub fn look(backend: &Backend) -> Result<Survey, SurveyError> {
    let mut survey = driver::look(backend)?;
    match backend {
        Backend::Soft { instances, .. } => {
            if *instances > 0 {
                simulated::cut(&mut survey, *instances);
            }
            for (from, row) in survey.links.iter_mut().enumerate() {
                for (_, link) in row.iter_mut().enumerate().filter(|(to, _)| *to != from) {
                    link.kind = Kind::Memory;
                }
            }
        }
        Backend::Nvidia { library, .. } => {
            if let Err(error) = nvml::complete(&mut survey, &nvml_of(library)) {
                survey.without_nvml = Some(error.to_string());
            }
        }
    }
    Ok(survey)
}

/// NVIDIA's GPUs that are cut into instances.
pub fn cut_gpus(driver_library: &Path) -> Result<Vec<Gpu>, NvmlError> {
    nvml::cut_gpus(&nvml_of(driver_library))
}

/// NVML lies beside the driver, or where the loader finds it.
fn nvml_of(driver_library: &Path) -> PathBuf {
    const NAME: &str = "libnvidia-ml.so.1";
    let beside = driver_library.with_file_name(NAME);
    if beside.exists() { beside } else { PathBuf::from(NAME) }
}

/// What programs of the zone see that this process is in: GPUs as our client library shows them.
pub fn look_in_zone() -> Result<Survey, SurveyError> {
    let library = Path::new("libcuda.so.1");
    let mut survey = driver::look(&Backend::Nvidia { library: library.to_owned(), devices: Vec::new() })?;
    survey.backend = "zone".to_owned();
    if let Err(error) = nvml::complete(&mut survey, Path::new("libnvidia-ml.so.1")) {
        survey.without_nvml = Some(error.to_string());
    }
    Ok(survey)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_software_gpus_reach_each_other_through_memory() {
        // As many as other tests here have: there is one software driver in a process.
        let survey = look(&Backend::Soft { devices: 2, memory: 1 << 30, instances: 0, only: Vec::new() }).unwrap();
        assert_eq!((survey.gpus.len(), survey.links.len()), (2, 2));
        assert_eq!(survey.gpus[1].memory_bytes, 1 << 30);
        assert!(survey.gpus[0].uuid.starts_with("GPU-") && survey.gpus[0].uuid != survey.gpus[1].uuid);
        for (from, row) in survey.links.iter().enumerate() {
            for (to, link) in row.iter().enumerate() {
                let kind = if from == to { Kind::Itself } else { Kind::Memory };
                assert_eq!((link.kind, link.peer_access), (kind, true), "{from} {to}");
            }
        }
        let text = serde_json::to_string(&survey).unwrap();
        assert_eq!(serde_json::from_str::<Survey>(&text).unwrap(), survey);
    }
}
