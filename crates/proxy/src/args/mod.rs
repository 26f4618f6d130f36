//! What `bulkhead proxy` and the daemons of a node are told on the command line.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use control::ZoneName;
use control::driver_filter::DriverFilter;
use control::zone::{MAX_SHARE, ZoneLimits};

mod backend;

pub use backend::*;

const PROXY_EXAMPLES: &str = "\
Examples:
  bulkhead proxy
  bulkhead proxy --config ./bulkhead.toml --check
  bulkhead proxy --zone team-a:memory=20GiB,share=50 --zone team-b:memory=40GiB
  bulkhead proxy --state-dir /tmp/b --backend soft --soft-memory 1GiB --zone test

Containers of a zone have <state-dir>/zones/<name> mounted, which no local user but root can enter. Local users of a zone \
with a uid or gid connect to <state-dir>/users/<name>/sock (BULKHEAD_SOCKET). SIGTERM stops the proxy; workers with \
clients keep running, and the next proxy with the same state directory takes them over. SIGHUP reloads the \
configuration; an invalid one is logged, and the previous one is kept. Options override the configuration file.";

#[derive(Debug, Args)]
#[command(after_help = PROXY_EXAMPLES)]
pub struct ProxyArgs {
    /// Configuration file (default: /etc/bulkhead/bulkhead.toml, if it exists)
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Validate the configuration and exit
    #[arg(long)]
    pub check: bool,
    /// With --check: print JSON
    #[arg(long, requires = "check")]
    pub json: bool,
    /// Directory for sockets and state (default: /run/bulkhead)
    #[arg(long, value_name = "PATH")]
    pub state_dir: Option<PathBuf>,
    #[command(flatten)]
    pub backend: BackendArgs,
    /// Create a zone with these limits; may be given more than once
    #[arg(long = "zone", value_name = "NAME[:memory=SIZE][,share=WEIGHT]", value_parser = parse_zone)]
    pub zones: Vec<(ZoneName, ZoneLimits)>,
    /// Number of idle workers kept ready for new clients (default: 1)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(0..=64))]
    pub spare_workers: Option<u16>,
    /// Maximum number of clients per zone (default: 128)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub max_clients: Option<u16>,
    /// Memory charged to the zone for each CUDA context, or 0 (default: 523MiB on NVIDIA, else 0)
    #[arg(long, value_name = "SIZE", value_parser = parse_size_or_none)]
    pub context_memory: Option<u64>,
    /// Time after which the GPU memory of an idle client is moved to host memory; 0 disables (default: 0)
    #[arg(long, value_name = "TIME", value_parser = parse_day)]
    pub suspend_idle: Option<u32>,
    /// Time after which work that does not end is ended while other zones wait; 0 disables (default: 60s)
    #[arg(long, value_name = "TIME", value_parser = parse_day)]
    pub watchdog: Option<u32>,
    /// Serve metrics and the status page at this address, or "off" (default: off)
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = parse_http)]
    pub http: Option<HttpArg>,
    /// Log format (default: text)
    #[arg(long, value_enum)]
    pub log_format: Option<LogFormat>,
    /// What to do if part of the jail is unavailable on this machine (default: require for root, else best-effort)
    #[arg(long, value_enum)]
    pub jail: Option<JailArg>,
    /// What stands between workers and NVIDIA's kernel driver: off, refuse or supervise (default: off)
    #[arg(long, value_name = "FILTER")]
    pub driver_filter: Option<DriverFilter>,
    /// First of 1028 user IDs if the proxy runs as root: one for each worker, then meter, broker, exporter and preemptor
    /// (default: 805306368)
    #[arg(long, value_name = "UID", value_parser = clap::value_parser!(u32).range(1000..=0x7000_0000))]
    pub worker_uids: Option<u32>,
    /// Standard input is a socket to the `run` that started this proxy; exit when it closes
    #[arg(long, hide = true)]
    pub private: bool,
    /// Where kernels that the software GPU has compiled are kept; only of a private proxy
    #[arg(long, hide = true, value_name = "PATH")]
    pub soft_cache: Option<PathBuf>,
    /// Where the sanitizer of the software GPU reports to; only of a private proxy
    #[arg(long, hide = true, value_name = "PATH")]
    pub soft_report: Option<PathBuf>,
    /// Socket of the spawner, where that is a service of its own
    #[arg(long, hide = true, value_name = "PATH")]
    pub spawner: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HttpArg {
    Off,
    At(SocketAddr),
}

fn parse_size_or_none(text: &str) -> Result<u64, String> {
    if text == "0" { Ok(0) } else { control::size::parse_amount(text).map_err(|error| error.to_string()) }
}

/// A duration of up to a day, in seconds.
fn parse_day(text: &str) -> Result<u32, String> {
    let seconds = control::duration::parse_seconds(text, 0, 86_400)?;
    u32::try_from(seconds).map_err(|error| error.to_string())
}

fn parse_http(text: &str) -> Result<HttpArg, String> {
    match text {
        "off" => Ok(HttpArg::Off),
        _ => {
            text.parse().map(HttpArg::At).map_err(|_| "expected an address such as 127.0.0.1:9470, or off".to_owned())
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// Human-readable text
    Text,
    /// One JSON object per line
    Json,
}

fn parse_zone(text: &str) -> Result<(ZoneName, ZoneLimits), String> {
    let (name, settings) = text.split_once(':').unwrap_or((text, ""));
    let name: ZoneName = name.parse().map_err(|error| format!("{error}"))?;
    let mut limits = ZoneLimits::default();
    for setting in settings.split(',').filter(|setting| !setting.is_empty()) {
        match setting.split_once('=') {
            Some(("memory", size)) => {
                limits.memory = Some(control::size::parse_amount(size).map_err(|error| error.to_string())?)
            }
            Some(("share", weight)) => {
                let weight = weight.parse().ok().filter(|weight| (1..=MAX_SHARE).contains(weight));
                limits.share = weight.ok_or_else(|| format!("share must be between 1 and {MAX_SHARE}"))?;
            }
            _ => return Err(format!("{setting:?} is neither memory=SIZE nor share=WEIGHT")),
        }
    }
    Ok((name, limits))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zones_on_the_command_line() {
        let (name, limits) = parse_zone("a:memory=2GiB,share=50").unwrap();
        assert_eq!((name.as_str(), limits.memory, limits.share), ("a", Some(2 << 30), 50));
        assert_eq!(parse_zone("b").unwrap().1, ZoneLimits::default());
        for bad in ["", "a/b", "a:memory=much", "a:share=0", "a:colour=red", "a:memory", ":memory=1G"] {
            assert!(parse_zone(bad).is_err(), "{bad}");
        }
    }
}
