//! `bulkhead preemptor`: stops and resumes the work of workers for the broker, which starts it with a socket as standard
//! input.

use std::os::fd::AsFd;
use std::process::ExitCode;

use preempt::rm::{Control, KnownDriver, escape};
use tracing_subscriber::filter::LevelFilter;

use crate::exit::{Exit, Failure};

pub(crate) fn run() -> Result<ExitCode, Failure> {
    let _ = rustix::thread::set_name(c"bulkhead-preempt");
    crate::logging::start(LevelFilter::WARN, None);
    let failure =
        |error: std::io::Error| Failure::system(Exit::Usage, "internal command: only the proxy starts it", &error);
    let socket = std::io::stdin().as_fd().try_clone_to_owned().map_err(failure)?;
    rustix::net::sockopt::socket_type(&socket).map_err(|error| failure(error.into()))?;
    // A software GPU needs none.
    let driver = KnownDriver::running().ok();
    rustix::thread::set_no_new_privs(true).map_err(|error| failure(error.into()))?;
    sandbox::jail::confine_preemptor(escape::request(escape::CONTROL, size_of::<Control>())).map_err(failure)?;
    preempt::process::serve(socket, driver).map_err(failure)?;
    Ok(ExitCode::SUCCESS)
}
