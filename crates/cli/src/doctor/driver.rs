//! NVIDIA's driver: its module, its device nodes, and whether kernels reach their process's memory.

use std::io::ErrorKind;

use super::finding::Finding;
use super::scene::Scene;

const NVIDIA_VENDOR: &str = "0x10de";
const DISPLAY_CLASS: &str = "0x03";

pub fn check(scene: &Scene, findings: &mut Vec<Finding>) {
    let cards = cards(scene);
    let module = scene.read("/sys/module/nvidia/version");
    let nodes = nodes(scene);
    match (&module, cards.len(), nodes.is_empty()) {
        (None, 0, true) => {
            findings.push(Finding::note(
                "driver",
                "this machine shows no NVIDIA GPU; Bulkhead computes on the CPU here (backend soft)",
            ));
            return;
        }
        (None, count @ 1.., true) => findings.push(Finding::error(
            "driver",
            format!("{count} NVIDIA GPU(s) on the PCI bus, and no driver"),
            "bulkhead proxy uses the software GPU; nvidia-smi finds no driver",
            "NVIDIA's kernel module is not loaded, or not installed",
            "install the driver and run `modprobe nvidia nvidia-uvm`; dmesg says why a module does not load",
        )),
        (None, _, false) => findings.push(Finding::note(
            "driver",
            "GPU nodes, but /sys shows no module: a container, or a sandbox with a driver of its own",
        )),
        (Some(version), ..) => findings.push(Finding::ok("driver", format!("NVIDIA's driver {version} is loaded"))),
    }
    if scene.is_container() && scene.is_tenant() {
        // What nodes a tenant has is looked at as what they are: too many.
        return;
    }
    node_findings(scene, &nodes, findings);
    mps(scene, findings);
    hmm(scene, findings);
    versions(scene, module.as_deref(), findings);
}

fn cards(scene: &Scene) -> Vec<String> {
    let mut names = scene.names("/sys/bus/pci/devices");
    names.retain(|name| {
        let read = |file: &str| scene.read(format!("/sys/bus/pci/devices/{name}/{file}")).unwrap_or_default();
        read("vendor") == NVIDIA_VENDOR && read("class").starts_with(DISPLAY_CLASS)
    });
    names
}

/// NVIDIA's nodes in /dev.
pub fn nodes(scene: &Scene) -> Vec<String> {
    let mut names = scene.names("/dev");
    names.retain(|name| name.starts_with("nvidia") && name != "nvidia-caps");
    names
}

fn node_findings(scene: &Scene, nodes: &[String], findings: &mut Vec<Finding>) {
    for needed in ["nvidiactl", "nvidia-uvm"] {
        if !nodes.iter().any(|name| name == needed) {
            findings.push(Finding::error(
                "nodes",
                format!("there is no /dev/{needed}"),
                "cuInit answers 100 (no device) or 999 in workers; the proxy falls back to the software GPU",
                "the node was never made: on a headless machine nobody has loaded the module's helper",
                "run `nvidia-modprobe -c 0 -u`, or start nvidia-persistenced at boot",
            ));
        }
    }
    for name in nodes {
        match std::fs::File::options().read(true).write(true).open(scene.path(format!("/dev/{name}"))) {
            Ok(_) => {}
            // The file's mode would say "permission denied"; this is the device controller of the cgroup.
            Err(error) if error.raw_os_error() == Some(rustix::io::Errno::PERM.raw_os_error()) => {
                findings.push(Finding::error(
                    "nodes",
                    format!("/dev/{name} is there and must not be opened"),
                    "cuInit answers 100 or 304 in workers",
                    "the device rules of this cgroup do not allow it (systemd's DeviceAllow=, or a container's)",
                    "allow `char-nvidia* rw` in the proxy's unit, or run the proxy outside that container",
                ));
            }
            Err(error) if error.kind() == ErrorKind::PermissionDenied => findings.push(Finding::warning(
                "nodes",
                format!("/dev/{name} cannot be opened by this user"),
                "cuInit answers 100 for programs of this user that use the GPU directly",
                "the node's mode or owner; zones are not concerned, since workers are given theirs",
                "run the proxy as root, or set NVreg_DeviceFileMode=0666",
            )),
            Err(_) => findings.push(Finding::warning(
                "nodes",
                format!("/dev/{name} does not open"),
                "cuInit answers 100 or 999",
                "the driver was unloaded or replaced while the node stayed, or the GPU fell off the bus",
                "look at dmesg for Xid messages; reload the driver, or restart the machine",
            )),
        }
    }
}

