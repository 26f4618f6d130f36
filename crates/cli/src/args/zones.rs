//! `bulkhead zones` and `bulkhead grants`.

use clap::{Args, Subcommand};
use control::ZoneName;
use control::zone::{MAX_HOST_CPU, MAX_PRIORITY, MAX_SHARE};

use super::AdminArgs;

const ZONES_EXAMPLES: &str = "\
Examples:
  bulkhead zones create team-a --memory 20GiB --share 50 --namespace research
  bulkhead zones set team-a --memory 10GiB
  bulkhead zones kill team-a

Programs that use more than a new limit keep what they have and get nothing more. A zone that stands in the
configuration file is set to what the file says when that is read again.";

#[derive(Debug, Args)]
#[command(after_help = ZONES_EXAMPLES)]
pub struct ZonesArgs {
    #[command(flatten)]
    pub admin: AdminArgs,
    #[command(subcommand)]
    pub action: ZonesAction,
}

#[derive(Debug, Subcommand)]
pub enum ZonesAction {
    /// Show all zones with their limits
    List,
    /// Make a zone; it stays until it is removed
    Create {
        name: ZoneName,
        #[command(flatten)]
        settings: SettingArgs,
        /// Owner of the zone's socket
        #[arg(long)]
        uid: Option<u32>,
        /// Group of the zone's socket
        #[arg(long)]
        gid: Option<u32>,
        /// Mode of the zone's socket (default: 0666)
        #[arg(long, value_parser = parse_mode)]
        mode: Option<u32>,
    },
    /// Change limits and labels, while programs run
    Set {
        name: ZoneName,
        #[command(flatten)]
        settings: SettingArgs,
    },
    /// End the workers of a zone: its programs' CUDA calls fail from then on
    Kill {
        name: ZoneName,
        /// End the programs, too
        #[arg(long)]
        programs: bool,
    },
    /// Remove a zone
    Remove {
        name: ZoneName,
        /// Also if it has programs, whose workers end with it
        #[arg(long)]
        force: bool,
    },
}

const GRANTS_EXAMPLES: &str = "\
Examples:
  What programs of zone `producer` export, those of zone `consumer` may open and read, for an hour:
      bulkhead grants allow producer consumer --expires 3600
  And no longer; the workers of those that have something open end:
      bulkhead grants revoke producer consumer

Programs of one zone share with each other without a grant. Memory that was allocated before the exporting zone had its
first grant, and shares its pages with other memory, stays in its zone.";

#[derive(Debug, Args)]
#[command(after_help = GRANTS_EXAMPLES)]
pub struct GrantsArgs {
    #[command(flatten)]
    pub admin: AdminArgs,
    #[command(subcommand)]
    pub action: GrantsAction,
}

#[derive(Debug, Subcommand)]
pub enum GrantsAction {
    /// Show all grants
    List,
    /// Let a zone open what another exports
    Allow {
        /// The zone that exports
        from: ZoneName,
        /// The zone that may open it
        to: ZoneName,
        /// It may also write
        #[arg(long)]
        read_write: bool,
        /// The grant ends by itself after so many seconds
        #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
        expires: Option<u64>,
    },
    /// End a grant, and the workers that have something open by it
    Revoke { from: ZoneName, to: ZoneName },
}

/// What can be said of a zone at any time.
#[derive(Debug, Default, Args)]
pub struct SettingArgs {
    /// GPU memory of all its processes, like 2GiB, or "unlimited"
    #[arg(long, value_name = "SIZE", value_parser = parse_limit)]
    pub memory: Option<Limit>,
    /// Host memory that they may pin for the GPU, or "unlimited"
    #[arg(long, value_name = "SIZE", value_parser = parse_limit)]
    pub pinned_memory: Option<Limit>,
    /// Weight of its GPU time against other zones
    #[arg(long, value_name = "WEIGHT", value_parser = clap::value_parser!(u32).range(1..=MAX_SHARE as i64))]
    pub share: Option<u32>,
    /// Most of the GPU's time that it gets, in percent, or "unlimited"
    #[arg(long, value_name = "PERCENT", value_parser = parse_cap)]
    pub cap: Option<Limit>,
    /// Zones of a higher priority come first
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=MAX_PRIORITY as i64))]
    pub priority: Option<u32>,
    /// Host memory of all its workers, or "unlimited"
    #[arg(long, value_name = "SIZE", value_parser = parse_limit)]
    pub host_memory: Option<Limit>,
    /// Processor time of all its workers, in percent of one processor, or "unlimited"
    #[arg(long, value_name = "PERCENT", value_parser = parse_host_cpu)]
    pub host_cpu: Option<Limit>,
    /// Label of its metrics
    #[arg(long)]
    pub pod: Option<String>,
    /// Label of its metrics
    #[arg(long)]
    pub namespace: Option<String>,
    /// Label of its metrics
    #[arg(long)]
    pub container: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    Unlimited,
    At(u64),
}

fn parse_limit(text: &str) -> Result<Limit, String> {
    match text {
        "unlimited" => Ok(Limit::Unlimited),
        _ => control::size::parse(text).map(Limit::At).map_err(|error| error.to_string()),
    }
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
        _ => Err(format!("a percentage from 1 to {most}, or unlimited")),
    }
}

fn parse_mode(text: &str) -> Result<u32, String> {
    let mode = u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o777);
    mode.ok_or_else(|| "a mode is written like 0660".to_owned())
}
