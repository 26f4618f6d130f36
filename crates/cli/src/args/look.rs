//! Commands that only inspect.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};

use super::AdminArgs;
use proxy::args::BackendArgs;

#[derive(Debug, Args)]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    pub admin: AdminArgs,
}

const TOP_EXAMPLES: &str = "\
Examples:
  bulkhead top
  bulkhead top --once --json | jq '.zones[] | {name, used}'

Press ? for the keys, q to quit. NO_COLOR=1 in the environment disables colours. Rates are averages over the last interval; --once waits for one interval.";

#[derive(Debug, Args)]
#[command(after_help = TOP_EXAMPLES)]
pub(crate) struct TopArgs {
    #[command(flatten)]
    pub admin: AdminArgs,
    /// Print once and exit (default if standard output is not a terminal)
    #[arg(long)]
    pub once: bool,
    /// Refresh interval
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = parse_interval)]
    pub interval: Duration,
}

fn parse_interval(text: &str) -> Result<Duration, String> {
    let interval = control::duration::parse(text).map_err(|error| error.to_string())?;
    let usable = Duration::from_millis(100)..=Duration::from_secs(3600);
    usable
        .contains(&interval)
        .then_some(interval)
        .ok_or_else(|| "expected a duration between 100ms and 1h".to_owned())
}

const TOPOLOGY_EXAMPLES: &str = "\
Examples:
  bulkhead topology
  bulkhead topology --json | jq '.gpus[] | {index, name, uuid}'
  bulkhead topology --backend soft --soft-devices 4

In a container with a zone, shows the GPUs that the zone's clients see.";

#[derive(Debug, Args)]
#[command(after_help = TOPOLOGY_EXAMPLES)]
pub(crate) struct TopologyArgs {
    #[command(flatten)]
    pub backend: BackendArgs,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

const DOCTOR_EXAMPLES: &str = "\
Examples:
  Check a node, or a container that should have a GPU and has none:
      bulkhead doctor
  Find out which libcuda.so.1 a program loads:
      bulkhead doctor --no-self-test --program ./train
  Collect what a bug report needs (look at it before you send it):
      bulkhead doctor --bundle support.tar.gz

Changes nothing. The self-test runs a small CUDA program in the zone of this process, else in a zone of the running \
proxy, else in a zone of a temporary proxy. Exits with status 1 if there are errors.";

#[derive(Debug, Args)]
#[command(after_help = DOCTOR_EXAMPLES)]
pub(crate) struct DoctorArgs {
    #[command(flatten)]
    pub admin: AdminArgs,
    #[command(flatten)]
    pub backend: BackendArgs,
    /// Program to check: includes its RPATH and RUNPATH in the library search
    #[arg(long, value_name = "FILE")]
    pub program: Option<PathBuf>,
    /// Also write a support bundle for a bug report (.tar.gz): versions, configuration, logs, state and metrics
    #[arg(long, value_name = "FILE")]
    pub bundle: Option<PathBuf>,
    /// Skip the self-test, which starts a CUDA program
    #[arg(long)]
    pub no_self_test: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "Example:\n  bulkhead bench idm --json")]
pub(crate) struct BenchArgs {
    /// What to measure
    #[arg(value_enum)]
    pub what: BenchKind,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum BenchKind {
    /// Latency and throughput of shared memory messages, compared with a Unix socket
    Idm,
    /// Latency from `ipc publish` to the return of `ipc wait`
    #[value(alias = "meet")]
    Rendezvous,
    #[value(hide = true)]
    IdmPeer,
}
