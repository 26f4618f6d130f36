//! The broker as a process.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixDatagram};
use std::path::Path;
use std::process::{Child, ExitCode};
use std::sync::Arc;

use ::broker::{Broker, Ended, StartError, StateDirError};
use ::spawner::{Local, Remote};
use config::File;
use control::jail::Demand;
use control::packet;
use control::spawner::Spawner;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::args::ProxyArgs;
use crate::exit::{Exit, Failure, is_full};
use crate::{Programs, exporter, settings, spawner, state_dir};

/// Reads the configuration, starts what the broker needs beside it, gives up all privilege and serves.
pub fn run(args: ProxyArgs, programs: &Programs) -> Result<ExitCode, Failure> {
    // Started from /proc/self/exe, it would be called "exe" in process lists.
    let _ = rustix::thread::set_name(c"bulkhead");
    let path = settings::config_path(&args);
    if args.check {
        return settings::check(&args, path.as_deref());
    }
    let file = settings::read(path.as_deref())?;
    settings::start_logs(&args, &file);
    let failure = |error: io::Error| Failure::system(Exit::Failure, "cannot start", &error);
    let lifeline = args.private.then(|| io::stdin().as_fd().try_clone_to_owned()).transpose().map_err(failure)?;
    let signals = crate::on_signals(&[SIGTERM, SIGINT]).map_err(failure)?;
    let config = settings::broker(&args, &file)?;
    let (backend, jail, json_logs) = (config.backend.name(), config.jail, settings::json_logs(&args, &file));
    let driver_filter = config.driver_filter.name();
    let mut helpers = Helpers::default();
    let spawner = helpers.start(&args, &file, programs)?;
    let mut broker = Broker::start(config, spawner).map_err(start_failure)?;
    if !broker.missing().is_empty() && jail != Demand::Off {
        let missing = broker.missing();
        if json_logs {
            tracing::warn!(%missing, "jail is incomplete on this machine");
        } else {
            eprintln!("bulkhead: jail is incomplete on this machine; missing: {missing}");
        }
    }
    if !args.private {
        let reload = crate::on_signals(&[SIGHUP]).map_err(failure)?;
        broker.reload_on(reload, settings::reloader(args, path, file)).map_err(failure)?;
    }
    let state_dir = broker.state_dir().path().display();
    tracing::info!(%state_dir, backend, jail = jail.name(), driver_filter, "serving");
    notify_ready();
    if let Some(lifeline) = &lifeline {
        packet::send(lifeline, b"ready", &[]).map_err(failure)?;
    }
    let ended = broker.run(signals, lifeline);
    helpers.finish();
    match ended {
        Ok(Ended::Signal | Ended::Lifeline) => Ok(ExitCode::SUCCESS),
        Ok(Ended::Spawner) => Err(Failure::new(Exit::Failure, "lost the spawner; workers with clients keep running")),
        Err(error) => Err(Failure::system(Exit::Failure, "proxy failed", &error)),
    }
}

/// The processes that a proxy has beside its broker.
#[derive(Default)]
struct Helpers {
    exporter: Option<(Child, OwnedFd)>,
    spawner: Option<Child>,
}

impl Helpers {
    /// Starts them, and answers with the spawner. Where we were root, we are not any more.
    fn start(&mut self, args: &ProxyArgs, file: &File, programs: &Programs) -> Result<Arc<dyn Spawner>, Failure> {
        let failure = |error: io::Error| Failure::system(Exit::Failure, "cannot start", &error);
        let settings = settings::spawner(args, file, programs)?;
        let separate = rustix::process::geteuid().is_root() && settings.jail != Demand::Off && !args.private;
        let http = settings::http(args, file);
        let listener = http.as_ref().map(|http| ::exporter::listen(http.address)).transpose();
        let listener =
            listener.map_err(|error| Failure::new(Exit::Failure, format!("cannot serve metrics: {error}")))?;
        let (broker_uid, exporter_uid) = (settings.broker_uid(), settings.exporter_uid());
        if separate && args.spawner.is_none() {
            state_dir::prepare(&settings.state_dir, broker_uid)
                .map_err(|error| unusable(&settings.state_dir, &error))?;
        }
        if let (Some(http), Some(listener)) = (&http, &listener) {
            // It needs the broker's group to see the status, and is a user of its own in all else.
            let ids = if separate { (Some(exporter_uid), Some(broker_uid)) } else { (None, None) };
            let started = exporter::start(programs, http, listener, &settings.state_dir, ids);
            self.exporter = Some(started.map_err(failure)?);
        }
        if let Some(path) = &args.spawner {
            if rustix::process::geteuid().is_root() {
                ::broker::raise_descriptor_limit();
                sandbox::jail::become_user(broker_uid, broker_uid).map_err(failure)?;
            }
            let remote = Remote::connect(path).map_err(|error| {
                Failure::system(Exit::Failure, &format!("no spawner answers at {}", path.display()), &error)
            })?;
            return Ok(Arc::new(remote));
        }
        if !separate {
            return Ok(Arc::new(Local::open(settings)));
        }
        let (child, socket) = spawner::start(programs).map_err(failure)?;
        self.spawner = Some(child);
        ::broker::raise_descriptor_limit();
        sandbox::jail::become_user(broker_uid, broker_uid).map_err(failure)?;
        match Remote::over(socket) {
            Ok(remote) => Ok(Arc::new(remote)),
            // It has said why.
            Err(_) => Err(self.spawner_failure()),
        }
    }

    fn spawner_failure(&mut self) -> Failure {
        let status = self.spawner.as_mut().and_then(|child| child.wait().ok());
        let known = Exit::ALL.iter().map(|(exit, _)| *exit);
        let exit = status
            .and_then(|status| status.code())
            .and_then(|code| known.into_iter().find(|exit| *exit as i32 == code));
        exit.map_or_else(|| Failure::new(Exit::Failure, "the spawner did not start"), |exit| Failure::new(exit, ""))
    }

    /// They end when we hang up; nothing of ours is to run on.
    fn finish(self) {
        if let Some((mut child, lifeline)) = self.exporter {
            drop(lifeline);
            let _ = child.wait();
        }
        if let Some(mut child) = self.spawner {
            let _ = child.wait();
        }
    }
}

fn unusable(path: &Path, error: &io::Error) -> Failure {
    Failure::system(Exit::StateDir, &format!("cannot use {} as state directory", path.display()), error)
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
    let denied = matches!(&error, StartError::StateDir(StateDirError::Unusable { source, .. })
        if source.kind() == io::ErrorKind::PermissionDenied);
    let hint = if denied { "; as an ordinary user, name one of your own with --state-dir" } else { "" };
    Failure::new(exit, format!("{error}{hint}"))
}

/// Tells systemd that the daemon is ready.
pub fn notify_ready() {
    let Some(path) = std::env::var_os("NOTIFY_SOCKET") else { return };
    let address = match path.as_encoded_bytes().strip_prefix(b"@") {
        Some(name) => UnixAddr::from_abstract_name(name),
        None => UnixAddr::from_pathname(&path),
    };
    let sent = address.and_then(|address| UnixDatagram::unbound()?.send_to_addr(b"READY=1", &address));
    if let Err(error) = sent {
        tracing::warn!(%error, "cannot notify the service manager");
    }
}
