//! Shared by the commands for Kubernetes.

use std::path::PathBuf;
use std::process::ExitCode;

use bulkhead_kube::inject::{self, Places};
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::filter::LevelFilter;

use crate::args::{NodeArgs, Probe};
use crate::exit::{Exit, Failure};
use crate::library;

impl NodeArgs {
    /// The file that was given, or the default one if it exists.
    pub(crate) fn config(&self) -> Option<PathBuf> {
        let usual = || Some(PathBuf::from(config::DEFAULT_PATH)).filter(|path| path.exists());
        self.config.clone().or_else(usual)
    }

    pub(crate) fn places(&self) -> Result<Places, Failure> {
        let (libraries, smi) = match &self.library_dir {
            // Not checked: it is a path of the host, and this process may have another root.
            Some(dir) => (dir.clone(), true),
            None => library::find().map(|dir| (dir.clone(), inject::has_smi(&dir)))?,
        };
        Ok(Places { libraries, state: self.state_dir.clone(), smi: smi && !self.no_nvidia_smi })
    }

    pub(crate) fn admin_socket(&self) -> PathBuf {
        self.state_dir.join("admin.sock")
    }
}

/// Asks the server of this name in the same network namespace. What it waits for is the line that `kubectl describe` shows.
pub(crate) fn probe(name: &str, probe: Probe) -> Result<ExitCode, Failure> {
    let unreachable = |line: String| Failure::new(Exit::ProxyUnreachable, line);
    let said =
        bulkhead_kube::health::ask(name).map_err(|error| unreachable(format!("no {name} answers: {error}")))?;
    match (probe, said) {
        (Probe::Ready, Some(why)) => Err(unreachable(format!("not ready: {why}"))),
        (Probe::Ready, None) | (Probe::Live, _) => Ok(ExitCode::SUCCESS),
    }
}

/// Runs a server on one thread until SIGTERM or SIGINT: kubelet's requests are rare, and this saves memory.
pub(crate) fn serve<E>(
    args: &NodeArgs,
    server: impl AsyncFnOnce(Stop) -> Result<(), E>,
) -> Result<Result<(), E>, Failure> {
    let _ = rustix::thread::set_name(c"bulkhead");
    crate::logging::start(LevelFilter::INFO, args.log_format);
    let failure = |error: std::io::Error| Failure::system(Exit::Failure, "cannot start", &error);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().max_blocking_threads(4).build();
    runtime.map_err(failure)?.block_on(async {
        let mut terminate = signal(SignalKind::terminate()).map_err(failure)?;
        let mut interrupt = signal(SignalKind::interrupt()).map_err(failure)?;
        let stop = Box::pin(async move {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
        });
        Ok(server(stop).await)
    })
}

/// Resolves when this process is asked to terminate.
pub(crate) type Stop = std::pin::Pin<Box<dyn Future<Output = ()>>>;
