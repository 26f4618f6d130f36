//! Verbs that only look.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::AdminArgs;
use proxy::args::BackendArgs;

#[derive(Debug, Args)]
pub struct StatusArgs {
    #[command(flatten)]
    pub admin: AdminArgs,
}

const TOP_EXAMPLES: &str = "\
Examples:
  bulkhead top
  bulkhead top --once --json | jq '.zones[] | {name, used}'

Keys: q ends. Rates are of the last interval; with --once, of the interval that it waits for.";

#[derive(Debug, Args)]
#[command(after_help = TOP_EXAMPLES)]
pub struct TopArgs {
    #[command(flatten)]
    pub admin: AdminArgs,
    /// Print it once and end (always, where the output is no terminal)
    #[arg(long)]
    pub once: bool,
    /// Seconds between two looks
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0, value_parser = parse_interval)]
    pub interval: f64,
}

fn parse_interval(text: &str) -> Result<f64, String> {
    let seconds = text.parse::<f64>().ok().filter(|seconds| (0.1..=3600.0).contains(seconds));
    seconds.ok_or_else(|| "it is a number of seconds from 0.1 to 3600".to_owned())
}

const TOPOLOGY_EXAMPLES: &str = "\
Examples:
  bulkhead topology
  bulkhead topology --json | jq '.gpus[] | {index, name, uuid}'
  bulkhead topology --backend soft --soft-devices 4

In a container that is in a zone it shows what programs there see.";

#[derive(Debug, Args)]
#[command(after_help = TOPOLOGY_EXAMPLES)]
pub struct TopologyArgs {
    #[command(flatten)]
    pub backend: BackendArgs,
    /// Print it as JSON
    #[arg(long)]
    pub json: bool,
}

const DOCTOR_EXAMPLES: &str = "\
Examples:
  On a node, or in a container that has no GPU where it should have one:
      bulkhead doctor
  Which libcuda.so.1 does this program load?
      bulkhead doctor --no-self-test --program ./train

It changes nothing. The self-test runs a small CUDA program in the zone that this process is in, else in a zone of the
running proxy, else in one of a proxy of its own. The exit status is 1 if there are errors.";

#[derive(Debug, Args)]
#[command(after_help = DOCTOR_EXAMPLES)]
pub struct DoctorArgs {
    #[command(flatten)]
    pub admin: AdminArgs,
    #[command(flatten)]
    pub backend: BackendArgs,
    /// The program that fails: its own search path for libraries counts
    #[arg(long, value_name = "FILE")]
    pub program: Option<PathBuf>,
    /// Only look, and start no CUDA program
    #[arg(long)]
    pub no_self_test: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "Example:\n  bulkhead bench idm --json")]
pub struct BenchArgs {
    /// What to measure
    #[arg(value_enum)]
    pub what: BenchKind,
    /// Print it as JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum BenchKind {
    /// Messages over shared memory, beside the same over a Unix socket
    Idm,
    /// From `ipc publish` to the wake of who waits
    Meet,
    #[value(hide = true)]
    IdmPeer,
}
