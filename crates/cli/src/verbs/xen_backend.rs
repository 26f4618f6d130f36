//! `bulkhead xen-backend`: connects clients in Xen guests to the proxy of this domain.

use std::path::PathBuf;
use std::process::ExitCode;

use signal_hook::consts::{SIGINT, SIGTERM};
use tracing_subscriber::filter::LevelFilter;
use xen_backend::{XenBackend, XenBackendError};

use crate::exit::{Exit, Failure};

pub(crate) fn run(state_dir: PathBuf, guest_memory: u64) -> Result<ExitCode, Failure> {
    let _ = rustix::thread::set_name(c"bulkhead-xen");
    crate::logging::start(LevelFilter::INFO, None);
    let stop = proxy::on_signals(&[SIGTERM, SIGINT])
        .map_err(|error| Failure::system(Exit::Failure, "cannot start", &error))?;
    let failed = |exit: Exit, error: XenBackendError| {
        let source = std::error::Error::source(&error).map(|source| format!(": {source}")).unwrap_or_default();
        Failure::new(exit, format!("xen-backend: {error}{source}"))
    };
    // Without xenstore it fails as `bulkhead xen run` does.
    let backend = XenBackend::open(state_dir, guest_memory).map_err(|error| failed(Exit::NoXen, error))?;
    backend.run(stop).map_err(|error| failed(Exit::Failure, error))?;
    Ok(ExitCode::SUCCESS)
}
