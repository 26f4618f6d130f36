//! What a pod runs in. The shim does the same for every kind of machine; only this differs.

use agent::oci::{Mount, Spec};
use agent::protocol::{Network, Root, RootMount};
use control::ZoneName;
use std::io::{self, Read, Write};
use std::path::PathBuf;

#[derive(Debug, thiserror::Error)]
pub enum MachineError {
    #[error("cannot start the pod's machine")]
    Start(#[source] io::Error),
    #[error("{0}")]
    Refused(String),
}

/// The pod that a machine is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pod {
    /// containerd's namespace, in which the name is its own.
    pub namespace: String,
    /// The sandbox's name, which is also the machine's.
    pub id: String,
    /// The network namespace that CNI has set up; none: the pod has only a loopback device.
    pub network: Option<PathBuf>,
    /// What the pod's containers may have together; 0 where no limit is set.
    pub memory: u64,
    /// Its processors, in thousandths; 0 where no limit is set.
    pub cpu_millis: u64,
}

impl Pod {
    /// From the specification of a pod's first container.
    pub(crate) fn of(namespace: &str, id: &str, spec: &Spec) -> Self {
        let annotation = |name: &str| -> u64 {
            let text = spec.annotations.get(&format!("io.kubernetes.cri.sandbox-{name}"));
            text.and_then(|text| text.parse().ok()).unwrap_or(0)
        };
        let network = spec.linux.namespaces.iter().find(|namespace| namespace.kind == "network");
        let (quota, period) = (annotation("cpu-quota"), annotation("cpu-period"));
        Self {
            namespace: namespace.to_owned(),
            id: id.to_owned(),
            network: network.map(|namespace| namespace.path.clone().into()).filter(|path: &PathBuf| path != ""),
            memory: annotation("memory"),
            cpu_millis: quota.saturating_mul(1000).checked_div(period).unwrap_or(0),
        }
    }
}

/// A machine that runs, and the two directions of the link to its agent. The end of the first is the machine's.
pub struct Booted {
    pub from: Box<dyn Read + Send>,
    pub to: Box<dyn Write + Send>,
    /// A process of the host that stands for it.
    pub pid: u32,
    /// What the agent is to set up; none where the machine is in the pod's network already.
    pub network: Option<Network>,
}

/// A kind of machine. One value of it is one machine. Its functions may take their time: they are called where they hold
/// up nobody else.
pub trait Machine: Send + Sync + 'static {
    /// What containerd knows the runtime by.
    const RUNTIME: &'static str;

    fn new() -> Self;

    /// Starts it. Called once.
    fn boot(&self, pod: &Pod) -> Result<Booted, MachineError>;

    /// Makes a container's root file system available in the machine.
    fn attach_root(&self, container: &str, mounts: &[RootMount]) -> Result<Root, MachineError>;

    /// The container is gone: its root file system is not needed any more.
    fn detach_root(&self, container: &str);

    /// Lets the machine's clients use a zone, whose directory on the host this is. What of the host is to be mounted
    /// for it is returned, out of what the container's specification had for it.
    fn attach_zone(&self, zone: &ZoneName, mounts: Vec<Mount>) -> Result<Vec<Mount>, MachineError>;

    /// Whether directories of the host can be mounted in it. No machine that is worth its name says yes.
    fn shows_host_paths(&self) -> bool {
        false
    }

    /// Ends it at once, if it runs.
    fn kill(&self);

    /// Removes what a machine of this name, in this namespace of containerd, has left behind whose shim is gone.
    fn clean_up(namespace: &str, id: &str);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pods_size_is_what_its_sandbox_is_annotated_with() {
        let json = r#"{"annotations": {"io.kubernetes.cri.sandbox-memory": "268435456",
            "io.kubernetes.cri.sandbox-cpu-quota": "150000", "io.kubernetes.cri.sandbox-cpu-period": "100000"},
            "linux": {"namespaces": [{"type": "network", "path": "/var/run/netns/a"}]}}"#;
        let pod = Pod::of("k8s.io", "s", &serde_json::from_str(json).unwrap());
        assert_eq!((pod.namespace.as_str(), pod.id.as_str()), ("k8s.io", "s"));
        assert_eq!((pod.memory, pod.cpu_millis), (256 << 20, 1500));
        assert_eq!(pod.network, Some(PathBuf::from("/var/run/netns/a")));
    }
}
