//! The commands that serve kubelet, and the installer.

use std::path::PathBuf;

use bulkhead_kube::pod_resources::PodName;
use clap::{Args, ValueEnum};

use proxy::args::LogFormat;

/// Paths on a Kubernetes node, as the host sees them: they end up in CDI files.
#[derive(Debug, Args)]
pub(crate) struct NodeArgs {
    /// Configuration file (default: /etc/bulkhead/bulkhead.toml, if it exists)
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// State directory of the proxy
    #[arg(long, value_name = "PATH", default_value = "/run/bulkhead")]
    pub state_dir: PathBuf,
    /// Directory of the client libraries on the host (default: beside this program)
    #[arg(long, value_name = "PATH")]
    pub library_dir: Option<PathBuf>,
    /// Mount no nvidia-smi into containers (for hosts with a package of an earlier version, which has none)
    #[arg(long)]
    pub no_nvidia_smi: bool,
    /// Directory for CDI files
    #[arg(long, value_name = "PATH", default_value = bulkhead_kube::cdi::SPEC_DIR)]
    pub cdi_dir: PathBuf,
    /// Kubelet's pod-resources socket
    #[arg(long, value_name = "PATH", default_value = "/var/lib/kubelet/pod-resources/kubelet.sock")]
    pub pod_resources: PathBuf,
    /// Log format (default: text)
    #[arg(long, value_enum)]
    pub log_format: Option<LogFormat>,
    /// Check the one that runs in this container, and exit (for kubelet's probes)
    #[arg(long, value_enum, value_name = "STATE")]
    pub probe: Option<Probe>,
}

/// What a probe asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Probe {
    /// It answers
    Live,
    /// It is registered with kubelet and offers GPUs
    Ready,
}

const DEVICE_PLUGIN_EXAMPLES: &str = "\
Example of /etc/bulkhead/bulkhead.toml for pods that request `bulkhead.dev/gpu-10gb: 1`:
  [profiles.gpu-10gb]
  memory = \"10GiB\"
  share = 10

GPUs without a profile are offered to claims (`bulkhead dra`), or whole under the resource name that [kubernetes] \
whole_gpus sets. Changes to the file take effect without a restart; an invalid configuration is logged, and the \
previous one is kept. Needs access to the proxy's admin socket and to kubelet's directory, usually as root.";

#[derive(Debug, Args)]
#[command(after_help = DEVICE_PLUGIN_EXAMPLES)]
pub(crate) struct DevicePluginArgs {
    #[command(flatten)]
    pub node: NodeArgs,
    /// Directory of kubelet's device plugin sockets
    #[arg(long, value_name = "PATH", default_value = "/var/lib/kubelet/device-plugins")]
    pub kubelet_dir: PathBuf,
    /// Directory for checkpoints; must survive a reboot
    #[arg(long, value_name = "PATH", default_value = "/var/lib/bulkhead/device-plugin")]
    pub checkpoint_dir: PathBuf,
    /// Pod in which this runs: a kubelet that lists it knows its pods, and zones of others end
    #[arg(long, value_name = "NAMESPACE/NAME")]
    pub pod: Option<PodName>,
}

const DRA_EXAMPLES: &str = "\
A claim for 10 GiB and a quarter of a GPU's time (Kubernetes 1.36, or 1.34 with DRAConsumableCapacity):
  apiVersion: resource.k8s.io/v1
  kind: ResourceClaim
  metadata: {name: quarter}
  spec:
    devices:
      requests:
      - name: gpu
        exactly:
          deviceClassName: gpu.bulkhead.dev
          capacity: {requests: {memory: 10Gi, share: \"25\"}}

All pods that use a claim share its limits and may open each other's memory through CUDA IPC.";

#[derive(Debug, Args)]
#[command(after_help = DRA_EXAMPLES)]
pub(crate) struct DraArgs {
    #[command(flatten)]
    pub node: NodeArgs,
    /// Name of this node (default: $NODE_NAME)
    #[arg(long, value_name = "NAME")]
    pub node_name: Option<String>,
    /// Create events on pods for refusals, faults and the like; needs the right to get pods and to create events
    #[arg(long)]
    pub events: bool,
    /// Kubeconfig file (default: the pod's service account)
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Directory in which kubelet discovers plugins
    #[arg(long, value_name = "PATH", default_value = "/var/lib/kubelet/plugins_registry")]
    pub registry_dir: PathBuf,
    /// Directory of kubelet's container log links, whose names identify pods
    #[arg(long, value_name = "PATH", default_value = "/var/log/containers")]
    pub container_logs: PathBuf,
    /// Directory for the driver's socket
    #[arg(long, value_name = "PATH", default_value = "/var/lib/kubelet/plugins/gpu.bulkhead.dev")]
    pub plugin_dir: PathBuf,
    /// Directory for checkpoints; must survive a reboot
    #[arg(long, value_name = "PATH", default_value = "/var/lib/bulkhead/dra")]
    pub checkpoint_dir: PathBuf,
}

const INSTALL_EXAMPLES: &str = "\
Examples:
  In a container with the host's root at /host, as in the Helm chart:
      bulkhead install --host-root /host --config /etc/bulkhead/bulkhead.toml
      bulkhead install --host-root /host --remove

Installs the program and the client libraries under /opt/bulkhead, adds systemd units and starts them. Running GPU pods \
are not interrupted. A host with a Bulkhead package is left unchanged.";

#[derive(Debug, Args)]
#[command(after_help = INSTALL_EXAMPLES)]
pub(crate) struct InstallArgs {
    /// Root directory of the host
    #[arg(long, value_name = "PATH", default_value = "/")]
    pub host_root: PathBuf,
    /// Configuration file for the host's proxy
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Remove the installation
    #[arg(long)]
    pub remove: bool,
    /// With --remove: kubelet's directory on the host
    #[arg(long, value_name = "PATH", default_value = "/var/lib/kubelet")]
    pub kubelet_dir: PathBuf,
    /// With --remove: directory of checkpoints on the host
    #[arg(long, value_name = "PATH", default_value = "/var/lib/bulkhead")]
    pub checkpoint_dir: PathBuf,
    /// With --remove: directory for CDI files on the host
    #[arg(long, value_name = "PATH", default_value = "/var/run/cdi")]
    pub cdi_dir: PathBuf,
    /// Keep running until terminated (for DaemonSet pods)
    #[arg(long)]
    pub stay: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}
