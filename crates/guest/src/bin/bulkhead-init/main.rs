//! The first process of a guest: sets the system up, runs one command for `bulkhead xen run`, and switches off.
//!
//! 1. Mounts what every program expects, loads the modules of Xen's devices, brings the loopback device up.
//! 2. Enters the tenant's root file system, if the image came with one or there is a disk with one.
//! 3. Carries programs that meet others by name to the broker, on threads of its own.
//! 4. Offers the link, is told the command, runs it, and carries what it reads and prints until it ends.
//!
//! In a pod's machine (`bulkhead.mode=pod`) it becomes the agent after the first step instead: see [`pod`].
#![warn(unreachable_pub)]
#![forbid(unsafe_code)]

mod cmdline;
mod command;
mod disk;
mod loopback;
mod modules;
mod mounts;
mod names;
mod pod;
mod pump;
mod tenant;

use std::time::Duration;

use guest::link::guest::GuestEnd;
use guest::link::{LinkError, frames::Up, options};

/// How long the host may take to read what is left.
const FAREWELL: Duration = Duration::from_secs(20);

#[derive(Debug, thiserror::Error)]
enum InitError {
    #[error("cannot {0}")]
    Step(String, #[source] std::io::Error),
    #[error(transparent)]
    Link(#[from] LinkError),
}

fn main() {
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    if arguments.first().is_some_and(|first| first == command::ON_TERMINAL) {
        command::on_terminal(&arguments[1..]);
    }
    if arguments.first().is_some_and(|first| first == names::SERVE) {
        names::serve_here();
    }
    // Started by hand, it must not switch the machine off.
    if std::process::id() != 1 {
        eprintln!("bulkhead-init: must run as process 1 of a guest");
        std::process::exit(2);
    }
    if let Err(error) = run() {
        let why = std::error::Error::source(&error).map(|source| format!(": {source}")).unwrap_or_default();
        eprintln!("bulkhead-init: {error}{why}");
    }
    rustix::fs::sync();
    let _ = rustix::system::reboot(rustix::system::RebootCommand::PowerOff);
}

fn run() -> Result<(), InitError> {
    mounts::base()?;
    let cmdline = cmdline::read()?;
    modules::load(cmdline::value(&cmdline, options::GRANTS))?;
    modules::take_back_quickly();
    loopback::up();
    let mut link = GuestEnd::offer(cmdline::value(&cmdline, options::HOST).unwrap_or(0))?;
    if cmdline::value::<String>(&cmdline, options::MODE).is_some_and(|mode| mode == options::MODE_POD) {
        return pod::run(&cmdline, link);
    }
    if let Some(name) = cmdline::value::<String>(&cmdline, options::DISK) {
        disk::mount_root(&name)?;
    }
    let tenant = tenant::enter()?;
    names::serve();
    link.send(&Up::Ready(uptime_ms()))?;
    let result = pump::run(&mut link, tenant);
    // What the command printed last is read before the lights go out.
    let start = std::time::Instant::now();
    while !link.is_drained() && !link.host_is_gone() && start.elapsed() < FAREWELL {
        pump::wait(&link, Duration::from_millis(200))?;
    }
    result
}

fn uptime_ms() -> u32 {
    let text = std::fs::read_to_string("/proc/uptime").unwrap_or_default();
    let seconds = text.split(' ').next().and_then(|word| word.parse::<f64>().ok());
    seconds.map_or(0, |seconds| (seconds * 1000.0) as u32)
}

fn step(what: impl Into<String>) -> impl FnOnce(rustix::io::Errno) -> InitError {
    let what = what.into();
    move |error| InitError::Step(what, error.into())
}
