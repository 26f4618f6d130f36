//! What the processes of a node are told: the command line, which goes before what the configuration file says.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use broker::{Config, Meter, Reload, Suspend};
use config::kubernetes::Kubernetes;
use config::{ConfigError, File, Problem};
use control::backend::Backend;
use control::driver_filter::DriverFilter;
use control::host_defaults::{HostDefaults, machine_memory};
use control::jail::Demand;
use control::spawner::SLOTS;
use control::zone::UNLIMITED;
use control::{ZoneName, ZoneSettings};
use serde_json::{Value, json};
use spawner::{Helper, Settings};
use tracing_subscriber::filter::LevelFilter;

use crate::Programs;
use crate::args::{HttpArg, LogFormat, ProxyArgs};
use crate::exit::{Exit, Failure};

/// Where a broker lives that is not told otherwise.
pub const STATE_DIR: &str = "/run/bulkhead";
const SPARE_WORKERS: u16 = 1;
const MAX_CLIENTS: u16 = 128;
const WORKER_UIDS: u32 = 0x3000_0000;
/// What a primary context takes on an H200, and about as much on other GPUs of today.
const NVIDIA_CONTEXT: u64 = 523 << 20;
const OVERDRAFT: u64 = 1 << 30;
const WATCHDOG: u32 = 60;
const RESUME_TIMEOUT: u32 = 600;

/// Validates the configuration.
pub fn check(args: &ProxyArgs, path: Option<&Path>) -> Result<ExitCode, Failure> {
    let loaded = load(path);
    let places = loaded.as_ref().err().map(problems).unwrap_or_default();
    let checked = loaded.map_err(|error| invalid(&error)).and_then(|file| broker(args, &file));
    let checked = checked.and_then(|config| match config.misfit() {
        Some(misfit) => {
            let said = path.map_or("no configuration file".into(), |path| path.display().to_string());
            Err(Failure::new(Exit::Config, format!("{said}: {misfit}")))
        }
        None => Ok(config),
    });
    let text = match (args.json, &checked) {
        (true, checked) => format!("{:#}\n", report(path, checked, places)),
        (false, Ok(config)) => {
            let said = path.map_or("no configuration file".into(), |path| path.display().to_string());
            let count = config.zones.len();
            let zones = if count == 1 { "zone" } else { "zones" };
            format!("{said}: valid; backend {}, {count} {zones}\n", config.backend.name())
        }
        (false, Err(_)) => String::new(),
    };
    // The reader may have gone.
    let _ = std::io::Write::write_all(&mut std::io::stdout(), text.as_bytes());
    checked.map(|_| ExitCode::SUCCESS)
}

/// The same for programs: what is in force, or what is wrong.
fn report(path: Option<&Path>, checked: &Result<Config, Failure>, places: Vec<Value>) -> Value {
    match checked {
        Ok(config) => json!({
            "file": path, "valid": true, "backend": config.backend.name(),
            "zones": config.zones.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(),
        }),
        // What is wrong with the machine and not with the file has no place in it.
        Err(failure) if places.is_empty() => {
            json!({ "file": path, "valid": false, "problems": [{ "message": failure.line }] })
        }
        Err(_) => json!({ "file": path, "valid": false, "problems": places }),
    }
}

fn problems(error: &ConfigError) -> Vec<Value> {
    let ConfigError::Wrong { problems, .. } = error else { return Vec::new() };
    let one = |Problem { line, column, what }: &Problem| json!({ "line": line, "column": column, "message": what });
    problems.iter().map(one).collect()
}

/// The file that was given, or the default one if it exists. A private proxy of `run` has no file.
pub fn config_path(args: &ProxyArgs) -> Option<PathBuf> {
    args.config.clone().or_else(|| usual_config().filter(|_| !args.private))
}

/// The usual file, if there is one.
pub fn usual_config() -> Option<PathBuf> {
    Some(PathBuf::from(config::DEFAULT_PATH)).filter(|path| path.exists())
}

/// Reads a file; without one, nothing is configured.
pub fn read(path: Option<&Path>) -> Result<File, Failure> {
    load(path).map_err(|error| invalid(&error))
}

fn load(path: Option<&Path>) -> Result<File, ConfigError> {
    path.map_or_else(|| Ok(File::default()), config::load)
}

/// Every line on stderr starts with the program's name.
fn invalid(error: &ConfigError) -> Failure {
    Failure::new(Exit::Config, error.to_string().replace('\n', "\nbulkhead: "))
}

/// Starts the log of a daemon.
pub fn start_logs(args: &ProxyArgs, file: &File) {
    // Who looks for faults gets what a node's proxy logs.
    let asked =
        [control::env_vars::LOG, control::env_vars::LOG_FORMAT].iter().any(|name| std::env::var_os(name).is_some());
    if args.private && !asked {
        return crate::logging::start_plain(LevelFilter::WARN);
    }
    let usual = if args.private { LevelFilter::WARN } else { LevelFilter::INFO };
    let level = file.log_level.as_deref().and_then(|level| level.parse().ok()).unwrap_or(usual);
    let named = |json| if json { LogFormat::Json } else { LogFormat::Text };
    crate::logging::start(level, args.log_format.or(file.log_json.map(named)));
}

