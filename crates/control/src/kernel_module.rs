//! What NVIDIA's kernel module tells of its GPUs in `/proc/driver/nvidia`: needs no driver library and no rights.

use std::path::Path;

use crate::mig::Instance;

/// Where the kernel's modules tell of themselves.
pub const PROC: &str = "/proc";

/// A GPU, cut or not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gpu {
    /// Its PCI address, as the module writes it.
    pub slot: String,
    /// The N of `/dev/nvidiaN`.
    pub minor: u32,
    /// As NVIDIA writes it, where the module tells: not before the GPU was used.
    pub uuid: Option<String>,
}

/// In the order of their slots, as NVML counts.
pub fn gpus(proc: &Path) -> Vec<Gpu> {
    let mut gpus: Vec<Gpu> = entries(&proc.join("driver/nvidia/gpus")).filter_map(|slot| gpu(proc, &slot)).collect();
    gpus.sort_by(|a, b| a.slot.cmp(&b.slot));
    gpus
}

/// The GPU in a slot. The module writes the domain with four digits, others with eight.
pub fn gpu_in(proc: &Path, bus_id: &str) -> Option<Gpu> {
    let id = bus_id.to_ascii_lowercase();
    // It becomes part of a path.
    if !id.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b':' || byte == b'.') {
        return None;
    }
    gpu(proc, id.strip_prefix("0000").filter(|rest| rest.len() == 12).unwrap_or(&id))
}

fn gpu(proc: &Path, slot: &str) -> Option<Gpu> {
    let text = std::fs::read_to_string(proc.join("driver/nvidia/gpus").join(slot).join("information")).ok()?;
    let field = |name: &str| text.lines().find_map(|line| Some(line.strip_prefix(name)?.trim().to_owned()));
    let uuid = field("GPU UUID:").filter(|uuid| uuid.starts_with("GPU-") && !uuid.contains('?'));
    Some(Gpu { slot: slot.to_owned(), minor: field("Device Minor:")?.parse().ok()?, uuid })
}

/// The instances of all GPUs that are cut.
pub fn instances(proc: &Path) -> Vec<Instance> {
    let root = proc.join("driver/nvidia/capabilities");
    let mut found = Vec::new();
    for (name, gpu) in numbered(&root, "gpu") {
        let dir = root.join(name).join("mig");
        for (name, gpu_instance) in numbered(&dir, "gi") {
            let inside = numbered(&dir.join(name), "ci");
            let whole = |(_, compute_instance)| Instance { gpu, gpu_instance, compute_instance };
            found.extend(inside.into_iter().map(whole).filter(|instance| capabilities(proc, *instance).is_some()));
        }
    }
    found.sort_unstable();
    found
}

/// The numbers of the nodes in `/dev/nvidia-caps` that open an instance: of its GPU instance, and of its compute instance.
pub fn capabilities(proc: &Path, instance: Instance) -> Option<[u32; 2]> {
    let Instance { gpu, gpu_instance, compute_instance } = instance;
    let dir = proc.join(format!("driver/nvidia/capabilities/gpu{gpu}/mig/gi{gpu_instance}"));
    let minor = |path: &Path| {
        let text = std::fs::read_to_string(path.join("access")).ok()?;
        text.lines().find_map(|line| line.strip_prefix("DeviceFileMinor:"))?.trim().parse().ok()
    };
    Some([minor(&dir)?, minor(&dir.join(format!("ci{compute_instance}")))?])
}

fn numbered(dir: &Path, prefix: &str) -> Vec<(String, u32)> {
    entries(dir).filter_map(|name| Some((name.clone(), name.strip_prefix(prefix)?.parse().ok()?))).collect()
}

fn entries(dir: &Path) -> impl Iterator<Item = String> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use testkit::Directory;

    /// As a machine with two GPUs shows it, of which the second is cut in two, and a third that is cut into nothing.
    fn proc() -> Directory {
        let proc = testkit::directory();
        let write = |path: &str, text: &str| drop(proc.write(Path::new("driver/nvidia").join(path), text));
        for (slot, minor) in [("0000:41:00.0", 0), ("0000:01:00.0", 1)] {
            let text = format!("Model: \t\t NVIDIA H200\nGPU UUID: \t GPU-{minor}\nDevice Minor: \t {minor}\n");
            write(&format!("gpus/{slot}/information"), &text);
        }
        write(
            "gpus/0000:a1:00.0/information",
            "Model: \t\t NVIDIA H200\nGPU UUID: \t GPU-????\nDevice Minor: \t 2\n",
        );
        let access = |minor: u32| format!("DeviceFileMinor: {minor}\nDeviceFileMode: 292\nDeviceFileModify: 1\n");
        write("capabilities/mig/config", &access(1));
        write("capabilities/gpu1/mig/gi2/access", &access(156));
        write("capabilities/gpu1/mig/gi2/ci0/access", &access(157));
        write("capabilities/gpu1/mig/gi1/access", &access(147));
        write("capabilities/gpu1/mig/gi1/ci0/access", &access(148));
        // Without a compute instance, there is nothing to run on.
        write("capabilities/gpu2/mig/gi1/access", &access(160));
        proc
    }

    #[test]
    fn gpus_and_instances_are_found() {
        let proc = proc();
        let minors: Vec<u32> = gpus(&proc).iter().map(|gpu| gpu.minor).collect();
        assert_eq!(minors, [1, 0, 2], "in the order of their slots");
        assert_eq!(gpus(&proc)[2].uuid, None);
        assert_eq!(gpu_in(&proc, "00000000:41:00.0").map(|gpu| gpu.minor), Some(0));
        assert_eq!(gpu_in(&proc, "../../../etc"), None);
        let instance = |gpu_instance| Instance { gpu: 1, gpu_instance, compute_instance: 0 };
        assert_eq!(instances(&proc), [instance(1), instance(2)]);
        assert_eq!(capabilities(&proc, instance(2)), Some([156, 157]));
        assert_eq!(capabilities(&proc, instance(3)), None);
        std::fs::remove_dir_all(&proc).unwrap();
        assert_eq!((gpus(&proc), instances(&proc)), (Vec::new(), Vec::new()));
    }
}
