//! The configuration file: one TOML file for a node.
//!
//! Everything that is wrong with it is told at once, each in one line with its place, and nothing of a wrong file counts.
#![warn(unreachable_pub)]
#![forbid(unsafe_code)]

pub mod keys;
pub mod kubernetes;
mod reader;

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use control::backend::Choice;
use control::driver_filter::DriverFilter;
use control::grant::{self, Grant};
use control::jail::Demand;
use control::zone::{GpuOverride, Labels, UNLIMITED, ZoneBindings, ZoneLimits, ZoneSettings};
use control::{ZoneName, zone::Access};

use kubernetes::Kubernetes;
pub use reader::is_resource;
use reader::{Reader, Values};

/// Where it is looked for.
pub const DEFAULT_PATH: &str = "/etc/bulkhead/bulkhead.toml";

/// What the file says; what it does not say is none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct File {
    pub state_dir: Option<PathBuf>,
    pub backend: Option<Choice>,
    pub driver_library: Option<PathBuf>,
    pub gpus: Option<Vec<u32>>,
    pub soft_devices: Option<u32>,
    pub soft_memory: Option<u64>,
    pub soft_mig: Option<u32>,
    pub spare_workers: Option<u16>,
    pub max_clients: Option<u16>,
    pub jail: Option<Demand>,
    pub worker_uids: Option<u32>,
    pub driver_filter: Option<DriverFilter>,
    /// Kernels may reach their process's memory.
    pub allow_hmm: bool,
    pub context_memory: Option<u64>,
    pub overdraft: Option<u64>,
    /// Host memory of all workers together; without a limit if [`UNLIMITED`].
    pub host_memory: Option<u64>,
    /// Processes and threads of all workers together; none and [`UNLIMITED`] as above.
    pub host_processes: Option<u64>,
    pub suspend_idle: Option<u32>,
    /// Host memory for GPU memory of suspended clients.
    pub suspend_memory: Option<u64>,
    /// The driver moves everything, the context too.
    pub suspend_context: bool,
    /// Idle clients make room for allocations.
    pub suspend_on_demand: bool,
    /// Seconds.
    pub resume_timeout: Option<u32>,
    pub watchdog: Option<u32>,
    pub http: Option<SocketAddr>,
    pub http_names: Vec<String>,
    pub dcgm_names: bool,
    pub log_json: Option<bool>,
    pub log_level: Option<String>,
    pub zones: Vec<(ZoneName, ZoneSettings)>,
    pub grants: Vec<Grant>,
    pub kubernetes: Kubernetes,
}

/// Something wrong in the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Both from 1 on, as editors count.
    pub line: usize,
    pub column: usize,
    pub what: String,
}

/// Why a file does not count.
#[derive(Debug)]
pub enum ConfigError {
    Unreadable { path: PathBuf, source: std::io::Error },
    Wrong { path: PathBuf, problems: Vec<Problem> },
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreadable { path, source } => write!(f, "{}: {source}", path.display()),
            Self::Wrong { path, problems } => {
                for (at, Problem { line, column, what }) in problems.iter().enumerate() {
                    let end = if at + 1 < problems.len() { "\n" } else { "" };
                    write!(f, "{}:{line}:{column}: {what}{end}", path.display())?;
                }
                Ok(())
            }
        }
    }
}

impl std::error::Error for ConfigError {}

pub fn load(path: &Path) -> Result<File, ConfigError> {
    let text =
        std::fs::read_to_string(path).map_err(|source| ConfigError::Unreadable { path: path.to_owned(), source })?;
    parse(&text).map_err(|problems| ConfigError::Wrong { path: path.to_owned(), problems })
}

