//! The container: namespaces, privileges, and leftovers of NVIDIA's container toolkit.

use std::path::PathBuf;

use super::driver;
use super::finding::Finding;
use super::scene::Scene;

/// Privileged containers have this capability, others do not.
const SYS_ADMIN: u64 = 1 << 21;

pub(super) fn check(scene: &Scene, findings: &mut Vec<Finding>) {
    if !scene.is_container() {
        findings.push(Finding::ok("place", "not in a container"));
        userns(scene, findings);
    } else {
        namespaces(scene, findings);
    }
    toolkit(scene, findings);
    variables(scene, findings);
}

/// What a pod shares with its node: Bulkhead needs none of it.
fn namespaces(scene: &Scene, findings: &mut Vec<Finding>) {
    let status = scene.read("/proc/self/status").unwrap_or_default();
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default().trim();
    let rights = u64::from_str_radix(field("CapEff:"), 16).unwrap_or(0);
    // Kernel threads are visible only in the node's PID namespace.
    let host_pid = scene.read("/proc/2/comm").is_some_and(|name| name == "kthreadd");
    let mut shared = Vec::new();
    if rights & SYS_ADMIN != 0 {
        shared.push("privileged");
    }
    if host_pid {
        shared.push("hostPID");
    }
    if shared.is_empty() {
        findings.push(Finding::ok("place", "unprivileged container with its own namespaces"));
        return;
    }
    findings.push(Finding::warning(
        "place",
        format!("container with {}", shared.join(" and ")),
        "none, but an attacker in this container controls the node",
        "often set because CUDA IPC with NVIDIA's stack needs it: invalid device context (201) without hostPID, invalid \
         argument (1) without privileged",
        "remove hostPID, hostIPC and privileged from the pod; sharing through Bulkhead needs none of them",
    ));
}

/// The workers' jail needs user namespaces.
fn userns(scene: &Scene, findings: &mut Vec<Finding>) {
    let off = [
        ("/proc/sys/kernel/unprivileged_userns_clone", "0"),
        ("/proc/sys/user/max_user_namespaces", "0"),
        ("/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1"),
    ];
    let found = off.iter().find(|(path, value)| scene.read(path).is_some_and(|text| text == *value));
    let Some((path, value)) = found.filter(|_| !rustix::process::geteuid().is_root()) else { return };
    findings.push(Finding::warning(
        "jail",
        format!("{path} is {value}, and this process is not root"),
        "`bulkhead run` reports an incomplete jail",
        "unprivileged user namespaces are disabled on this machine",
        "run the proxy as a root service, which does not need them",
    ));
}

fn toolkit(scene: &Scene, findings: &mut Vec<Finding>) {
    let nodes = driver::nodes(scene);
    if scene.is_container() && scene.is_tenant() && !nodes.is_empty() {
        findings.push(Finding::error(
            "toolkit",
            format!("this container has GPU device nodes: {}", nodes.join(", ")),
            "its programs can use the GPU directly, without limits",
            "the pod also requests nvidia.com/gpu, has runtimeClassName nvidia, or is privileged",
            "remove these from the pod; a zone needs no device nodes",
        ));
    }
    let mounts = scene.read("/proc/self/mountinfo").unwrap_or_default();
    let mounted = |line: &str| {
        let place = line.split(' ').nth(4).unwrap_or_default().to_owned();
        let name = place.rsplit('/').next().unwrap_or_default();
        let driver = ["libcuda.so.", "libnvidia-ml.so.", "libnvidia-ptxjitcompiler.so.", "nvidia-smi"];
        // The client libraries end in `.so.1`; the driver's have its version in their names.
        let versioned = name.split(".so.").nth(1).is_none_or(|version| version.contains('.'));
        (driver.iter().any(|known| name.starts_with(known)) && versioned).then_some(place)
    };
    let mounted: Vec<String> = mounts.lines().filter(|line| !is_ours(line, &mounts)).filter_map(mounted).collect();
    if scene.is_tenant() && !mounted.is_empty() {
        findings.push(Finding::error(
            "toolkit",
            format!("NVIDIA's container toolkit has mounted its driver: {}", mounted.join(", ")),
            "programs may load NVIDIA's driver library instead of the client library: cuInit returns 100 or 803",
            "the image sets NVIDIA_VISIBLE_DEVICES, and NVIDIA's runtime is the node's default",
            "set NVIDIA_VISIBLE_DEVICES=void in the pod, or make runc the default runtime",
        ));
    }
    let hooks = [
        "/usr/share/containers/oci/hooks.d/oci-nvidia-hook.json",
        "/etc/containers/oci/hooks.d/oci-nvidia-hook.json",
    ];
    let hook = hooks.into_iter().find(|path| scene.exists(path));
    let runtime = ["/etc/containerd/config.toml", "/etc/docker/daemon.json", "/etc/crio/crio.conf"];
    let default = runtime.into_iter().find(|path| {
        let text = scene.read(path).unwrap_or_default();
        let defaults =
            text.lines().filter(|line| line.contains("default_runtime_name") || line.contains("default-runtime"));
        defaults.into_iter().any(|line| line.contains("nvidia"))
    });
    if let Some(path) = hook.or(default) {
        findings.push(Finding::warning(
            "toolkit",
            format!("{path} applies NVIDIA's runtime to every container"),
            "images with NVIDIA_VISIBLE_DEVICES=all see all GPUs of the node without requesting any",
            "the toolkit is installed as the default runtime or as an OCI hook",
            "make runc the default (`nvidia-ctk runtime configure --set-as-default=false`) and remove the hook",
        ));
    }
    for path in ["/etc/cdi/nvidia.yaml", "/var/run/cdi/nvidia.yaml"] {
        if scene.exists(path) {
            findings.push(Finding::note(
                "toolkit",
                format!(
                    "{path} offers whole GPUs as nvidia.com/gpu; pods that also get one of those are not confined"
                ),
            ));
        }
    }
}

