//! Which CUDA driver the workers call, and how it is found.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use crate::elf;

const LIBRARY: &str = "libcuda.so.1";
const CONTROL_DEVICE: &str = "/dev/nvidiactl";
const DEFAULT_SOFT_DEVICES: u32 = 1;
const DEFAULT_SOFT_MEMORY: u64 = 4 << 30;

/// A driver, with what a worker needs to start it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Backend {
    /// NVIDIA's library on a machine with a GPU. An empty list of devices means all of them.
    Nvidia { library: PathBuf, devices: Vec<u32> },
    /// The driver of our own, which computes on the CPU.
    Soft {
        devices: u32,
        memory: u64,
        /// Only these of them; none: all.
        only: Vec<u32>,
    },
}

/// What was asked for on the command line.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Choice {
    #[default]
    Auto,
    Nvidia,
    Soft,
}

#[derive(Debug, Clone, Default)]
pub struct Options {
    pub choice: Choice,
    pub driver_library: Option<PathBuf>,
    pub devices: Vec<u32>,
    pub soft_devices: Option<u32>,
    pub soft_memory: Option<u64>,
}

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum BackendError {
    #[error("there is no NVIDIA driver on this machine: no {CONTROL_DEVICE}")]
    NoDevice,
    #[error("{LIBRARY} of the NVIDIA driver was not found (name it with --driver-library)")]
    NoLibrary,
    #[error("{0} is not a driver library of this machine")]
    NotALibrary(PathBuf),
    #[error("{0} is Bulkhead's own library for clients, not a driver")]
    OurLibrary(PathBuf),
}

impl Backend {
    /// Makes the choice for this machine.
    pub fn choose(options: &Options) -> Result<Self, BackendError> {
        let soft = || Self::Soft {
            devices: options.soft_devices.unwrap_or(DEFAULT_SOFT_DEVICES),
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

    /// The same, for a worker that sees only these GPUs; none: all that it would see anyway.
    pub fn with_devices(&self, gpus: &[u32]) -> Self {
        let mut backend = self.clone();
        let (Self::Nvidia { devices, .. } | Self::Soft { only: devices, .. }) = &mut backend;
        if !gpus.is_empty() {
            // What the operator keeps from all workers stays kept from this one.
            let allowed = |gpu: &u32| devices.is_empty() || devices.contains(gpu);
            let seen: Vec<u32> = gpus.iter().copied().filter(allowed).collect();
            // An empty list would mean all of them; there is no such GPU as this one.
            *devices = if seen.is_empty() { vec![u32::MAX] } else { seen };
        }
        backend
    }

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
            Self::Soft { devices, memory, only } => {
                for device in only {
                    arguments.extend(["--device".into(), device.to_string().into()]);
                }
                arguments.extend(["--soft-devices".into(), devices.to_string().into()]);
                arguments.extend(["--soft-memory".into(), memory.to_string().into()]);
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
        .filter(|folder| folder.is_absolute())
        .chain(USUAL.iter().map(PathBuf::from))
        .map(|folder| folder.join(LIBRARY))
        .find(|path| is_ours(path) == Some(false))
}

/// Is it our own library, which the worker must never load? `None` when it is none for this machine.
fn is_ours(path: &Path) -> Option<bool> {
    elf::describe(path).filter(|found| found.dynamic).map(|found| found.ours)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compile(folder: &Path, source: &str) -> PathBuf {
        let input = folder.join("lib.c");
        std::fs::write(&input, source).unwrap();
        let output = folder.join(LIBRARY);
        let status =
            std::process::Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&output).arg(&input).status();
        assert!(status.expect("a C compiler").success());
        output
    }

    fn folder(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("bulkhead-backend-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        path
    }

    #[test]
    fn our_own_library_is_skipped_and_another_is_found() {
        let (ours, theirs) = (folder("ours"), folder("theirs"));
        let our_library = compile(&ours, "int bulkhead_libvgpu = 1;");
        let their_library = compile(&theirs, "int cuInit(unsigned f) { return f; }");
        let path = std::env::join_paths([&ours, &theirs]).unwrap();
        assert_eq!(find_library(Some(&path)), Some(their_library.clone()));
        assert_eq!(check_library(&our_library), Err(BackendError::OurLibrary(our_library)));
        assert_eq!(check_library(&their_library), Ok(their_library));
        std::fs::remove_dir_all(ours).unwrap();
        std::fs::remove_dir_all(theirs).unwrap();
    }

    #[test]
    fn what_is_no_library_is_named() {
        let path = PathBuf::from("/etc/passwd");
        assert_eq!(check_library(&path), Err(BackendError::NotALibrary(path)));
    }

    #[test]
    fn auto_falls_back_to_soft_where_there_is_no_gpu() {
        if !Path::new(CONTROL_DEVICE).exists() {
            let options = Options { soft_devices: Some(2), ..Options::default() };
            assert_eq!(
                Backend::choose(&options),
                Ok(Backend::Soft { devices: 2, memory: DEFAULT_SOFT_MEMORY, only: Vec::new() })
            );
            let options = Options { choice: Choice::Nvidia, ..Options::default() };
            assert_eq!(Backend::choose(&options), Err(BackendError::NoDevice));
        }
    }
}
