//! `bulkhead zones` and `bulkhead grants`.

use clap::{Args, Subcommand};
use control::ZoneName;
use control::spawner::SLOTS;
use control::zone::{MAX_GRAPH_NODES, MAX_HOST_CPU, MAX_HOST_PROCESSES, MAX_PRIORITY, MAX_SHARE, MIN_HOST_PROCESSES};

use super::AdminArgs;

const ZONES_EXAMPLES: &str = "\
Examples:
  bulkhead zones create team-a --memory 20GiB --share 50 --namespace research
  bulkhead zones set team-a --memory 10GiB
  bulkhead zones set team-a --gpu 1 --memory 40GiB --priority 5
  bulkhead zones kill team-a

`create` prints the path of the zone's socket, for BULKHEAD_SOCKET. Only root can use a zone without --uid and --gid by its \
path; containers use it by mounting <state-dir>/zones/<name>.

Clients that use more than a new limit keep their memory but cannot allocate more. Reloading the configuration resets a \
zone that is in the configuration file to what the file says.";

#[derive(Debug, Args)]
#[command(after_help = ZONES_EXAMPLES)]
pub(crate) struct ZonesArgs {
    #[command(flatten)]
    pub admin: AdminArgs,
    #[command(subcommand)]
    pub action: ZonesAction,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ZonesAction {
    /// List zones and their limits
    List,
    /// Create a zone; it exists until it is removed
    Create {
        /// Name of the zone
        name: ZoneName,
        #[command(flatten)]
        settings: SettingArgs,
        /// GPUs that the zone has, by the numbers of their device nodes (default: all)
        #[arg(long, value_name = "N,...", value_delimiter = ',')]
        gpus: Vec<u32>,
        /// Local user that may enter the zone; owner of its sockets
        #[arg(long)]
        uid: Option<u32>,
        /// Local group that may enter the zone; group of its sockets
        #[arg(long)]
        gid: Option<u32>,
        /// Mode of the zone's socket in containers (default: 0666)
        #[arg(long, value_parser = parse_mode)]
        mode: Option<u32>,
    },
    /// Change the limits and labels of a zone; clients keep running
    Set {
        /// Name of the zone
        name: ZoneName,
        #[command(flatten)]
        settings: SettingArgs,
    },
    /// End the workers of a zone: CUDA calls of its clients fail from then on
    Kill {
        /// Name of the zone
        name: ZoneName,
        /// Kill the clients, too
        #[arg(long, alias = "programs")]
        clients: bool,
    },
    /// Stop the work of a zone on the GPU, even in the middle of kernels
    Freeze {
        /// Name of the zone
        name: ZoneName,
    },
    /// Resume the work of a frozen zone
    Thaw {
        /// Name of the zone
        name: ZoneName,
    },
    /// Move the GPU memory of a zone's clients to host memory, until they continue
    Suspend {
        /// Name of the zone
        name: ZoneName,
        /// Keep them suspended until `resume`
        #[arg(long)]
        hold: bool,
    },
    /// Move the GPU memory of a suspended zone back to the GPU
    Resume {
        /// Name of the zone
        name: ZoneName,
    },
    /// Remove a zone
    Remove {
        /// Name of the zone
        name: ZoneName,
        /// Remove it even if it has clients; their workers end
        #[arg(long)]
        force: bool,
    },
}

const GRANTS_EXAMPLES: &str = "\
Examples:
  Let clients of zone `consumer` open and read what zone `producer` exports, for an hour:
      bulkhead grants allow producer consumer --expires 1h
  Revoke it; workers that have such memory open end:
      bulkhead grants revoke producer consumer

Clients of one zone share memory without a grant. Memory that was allocated before the exporting zone had its first \
grant, and that shares pages with other allocations, cannot be opened from other zones.";

#[derive(Debug, Args)]
#[command(after_help = GRANTS_EXAMPLES)]
pub(crate) struct GrantsArgs {
    #[command(flatten)]
    pub admin: AdminArgs,
    #[command(subcommand)]
    pub action: GrantsAction,
}

#[derive(Debug, Subcommand)]
pub(crate) enum GrantsAction {
    /// List grants
    List,
    /// Allow a zone to open what another zone exports
    Allow {
        /// Exporting zone
        from: ZoneName,
        /// Zone that may open it
        to: ZoneName,
        /// Allow writing, too
        #[arg(long)]
        read_write: bool,
        /// Time until the grant expires, such as 1h (default: never)
        #[arg(long, value_name = "TIME", value_parser = parse_expiry)]
        expires: Option<u64>,
    },
    /// Revoke a grant, and end the workers that have memory open through it
    Revoke {
        /// Exporting zone
        from: ZoneName,
        /// Zone that may open it
        to: ZoneName,
    },
}

/// The settings of a zone that can change at any time.
#[derive(Debug, Default, Args)]
pub(crate) struct SettingArgs {
    /// GPU memory of all clients together on each GPU, such as 2GiB, or "unlimited"
    #[arg(long, value_name = "SIZE", value_parser = parse_limit)]
    pub memory: Option<Limit>,
    /// Apply --memory, --share, --cap and --priority to this GPU only
    #[arg(long, value_name = "N")]
    pub gpu: Option<u32>,
    /// Pinned host memory of all clients together, or "unlimited"
    #[arg(long, value_name = "SIZE", value_parser = parse_limit)]
    pub pinned_memory: Option<Limit>,
    /// Weight of the zone's time on each GPU relative to other zones
    #[arg(long, value_name = "WEIGHT", value_parser = clap::value_parser!(u32).range(1..=MAX_SHARE as i64))]
    pub share: Option<u32>,
    /// Maximum share of each GPU's time in percent, or "unlimited"
    #[arg(long, value_name = "PERCENT", value_parser = parse_cap)]
    pub cap: Option<Limit>,
    /// Scheduling priority; zones with a higher one run first
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=MAX_PRIORITY as i64))]
    pub priority: Option<u32>,
    /// Host memory of all workers together, or "unlimited"
    #[arg(long, value_name = "SIZE", value_parser = parse_limit)]
    pub host_memory: Option<Limit>,
    /// CPU time of all workers together in percent of one CPU, or "unlimited"
    #[arg(long, value_name = "PERCENT", value_parser = parse_host_cpu)]
    pub host_cpu: Option<Limit>,
    /// Processes and threads of all workers together, or "unlimited"
    #[arg(long, value_name = "N", value_parser = parse_host_processes)]
    pub host_processes: Option<Limit>,
    /// Maximum number of CUDA graph nodes per client, including captures, or "unlimited"
    #[arg(long, value_name = "N", value_parser = parse_graph_nodes)]
    pub graph_nodes: Option<Limit>,
    /// Host memory for the zone's suspended clients, or 0, or "unlimited" for the node's
    #[arg(long, value_name = "SIZE", value_parser = parse_limit_or_none)]
    pub suspend_memory: Option<Limit>,
    /// Number of clients guaranteed to the zone, whatever other zones do
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=SLOTS as i64))]
    pub workers: Option<u32>,
    /// Pod label in metrics
    #[arg(long)]
    pub pod: Option<String>,
    /// Namespace label in metrics
    #[arg(long)]
    pub namespace: Option<String>,
    /// Container label in metrics
    #[arg(long)]
    pub container: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Limit {
    Unlimited,
    At(u64),
}

