//! What the kernel tells of where a GPU sits.

use std::path::{Path, PathBuf};

const DEVICES: &str = "/sys/bus/pci/devices";

/// The kernel's directory of a device; none where the text could lead elsewhere.
pub(super) fn dir(bus_id: &str) -> Option<PathBuf> {
    below(Path::new(DEVICES), bus_id)
}

fn below(devices: &Path, bus_id: &str) -> Option<PathBuf> {
    let id = bus_id.to_ascii_lowercase();
    let plain = id.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b':' || byte == b'.');
    // CUDA writes the domain with four digits, as the kernel does.
    (plain && id.contains(':')).then(|| devices.join(id))
}

/// Of the memory that its slot is near to; none on a machine that has no such nodes, or does not tell.
pub(super) fn numa_node(bus_id: &str) -> Option<u32> {
    numa_node_in(&dir(bus_id)?)
}

fn numa_node_in(dir: &Path) -> Option<u32> {
    // It is -1 where there is none.
    std::fs::read_to_string(dir.join("numa_node")).ok()?.trim().parse().ok()
}

/// The PCIe root that it is behind, such as `pci0000:16`: devices with the same root reach each other without the CPU.
pub(super) fn root(bus_id: &str) -> Option<String> {
    root_in(&dir(bus_id)?)
}

fn root_in(dir: &Path) -> Option<String> {
    let real = dir.canonicalize().ok()?;
    let is_root = |name: &&str| name.starts_with("pci") && name.contains(':');
    real.iter().filter_map(|part| part.to_str()).find(is_root).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_own_tree_is_understood() {
        let sys = testkit::directory();
        let real = sys.join("devices/pci0000:16/0000:16:01.0/0000:18:00.0");
        std::fs::create_dir_all(&real).unwrap();
        std::fs::create_dir_all(sys.join("bus")).unwrap();
        std::os::unix::fs::symlink(&real, sys.join("bus/0000:18:00.0")).unwrap();
        std::fs::write(real.join("numa_node"), "1\n").unwrap();
        let dir = below(&sys.join("bus"), "0000:18:00.0").unwrap();
        assert_eq!((numa_node_in(&dir), root_in(&dir).as_deref()), (Some(1), Some("pci0000:16")));
        std::fs::write(real.join("numa_node"), "-1\n").unwrap();
        assert_eq!(numa_node_in(&dir), None);
        for wrong in ["", "..", "../../x", "0000:18:00.0/../..", "soft"] {
            assert_eq!(below(&sys, wrong), None, "{wrong}");
        }
    }
}
