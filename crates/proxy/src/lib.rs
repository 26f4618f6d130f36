//! The daemons of a node: what each is told, how it starts, and what it gives up first.
//!
//! | process | privilege | reads what comes from |
//! |---|---|---|
//! | spawner | root | the broker, in messages of fixed size |
//! | broker | none | tenants, pods, operators |
//! | exporter | none | Prometheus, browsers |
//!
//! `bulkhead proxy` starts all three, and becomes the broker. A service manager starts each by itself, with the binaries of
//! this crate. An ordinary user's proxy is one process: there is no privilege to keep apart.
#![warn(unreachable_pub)]
#![forbid(unsafe_code)]

pub mod args;
pub mod broker;
pub mod exit;
pub mod exporter;
pub mod logging;
pub mod settings;
pub mod spawner;
mod state_dir;

use std::ffi::OsString;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::ExitCode;

use exit::Failure;

/// Where the other processes are found, and what they are told.
#[derive(Debug, Clone)]
pub struct Programs {
    /// The program of workers and helpers.
    pub worker: PathBuf,
    /// The spawner, with the arguments that make it one.
    pub spawner: Vec<OsString>,
    /// The exporter, likewise.
    pub exporter: Vec<OsString>,
    /// What this process was told, which the spawner is told as well.
    pub arguments: Vec<OsString>,
}

impl Programs {
    /// All of them in one file, each by its verb.
    pub fn in_one(arguments: Vec<OsString>) -> Self {
        const SELF: &str = "/proc/self/exe";
        Self {
            worker: SELF.into(),
            spawner: vec![SELF.into(), "spawner".into()],
            exporter: vec![SELF.into(), "exporter".into()],
            arguments,
        }
    }

    /// Each in a file of its own, in one directory; `bulkhead` there, or where commands are.
    pub fn beside_us() -> std::io::Result<Self> {
        let own = std::env::current_exe()?;
        let directory = own.parent().unwrap_or(std::path::Path::new("/")).to_owned();
        let places = [directory.join("bulkhead"), directory.join("../../bin/bulkhead")];
        let worker = places.into_iter().find(|path| path.exists()).unwrap_or_else(|| "/usr/bin/bulkhead".into());
        Ok(Self {
            worker,
            spawner: vec![directory.join("bulkhead-spawner").into()],
            exporter: vec![directory.join("bulkhead-exporter").into()],
            arguments: std::env::args_os().skip(1).collect(),
        })
    }
}

/// Readable when one of the signals has arrived.
pub fn on_signals(signals: &[i32]) -> std::io::Result<OwnedFd> {
    let (reader, writer) = UnixStream::pair()?;
    for signal in signals {
        signal_hook::low_level::pipe::register(*signal, writer.try_clone()?)?;
    }
    Ok(OwnedFd::from(reader))
}

/// Ends a process with what it came to: a line, where something went wrong, and a status.
pub fn finish(result: Result<ExitCode, Failure>) -> ExitCode {
    result.unwrap_or_else(|Failure { exit, line }| {
        // What was started for us has said its line itself.
        if !line.is_empty() {
            // Nobody may be left to read it.
            let _ = writeln!(std::io::stderr(), "bulkhead: {line}");
        }
        exit.into()
    })
}
