//! Which CUDA driver the workers call, and how it is found.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use crate::mig::Inventory;
use crate::{elf, kernel_module};

const LIBRARY: &str = "libcuda.so.1";
const CONTROL_DEVICE: &str = "/dev/nvidiactl";
const DEFAULT_SOFT_DEVICES: u32 = 1;
const DEFAULT_SOFT_MEMORY: u64 = 4 << 30;

/// A driver, with what a worker needs to start it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Backend {
    /// NVIDIA's library on a machine with a GPU. Devices are numbered as in [`crate::mig`]; none means all of them.
    Nvidia {
        /// The driver's `libcuda.so.1`.
        library: PathBuf,
        /// Only these GPUs.
        devices: Vec<u32>,
    },
    /// The driver of our own, which computes on the CPU.
    Soft {
        /// How many devices it has.
        devices: u32,
        /// Bytes of each device.
        memory: u64,
        /// MIG instances that each of them is cut into; 0: it is whole.
        instances: u32,
        /// Only these of them, numbered as in [`crate::mig`]; none: all.
        only: Vec<u32>,
    },
}

/// What was asked for on the command line.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Choice {
    /// NVIDIA's where there is a GPU, else the software GPU.
    #[default]
    Auto,
    /// NVIDIA's driver, or nothing.
    Nvidia,
    /// The software GPU, even if there is a GPU.
    Soft,
}

/// What the command line and the configuration say.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// `--backend`.
    pub choice: Choice,
    /// `--driver-library`.
    pub driver_library: Option<PathBuf>,
    /// `gpus` of the configuration; none: all.
    pub devices: Vec<u32>,
    /// Devices of the software GPU.
    pub soft_devices: Option<u32>,
    /// Bytes of each of them.
    pub soft_memory: Option<u64>,
    /// MIG instances that each of them is cut into.
    pub soft_mig: Option<u32>,
}

/// Why there is no backend.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum BackendError {
    #[error("no NVIDIA driver on this machine: {CONTROL_DEVICE} does not exist")]
    NoDevice,
    #[error("{LIBRARY} of the NVIDIA driver not found (set --driver-library)")]
    NoLibrary,
    #[error("{0} is not a driver library of this machine")]
    NotALibrary(PathBuf),
    #[error("{0} is Bulkhead's client library, not a driver library")]
    OurLibrary(PathBuf),
}

impl Backend {
    /// Makes the choice for this machine.
    pub fn choose(options: &Options) -> Result<Self, BackendError> {
        let soft = || Self::Soft {
            devices: options.soft_devices.unwrap_or(DEFAULT_SOFT_DEVICES),
            instances: options.soft_mig.unwrap_or(0),
            only: Vec::new(),
            memory: options.soft_memory.unwrap_or(DEFAULT_SOFT_MEMORY),
        };
        let nvidia = || {
            if !Path::new(CONTROL_DEVICE).exists() {
                return Err(BackendError::NoDevice);
            }
            let library = match &options.driver_library {
                Some(path) => check_library(path)?,
                None => {
                    find_library(std::env::var_os("LD_LIBRARY_PATH").as_deref()).ok_or(BackendError::NoLibrary)?
                }
            };
            Ok(Self::Nvidia { library, devices: options.devices.clone() })
        };
        match options.choice {
            Choice::Soft => Ok(soft()),
            Choice::Nvidia => nvidia(),
            Choice::Auto if options.driver_library.is_some() => nvidia(),
            Choice::Auto => Ok(nvidia().unwrap_or_else(|_| soft())),
        }
    }

    /// The same, for a worker that is for these GPUs; none: all that there are.
    pub fn with_devices(&self, gpus: &[u32]) -> Self {
        let allowed = self.devices();
        let inventory = self.inventory();
        if inventory.is_cut() {
            return self.showing(inventory.only(allowed).only(gpus).for_process());
        }
        if gpus.is_empty() {
            return self.clone();
        }
        // What the operator keeps from all workers stays kept from this one.
        self.showing(gpus.iter().copied().filter(|gpu| allowed.is_empty() || allowed.contains(gpu)).collect())
    }

