//! `bulkhead proxy`: the node daemon.

use std::os::fd::{AsFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram, UnixStream};
use std::process::ExitCode;

use ::proxy::backend::Backend;
use ::proxy::broker::{Broker, Config, Ended, StartError, StateDirError};
use ::proxy::jail::Demand;
use ::proxy::packet;
use signal_hook::consts::{SIGINT, SIGTERM};
use tracing_subscriber::filter::LevelFilter;

use crate::args::{JailArg, ProxyArgs};
use crate::exit::{Exit, Failure, is_full};

pub fn run(args: ProxyArgs) -> Result<ExitCode, Failure> {
    // Started from /proc/self/exe, it would be called "exe" in every list of processes.
    let _ = rustix::thread::set_name(c"bulkhead");
    crate::logging::start(if args.private { LevelFilter::WARN } else { LevelFilter::INFO });
    let failure = |error: std::io::Error| Failure::system(Exit::Failure, "cannot start", &error);
    let lifeline =
        args.private.then(|| std::io::stdin().as_fd().try_clone_to_owned()).transpose().map_err(failure)?;
    let (signals, writer) = UnixStream::pair().map_err(failure)?;
    for signal in [SIGTERM, SIGINT] {
        signal_hook::low_level::pipe::register(signal, writer.try_clone().map_err(failure)?).map_err(failure)?;
    }
    let backend =
        Backend::choose(&args.backend.options()).map_err(|error| Failure::new(Exit::NoBackend, error.to_string()))?;
    let root = rustix::process::geteuid().is_root();
    let jail = args.jail.unwrap_or(if root { JailArg::Require } else { JailArg::BestEffort });
    let config = Config {
        state_dir: args.state_dir,
        private: args.private,
        backend,
        zones: args.zones,
        spare_workers: args.spare_workers.into(),
        worker_program: "/proc/self/exe".into(),
        worker_arguments: vec!["worker".into()],
        jail: jail.into(),
        worker_uids: args.worker_uids,
        max_clients_per_zone: args.max_clients.into(),
    };
    let backend = config.backend.name();
    let broker = Broker::start(config).map_err(start_failure)?;
    if !broker.missing().is_empty() && jail != JailArg::Off {
        eprintln!("bulkhead: this machine does not allow the whole jail; workers lack: {}", broker.missing());
    }
    tracing::info!(state_dir = %broker.state_dir().path().display(), backend, jail = Demand::from(jail).name(), "serving");
    notify_ready();
    if let Some(lifeline) = &lifeline {
        packet::send(lifeline, b"ready", &[]).map_err(failure)?;
    }
    match broker.run(OwnedFd::from(signals), lifeline) {
        Ok(Ended::Signal | Ended::Lifeline) => Ok(ExitCode::SUCCESS),
        Err(error) => Err(Failure::system(Exit::Failure, "the proxy cannot go on", &error)),
    }
}

fn start_failure(error: StartError) -> Failure {
    let exit = match &error {
        StartError::StateDir(StateDirError::Taken(_)) => Exit::Taken,
        StartError::StateDir(StateDirError::Unusable { source, .. }) | StartError::Serve { source, .. } => {
            if is_full(source) { Exit::NoSpace } else { Exit::StateDir }
        }
        StartError::Jail(_) => Exit::NoJail,
        StartError::Worker(_) | StartError::WorkerEnded(_) => Exit::Failure,
    };
    Failure::new(exit, error.to_string())
}

/// Tells systemd that clients can come.
fn notify_ready() {
    let Some(path) = std::env::var_os("NOTIFY_SOCKET") else { return };
    let address = match path.as_encoded_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(&path),
    };
    let sent = address.and_then(|address| UnixDatagram::unbound()?.send_to_addr(b"READY=1", &address));
    if let Err(error) = sent {
        tracing::warn!(%error, "cannot tell the service manager that we are ready");
    }
}
