//! `bulkhead ipc`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use control::ZoneName;

const IPC_EXAMPLES: &str = "\
Examples:
  Publish a buffer whose handle a program prints, until a consumer is done with it:
      ./producer | bulkhead ipc publish weights --handle - --bytes 4194304
  Wait for it in the same zone or in one that has a grant; the producer is told when ./consumer exits:
      bulkhead ipc wait weights --timeout 30s -- ./consumer
  Do the same step by step:
      handle=$(bulkhead ipc wait team-a/weights); ...; bulkhead ipc done team-a/weights

Programs can use bulkhead_ipc.h or the Python module `bulkhead` instead. `wait` sets BULKHEAD_IPC_HANDLE, _EVENT, \
_BYTES, _OFFSET, _ZONE and _NOTE in the environment of the command that it runs.";

#[derive(Debug, Args)]
#[command(after_help = IPC_EXAMPLES)]
pub(crate) struct IpcArgs {
    /// Zone socket (default: $BULKHEAD_SOCKET, else /run/bulkhead/zone/sock; in a Xen guest /run/bulkhead/zone/names)
    #[arg(long, value_name = "PATH", global = true, display_order = super::GENERAL)]
    pub zone_socket: Option<PathBuf>,
    /// Print JSON; `publish` prints an object per line, as consumers come and go
    #[arg(long, global = true, display_order = super::GENERAL)]
    pub json: bool,
    #[command(subcommand)]
    pub action: IpcAction,
}

#[derive(Debug, Subcommand)]
pub(crate) enum IpcAction {
    /// Publish a buffer under a name until its consumers are done
    Publish(PublishArgs),
    /// Wait until a name is published
    Wait {
        /// NAME, or ZONE/NAME
        #[arg(value_parser = parse_qualified)]
        name: QualifiedName,
        /// Timeout, such as 30s (default: wait until it is published)
        #[arg(long, value_name = "TIME", value_parser = control::duration::parse)]
        timeout: Option<Duration>,
        /// Command to run with it; the publisher is told when the command exits
        #[arg(trailing_var_arg = true, value_name = "CMD")]
        command: Vec<OsString>,
    },
    /// List published names that are visible in this zone
    List,
    /// Connect this Xen guest's clients to the proxy (for guests that do not boot Bulkhead's image)
    Serve {
        /// Path of the socket to listen on
        #[arg(long, value_name = "PATH", default_value = control::env_vars::NAMES_SOCKET)]
        path: PathBuf,
    },
    /// Report that a name taken by `wait` without a command is no longer used
    Done {
        /// NAME, or ZONE/NAME
        #[arg(value_parser = parse_qualified)]
        name: QualifiedName,
    },
}

#[derive(Debug, Args)]
pub(crate) struct PublishArgs {
    /// Name of letters, digits, '-', '_' and '.'
    #[arg(value_parser = parse_public_name)]
    pub name: ZoneName,
    /// Handle from cuIpcGetMemHandle as 128 hexadecimal digits, or - for standard input (default: a name without memory)
    #[arg(long, value_name = "HEX")]
    pub handle: Option<String>,
    /// Handle from cuIpcGetEventHandle as 128 hexadecimal digits
    #[arg(long, value_name = "HEX")]
    pub event: Option<String>,
    /// Size of the buffer
    #[arg(long, value_name = "SIZE", value_parser = control::size::parse)]
    pub bytes: Option<u64>,
    /// Offset of the buffer in its allocation
    #[arg(long, value_name = "BYTES", default_value_t = 0)]
    pub offset: u64,
    /// Free text for consumers
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub note: String,
    /// Number of consumers to wait for
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub consumers: u64,
    /// Time after which the name is withdrawn, such as 30s (default: when its consumers are done)
    #[arg(long, value_name = "TIME", value_parser = control::duration::parse)]
    pub timeout: Option<Duration>,
}

/// A name, and the zone that must have published it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct QualifiedName {
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
    let wrong = |_| {
        "a name consists of 1 to 63 letters, digits, '-', '_' or '.', and starts with a letter or digit".to_owned()
    };
    text.parse().map_err(wrong)
}
