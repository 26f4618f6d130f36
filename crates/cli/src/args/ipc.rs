//! `bulkhead ipc`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use control::ZoneName;

const IPC_EXAMPLES: &str = "\
Examples:
  A program prints the handle of its buffer; it is published until a consumer is done with it:
      ./producer | bulkhead ipc publish weights --handle - --bytes 4194304
  Elsewhere, in the same zone or in one that has a grant; the producer learns when ./consumer ends:
      bulkhead ipc wait weights --timeout 30 -- ./consumer
  By hand:
      handle=$(bulkhead ipc wait team-a/weights); ...; bulkhead ipc done team-a/weights

Programs do this themselves with bulkhead_ipc.h or the Python module `bulkhead`. A command that `wait` starts finds
BULKHEAD_IPC_HANDLE, _EVENT, _BYTES, _OFFSET, _ZONE and _NOTE in its environment.";

#[derive(Debug, Args)]
#[command(after_help = IPC_EXAMPLES)]
pub struct IpcArgs {
    /// The zone's socket (default: $BULKHEAD_SOCKET, else /run/bulkhead/zone/sock, in a Xen guest /run/bulkhead/zone/names)
    #[arg(long, value_name = "PATH", global = true)]
    pub zone_socket: Option<PathBuf>,
    /// Print it as JSON
    #[arg(long, global = true)]
    pub json: bool,
    #[command(subcommand)]
    pub action: IpcAction,
}

#[derive(Debug, Subcommand)]
pub enum IpcAction {
    /// Publish a buffer under a name, until consumers are done with it
    Publish(PublishArgs),
    /// Wait until a name is published
    Wait {
        /// NAME, or ZONE/NAME
        #[arg(value_parser = parse_qualified)]
        name: QualifiedName,
        /// Seconds to wait at most
        #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
        timeout: Option<f64>,
        /// A program to run with it; the publisher learns when it ends
        #[arg(trailing_var_arg = true, value_name = "CMD", allow_hyphen_values = true)]
        command: Vec<OsString>,
    },
    /// Show what is published and may be seen in this zone
    List,
    /// In a Xen guest that Bulkhead's own image did not boot: carry this guest's programs to the proxy
    Serve {
        /// Where to listen
        #[arg(long, value_name = "PATH", default_value = control::env_vars::NAMES_SOCKET)]
        path: PathBuf,
    },
    /// Say that what was waited for without a program is done with
    Done {
        /// NAME, or ZONE/NAME
        #[arg(value_parser = parse_qualified)]
        name: QualifiedName,
    },
}

#[derive(Debug, Args)]
pub struct PublishArgs {
    /// The name: letters, digits, '-', '_' and '.'
    #[arg(value_parser = parse_public_name)]
    pub name: ZoneName,
    /// Of cuIpcGetMemHandle, as 128 hexadecimal digits, or - for standard input (default: no memory, only the name)
    #[arg(long, value_name = "HEX")]
    pub handle: Option<String>,
    /// Of cuIpcGetEventHandle, likewise
    #[arg(long, value_name = "HEX")]
    pub event: Option<String>,
    /// Length of the buffer
    #[arg(long, value_name = "SIZE", value_parser = control::size::parse)]
    pub bytes: Option<u64>,
    /// Where in the memory it begins
    #[arg(long, value_name = "BYTES", default_value_t = 0)]
    pub offset: u64,
    /// Anything that consumers should know
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub note: String,
    /// How many consumers must be done with it
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub consumers: u64,
    /// Seconds after which it is withdrawn
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    pub timeout: Option<f64>,
}

/// A name, and the zone that it must come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QualifiedName {
    pub zone: Option<ZoneName>,
    pub name: ZoneName,
}

fn parse_qualified(text: &str) -> Result<QualifiedName, String> {
    let (zone, name) = match text.split_once('/') {
        Some((zone, name)) => (Some(zone.parse().map_err(|error| format!("{error}"))?), name),
        None => (None, text),
    };
    Ok(QualifiedName { zone, name: parse_public_name(name)? })
}

fn parse_public_name(text: &str) -> Result<ZoneName, String> {
    let wrong = |_| "a name is 1 to 63 letters, digits, '-', '_' or '.', beginning with a letter or digit".to_owned();
    text.parse().map_err(wrong)
}

fn parse_seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse::<f64>().ok().filter(|seconds| (0.0..=1e9).contains(seconds));
    seconds.ok_or_else(|| "it is a number of seconds".to_owned())
}
