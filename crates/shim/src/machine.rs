//! What a pod runs in. The shim does the same for every kind of machine; only this differs.

use agent::oci::{Mount, Spec};
use agent::protocol::{Root, RootMount};
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
    pub(crate) fn of(id: &str, spec: &Spec) -> Self {
        let annotation = |name: &str| -> u64 {
            let text = spec.annotations.get(&format!("io.kubernetes.cri.sandbox-{name}"));
            text.and_then(|text| text.parse().ok()).unwrap_or(0)
        };
        let network = spec.linux.namespaces.iter().find(|namespace| namespace.kind == "network");
        let (quota, period) = (annotation("cpu-quota"), annotation("cpu-period"));
        Self {
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
}

/// A kind of machine. One value of it is one machine.
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

    /// Removes what a machine of this name has left behind whose shim is gone.
    fn clean_up(id: &str);
}
