//! Where this process is: namespaces, rights, and what NVIDIA's container toolkit has left.

use super::driver;
use super::finding::Finding;
use super::scene::Scene;

/// All capabilities that there are in a privileged container; some of them are in none other.
const SYS_ADMIN: u64 = 1 << 21;

pub fn check(scene: &Scene, findings: &mut Vec<Finding>) {
    if !scene.is_container() {
        findings.push(Finding::ok("place", "this is no container, as far as can be seen"));
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
    // The node's first process is its init system, and has kernel threads beside it.
    let host_pid = scene.read("/proc/2/comm").is_some_and(|name| name == "kthreadd");
    let mut shared = Vec::new();
    if rights & SYS_ADMIN != 0 {
        shared.push("privileged");
    }
    if host_pid {
        shared.push("hostPID");
    }
    if shared.is_empty() {
        findings.push(Finding::ok("place", "a container with namespaces of its own and no great rights"));
        return;
    }
    findings.push(Finding::warning(
        "place",
        format!("a container with {}", shared.join(" and ")),
        "none; but whoever breaks into this container has the node",
        "often set because CUDA IPC needs it with NVIDIA's stack: invalid device context (201) without hostPID, invalid \
         argument (1) without privileged",
        "take hostPID, hostIPC and privileged off the pod: sharing through Bulkhead needs none of them",
    ));
}

/// Jails of workers need namespaces.
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
        format!("{path} is {value}, and this is not root"),
        "`bulkhead run` says that parts of the jail are missing",
        "users may make no namespaces on this machine",
        "run the proxy as a service of root, which needs no such permission",
    ));
}

fn toolkit(scene: &Scene, findings: &mut Vec<Finding>) {
    let nodes = driver::nodes(scene);
    if scene.is_container() && scene.is_tenant() && !nodes.is_empty() {
        findings.push(Finding::error(
            "toolkit",
            format!("this container has GPU nodes: {}", nodes.join(", ")),
            "its programs can use the GPU beside Bulkhead, without limits",
            "the pod also asks for nvidia.com/gpu, has runtimeClassName nvidia, or is privileged",
            "take these off the pod: a zone needs no device node",
        ));
    }
    let mounts = scene.read("/proc/self/mountinfo").unwrap_or_default();
    let mounted = |line: &str| {
        let place = line.split(' ').nth(4).unwrap_or_default().to_owned();
        let name = place.rsplit('/').next().unwrap_or_default();
        let driver = ["libcuda.so.", "libnvidia-ml.so.", "libnvidia-ptxjitcompiler.so.", "nvidia-smi"];
        // Ours end in `.so.1`; a driver's library has its version in its name.
        let versioned = name.split(".so.").nth(1).is_none_or(|version| version.contains('.'));
        (driver.iter().any(|known| name.starts_with(known)) && versioned).then_some(place)
    };
    let mounted: Vec<String> = mounts.lines().filter_map(mounted).collect();
    if scene.is_tenant() && !mounted.is_empty() {
        findings.push(Finding::error(
            "toolkit",
            format!("NVIDIA's container toolkit has mounted its driver here: {}", mounted.join(", ")),
            "programs may load NVIDIA's library instead of Bulkhead's: cuInit answers 100 or 803",
            "NVIDIA_VISIBLE_DEVICES is set in the image, and NVIDIA's runtime is the node's default",
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
            format!("{path} puts NVIDIA's runtime into every container"),
            "images with NVIDIA_VISIBLE_DEVICES=all see all GPUs of the node, without asking for any",
            "the toolkit was installed as default runtime or as an OCI hook",
            "make runc the default (`nvidia-ctk runtime configure --set-as-default=false`), remove the hook",
        ));
    }
    for path in ["/etc/cdi/nvidia.yaml", "/var/run/cdi/nvidia.yaml"] {
        if scene.exists(path) {
            findings.push(Finding::note(
                "toolkit",
                format!("{path} offers whole GPUs as nvidia.com/gpu; pods that have both are not confined"),
            ));
        }
    }
}

fn variables(scene: &Scene, findings: &mut Vec<Finding>) {
    let preloaded = scene.variable("LD_PRELOAD").unwrap_or_default();
    let file = scene.read("/etc/ld.so.preload").unwrap_or_default();
    let hooks = ["libvgpu.so", "libcuda-control", "libgemhook", "libnvshare"];
    if let Some(hook) = hooks.iter().find(|hook| preloaded.contains(**hook) || file.contains(**hook)) {
        findings.push(Finding::warning(
            "preload",
            format!("{hook} is loaded into every program"),
            "limits are applied twice, and some CUDA calls fail in ways nobody expects",
            "another GPU sharing system hooks the driver in the program",
            "take it out of LD_PRELOAD or /etc/ld.so.preload",
        ));
    }
    if let Some(value) = scene.variable("CUDA_VISIBLE_DEVICES")
        && (value.trim().is_empty() || value.trim() == "-1")
    {
        findings.push(Finding::error(
            "variables",
            format!("CUDA_VISIBLE_DEVICES is {value:?}"),
            "cuInit or cudaGetDeviceCount says that there is no device (100)",
            "the variable hides every GPU, also virtual ones",
            "unset it; in a zone the virtual GPUs are numbered from 0",
        ));
    }
    if scene.is_tenant()
        && let Some(value) = scene.variable("CUDA_VISIBLE_DEVICES").filter(|value| value.contains("GPU-"))
    {
        findings.push(Finding::note(
            "variables",
            format!(
                "CUDA_VISIBLE_DEVICES={value}: names of GPUs are those of the zone, as nvidia-smi shows them in it"
            ),
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
        check(&Scene::made_up(&root, variables), &mut findings);
        findings.retain(|finding| finding.level >= Level::Warning);
        findings
    }

    #[test]
    fn a_plain_pod_is_fine_and_needless_rights_are_named() {
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
        assert!(found[1].seen.ends_with("here: /usr/lib/x86_64-linux-gnu/libcuda.so.580.1"), "{:?}", found[1]);
    }
}