pub fn parse(text: &str) -> Result<File, Vec<Problem>> {
    let mut reader = Reader::new(text);
    let tables = reader.tables();
    let proxy = &tables.proxy;
    let defaults = settings(&tables.defaults, &BTreeMap::new(), &ZoneSettings::default());
    let mut zones = Vec::new();
    for table in &tables.zones {
        let settings = settings(&table.values, &table.gpus, &defaults);
        if let Err(error) = settings.check() {
            reader.complain_of_zone(table, error.to_string());
        }
        zones.push((table.name.clone(), settings));
    }
    let narrow = |value: Option<u64>| value.and_then(|value| u32::try_from(value).ok());
    let small = |value: Option<u64>| value.and_then(|value| u16::try_from(value).ok());
    let file = File {
        state_dir: proxy.text("state_dir").map(PathBuf::from),
        backend: proxy.text("backend").map(|name| match name {
            "nvidia" => Choice::Nvidia,
            "soft" => Choice::Soft,
            _ => Choice::Auto,
        }),
        driver_library: proxy.text("driver_library").map(PathBuf::from),
        gpus: proxy.numbers("gpus"),
        soft_devices: narrow(proxy.number("soft_devices")),
        soft_memory: proxy.number("soft_memory"),
        soft_mig: narrow(proxy.number("soft_mig")),
        spare_workers: small(proxy.number("spare_workers")),
        max_clients: small(proxy.number("max_clients")),
        jail: proxy.text("jail").map(|name| match name {
            "off" => Demand::Off,
            "best-effort" => Demand::BestEffort,
            _ => Demand::Require,
        }),
        worker_uids: narrow(proxy.number("worker_uids")),
        driver_filter: proxy.text("driver_filter").and_then(|name| name.parse().ok()),
        allow_hmm: proxy.flag("allow_hmm").unwrap_or(false),
        context_memory: proxy.number("context_memory"),
        overdraft: proxy.number("overdraft"),
        host_memory: if proxy.unlimited("host_memory") { Some(UNLIMITED) } else { proxy.number("host_memory") },
        host_processes: match proxy.unlimited("host_processes") {
            true => Some(UNLIMITED),
            false => proxy.number("host_processes"),
        },
        suspend_idle: narrow(proxy.number("suspend_idle")),
        suspend_memory: proxy.number("suspend_memory"),
        suspend_context: proxy.flag("suspend_context").unwrap_or(false),
        suspend_on_demand: proxy.flag("suspend_on_demand").unwrap_or(false),
        resume_timeout: narrow(proxy.number("resume_timeout")),
        watchdog: narrow(proxy.number("watchdog")),
        http: tables.http.address("listen"),
        http_names: tables.http.hosts("names").to_vec(),
        dcgm_names: tables.http.flag("dcgm_names").unwrap_or(false),
        log_json: tables.log.text("format").map(|format| format == "json"),
        log_level: tables.log.text("level").map(str::to_owned),
        zones,
        grants: tables.zones.iter().flat_map(|zone| grants(&zone.name, &zone.values)).collect(),
        kubernetes: Kubernetes::read(&tables),
    };
    let problems = reader.problems();
    if problems.is_empty() { Ok(file) } else { Err(problems) }
}

/// Whom a zone's table lets in. Who may write may read.
fn grants(from: &ZoneName, values: &Values) -> Vec<Grant> {
    let writers = values.zones("writable_by");
    let readers = values.zones("readable_by").iter().filter(|name| !writers.contains(name));
    let grant =
        |to: &ZoneName, access| Grant { from: from.clone(), to: to.clone(), access, expires: None, configured: true };
    let writers = writers.iter().map(|to| grant(to, grant::Access::ReadWrite));
    let all = writers.chain(readers.map(|to| grant(to, grant::Access::ReadOnly)));
    all.filter(|grant| grant.to != *from).collect()
}

/// What a table says of a zone, on top of what holds without.
fn settings(values: &Values, gpus: &BTreeMap<u32, Values>, base: &ZoneSettings) -> ZoneSettings {
    let small = |name: &str| values.number(name).and_then(|value| u32::try_from(value).ok());
    let text = |name: &str, base: &String| values.text(name).map_or_else(|| base.clone(), str::to_owned);
    ZoneSettings {
        limits: limits(values, &base.limits),
        labels: Labels {
            pod: text("pod", &base.labels.pod),
            namespace: text("namespace", &base.labels.namespace),
            container: text("container", &base.labels.container),
        },
        access: Access {
            uid: small("uid").or(base.access.uid),
            gid: small("gid").or(base.access.gid),
            mode: small("mode").unwrap_or(base.access.mode),
        },
        bindings: ZoneBindings {
            gpus: values.numbers("gpus").unwrap_or_else(|| base.bindings.gpus.clone()),
            ..base.bindings.clone()
        },
        gpu_limits: gpus.iter().map(|(gpu, values)| (*gpu, gpu_override(values))).collect(),
    }
}

fn gpu_override(values: &Values) -> GpuOverride {
    let small = |name: &str| values.number(name).and_then(|value| u32::try_from(value).ok());
    GpuOverride {
        memory: if values.unlimited("memory") { Some(UNLIMITED) } else { values.number("memory") },
        share: small("share"),
        cap: if values.unlimited("cap") { Some(100) } else { small("cap") },
        priority: small("priority"),
    }
}

fn limits(values: &Values, base: &ZoneLimits) -> ZoneLimits {
    let small = |name: &str| values.number(name).and_then(|value| u32::try_from(value).ok());
    let limit =
        |name: &str, base: Option<u64>| if values.unlimited(name) { None } else { values.number(name).or(base) };
    // Without a word these have a default, which an operator may lift.
    let bounded = |name: &str, base: Option<u64>| {
        if values.unlimited(name) { Some(UNLIMITED) } else { values.number(name).or(base) }
    };
    ZoneLimits {
        memory: limit("memory", base.memory),
        pinned: bounded("pinned_memory", base.pinned),
        share: small("share").unwrap_or(base.share),
        cap: if values.unlimited("cap") { None } else { small("cap").or(base.cap) },
        priority: small("priority").unwrap_or(base.priority),
        host_memory: bounded("host_memory", base.host_memory),
        host_processes: bounded("host_processes", base.host_processes),
        graph_nodes: bounded("graph_nodes", base.graph_nodes),
        workers: small("workers").or(base.workers),
        suspend_memory: values.number("suspend_memory").or(base.suspend_memory),
        host_cpu: if values.unlimited("host_cpu") { None } else { small("host_cpu").or(base.host_cpu) },
    }
}

#[cfg(test)]
mod tests;
