//! `bulkhead cdi`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use control::ZoneName;

const CDI_EXAMPLES: &str = "\
Examples:
  Give a Podman or Docker container a zone, without Kubernetes:
      bulkhead zones create team-a --memory 10GiB
      bulkhead cdi generate --zone team-a --output /etc/cdi/team-a.yaml
      podman run --device bulkhead.dev/zone=team-a IMAGE python train.py

  Give containers physical GPUs, without Bulkhead:
      bulkhead cdi generate --mode nvidia --output /etc/cdi/nvidia.yaml";

#[derive(Debug, Args)]
#[command(after_help = CDI_EXAMPLES)]
pub(crate) struct CdiArgs {
    #[command(subcommand)]
    pub action: CdiAction,
}

#[derive(Debug, Subcommand)]
pub(crate) enum CdiAction {
    /// Generate a CDI specification for the proxy's zones or for physical GPUs
    Generate(Box<CdiGenerateArgs>),
    /// Validate CDI specifications and report conflicting devices
    Validate {
        /// Files to validate (default: all in the CDI directories)
        files: Vec<PathBuf>,
        #[command(flatten)]
        dirs: SpecDirs,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// List the devices that containers can request
    List {
        #[command(flatten)]
        dirs: SpecDirs,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

#[derive(Debug, Args)]
pub(crate) struct SpecDirs {
    /// CDI directory; may be given more than once, later ones take precedence
    #[arg(long = "spec-dir", value_name = "PATH", default_values = ["/etc/cdi", "/var/run/cdi"])]
    pub dirs: Vec<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct CdiGenerateArgs {
    /// What to give containers
    #[arg(long, value_enum, default_value_t = CdiMode::Zones)]
    pub mode: CdiMode,
    /// File to write (default: standard output)
    #[arg(long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Output format (default: from the file's extension, else yaml)
    #[arg(long, value_enum)]
    pub format: Option<CdiFormat>,
    /// Vendor of the devices (default: bulkhead.dev for zones, nvidia.com for GPUs)
    #[arg(long)]
    pub vendor: Option<String>,
    /// Class of the devices (default: zone, or gpu)
    #[arg(long)]
    pub class: Option<String>,
    /// Zones: include only these (default: all zones of the proxy)
    #[arg(long = "zone", value_name = "NAME")]
    pub zones: Vec<ZoneName>,
    /// Zones: the proxy's state directory
    #[arg(long, value_name = "PATH", default_value = "/run/bulkhead")]
    pub state_dir: PathBuf,
    /// Zones: admin socket of the proxy (default: in the state directory)
    #[arg(long, value_name = "PATH", env = control::env_vars::ADMIN_SOCKET, hide_env_values = true)]
    pub socket: Option<PathBuf>,
    /// Zones: directory of the client libraries libcuda.so.1 and libnvidia-ml.so.1 (default: beside this program)
    #[arg(long, value_name = "PATH")]
    pub library_dir: Option<PathBuf>,
    /// GPUs: how to name devices; may be given more than once (default: index and uuid)
    #[arg(long, value_enum, value_name = "STRATEGY")]
    pub device_name_strategy: Vec<NameStrategyArg>,
    /// GPUs: root of the driver installation
    #[arg(long, value_name = "PATH", default_value = "/")]
    pub driver_root: PathBuf,
    /// GPUs: root that contains /dev (default: the driver root)
    #[arg(long, value_name = "PATH")]
    pub dev_root: Option<PathBuf>,
    /// GPUs: omit the device "all"
    #[arg(long)]
    pub no_all_device: bool,
    /// GPUs: include only these, by index or UUID (MIG: `0:1` or MIG-...); may be given more than once
    #[arg(long = "device-id", value_name = "ID")]
    pub device_ids: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum CdiMode {
    /// The client libraries and a zone of the proxy
    Zones,
    /// The GPUs and NVIDIA's driver, like `nvidia-ctk cdi generate` but without hooks
    Nvidia,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum CdiFormat {
    Yaml,
    Json,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum NameStrategyArg {
    /// 0, or 0:1 for a MIG instance
    Index,
    /// GPU-4f6c..., or MIG-...
    Uuid,
    /// gpu0, or mig0:1
    TypeIndex,
}
