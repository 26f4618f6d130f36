//! `bulkhead proxy`: the node daemon.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixDatagram, UnixStream};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use ::proxy::backend::Backend;
use ::proxy::broker::{Broker, Config, Ended, Meter, Reload, StartError, StateDirError, Suspend};
use ::proxy::config::kubernetes::Kubernetes;
use ::proxy::config::{self, File};
use ::proxy::control::{ZoneName, ZoneSettings};
use ::proxy::http;
use ::proxy::jail::Demand;
use ::proxy::packet;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use tracing_subscriber::filter::LevelFilter;

use crate::args::{HttpArg, LogFormat, ProxyArgs};
use crate::exit::{Exit, Failure, is_full};
use crate::soft_cache;
use crate::text::counted;

const STATE_DIR: &str = "/run/bulkhead";
const SPARE_WORKERS: u16 = 1;
const MAX_CLIENTS: u16 = 128;
const WORKER_UIDS: u32 = 0x3000_0000;
/// What a primary context takes on an H200, and about as much on other GPUs of today.
const NVIDIA_CONTEXT: u64 = 523 << 20;
const OVERDRAFT: u64 = 1 << 30;
const WATCHDOG: u32 = 60;

pub fn run(args: ProxyArgs) -> Result<ExitCode, Failure> {
    // Started from /proc/self/exe, it would be called "exe" in process lists.
    let _ = rustix::thread::set_name(c"bulkhead");
    let path = config_path(&args);
    let file = read(path.as_deref())?;
    if args.check {
        let config = broker_config(&args, &file)?;
        let said = path.as_deref().map_or("no configuration file".into(), |path| path.display().to_string());
        let line = format!(
            "{said}: valid; backend {}, {}\n",
            config.backend.name(),
            counted(config.zones.len() as u64, "zone")
        );
        return super::man::print(line.as_bytes());
    }
    start_logs(&args, &file);
    let failure = |error: std::io::Error| Failure::system(Exit::Failure, "cannot start", &error);
    let lifeline =
        args.private.then(|| std::io::stdin().as_fd().try_clone_to_owned()).transpose().map_err(failure)?;
    let signals = on_signals(&[SIGTERM, SIGINT]).map_err(failure)?;
    let config = broker_config(&args, &file)?;
    let (backend, jail, json_logs) = (config.backend.name(), config.jail, config.json_logs);
    let listener = http_address(&args, &file)
        .map(http::listen)
        .transpose()
        .map_err(|error| Failure::new(Exit::Failure, format!("cannot serve metrics: {error}")))?;
    let mut broker = Broker::start(config).map_err(start_failure)?;
    if !broker.missing().is_empty() && jail != Demand::Off {
        let missing = broker.missing();
        if json_logs {
            tracing::warn!(%missing, "jail is incomplete on this machine");
        } else {
            eprintln!("bulkhead: jail is incomplete on this machine; missing: {missing}");
        }
    }
    if let Some(listener) = listener {
        let options = http::Options { names: file.http_names.clone(), dcgm_names: file.dcgm_names };
        let admin = broker.connect_operator().map_err(failure)?;
        let address = http::serve(listener, admin, options).map_err(failure)?;
        tracing::info!(%address, "listening for metrics and status page");
    }
    if !args.private {
        let reload = on_signals(&[SIGHUP]).map_err(failure)?;
        broker.reload_on(reload, reloader(args, path, file)).map_err(failure)?;
    }
    tracing::info!(state_dir = %broker.state_dir().path().display(), backend, jail = jail.name(), "serving");
    notify_ready();
    if let Some(lifeline) = &lifeline {
        packet::send(lifeline, b"ready", &[]).map_err(failure)?;
    }
    match broker.run(signals, lifeline) {
        Ok(Ended::Signal | Ended::Lifeline) => Ok(ExitCode::SUCCESS),
        Err(error) => Err(Failure::system(Exit::Failure, "proxy failed", &error)),
    }
}

/// The file that was given, or the default one if it exists. A private proxy of `run` has no file.
fn config_path(args: &ProxyArgs) -> Option<PathBuf> {
    let usual = || Some(PathBuf::from(config::DEFAULT_PATH)).filter(|path| !args.private && path.exists());
    args.config.clone().or_else(usual)
}

fn read(path: Option<&Path>) -> Result<File, Failure> {
    let file = path.map_or_else(|| Ok(File::default()), config::load);
    // Every line on stderr starts with the program's name.
    file.map_err(|error| Failure::new(Exit::Config, error.to_string().replace('\n', "\nbulkhead: ")))
}

fn start_logs(args: &ProxyArgs, file: &File) {
    let usual = if args.private { LevelFilter::WARN } else { LevelFilter::INFO };
    let level = file.log_level.as_deref().and_then(|level| level.parse().ok()).unwrap_or(usual);
    let named = |json| if json { LogFormat::Json } else { LogFormat::Text };
    crate::logging::start(level, args.log_format.or(file.log_json.map(named)));
}