/// Whether a mount is our `nvidia-smi`: it lies beside the client library that is mounted, too.
fn is_ours(line: &str, mounts: &str) -> bool {
    let source = |line: &str| {
        let mut fields = line.split(' ').skip(3).map(PathBuf::from);
        fields.next().zip(fields.next())
    };
    let Some((program, _)) = source(line).filter(|(_, place)| place.ends_with("nvidia-smi")) else { return false };
    let beside = |(library, to): (PathBuf, PathBuf)| {
        to.ends_with("libcuda.so.1") && library.ends_with("libcuda.so.1") && library.parent() == program.parent()
    };
    mounts.lines().filter_map(source).any(beside)
}

fn variables(scene: &Scene, findings: &mut Vec<Finding>) {
    let preloaded = scene.variable("LD_PRELOAD").unwrap_or_default();
    let file = scene.read("/etc/ld.so.preload").unwrap_or_default();
    let hooks = ["libvgpu.so", "libcuda-control", "libgemhook", "libnvshare"];
    if let Some(hook) = hooks.iter().find(|hook| preloaded.contains(**hook) || file.contains(**hook)) {
        findings.push(Finding::warning(
            "preload",
            format!("{hook} is preloaded into every program"),
            "limits apply twice, and some CUDA calls fail unexpectedly",
            "another GPU sharing system intercepts the driver in the program",
            "remove it from LD_PRELOAD or /etc/ld.so.preload",
        ));
    }
    if let Some(value) = scene.variable("CUDA_VISIBLE_DEVICES")
        && (value.trim().is_empty() || value.trim() == "-1")
    {
        findings.push(Finding::error(
            "variables",
            format!("CUDA_VISIBLE_DEVICES is {value:?}"),
            "cuInit or cudaGetDeviceCount returns 100 (no device)",
            "the variable hides every GPU, including virtual ones",
            "unset it; in a zone the virtual GPUs are numbered from 0",
        ));
    }
    if scene.is_tenant()
        && let Some(value) = scene.variable("CUDA_VISIBLE_DEVICES").filter(|value| value.contains("GPU-"))
    {
        findings.push(Finding::note(
            "variables",
            format!("CUDA_VISIBLE_DEVICES={value}: UUIDs must be those of the zone, as nvidia-smi shows them in it"),
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::finding::Level;

    fn found(files: &[(&str, &str)], variables: &[(&str, &str)]) -> Vec<Finding> {
        let root = testkit::directory();
        files.iter().for_each(|(path, text)| drop(root.write(path, text)));
        let mut findings = Vec::new();
        check(&Scene::fake(&root, variables), &mut findings);
        findings.retain(|finding| finding.level >= Level::Warning);
        findings
    }

    #[test]
    fn a_plain_pod_is_fine_and_needless_privileges_are_reported() {
        let plain =
            [("/.dockerenv", ""), ("/run/bulkhead/zone/x", ""), ("/proc/self/status", "CapEff:\t00000000a80425fb")];
        assert_eq!(found(&plain, &[]), []);
        let much =
            [("/.dockerenv", ""), ("/proc/self/status", "CapEff:\t000001ffffffffff"), ("/proc/2/comm", "kthreadd")];
        let much = found(&much, &[]);
        assert!(much.len() == 1 && much[0].seen.contains("privileged and hostPID"), "{much:?}");
    }

    #[test]
    fn what_the_toolkit_left_is_found() {
        let mounts = "1 2 0:1 / /usr/lib/x86_64-linux-gnu/libcuda.so.580.1 ro - ext4 x ro\n\
                      2 2 0:1 / /usr/lib/x86_64-linux-gnu/libcuda.so.1 ro - ext4 x ro";
        let files = [
            ("/.dockerenv", ""),
            ("/run/bulkhead/zone/x", ""),
            ("/dev/nvidia0", ""),
            ("/proc/self/mountinfo", mounts),
            ("/etc/docker/daemon.json", "{ \"default-runtime\": \"nvidia\" }"),
        ];
        let found = found(&files, &[("CUDA_VISIBLE_DEVICES", "-1"), ("LD_PRELOAD", "/x/libvgpu.so")]);
        let seen: Vec<&str> = found.iter().map(|finding| finding.check).collect();
        assert_eq!(seen, ["toolkit", "toolkit", "toolkit", "preload", "variables"]);
        assert!(found[1].seen.ends_with("driver: /usr/lib/x86_64-linux-gnu/libcuda.so.580.1"), "{:?}", found[1]);
    }

    #[test]
    fn our_own_nvidia_smi_is_not_the_toolkits() {
        let found = |smi: &str| {
            let mounts = format!(
                "1 2 0:1 {smi} /usr/bin/nvidia-smi ro - ext4 x ro\n\
                 2 2 0:1 /opt/bulkhead/1/lib/bulkhead/libcuda.so.1 /usr/lib/x86_64-linux-gnu/libcuda.so.1 ro - ext4 x ro"
            );
            found(&[("/.dockerenv", ""), ("/run/bulkhead/zone/x", ""), ("/proc/self/mountinfo", &mounts)], &[])
        };
        assert_eq!(found("/opt/bulkhead/1/lib/bulkhead/nvidia-smi"), []);
        let theirs = found("/usr/bin/nvidia-smi");
        assert!(theirs.len() == 1 && theirs[0].seen.ends_with("driver: /usr/bin/nvidia-smi"), "{theirs:?}");
    }
}