/// NVIDIA's own way to share puts all clients of a user into one process.
fn mps(scene: &Scene, findings: &mut Vec<Finding>) {
    let is_process = |name: &String| name.bytes().all(|byte| byte.is_ascii_digit());
    let processes = scene.names("/proc").into_iter().filter(is_process);
    let mut names = processes.filter_map(|pid| scene.read(format!("/proc/{pid}/comm")));
    if names.any(|name| name.starts_with("nvidia-cuda-mps")) {
        findings.push(Finding::warning(
            "mps",
            "NVIDIA's Multi-Process Service runs here",
            "a fault in one program ends others that use MPS; workers that join it share their fate",
            "nvidia-cuda-mps-control was started, or is a service of this node",
            "stop it (`echo quit | nvidia-cuda-mps-control`): zones take turns without it",
        ));
    }
}

/// Where kernels reach pageable memory, a tenant's kernel reaches its worker's.
fn hmm(scene: &Scene, findings: &mut Vec<Finding>) {
    let parameter = scene.read("/sys/module/nvidia_uvm/parameters/uvm_disable_hmm");
    match parameter.as_deref() {
        Some("Y" | "1") => findings.push(Finding::ok("hmm", "nvidia-uvm has HMM disabled")),
        Some(_) => findings.push(Finding::note(
            "hmm",
            "nvidia-uvm may use HMM (uvm_disable_hmm is not set); whether this kernel has it, the GPUs tell below",
        )),
        None => {}
    }
}

/// What the survey adds: the driver's own word on it.
pub fn pageable_access(gpu: &str) -> Finding {
    Finding::error(
        "hmm",
        format!("{gpu}: kernels reach their process's pageable memory"),
        "a tenant's kernel can read and write the memory of its worker, as if it had taken it over",
        "heterogeneous memory management (HMM) of the open kernel module on a recent Linux",
        "put `options nvidia-uvm uvm_disable_hmm=1` in /etc/modprobe.d/bulkhead.conf and load nvidia-uvm anew",
    )
}

/// Module and library are of one version.
fn versions(scene: &Scene, module: Option<&str>, findings: &mut Vec<Finding>) {
    let Some(module) = module else { return };
    for folder in super::loader::USUAL {
        for name in scene.names(folder) {
            let Some(version) = name.strip_prefix("libcuda.so.").filter(|rest| rest.contains('.')) else { continue };
            if version == module {
                findings.push(Finding::ok("versions", format!("libcuda and the kernel module are both {module}")));
            } else if !scene.exists(format!("{folder}/libcuda.so.{module}")) {
                findings.push(Finding::error(
                    "versions",
                    format!("{folder}/{name} beside a kernel module {module}"),
                    "cuInit answers 803 (system driver mismatch); nvidia-smi says the same of NVML",
                    "the driver's packages were upgraded while the old module is still loaded",
                    "restart the machine, or unload nvidia-uvm and nvidia and load them anew",
                ));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::finding::Level;

    fn found(files: &[(&str, &str)]) -> Vec<(&'static str, Level)> {
        let root = testkit::directory();
        files.iter().for_each(|(path, text)| drop(root.write(path, text)));
        let mut findings = Vec::new();
        check(&Scene::made_up(&root, &[]), &mut findings);
        findings.iter().map(|finding| (finding.check, finding.level)).collect()
    }

    #[test]
    fn a_machine_without_a_gpu_is_no_fault() {
        assert_eq!(found(&[]), [("driver", Level::Note)]);
    }

    #[test]
    fn a_gpu_without_a_driver_is_one() {
        let card = "/sys/bus/pci/devices/0000:01:00.0";
        let files = [(&*format!("{card}/vendor"), "0x10de\n"), (&*format!("{card}/class"), "0x030200\n")];
        assert_eq!(found(&files)[0], ("driver", Level::Error));
        // Its sound is none.
        let files = [(&*format!("{card}/vendor"), "0x10de\n"), (&*format!("{card}/class"), "0x040300\n")];
        assert_eq!(found(&files), [("driver", Level::Note)]);
    }

    #[test]
    fn nodes_versions_memory_and_mps_are_looked_at() {
        let fine = [
            ("/sys/module/nvidia/version", "580.1.2\n"),
            ("/sys/module/nvidia_uvm/parameters/uvm_disable_hmm", "Y\n"),
            ("/dev/nvidiactl", ""),
            ("/dev/nvidia0", ""),
            ("/dev/nvidia-uvm", ""),
            ("/usr/lib64/libcuda.so.580.1.2", ""),
        ];
        let ok = |check| (check, Level::Ok);
        assert_eq!(found(&fine), [ok("driver"), ok("hmm"), ok("versions")]);
        let mut wrong = fine;
        wrong[1].1 = "N\n";
        wrong[4].0 = "/proc/77/comm";
        wrong[4].1 = "nvidia-cuda-mps-server\n";
        wrong[5].0 = "/usr/lib64/libcuda.so.570.9";
        let expected = [
            ok("driver"),
            ("nodes", Level::Error),
            ("mps", Level::Warning),
            ("hmm", Level::Note),
            ("versions", Level::Error),
        ];
        assert_eq!(found(&wrong), expected);
    }
}
