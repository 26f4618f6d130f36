//! `bulkhead meter`: reports the GPU memory of each process to the broker, which starts it with a socket as standard
//! input.

use std::os::fd::AsFd;
use std::path::Path;
use std::process::ExitCode;

use tracing_subscriber::filter::LevelFilter;

use crate::exit::{Exit, Failure};

pub(crate) fn run(library: &Path) -> Result<ExitCode, Failure> {
    let _ = rustix::thread::set_name(c"bulkhead-meter");
    crate::logging::start(LevelFilter::WARN, None);
    let failure =
        |error: std::io::Error| Failure::system(Exit::Usage, "internal command: only the proxy starts it", &error);
    let socket = std::io::stdin().as_fd().try_clone_to_owned().map_err(failure)?;
    rustix::net::sockopt::socket_type(&socket).map_err(|error| failure(error.into()))?;
    rustix::thread::set_no_new_privs(true).map_err(|error| failure(error.into()))?;
    backend::meter::run(library, &socket).map_err(|error| Failure::new(Exit::Failure, format!("meter: {error}")))?;
    Ok(ExitCode::SUCCESS)
}
