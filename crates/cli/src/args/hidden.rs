//! Internal commands, started by Bulkhead itself.

use std::path::PathBuf;

use clap::Args;

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
    /// Refuse to start if GPU kernels can access pageable host memory (HMM)
    #[arg(long)]
    pub refuse_hmm: bool,
    /// Cache file for compiled kernels
    #[arg(long)]
    pub soft_cache: Option<PathBuf>,
    /// Report the GPUs and exit
    #[arg(long)]
    pub inventory: bool,
}
