//! `bulkhead worker`: serves one client. The broker starts it, with the control socket as standard input.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::process::ExitCode;

use proxy::backend::Backend;
use proxy::control::BrokerLink;
use proxy::worker::WorkerConfig;
use tracing_subscriber::filter::LevelFilter;

use crate::args::{BackendArg, WorkerArgs};
use crate::exit::{Exit, Failure};

pub fn run(args: WorkerArgs) -> Result<ExitCode, Failure> {
    crate::logging::start(LevelFilter::WARN);
    let control = take_control_socket()
        .map_err(|error| Failure::system(Exit::Usage, "a worker is started by the proxy only", &error))?;
    let backend = backend(&args)?;
    let link = BrokerLink::with_rejoin(control, args.rejoin);
    link.report_jail(0).map_err(|error| Failure::system(Exit::Failure, "the broker is gone", &error))?;
    match proxy::worker::run(WorkerConfig { backend }, link) {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(error) => Err(Failure::new(Exit::Failure, format!("worker: {error}"))),
    }
}

/// Moves the socket away from standard input, where anything might read it.
fn take_control_socket() -> io::Result<OwnedFd> {
    let stdin = io::stdin();
    rustix::net::sockopt::socket_type(stdin.as_fd())?;
    let control = rustix::io::fcntl_dupfd_cloexec(stdin.as_fd(), 3)?;
    let nothing = std::fs::File::open("/dev/null")?;
    rustix::stdio::dup2_stdin(&nothing)?;
    Ok(control)
}

fn backend(args: &WorkerArgs) -> Result<Backend, Failure> {
    let wrong = || Failure::new(Exit::Usage, "a worker is started by the proxy only");
    match args.backend.backend {
        BackendArg::Auto => Err(wrong()),
        BackendArg::Soft => Ok(Backend::Soft {
            devices: args.backend.soft_devices.ok_or_else(wrong)?,
            memory: args.backend.soft_memory.ok_or_else(wrong)?,
        }),
        BackendArg::Nvidia => Ok(Backend::Nvidia {
            library: args.backend.driver_library.clone().ok_or_else(wrong)?,
            devices: args.devices.clone(),
        }),
    }
}
