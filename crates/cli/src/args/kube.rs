//! What serves kubelet, and the installer.

use std::path::PathBuf;

use clap::Args;

use super::proxy::LogFormat;

/// Where things are on a Kubernetes node, as the host names them: paths in what container runtimes are told.
#[derive(Debug, Args)]
pub struct NodeArgs {
    /// Configuration file (default: /etc/bulkhead/bulkhead.toml, if it is there)
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// The proxy's state directory
    #[arg(long, value_name = "PATH", default_value = "/run/bulkhead")]
    pub state_dir: PathBuf,
    /// The host's directory with libcuda.so.1 and libnvidia-ml.so.1 of ours (default: beside the program)
    #[arg(long, value_name = "PATH")]
    pub library_dir: Option<PathBuf>,
    /// The directory that container runtimes read CDI files from
    #[arg(long, value_name = "PATH", default_value = bulkhead_kube::cdi::SPEC_DIR)]
    pub cdi_dir: PathBuf,
    /// Kubelet's socket that tells which container has which device
    #[arg(long, value_name = "PATH", default_value = "/var/lib/kubelet/pod-resources/kubelet.sock")]
    pub pod_resources: PathBuf,
    /// How logs are written (default: text)
    #[arg(long, value_enum)]
    pub log_format: Option<LogFormat>,
}

const DEVICE_PLUGIN_EXAMPLES: &str = "\
Example of /etc/bulkhead/bulkhead.toml, for pods that ask for `bulkhead.dev/gpu-10gb: 1`:
  [profiles.gpu-10gb]
  memory = \"10GiB\"
  share = 10

GPUs without profiles are left to claims (`bulkhead dra`), or are offered whole under the name that [kubernetes]
whole_gpus gives. A change of the file counts at once; one that is wrong is named, and what was in force stays so. Runs as root, or as whoever may use the proxy's admin socket and kubelet's directory.";

#[derive(Debug, Args)]
#[command(after_help = DEVICE_PLUGIN_EXAMPLES)]
pub struct DevicePluginArgs {
    #[command(flatten)]
    pub node: NodeArgs,
    /// Directory of kubelet's and the plugins' sockets
    #[arg(long, value_name = "PATH", default_value = "/var/lib/kubelet/device-plugins")]
    pub kubelet_dir: PathBuf,
    /// Directory for checkpoints, which must outlive a reboot
    #[arg(long, value_name = "PATH", default_value = "/var/lib/bulkhead/device-plugin")]
    pub checkpoint_dir: PathBuf,
}

const DRA_EXAMPLES: &str = "\
A claim for 10 GiB and a quarter of a GPU's time, for Kubernetes 1.36, or 1.34 with DRAConsumableCapacity:
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

All pods of a claim draw on what it was given, and may open each other's memory by CUDA IPC.";

#[derive(Debug, Args)]
#[command(after_help = DRA_EXAMPLES)]
pub struct DraArgs {
    #[command(flatten)]
    pub node: NodeArgs,
    /// This node's name in Kubernetes (default: $NODE_NAME)
    #[arg(long, value_name = "NAME")]
    pub node_name: Option<String>,
    /// How to reach the API server (default: as a pod does)
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Directory in which kubelet looks for drivers
    #[arg(long, value_name = "PATH", default_value = "/var/lib/kubelet/plugins_registry")]
    pub registry_dir: PathBuf,
    /// Directory with kubelet's links to containers' logs, whose names tell whose a container is
    #[arg(long, value_name = "PATH", default_value = "/var/log/containers")]
    pub container_logs: PathBuf,
    /// Directory for the driver's own socket
    #[arg(long, value_name = "PATH", default_value = "/var/lib/kubelet/plugins/gpu.bulkhead.dev")]
    pub plugin_dir: PathBuf,
    /// Directory for checkpoints, which must outlive a reboot
    #[arg(long, value_name = "PATH", default_value = "/var/lib/bulkhead/dra")]
    pub checkpoint_dir: PathBuf,
}

const INSTALL_EXAMPLES: &str = "\
Examples:
  In a container that has the host's root at /host (the Helm chart does this):
      bulkhead install --host-root /host --config /etc/bulkhead/bulkhead.toml
      bulkhead install --host-root /host --remove

Puts the program and its libraries under /opt/bulkhead and a unit for systemd in its place, and has it started. GPU pods
that run go on. A host that has a package of Bulkhead is left alone.";

#[derive(Debug, Args)]
#[command(after_help = INSTALL_EXAMPLES)]
pub struct InstallArgs {
    /// Where the host's root is
    #[arg(long, value_name = "PATH", default_value = "/")]
    pub host_root: PathBuf,
    /// Configuration file for the host's proxy
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Take everything away again
    #[arg(long)]
    pub remove: bool,
    /// With --remove: kubelet's directory on the host, in which the device plugin and the DRA driver have their sockets
    #[arg(long, value_name = "PATH", default_value = "/var/lib/kubelet")]
    pub kubelet_dir: PathBuf,
    /// With --remove: the checkpoints of both on the host
    #[arg(long, value_name = "PATH", default_value = "/var/lib/bulkhead")]
    pub checkpoint_dir: PathBuf,
    /// With --remove: the directory on the host for CDI files
    #[arg(long, value_name = "PATH", default_value = "/var/run/cdi")]
    pub cdi_dir: PathBuf,
    /// Once done, wait to be told to end, as the pod of a DaemonSet must
    #[arg(long)]
    pub stay: bool,
}