/// Options override the configuration file.
fn broker_config(args: &ProxyArgs, file: &File) -> Result<Config, Failure> {
    let mut options = args.backend.options();
    if args.backend.backend.is_none() {
        options.choice = file.backend.unwrap_or_default();
    }
    options.driver_library = options.driver_library.or_else(|| file.driver_library.clone());
    options.devices = file.gpus.clone().unwrap_or_default();
    options.soft_devices = options.soft_devices.or(file.soft_devices);
    options.soft_memory = options.soft_memory.or(file.soft_memory);
    options.soft_mig = options.soft_mig.or(file.soft_mig);
    let backend = Backend::choose(&options).map_err(|error| Failure::new(Exit::NoBackend, error.to_string()))?;
    let context_memory = match backend {
        Backend::Soft { .. } => 0,
        Backend::Nvidia { .. } => NVIDIA_CONTEXT,
    };
    let meter = match &backend {
        Backend::Nvidia { library, .. } => meter(library, file),
        Backend::Soft { .. } => None,
    };
    let suspend = suspend(args.suspend_idle.or(file.suspend_idle).unwrap_or(0), &backend);
    let root = rustix::process::geteuid().is_root();
    let usual_jail = if root { Demand::Require } else { Demand::BestEffort };
    let Reload { zones, grants, spare_workers, max_clients_per_zone } = live(args, file);
    let watchdog = args.watchdog.or(file.watchdog).unwrap_or(WATCHDOG);
    let json = args.log_format.map(|format| format == LogFormat::Json).or(file.log_json);
    let mut worker_arguments: Vec<OsString> = vec!["worker".into()];
    // Workers of one user's own runs may use what an earlier run compiled; those of different tenants may not.
    if args.private && matches!(backend, Backend::Soft { .. }) {
        let cache = soft_cache::path();
        worker_arguments.extend(cache.into_iter().flat_map(|path| ["--soft-cache".into(), path.into()]));
    }
    let jail = args.jail.map(Demand::from).or(file.jail).unwrap_or(usual_jail);
    if jail == Demand::Require && !file.allow_hmm {
        worker_arguments.push("--refuse-hmm".into());
    }
    Ok(Config {
        state_dir: args.state_dir.clone().or_else(|| file.state_dir.clone()).unwrap_or_else(|| STATE_DIR.into()),
        private: args.private,
        backend,
        zones,
        grants,
        spare_workers,
        worker_program: "/proc/self/exe".into(),
        worker_arguments,
        json_logs: json.unwrap_or(false),
        jail,
        worker_uids: args.worker_uids.or(file.worker_uids).unwrap_or(WORKER_UIDS),
        context_memory: args.context_memory.or(file.context_memory).unwrap_or(context_memory),
        meter,
        suspend,
        max_clients_per_zone,
        watchdog: (watchdog > 0).then(|| Duration::from_secs(watchdog.into())),
    })
}

/// How the memory of idle clients is moved to the host, if that is enabled.
fn suspend(after: u32, backend: &Backend) -> Option<Suspend> {
    let (mut arguments, mut libraries) = (vec!["mover".into()], None);
    if let Backend::Nvidia { library, .. } = backend {
        arguments.extend(["--library".into(), library.into()]);
        libraries = library.parent().map(Path::to_owned);
    }
    (after > 0).then(|| Suspend { after: Duration::from_secs(after.into()), arguments, libraries })
}

/// NVML lies beside the driver. Without it only the ledger counts memory, and that is logged.
fn meter(driver: &Path, file: &File) -> Option<Meter> {
    let dir = driver.parent()?;
    let library = dir.join("libnvidia-ml.so.1");
    if !library.exists() {
        tracing::warn!(library = %library.display(), "NVML not found; cannot check the GPU memory that workers use");
        return None;
    }
    Some(Meter {
        arguments: vec!["meter".into(), "--library".into(), library.into()],
        libraries: Some(dir.to_owned()),
        allowance: file.overdraft.unwrap_or(OVERDRAFT),
    })
}

/// The settings that can change while the proxy runs.
fn live(args: &ProxyArgs, file: &File) -> Reload {
    let mut zones: Vec<(ZoneName, ZoneSettings)> = file.zones.clone();
    for (name, limits) in &args.zones {
        match zones.iter_mut().find(|(known, _)| known == name) {
            Some((_, settings)) => settings.limits = *limits,
            None => zones.push((name.clone(), ZoneSettings::from(*limits))),
        }
    }
    Reload {
        zones,
        grants: file.grants.clone(),
        spare_workers: args.spare_workers.or(file.spare_workers).unwrap_or(SPARE_WORKERS).into(),
        max_clients_per_zone: args.max_clients.or(file.max_clients).unwrap_or(MAX_CLIENTS).into(),
    }
}

fn http_address(args: &ProxyArgs, file: &File) -> Option<SocketAddr> {
    match args.http {
        Some(HttpArg::Off) => None,
        Some(HttpArg::At(address)) => Some(address),
        None => file.http,
    }
}

/// Reads the file again; logs what is invalid, and what needs a restart.
fn reloader(args: ProxyArgs, path: Option<PathBuf>, first: File) -> impl FnMut() -> Option<Reload> {
    let mut known = first;
    move || {
        let path = path.clone().or_else(|| config_path(&args));
        let file = match path.as_deref().map_or_else(|| Ok(File::default()), config::load) {
            Ok(file) => file,
            Err(error) => {
                error.to_string().lines().for_each(|problem| tracing::error!(problem, "configuration"));
                return None;
            }
        };
        let fixed = |file: &File| {
            let (zones, grants, kubernetes) = (Vec::new(), Vec::new(), Kubernetes::default());
            File { zones, grants, kubernetes, spare_workers: None, max_clients: None, ..file.clone() }
        };
        if fixed(&file) != fixed(&known) {
            tracing::warn!("some configuration changes need a restart to take effect");
        }
        known = file;
        Some(live(&args, &known))
    }
}

/// Readable when one of the signals has arrived.
pub(super) fn on_signals(signals: &[i32]) -> std::io::Result<OwnedFd> {
    let (reader, writer) = UnixStream::pair()?;
    for signal in signals {
        signal_hook::low_level::pipe::register(*signal, writer.try_clone()?)?;
    }
    Ok(OwnedFd::from(reader))
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

/// Tells systemd that the proxy is ready.
fn notify_ready() {
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
