//! What each kind of worker gets to see and may do. Data, with the reason beside each entry.

use std::path::PathBuf;

use super::seccomp::Syscalls;
use crate::backend::Backend;

/// The kinds of worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Policy {
    /// Computes on the CPU: needs memory, threads and its two sockets, and no file at all.
    Soft,
    /// Runs NVIDIA's driver: needs its libraries, its device nodes and a `/proc`.
    Nvidia { library: PathBuf, devices: Vec<u32> },
}

/// Something of the host that is visible inside, at the same path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bind {
    pub path: PathBuf,
    pub kind: BindKind,
    /// Not every machine has it.
    pub optional: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BindKind {
    /// Read-only, no set-user-id, no devices.
    Files,
    /// A device node.
    Device,
}

impl From<&Backend> for Policy {
    fn from(backend: &Backend) -> Self {
        match backend {
            Backend::Soft { .. } => Self::Soft,
            Backend::Nvidia { library, devices } => {
                Self::Nvidia { library: library.clone(), devices: devices.clone() }
            }
        }
    }
}

impl Policy {
    pub fn name(&self) -> &'static str {
        match self {
            Self::Soft => "soft",
            Self::Nvidia { .. } => "nvidia",
        }
    }

    pub fn binds(&self) -> Vec<Bind> {
        let files = |path: &str| Bind { path: path.into(), kind: BindKind::Files, optional: true };
        let device = |path: &str| Bind { path: path.into(), kind: BindKind::Device, optional: true };
        // Libraries open these without asking whether there is need.
        let mut binds = vec![device("/dev/null"), device("/dev/zero"), device("/dev/urandom")];
        if let Self::Nvidia { library, devices } = self {
            // The loader and the C library's parts, for a driver of a dozen libraries that load each other by name.
            binds.extend(["/usr", "/lib", "/lib64", "/etc/ld.so.cache"].map(files));
            let folder = library.parent().map(PathBuf::from).unwrap_or_default();
            if !["/usr", "/lib", "/lib64"].iter().any(|seen| folder.starts_with(seen)) {
                binds.push(Bind { path: folder, kind: BindKind::Files, optional: false });
            }
            // Control, unified memory, and the nodes of GPU instances.
            binds.extend(
                ["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-caps"].map(device),
            );
            let all: Vec<u32> = if devices.is_empty() { (0..64).collect() } else { devices.clone() };
            binds.extend(all.iter().map(|number| device(&format!("/dev/nvidia{number}"))));
        }
        binds
    }

    /// The device nodes among them, or folders of such.
    pub fn device_nodes(&self) -> Vec<PathBuf> {
        let devices = self.binds().into_iter().filter(|bind| bind.kind == BindKind::Device);
        devices.map(|bind| bind.path).collect()
    }

    /// Folders that can be written to, gone with the worker, and how large they may grow.
    pub fn scratch(&self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::Soft => &[],
            // The driver keeps what its threads share in /dev/shm, and compiles in /tmp.
            Self::Nvidia { .. } => &[("dev/shm", "size=1g,mode=1777"), ("tmp", "size=256m,mode=1777")],
        }
    }

    /// NVIDIA's driver reads `/proc/self` and `/proc/driver/nvidia`, and does not start without.
    pub fn needs_proc(&self) -> bool {
        matches!(self, Self::Nvidia { .. })
    }

    pub(super) fn syscalls(&self) -> Syscalls {
        match self {
            Self::Soft => Syscalls::Soft,
            Self::Nvidia { .. } => Syscalls::Nvidia,
        }
    }
}
