//! `bulkhead cdi`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use proxy::control::ZoneName;

const CDI_EXAMPLES: &str = "\
Examples:
  A zone for a container of Podman or Docker, without Kubernetes:
      bulkhead zones create team-a --memory 10GiB
      bulkhead cdi generate --zone team-a --output /etc/cdi/team-a.yaml
      podman run --device bulkhead.dev/zone=team-a IMAGE python train.py

  The GPUs themselves, for containers that need them whole and without Bulkhead:
      bulkhead cdi generate --mode nvidia --output /etc/cdi/nvidia.yaml";

#[derive(Debug, Args)]
#[command(after_help = CDI_EXAMPLES)]
pub struct CdiArgs {
    #[command(subcommand)]
    pub action: CdiAction,
}

#[derive(Debug, Subcommand)]
pub enum CdiAction {
    /// Write a CDI file for zones of the proxy, or for physical GPUs
    Generate(CdiGenerateArgs),
    /// Say what is wrong with CDI files, and which of them overlap
    Validate {
        /// The files (default: those of the directories)
        files: Vec<PathBuf>,
        #[command(flatten)]
        dirs: SpecDirs,
    },
    /// List the devices that containers can ask for
    List {
        #[command(flatten)]
        dirs: SpecDirs,
    },
}

#[derive(Debug, Args)]
pub struct SpecDirs {
    /// A directory that runtimes read; later ones go before earlier ones
    #[arg(long = "spec-dir", value_name = "PATH", default_values = ["/etc/cdi", "/var/run/cdi"])]
    pub dirs: Vec<PathBuf>,
}

#[derive(Debug, Args)]
pub struct CdiGenerateArgs {
    /// What containers shall get
    #[arg(long, value_enum, default_value_t = CdiMode::Zones)]
    pub mode: CdiMode,
    /// File to write (default: standard output)
    #[arg(long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Format of the file (default: as its name ends, else yaml)
    #[arg(long, value_enum)]
    pub format: Option<CdiFormat>,
    /// Vendor of the devices (default: bulkhead.dev for zones, nvidia.com for GPUs)
    #[arg(long)]
    pub vendor: Option<String>,
    /// Class of the devices (default: zone, or gpu)
    #[arg(long)]
    pub class: Option<String>,
    /// Zones: only these (default: all that the proxy has)
    #[arg(long = "zone", value_name = "NAME")]
    pub zones: Vec<ZoneName>,
    /// Zones: the proxy's state directory
    #[arg(long, value_name = "PATH", default_value = "/run/bulkhead")]
    pub state_dir: PathBuf,
    /// Zones: the directory with libcuda.so.1 and libnvidia-ml.so.1 of ours (default: beside the program)
    #[arg(long, value_name = "PATH")]
    pub library_dir: Option<PathBuf>,
    /// GPUs: how they are named; may be given several times (default: index and uuid)
    #[arg(long, value_enum)]
    pub device_name_strategy: Vec<NameStrategyArg>,
    /// GPUs: where the driver's files are
    #[arg(long, value_name = "PATH", default_value = "/")]
    pub driver_root: PathBuf,
    /// GPUs: where /dev is (default: the driver's root)
    #[arg(long, value_name = "PATH")]
    pub dev_root: Option<PathBuf>,
    /// GPUs: no device \"all\"
    #[arg(long)]
    pub no_all_device: bool,
    /// GPUs: only these, by index or UUID (a MIG slice: `0:1`, or MIG-...); may be given several times
    #[arg(long = "device-id", value_name = "ID")]
    pub device_ids: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum CdiMode {
    /// Our libraries and a zone of the proxy
    Zones,
    /// The GPUs and NVIDIA's driver, as `nvidia-ctk cdi generate` does, without hooks
    Nvidia,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum CdiFormat {
    Yaml,
    Json,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum NameStrategyArg {
    /// 0, or 0:1 for a MIG slice
    Index,
    /// GPU-4f6c..., or MIG-...
    Uuid,
    /// gpu0, or mig0:1
    TypeIndex,
}
