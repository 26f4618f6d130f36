//! Internal commands, started by Bulkhead itself.

use std::path::PathBuf;

use clap::Args;
use control::driver_filter::DriverFilter;

use proxy::args::{BackendArgs, JailArg};

#[derive(Debug, clap::Args)]
pub(crate) struct MoverArgs {
    /// NVIDIA's libcuda.so.1; without it there is nothing to move
    #[arg(long)]
    pub library: Option<PathBuf>,
    #[arg(value_enum)]
    pub which: Direction,
    pub pid: i32,
    /// Start time of the process, in clock ticks since boot
    pub start_time: u64,
    /// User ID of the process
    pub uid: u32,
}

#[derive(Debug, Args)]
pub(crate) struct PreemptionTestArgs {
    #[command(flatten)]
    pub backend: BackendArgs,
    #[arg(long = "device")]
    pub devices: Vec<u32>,
    /// Run a kernel until the page at standard input says otherwise
    #[arg(long)]
    pub spin: bool,
    /// Blocks of each kernel
    #[arg(long, default_value_t = 1)]
    pub blocks: u32,
    /// Threads of each block
    #[arg(long, default_value_t = 1)]
    pub threads: u32,
    /// Number of times to stop and resume
    #[arg(long, default_value_t = 1)]
    pub repeat: u32,
}

#[derive(Debug, Args)]
pub(crate) struct DriverCallsArgs {
    /// Records of workers
    #[arg(required = true)]
    pub files: Vec<PathBuf>,
    /// Driver version whose filter the table shows
    #[arg(long, default_value = "580.0")]
    pub driver: String,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
pub(crate) enum Direction {
    Out,
    Back,
}

#[derive(Debug, Args)]
pub(crate) struct WorkerArgs {
    #[command(flatten)]
    pub backend: BackendArgs,
    #[arg(long = "device")]
    pub devices: Vec<u32>,
    #[arg(long)]
    pub rejoin: Option<PathBuf>,
    #[arg(long, value_enum)]
    pub jail: JailArg,
    #[arg(long)]
    pub jail_root: PathBuf,
    #[arg(long)]
    pub jail_uid: Option<u32>,
    #[arg(long)]
    pub without_pid_namespace: bool,
    /// The broker takes named descriptors over; send none
    #[arg(long)]
    pub names_descriptors: bool,
    #[arg(long)]
    pub fresh: bool,
    /// What stands between it and NVIDIA's kernel driver
    #[arg(long, default_value = "off")]
    pub driver_filter: DriverFilter,
    /// Refuse to start if GPU kernels can access pageable host memory (HMM)
    #[arg(long)]
    pub refuse_hmm: bool,
    /// Cache file for compiled kernels
    #[arg(long)]
    pub soft_cache: Option<PathBuf>,
    /// File for what the sanitizer finds
    #[arg(long)]
    pub soft_report: Option<PathBuf>,
    /// Report the GPUs and exit
    #[arg(long)]
    pub inventory: bool,
}