    /// The same, for a process that describes all GPUs and uses none.
    pub fn with_all_devices(&self) -> Self {
        let inventory = self.inventory();
        if inventory.is_cut() { self.showing(inventory.only(self.devices()).all()) } else { self.clone() }
    }

    fn showing(&self, seen: Vec<u32>) -> Self {
        let mut backend = self.clone();
        let (Self::Nvidia { devices, .. } | Self::Soft { only: devices, .. }) = &mut backend;
        // An empty list would mean all of them; there is no such GPU as this one.
        *devices = if seen.is_empty() { vec![u32::MAX] } else { seen };
        backend
    }

    /// The GPUs that are shown; none named: all.
    pub fn devices(&self) -> &[u32] {
        let (Self::Nvidia { devices, .. } | Self::Soft { only: devices, .. }) = self;
        devices
    }

    /// The GPUs of a worker that is for these (none: all that there are), in the order of their slots. Their places in it
    /// are what broker and worker call them by.
    pub fn gpus(&self, gpus: &[u32]) -> Vec<u32> {
        let shown = self.with_devices(gpus);
        shown.inventory().only(shown.devices()).all()
    }

    /// The PCI addresses of NVIDIA's GPUs that are shown, in the same order; none of what has no such address of its own.
    pub fn bus_ids(&self) -> Vec<String> {
        let Self::Nvidia { devices, .. } = self else { return Vec::new() };
        let shown = self.inventory().only(devices).whole;
        let gpus = kernel_module::gpus(Path::new(kernel_module::PROC)).into_iter();
        gpus.filter(|gpu| shown.contains(&gpu.minor)).map(|gpu| gpu.slot).collect()
    }

    /// What there is. Read each time: an operator may partition a GPU while a broker runs.
    fn inventory(&self) -> Inventory {
        match self {
            Self::Nvidia { .. } => Inventory::of_kernel(Path::new(kernel_module::PROC)),
            Self::Soft { devices, instances, .. } => Inventory::simulated(*devices, *instances),
        }
    }

    /// As operators write it.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Nvidia { .. } => "nvidia",
            Self::Soft { .. } => "soft",
        }
    }

    /// The arguments that tell a worker of this backend; `bulkhead worker` takes them.
    pub fn to_arguments(&self) -> Vec<OsString> {
        let mut arguments: Vec<OsString> = vec!["--backend".into(), self.name().into()];
        match self {
            Self::Nvidia { library, devices } => {
                arguments.extend(["--driver-library".into(), library.into()]);
                for device in devices {
                    arguments.extend(["--device".into(), device.to_string().into()]);
                }
            }
            Self::Soft { devices, memory, instances, only } => {
                for device in only {
                    arguments.extend(["--device".into(), device.to_string().into()]);
                }
                arguments.extend(["--soft-devices".into(), devices.to_string().into()]);
                arguments.extend(["--soft-memory".into(), memory.to_string().into()]);
                if *instances > 0 {
                    arguments.extend(["--soft-mig".into(), instances.to_string().into()]);
                }
            }
        }
        arguments
    }
}

fn check_library(path: &Path) -> Result<PathBuf, BackendError> {
    let path = path.canonicalize().map_err(|_| BackendError::NotALibrary(path.to_owned()))?;
    match is_ours(&path) {
        None => Err(BackendError::NotALibrary(path)),
        Some(true) => Err(BackendError::OurLibrary(path)),
        Some(false) => Ok(path),
    }
}

