//! What each kind of worker gets to see and may do. Data, with the reason beside each entry.

use std::path::{Path, PathBuf};

use super::seccomp::Syscalls;
use control::backend::Backend;
use control::kernel_module;
use control::mig::Instance;

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
            let dir = library.parent().map(PathBuf::from).unwrap_or_default();
            if !["/usr", "/lib", "/lib64"].iter().any(|seen| dir.starts_with(seen)) {
                binds.push(Bind { path: dir, kind: BindKind::Files, optional: false });
            }
            // Control, and unified memory.
            binds.extend(["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"].map(device));
            binds.extend(gpu_nodes(devices, Path::new(kernel_module::PROC)).iter().map(|path| device(path)));
        }
        binds
    }

    /// The device nodes among them.
    pub fn device_nodes(&self) -> Vec<PathBuf> {
        let devices = self.binds().into_iter().filter(|bind| bind.kind == BindKind::Device);
        devices.map(|bind| bind.path).collect()
    }

    /// Directories that can be written to, gone with the worker, and how large they may grow.
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

    /// Whether it reaches NVIDIA's kernel driver.
    pub(super) fn needs_driver(&self) -> bool {
        matches!(self, Self::Nvidia { .. })
    }

    pub(super) fn syscalls(&self) -> Syscalls {
        match self {
            Self::Soft => Syscalls::Soft,
            Self::Nvidia { .. } => Syscalls::Nvidia,
        }
    }
}

/// The nodes of GPUs, and of instances: that of the GPU, with which alone nothing can be done, and the two that open the
/// instance.
fn gpu_nodes(devices: &[u32], proc: &Path) -> Vec<String> {
    let all: Vec<u32> = if devices.is_empty() { (0..64).collect() } else { devices.to_vec() };
    let mut nodes = Vec::new();
    for number in all {
        let instance = Instance::of(number);
        nodes.push(format!("/dev/nvidia{}", instance.map_or(number, |instance| instance.gpu)));
        let capabilities = instance.and_then(|instance| kernel_module::capabilities(proc, instance));
        nodes.extend(capabilities.into_iter().flatten().map(|minor| format!("/dev/nvidia-caps/nvidia-cap{minor}")));
    }
    nodes.sort_unstable();
    nodes.dedup();
    nodes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_of_an_instance_gets_the_nodes_that_open_it() {
        let proc = testkit::directory();
        for (instance, minors) in [("gi1", [12, 13]), ("gi2", [21, 22])] {
            let dir = proc.join("driver/nvidia/capabilities/gpu3/mig").join(instance);
            std::fs::create_dir_all(dir.join("ci0")).unwrap();
            std::fs::write(dir.join("access"), format!("DeviceFileMinor: {}\n", minors[0])).unwrap();
            std::fs::write(dir.join("ci0/access"), format!("DeviceFileMinor: {}\n", minors[1])).unwrap();
        }
        let number = |gpu_instance| Instance { gpu: 3, gpu_instance, compute_instance: 0 }.number().unwrap();
        let caps = |minor: u32| format!("/dev/nvidia-caps/nvidia-cap{minor}");
        assert_eq!(gpu_nodes(&[number(2)], &proc), [caps(21), caps(22), "/dev/nvidia3".to_owned()]);
        assert_eq!(gpu_nodes(&[number(9)], &proc), ["/dev/nvidia3"], "no such instance: nothing opens it");
        assert_eq!(gpu_nodes(&[0, number(1), number(2)], &proc).len(), 6);
        assert_eq!(gpu_nodes(&[2], &proc), ["/dev/nvidia2"]);
        assert_eq!(gpu_nodes(&[], &proc).len(), 64);
    }
}
