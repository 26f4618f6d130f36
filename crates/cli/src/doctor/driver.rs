//! NVIDIA's driver: its kernel module, its device nodes, and HMM.

use std::io::ErrorKind;

use super::finding::Finding;
use super::scene::Scene;
use crate::text::counted;

const NVIDIA_VENDOR: &str = "0x10de";
const DISPLAY_CLASS: &str = "0x03";

pub(super) fn check(scene: &Scene, findings: &mut Vec<Finding>) {
    let cards = cards(scene);
    let module = scene.read("/sys/module/nvidia/version");
    let nodes = nodes(scene);
    match (&module, cards.len(), nodes.is_empty()) {
        (None, 0, true) => {
            findings
                .push(Finding::note("driver", "no NVIDIA GPU on this machine; Bulkhead uses the software backend"));
            return;
        }
        (None, count @ 1.., true) => findings.push(Finding::error(
            "driver",
            format!("{} on the PCI bus, but no driver", counted(count as u64, "NVIDIA GPU")),
            "bulkhead proxy uses the software backend; nvidia-smi finds no driver",
            "NVIDIA's kernel module is not loaded or not installed",
            "install the driver and run `modprobe nvidia nvidia-uvm`; see dmesg if a module does not load",
        )),
        (None, _, false) => findings.push(Finding::note(
            "driver",
            "GPU device nodes without a kernel module in /sys: a container, or a sandbox with its own driver",
        )),
        (Some(version), ..) => findings.push(Finding::ok("driver", format!("NVIDIA's driver {version} is loaded"))),
    }
    if scene.is_container() && scene.is_tenant() {
        // A tenant should have no nodes at all, which is another check.
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
pub(super) fn nodes(scene: &Scene) -> Vec<String> {
    let mut names = scene.names("/dev");
    names.retain(|name| name.starts_with("nvidia") && name != "nvidia-caps");
    names
}

fn node_findings(scene: &Scene, nodes: &[String], findings: &mut Vec<Finding>) {
    for needed in ["nvidiactl", "nvidia-uvm"] {
        if !nodes.iter().any(|name| name == needed) {
            findings.push(Finding::error(
                "nodes",
                format!("/dev/{needed} does not exist"),
                "cuInit returns 100 (no device) or 999 in workers; the proxy falls back to the software backend",
                "the device node was never created, as happens on headless machines",
                "run `nvidia-modprobe -c 0 -u`, or start nvidia-persistenced at boot",
            ));
        }
    }
    for name in nodes {
        match std::fs::File::options().read(true).write(true).open(scene.path(format!("/dev/{name}"))) {
            Ok(_) => {}
            // EPERM, not EACCES: this is the device controller of the cgroup, not the file's mode.
            Err(error) if error.raw_os_error() == Some(rustix::io::Errno::PERM.raw_os_error()) => {
                findings.push(Finding::error(
                    "nodes",
                    format!("opening /dev/{name} is not permitted"),
                    "cuInit returns 100 or 304 in workers",
                    "the device rules of this cgroup deny it (systemd's DeviceAllow=, or a container's)",
                    "allow `char-nvidia* rw` in the proxy's unit, or run the proxy outside that container",
                ));
            }
            Err(error) if error.kind() == ErrorKind::PermissionDenied => findings.push(Finding::warning(
                "nodes",
                format!("this user cannot open /dev/{name}"),
                "cuInit returns 100 for programs of this user that use the GPU directly",
                "the mode or owner of the device node; zones are not affected, because workers get their own",
                "run the proxy as root, or set NVreg_DeviceFileMode=0666",
            )),
            Err(_) => findings.push(Finding::warning(
                "nodes",
                format!("cannot open /dev/{name}"),
                "cuInit returns 100 or 999",
                "the driver was unloaded or replaced, or the GPU has fallen off the bus",
                "check dmesg for Xid messages; reload the driver or reboot",
            )),
        }
    }
}

/// MPS puts all clients of a user into one process.
fn mps(scene: &Scene, findings: &mut Vec<Finding>) {
    let is_process = |name: &String| name.bytes().all(|byte| byte.is_ascii_digit());
    let processes = scene.names("/proc").into_iter().filter(is_process);
    let mut names = processes.filter_map(|pid| scene.read(format!("/proc/{pid}/comm")));
    if names.any(|name| name.starts_with("nvidia-cuda-mps")) {
        findings.push(Finding::warning(
            "mps",
            "NVIDIA's Multi-Process Service (MPS) is running",
            "a fault in one MPS client ends the others, including workers that use MPS",
            "nvidia-cuda-mps-control was started, or runs as a service of this node",
            "stop it (`echo quit | nvidia-cuda-mps-control`); zones do not need it",
        ));
    }
}

/// With HMM, a tenant's kernel can access its worker's memory.
fn hmm(scene: &Scene, findings: &mut Vec<Finding>) {
    let parameter = scene.read("/sys/module/nvidia_uvm/parameters/uvm_disable_hmm");
    match parameter.as_deref() {
        Some("Y" | "1") => findings.push(Finding::ok("hmm", "nvidia-uvm has HMM disabled")),
        Some(_) => findings.push(Finding::note(
            "hmm",
            "nvidia-uvm may use HMM (uvm_disable_hmm is not set); the GPU checks below tell whether it does",
        )),
        None => {}
    }
}

/// What the driver itself reports.
pub(super) fn pageable_access(gpu: &str) -> Finding {
    Finding::error(
        "hmm",
        format!("{gpu}: kernels can access pageable host memory (HMM)"),
        "a tenant's kernel can read and write the memory of its worker",
        "heterogeneous memory management (HMM) of the open kernel module on a recent kernel",
        "put `options nvidia-uvm uvm_disable_hmm=1` in /etc/modprobe.d/bulkhead.conf and reload nvidia-uvm",
    )
}

/// The kernel module and the driver library must have the same version.
fn versions(scene: &Scene, module: Option<&str>, findings: &mut Vec<Finding>) {
    let Some(module) = module else { return };
    for dir in super::loader::USUAL {
        for name in scene.names(dir) {
            let Some(version) = name.strip_prefix("libcuda.so.").filter(|rest| rest.contains('.')) else { continue };
            if version == module {
                findings.push(Finding::ok("versions", format!("libcuda and the kernel module are both {module}")));
            } else if !scene.exists(format!("{dir}/libcuda.so.{module}")) {
                findings.push(Finding::error(
                    "versions",
                    format!("{dir}/{name} does not match kernel module {module}"),
                    "cuInit returns 803 (system driver mismatch); nvidia-smi reports a mismatch, too",
                    "the driver was upgraded while the old module is still loaded",
                    "reboot, or unload and reload nvidia-uvm and nvidia",
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
        check(&Scene::fake(&root, &[]), &mut findings);
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
    fn nodes_versions_memory_and_mps_are_checked() {
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