/// Looks where the loader would, and skips our own library, which a client's environment puts in front.
fn find_library(library_path: Option<&OsStr>) -> Option<PathBuf> {
    const USUAL: [&str; 7] = [
        "/usr/lib/x86_64-linux-gnu",
        "/usr/lib/aarch64-linux-gnu",
        "/usr/lib64",
        "/usr/lib",
        "/usr/local/nvidia/lib64",
        "/usr/local/cuda/compat",
        "/run/opengl-driver/lib",
    ];
    let named = library_path.map(|path| std::env::split_paths(path).collect::<Vec<_>>()).unwrap_or_default();
    named
        .into_iter()
        .filter(|dir| dir.is_absolute())
        .chain(USUAL.iter().map(PathBuf::from))
        .map(|dir| dir.join(LIBRARY))
        .find(|path| is_ours(path) == Some(false))
}

/// Is it our own library, which the worker must never load? `None` when it is none for this machine.
fn is_ours(path: &Path) -> Option<bool> {
    elf::describe(path).filter(|found| found.dynamic).map(|found| found.ours)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_own_library_is_skipped_and_another_is_found() {
        let (ours, theirs) = (testkit::directory(), testkit::directory());
        let our_library = ours.shared_library(LIBRARY, "int bulkhead_libvgpu = 1;");
        let their_library = theirs.shared_library(LIBRARY, "int cuInit(unsigned f) { return f; }");
        let path = std::env::join_paths([&*ours, &*theirs]).unwrap();
        assert_eq!(find_library(Some(&path)), Some(their_library.clone()));
        assert_eq!(check_library(&our_library), Err(BackendError::OurLibrary(our_library)));
        assert_eq!(check_library(&their_library), Ok(their_library));
    }

    #[test]
    fn what_is_no_library_is_named() {
        let path = PathBuf::from("/etc/passwd");
        assert_eq!(check_library(&path), Err(BackendError::NotALibrary(path)));
    }

    #[test]
    fn workers_see_what_they_are_for_and_no_more_than_the_operator_gives() {
        let soft = |instances, only: &[u32]| Backend::Soft { devices: 2, memory: 8, instances, only: only.to_vec() };
        let seen = |backend: Backend, gpus: &[u32]| backend.with_devices(gpus).devices().to_vec();
        assert!(seen(soft(0, &[]), &[]).is_empty());
        assert_eq!(seen(soft(0, &[]), &[1]), [1]);
        assert_eq!(seen(soft(0, &[0]), &[1]), [u32::MAX], "not all of them");
        assert_eq!(seen(soft(2, &[]), &[]), [64], "one instance to a process");
        assert_eq!(seen(soft(2, &[1]), &[]), [192]);
        assert_eq!(seen(soft(2, &[1]), &[64]), [u32::MAX]);
        assert_eq!(soft(2, &[1]).with_all_devices().devices(), [192, 200]);
        assert_eq!(soft(0, &[]).with_all_devices(), soft(0, &[]));
    }

    #[test]
    fn a_workers_gpus_have_their_places_whatever_the_order_of_their_names() {
        let soft = |instances, only: &[u32]| Backend::Soft { devices: 3, memory: 8, instances, only: only.to_vec() };
        assert_eq!(soft(0, &[]).gpus(&[]), [0, 1, 2]);
        assert_eq!(soft(0, &[]).gpus(&[2, 0]), [0, 2]);
        assert_eq!(soft(0, &[1]).gpus(&[]), [1]);
        assert!(soft(0, &[]).gpus(&[7]).is_empty(), "gone");
        assert_eq!(soft(2, &[]).gpus(&[72]), [72]);
    }

    #[test]
    fn auto_falls_back_to_soft_where_there_is_no_gpu() {
        if !Path::new(CONTROL_DEVICE).exists() {
            let options = Options { soft_devices: Some(2), ..Options::default() };
            assert_eq!(
                Backend::choose(&options),
                Ok(Backend::Soft { devices: 2, memory: DEFAULT_SOFT_MEMORY, instances: 0, only: Vec::new() })
            );
            let options = Options { choice: Choice::Nvidia, ..Options::default() };
            assert_eq!(Backend::choose(&options), Err(BackendError::NoDevice));
        }
    }
}