/// Which driver the workers call.
fn backend(args: &ProxyArgs, file: &File) -> Result<Backend, Failure> {
    let mut options = args.backend.options();
    if args.backend.backend.is_none() {
        options.choice = file.backend.unwrap_or_default();
    }
    options.driver_library = options.driver_library.or_else(|| file.driver_library.clone());
    options.devices = file.gpus.clone().unwrap_or_default();
    options.soft_devices = options.soft_devices.or(file.soft_devices);
    options.soft_memory = options.soft_memory.or(file.soft_memory);
    options.soft_mig = options.soft_mig.or(file.soft_mig);
    Backend::choose(&options).map_err(|error| Failure::new(Exit::NoBackend, error.to_string()))
}

fn state_dir(args: &ProxyArgs, file: &File) -> PathBuf {
    args.state_dir.clone().or_else(|| file.state_dir.clone()).unwrap_or_else(|| STATE_DIR.into())
}

fn jail(args: &ProxyArgs, file: &File) -> Demand {
    // A broker that was given a spawner has one that is root.
    let root = rustix::process::geteuid().is_root() || args.spawner.is_some();
    let usual = if root { Demand::Require } else { Demand::BestEffort };
    args.jail.map(Demand::from).or(file.jail).unwrap_or(usual)
}

/// The software GPU's workers reach no driver.
fn driver_filter(args: &ProxyArgs, file: &File, backend: &Backend) -> DriverFilter {
    match backend {
        Backend::Soft { .. } => DriverFilter::Off,
        Backend::Nvidia { .. } => args.driver_filter.or(file.driver_filter).unwrap_or_default(),
    }
}

fn worker_uids(args: &ProxyArgs, file: &File) -> u32 {
    args.worker_uids.or(file.worker_uids).unwrap_or(WORKER_UIDS)
}

/// The users that broker and exporter run as; the exporter has the broker's group, by which it sees the status.
pub fn daemon_uids(file: &File) -> (u32, u32) {
    let first = file.worker_uids.unwrap_or(WORKER_UIDS);
    (spawner::broker_uid(first), spawner::exporter_uid(first))
}

fn suspend_idle(args: &ProxyArgs, file: &File) -> u32 {
    args.suspend_idle.or(file.suspend_idle).unwrap_or(0)
}

/// Whether clients are suspended without being asked for one by one: their memory must fit into their zones' then.
fn suspends(args: &ProxyArgs, file: &File) -> bool {
    suspend_idle(args, file) > 0 || file.suspend_on_demand || file.suspend_memory.is_some_and(|memory| memory > 0)
}

/// Whether logs are written for machines.
pub fn json_logs(args: &ProxyArgs, file: &File) -> bool {
    args.log_format.map(|format| format == LogFormat::Json).or(file.log_json).unwrap_or(false)
}

/// What the broker is told.
pub fn broker(args: &ProxyArgs, file: &File) -> Result<Config, Failure> {
    let backend = backend(args, file)?;
    let context_memory = match backend {
        Backend::Soft { .. } => 0,
        Backend::Nvidia { .. } => NVIDIA_CONTEXT,
    };
    let (suspend, watchdog) = (suspend_idle(args, file), args.watchdog.or(file.watchdog).unwrap_or(WATCHDOG));
    let Reload { zones, grants, spare_workers, max_clients_per_zone } = live(args, file);
    let allowance = file.overdraft.unwrap_or(OVERDRAFT);
    Ok(Config {
        state_dir: state_dir(args, file),
        private: args.private,
        zones,
        grants,
        spare_workers,
        jail: jail(args, file),
        driver_filter: driver_filter(args, file, &backend),
        worker_uids: worker_uids(args, file),
        context_memory: args.context_memory.or(file.context_memory).unwrap_or(context_memory),
        meter: nvml(&backend).map(|_| Meter { allowance }),
        host_defaults: host_defaults(&backend, suspends(args, file)),
        max_workers: SLOTS,
        suspend: Suspend {
            after: (suspend > 0).then(|| Duration::from_secs(suspend.into())),
            with_context: file.suspend_context,
            memory: file.suspend_memory.unwrap_or(machine_memory() / 2),
            on_demand: file.suspend_on_demand,
            resume_timeout: Duration::from_secs(file.resume_timeout.unwrap_or(RESUME_TIMEOUT).into()),
        },
        max_clients_per_zone,
        watchdog: (watchdog > 0).then(|| Duration::from_secs(watchdog.into())),
        backend,
    })
}