fn parse_limit(text: &str) -> Result<Limit, String> {
    match text {
        "unlimited" => Ok(Limit::Unlimited),
        _ => control::size::parse_amount(text).map(Limit::At).map_err(|error| error.to_string()),
    }
}

fn parse_limit_or_none(text: &str) -> Result<Limit, String> {
    if text == "0" { Ok(Limit::At(0)) } else { parse_limit(text) }
}

fn parse_cap(text: &str) -> Result<Limit, String> {
    parse_percent(text, 100)
}

fn parse_host_cpu(text: &str) -> Result<Limit, String> {
    parse_percent(text, MAX_HOST_CPU)
}

fn parse_percent(text: &str, most: u32) -> Result<Limit, String> {
    let percent = text.parse().ok().filter(|percent| (1..=u64::from(most)).contains(percent));
    match (text, percent) {
        ("unlimited", _) => Ok(Limit::Unlimited),
        (_, Some(percent)) => Ok(Limit::At(percent)),
        _ => Err(format!("expected a percentage between 1 and {most}, or unlimited")),
    }
}

fn parse_graph_nodes(text: &str) -> Result<Limit, String> {
    parse_count(text, 1, MAX_GRAPH_NODES)
}

fn parse_host_processes(text: &str) -> Result<Limit, String> {
    parse_count(text, MIN_HOST_PROCESSES, MAX_HOST_PROCESSES)
}

fn parse_count(text: &str, least: u64, most: u64) -> Result<Limit, String> {
    let count = text.parse().ok().filter(|count| (least..=most).contains(count));
    match (text, count) {
        ("unlimited", _) => Ok(Limit::Unlimited),
        (_, Some(count)) => Ok(Limit::At(count)),
        _ => Err(format!("expected a number between {least} and {most}, or unlimited")),
    }
}

fn parse_expiry(text: &str) -> Result<u64, String> {
    control::duration::parse_seconds(text, 1, u64::MAX)
}

fn parse_mode(text: &str) -> Result<u32, String> {
    let mode = u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o777);
    mode.ok_or_else(|| "expected an octal mode such as 0660".to_owned())
}
