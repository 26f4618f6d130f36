//! What a pod in a machine of its own cannot have, each refused by the name that users know it by.

use agent::oci::{Namespace, Spec};

/// Annotations of containerd's CRI plugin.
pub(crate) const CONTAINER_TYPE: &str = "io.kubernetes.cri.container-type";
pub(crate) const SANDBOX_ID: &str = "io.kubernetes.cri.sandbox-id";
pub(crate) const SANDBOX_UID: &str = "io.kubernetes.cri.sandbox-uid";

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refusal {
    #[error("hostNetwork is not supported: the pod runs in a machine of its own")]
    HostNetwork,
    #[error("hostPID is not supported: the pod runs in a machine of its own")]
    HostPid,
    #[error("hostIPC is not supported: the pod runs in a machine of its own")]
    HostIpc,
    #[error("privileged containers are not supported: the pod runs in a machine of its own")]
    Privileged,
    #[error("user namespaces (hostUsers: false) are not supported")]
    UserNamespace,
    #[error("OCI hooks are not supported: they would run on the host")]
    Hooks,
    #[error("device {0} of the host is not supported")]
    Device(String),
    #[error("hostPath {0} is not supported (mounted at {1}): the machine does not see the host's files")]
    HostPath(String, String),
    #[error("volume {0} ({1}) is not supported (mounted at {2}): the machine does not see the host's file systems")]
    Volume(String, String, String),
    #[error("subPath of this volume is not supported (mounted at {0})")]
    SubPath(String),
    #[error("mount propagation {0} is not supported (mounted at {1})")]
    Propagation(String, String),
    #[error("volume {0} has more than {1} files or bytes to be copied in")]
    TooLarge(String, u64),
    #[error("zone directory {0} does not name a zone")]
    Zone(String),
    #[error("several zones in one container are not supported")]
    SeveralZones,
}

/// Whether this is a pod's sandbox, or a container that stands for itself.
pub(crate) fn is_first(spec: &Spec) -> bool {
    spec.annotations.get(CONTAINER_TYPE).is_none_or(|kind| kind == "sandbox")
}

/// Refuses what has nothing to do with files.
pub(crate) fn check(spec: &Spec) -> Result<(), Refusal> {
    let hooks = spec.hooks.iter().flatten();
    if hooks.into_iter().any(|(_, list)| list.as_array().is_none_or(|list| !list.is_empty())) {
        return Err(Refusal::Hooks);
    }
    if has(spec, "user").is_some() || !spec.linux.uid_mappings.is_empty() || !spec.linux.gid_mappings.is_empty() {
        return Err(Refusal::UserNamespace);
    }
    // Only the first container says what the pod is: the others join its namespaces.
    if is_first(spec) {
        let wanted = [("network", Refusal::HostNetwork), ("ipc", Refusal::HostIpc), ("pid", Refusal::HostPid)];
        for (kind, refusal) in wanted {
            if has(spec, kind).is_none() {
                return Err(refusal);
            }
        }
    }
    // A container of a pod with hostPID has no process namespace, or the host's.
    if has(spec, "pid").is_none() {
        return Err(Refusal::HostPid);
    }
    let everything = |rule: &agent::oci::DeviceRule| {
        rule.allow && rule.kind.trim_start_matches('a').is_empty() && rule.major.is_none() && rule.minor.is_none()
    };
    if spec.linux.resources.devices.iter().any(everything) {
        return Err(Refusal::Privileged);
    }
    if let Some(device) = spec.linux.devices.first() {
        return Err(Refusal::Device(device.path.clone()));
    }
    for mount in &spec.mounts {
        let shared = |option: &&String| ["shared", "rshared"].contains(&option.as_str());
        if let Some(option) = mount.options.iter().find(shared) {
            return Err(Refusal::Propagation(option.clone(), mount.destination.clone()));
        }
    }
    Ok(())
}

pub(crate) fn has<'a>(spec: &'a Spec, kind: &str) -> Option<&'a Namespace> {
    spec.linux.namespaces.iter().find(|namespace| namespace.kind == kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A sandbox as containerd makes it, cut down.
    fn sandbox() -> Spec {
        let json = r#"{
            "annotations": {"io.kubernetes.cri.container-type": "sandbox", "io.kubernetes.cri.sandbox-id": "s"},
            "linux": {
                "namespaces": [{"type": "pid"}, {"type": "ipc"}, {"type": "uts"}, {"type": "mount"},
                    {"type": "network", "path": "/var/run/netns/cni-1"}],
                "resources": {"devices": [{"allow": false, "access": "rwm"}]}
            }
        }"#;
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn an_ordinary_pod_is_not_refused() {
        assert_eq!(check(&sandbox()), Ok(()));
    }

    #[test]
    fn what_is_the_hosts_is_refused_by_name() {
        let without = |kind: &str| {
            let mut spec = sandbox();
            spec.linux.namespaces.retain(|namespace| namespace.kind != kind);
            check(&spec).unwrap_err()
        };
        assert_eq!(without("network"), Refusal::HostNetwork);
        assert_eq!(without("ipc"), Refusal::HostIpc);
        assert_eq!(without("pid"), Refusal::HostPid);
        let changed = |change: fn(&mut Spec)| {
            let mut spec = sandbox();
            change(&mut spec);
            check(&spec).unwrap_err()
        };
        let rule = agent::oci::DeviceRule { allow: true, access: "rwm".into(), ..Default::default() };
        let mut privileged = sandbox();
        privileged.linux.resources.devices = vec![rule];
        assert_eq!(check(&privileged), Err(Refusal::Privileged));
        let device = changed(|spec| {
            spec.linux.devices.push(agent::oci::Device { path: "/dev/fuse".into(), ..Default::default() });
        });
        assert_eq!(device, Refusal::Device("/dev/fuse".into()));
        let hooks = changed(|spec| {
            spec.hooks = Some([("prestart".to_owned(), serde_json::json!([{"path": "/bin/x"}]))].into());
        });
        assert_eq!(hooks, Refusal::Hooks);
        let user = changed(|spec| spec.linux.uid_mappings.push(serde_json::json!({})));
        assert_eq!(user, Refusal::UserNamespace);
    }

    #[test]
    fn mounts_that_reach_back_to_the_host_are_refused() {
        let mut spec = sandbox();
        spec.mounts.push(agent::oci::Mount {
            destination: "/data".into(),
            kind: "bind".into(),
            source: "/srv".into(),
            options: vec!["rbind".into(), "rshared".into()],
        });
        assert_eq!(check(&spec), Err(Refusal::Propagation("rshared".into(), "/data".into())));
    }

    #[test]
    fn containers_join_what_their_sandbox_has() {
        let mut spec = sandbox();
        spec.annotations.insert(CONTAINER_TYPE.into(), "container".into());
        spec.linux.namespaces.retain(|namespace| namespace.kind == "pid");
        assert_eq!(check(&spec), Ok(()));
    }
}