/// What the spawner is told.
pub fn spawner(args: &ProxyArgs, file: &File, programs: &Programs) -> Result<Settings, Failure> {
    let (backend, jail) = (backend(args, file)?, jail(args, file));
    let mut worker_arguments: Vec<OsString> = vec!["worker".into()];
    // Workers of one user's own runs may use what an earlier run compiled; those of different tenants may not.
    if args.private && matches!(backend, Backend::Soft { .. }) {
        worker_arguments.extend(args.soft_cache.iter().flat_map(|path| ["--soft-cache".into(), path.into()]));
        worker_arguments.extend(args.soft_report.iter().flat_map(|path| ["--soft-report".into(), path.into()]));
    }
    if jail == Demand::Require && !file.allow_hmm {
        worker_arguments.push("--refuse-hmm".into());
    }
    let filter = driver_filter(args, file, &backend);
    if filter == DriverFilter::Supervise && file.suspend_context {
        // A driver library that is restored makes clients of the driver, and a supervised worker cannot.
        let line = "driver_filter = \"supervise\" and suspend_context exclude each other";
        return Err(Failure::new(Exit::Config, line));
    }
    if filter != DriverFilter::Off {
        worker_arguments.extend(["--driver-filter".into(), filter.name().into()]);
    }
    Ok(Settings {
        state_dir: state_dir(args, file),
        jail,
        worker_uids: worker_uids(args, file),
        program: programs.worker.clone(),
        worker_arguments,
        meter: meter(&backend),
        // Also for clients that a broker before this one has suspended in that way.
        mover: (file.suspend_context || suspend_idle(args, file) > 0).then(|| mover(&backend)),
        preemptor: Some(Helper { arguments: vec!["preemptor".into()], libraries: None }),
        preemption_test: Some(preemption_test(&backend)),
        json_logs: json_logs(args, file),
        host_processes: match file.host_processes {
            None => Some(host_defaults(&backend, false).node_processes()),
            Some(UNLIMITED) => None,
            own => own,
        },
        host_memory: match file.host_memory {
            None => Some(host_defaults(&backend, false).node_memory()),
            Some(UNLIMITED) => None,
            own => own,
        },
        backend,
    })
}

/// What zones have of the host where nobody says otherwise.
fn host_defaults(backend: &Backend, suspends: bool) -> HostDefaults {
    let gpu_memory = match backend {
        Backend::Soft { devices, memory, .. } => memory.saturating_mul(u64::from(*devices)),
        Backend::Nvidia { .. } if suspends => u64::MAX,
        Backend::Nvidia { .. } => 0,
    };
    HostDefaults { gpu_memory, ..HostDefaults::default() }
}

fn mover(backend: &Backend) -> Helper {
    let (mut arguments, mut libraries) = (vec!["mover".into()], None);
    if let Backend::Nvidia { library, .. } = backend {
        arguments.extend(["--library".into(), library.into()]);
        libraries = library.parent().map(Path::to_owned);
    }
    Helper { arguments, libraries }
}

fn preemption_test(backend: &Backend) -> Helper {
    let arguments = ["preemption-test".into()].into_iter().chain(backend.to_arguments()).collect();
    let libraries = match backend {
        Backend::Nvidia { library, .. } => library.parent().map(Path::to_owned),
        Backend::Soft { .. } => None,
    };
    Helper { arguments, libraries }
}

/// NVML lies beside the driver. Without it only the ledger counts memory, and that is logged.
fn meter(backend: &Backend) -> Option<Helper> {
    let library = nvml(backend)?;
    let libraries = library.parent().map(Path::to_owned);
    Some(Helper { arguments: vec!["meter".into(), "--library".into(), library.into()], libraries })
}

fn nvml(backend: &Backend) -> Option<PathBuf> {
    let Backend::Nvidia { library, .. } = backend else { return None };
    let library = library.with_file_name("libnvidia-ml.so.1");
    if !library.exists() {
        tracing::warn!(library = %library.display(), "NVML not found; cannot check the GPU memory that workers use");
        return None;
    }
    Some(library)
}

/// Where metrics and the status page are served, and how.
#[derive(Debug, Clone)]
pub struct Http {
    /// Where it listens.
    pub address: SocketAddr,
    /// What it serves, and under which names.
    pub options: exporter::Options,
    /// It logs as the broker does.
    pub json_logs: bool,
}

/// None when nobody is to scrape us.
pub fn http(args: &ProxyArgs, file: &File) -> Option<Http> {
    let address = match args.http {
        Some(HttpArg::Off) => None,
        Some(HttpArg::At(address)) => Some(address),
        // A broker with a spawner of the service manager has such an exporter as well.
        None if args.spawner.is_some() => None,
        None => file.http,
    }?;
    let options = exporter::Options { names: file.http_names.clone(), dcgm_names: file.dcgm_names };
    Some(Http { address, options, json_logs: json_logs(args, file) })
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

/// Reads the file again; logs what is invalid, and what needs a restart.
pub fn reloader(args: ProxyArgs, path: Option<PathBuf>, first: File) -> impl FnMut() -> Option<Reload> {
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
