//! Verbs that Bulkhead itself calls.

use std::path::PathBuf;

use clap::Args;

use proxy::args::{BackendArgs, JailArg};

#[derive(Debug, clap::Args)]
pub struct MoverArgs {
    /// NVIDIA's libcuda.so.1; without it there is nothing to move
    #[arg(long)]
    pub library: Option<PathBuf>,
    #[arg(value_enum)]
    pub which: Direction,
    pub pid: i32,
    /// When the process was started, in clock ticks since boot
    pub start_time: u64,
    /// The user that it runs as
    pub uid: u32,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
pub enum Direction {
    Out,
    Back,
}

#[derive(Debug, Args)]
pub struct WorkerArgs {
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
    /// The broker takes descriptors that it is told of; send none
    #[arg(long)]
    pub names_descriptors: bool,
    #[arg(long)]
    pub fresh: bool,
    /// Do not start where kernels reach their process's memory
    #[arg(long)]
    pub refuse_hmm: bool,
    /// File in which compiled kernels are kept
    #[arg(long)]
    pub soft_cache: Option<PathBuf>,
    /// Tell what the cards look like, and end
    #[arg(long)]
    pub inventory: bool,
}
