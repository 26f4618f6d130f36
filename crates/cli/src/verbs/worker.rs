//! `bulkhead worker`: serves one client. The broker starts it, with the control socket as standard input.

use std::io;
use std::os::fd::{AsFd, AsRawFd, IntoRawFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use control::backend::Backend;
use control::{BrokerLink, env_vars};
use sandbox::driver::{Branch, Seal};
use sandbox::jail::{self, Missing, Part, Policy};
use tracing_subscriber::filter::LevelFilter;
use worker::{Prepared, WorkerError};

use crate::args::{BackendArg, JailArg, WorkerArgs};
use crate::exit::{Exit, Failure};
use crate::{check, soft_cache};

pub(crate) fn run(args: WorkerArgs) -> Result<ExitCode, Failure> {
    // Started from /proc/self/exe, it would be called "exe" in process lists.
    let _ = rustix::thread::set_name(c"bulkhead-worker");
    crate::logging::start(LevelFilter::WARN, None);
    let control = take_control_socket()
        .map_err(|error| Failure::system(Exit::Usage, "internal command: only the proxy starts it", &error))?;
    let backend = backend(&args)?;
    let bus_ids = backend.bus_ids();
    let cache = args.soft_cache.as_deref().and_then(soft_cache::open);
    let report = args.soft_report.as_deref().and_then(check::open_report);
    let record = start_record()?;
    let kept = [&cache, &report].into_iter().flatten().map(AsRawFd::as_raw_fd);
    let keep = kept.chain(record).collect();
    let Jailed { missing, rejoin, seal } = enter_jail(&args, &backend, &control, keep)?;
    if let Some(cache) = cache {
        softgpu::cache::keep_in(cache);
    }
    if let Some(report) = report {
        softgpu::sanitizer::report_to(report);
    }
    let failed = |error: WorkerError| Failure::new(Exit::Failure, format!("worker: {error}"));
    let mut prepared = Prepared::load(&backend, bus_ids).map_err(failed)?;
    if args.refuse_hmm {
        prepared = prepared.refusing_hmm();
    }
    if args.inventory {
        return report_inventory(&prepared, &backend, &control, args.jail == JailArg::Require && !missing.is_empty());
    }
    prepared = prepared.sealed_by(seal.map(|seal| -> worker::Seal { Box::new(|| seal.close()) }));
    let link = BrokerLink::with_rejoin(control, rejoin, args.names_descriptors);
    if link.report_ready(missing.bits(), prepared.driver_version()).is_err() {
        // The broker is gone, and nobody waits for this worker.
        return Ok(ExitCode::SUCCESS);
    }
    if args.jail == JailArg::Require && !missing.is_empty() {
        // The broker reports what is missing.
        return Ok(Exit::NoJail.into());
    }
    match prepared.run(link, !args.fresh) {
        // A spare whose broker went away was never needed.
        Ok(()) | Err(WorkerError::NoClient(_)) => Ok(ExitCode::SUCCESS),
        Err(error) => Err(failed(error)),
    }
}

/// Reports the GPUs to the broker, unless the required jail is incomplete.
fn report_inventory(
    prepared: &Prepared,
    backend: &Backend,
    control: &OwnedFd,
    unsafe_here: bool,
) -> Result<ExitCode, Failure> {
    if unsafe_here {
        return Ok(Exit::NoJail.into());
    }
    let failed = |error: &dyn std::fmt::Display| Failure::new(Exit::Failure, format!("inventory: {error}"));
    let inventory = prepared.inventory(backend).map_err(|error| failed(&error))?;
    control::packet::send(control, &inventory, &[]).map_err(|error| failed(&error))?;
    Ok(ExitCode::SUCCESS)
}

/// What came of the jail.
struct Jailed {
    /// Which parts are not there.
    missing: Missing,
    /// Where the next broker's socket is now.
    rejoin: Option<PathBuf>,
    /// Puts the worker under supervision.
    seal: Option<Seal>,
}

/// Begins the record of driver calls, if one is wanted. The descriptor stays open in the jail.
fn start_record() -> Result<Option<RawFd>, Failure> {
    let Some(directory) = std::env::var_os(env_vars::DRIVER_CALLS).filter(|value| !value.is_empty()) else {
        return Ok(None);
    };
    let failed = |error: &io::Error| {
        Failure::system(Exit::Failure, &format!("cannot record driver calls in {}", directory.display()), error)
    };
    backend::calls::start(Path::new(&directory)).map(Some).map_err(|error| failed(&error))
}

/// Enters the jail.
fn enter_jail(args: &WorkerArgs, backend: &Backend, control: &OwnedFd, keep: Vec<RawFd>) -> Result<Jailed, Failure> {
    if args.jail == JailArg::Off {
        return Ok(Jailed { missing: Missing::all(), rejoin: args.rejoin.clone(), seal: None });
    }
    // Where there is no root of its own, the user that it becomes could not come to the directory by its path.
    let outside = args.rejoin.as_deref().and_then(Path::parent).and_then(|path| open_directory(path).ok());
    let request = jail::Request {
        policy: Policy::from(backend),
        root: args.jail_root.clone(),
        uid: args.jail_uid,
        rejoin: args.rejoin.as_deref().and_then(Path::parent).map(Path::to_owned),
        keep: [control.as_raw_fd()].into_iter().chain(keep).chain(outside.as_ref().map(AsRawFd::as_raw_fd)).collect(),
        without_pid_namespace: args.without_pid_namespace,
        names_descriptors: args.names_descriptors,
        driver_filter: args.driver_filter,
        branch: Branch::running(),
    };
    let mut kernel = jail::Linux::default();
    let report = jail::enter(&mut kernel, &jail::plan(&request))
        .map_err(|error| Failure::new(Exit::NoJail, error.to_string()))?;
    for (part, reason) in &report.reasons {
        tracing::info!(part = part.name(), reason, "part of the jail is missing");
    }
    let moved = |path: &PathBuf| path.file_name().map(|name| Path::new(jail::REJOIN_INSIDE).join(name));
    let rejoin = match (report.missing.contains(Part::Root), outside) {
        // It stays open for as long as this process lives.
        (true, Some(outside)) => {
            let directory = Path::new("/proc/self/fd").join(outside.into_raw_fd().to_string());
            args.rejoin.as_ref().and_then(|path| path.file_name()).map(|name| directory.join(name))
        }
        (true, None) => args.rejoin.clone(),
        // Closed by this: it would lead out of the jail.
        (false, _) => args.rejoin.as_ref().and_then(moved),
    };
    let missing = if args.without_pid_namespace { report.missing.with(Part::PidNamespace) } else { report.missing };
    let seal = kernel.take_seal().filter(|_| !missing.contains(Part::DriverFilter));
    Ok(Jailed { missing, rejoin, seal })
}

fn open_directory(path: &Path) -> io::Result<OwnedFd> {
    use rustix::fs::{Mode, OFlags};
    Ok(rustix::fs::open(path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?)
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
    let wrong = || Failure::new(Exit::Usage, "internal command: only the proxy starts it");
    match args.backend.backend {
        None | Some(BackendArg::Auto) => Err(wrong()),
        Some(BackendArg::Soft) => Ok(Backend::Soft {
            devices: args.backend.soft_devices.ok_or_else(wrong)?,
            memory: args.backend.soft_memory.ok_or_else(wrong)?,
            instances: args.backend.soft_mig.unwrap_or(0),
            only: args.devices.clone(),
        }),
        Some(BackendArg::Nvidia) => Ok(Backend::Nvidia {
            library: args.backend.driver_library.clone().ok_or_else(wrong)?,
            devices: args.devices.clone(),
        }),
    }
}
