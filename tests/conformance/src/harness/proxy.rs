//! A private `bulkhead proxy`.

use std::fs::File;
use std::path::PathBuf;
use std::process::{Child, Stdio};

use control::admin::{AdminClient, Answer, Request, Status, WorkerStatus, ZoneStatus};
use control::zone::ZoneChange;
use rustix::process::Signal;

use super::place::files;
use super::{Place, signal, until};

/// The limit of each zone.
pub const ZONE_MEMORY: u64 = 256 << 20;
const ZONE_MEMORY_ON_A_GPU: u64 = 16 << 30;

pub struct Proxy<'a> {
    place: &'a Place,
    zones: Vec<String>,
    options: Vec<String>,
    child: Child,
    log: PathBuf,
    starts: u32,
}

impl<'a> Proxy<'a> {
    /// Starts one on the software GPU, or on the backend that `CONFORMANCE_BACKEND` names, with zones of [`ZONE_MEMORY`]
    /// each, and waits until it serves.
    pub fn start(place: &'a Place, zones: &[&str]) -> Self {
        Self::start_with(place, zones, &[])
    }

    /// The same, with more options of `bulkhead proxy`; a backend among them goes before any other choice.
    pub fn start_with(place: &'a Place, zones: &[&str], options: &[&str]) -> Self {
        let options: Vec<String> = options.iter().map(ToString::to_string).collect();
        let zones: Vec<String> = zones.iter().map(ToString::to_string).collect();
        let log = place.path().join("log");
        let child = spawn(place, &zones, &options, &log, false);
        let proxy = Self { place, zones, options, child, log, starts: 1 };
        proxy.wait_until_it_serves();
        proxy
    }

    /// Starts another one on the same state, after the first was killed.
    pub fn restart(&mut self) {
        let _ = self.child.wait();
        self.child = spawn(self.place, &self.zones, &self.options, &self.log, true);
        self.starts += 1;
        self.wait_until_it_serves();
    }

    fn wait_until_it_serves(&self) {
        until("the proxy serves", || self.try_status().is_some());
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn kill(&mut self) {
        signal(self.child.id(), Signal::KILL);
        let _ = self.child.wait();
    }

    pub fn socket(&self, zone: &str) -> PathBuf {
        self.place.state().join("zones").join(zone).join("sock")
    }

    pub fn try_status(&self) -> Option<Status> {
        self.ask_status().ok()
    }

    fn ask_status(&self) -> Result<Status, String> {
        let admin =
            AdminClient::connect(&self.place.state().join("admin.sock")).map_err(|error| error.to_string())?;
        match admin.ask(&Request::Status).map_err(|error| error.to_string())? {
            Answer::Status(status) => Ok(status),
            other => Err(format!("{other:?}")),
        }
    }

    pub fn zone(&self, name: &str) -> ZoneStatus {
        let status = self.ask_status().unwrap_or_else(|error| {
            let log = std::fs::read_to_string(&self.log).unwrap_or_default();
            panic!("the proxy does not answer: {error}; its log:\n{log}")
        });
        status.zones.into_iter().find(|zone| zone.name.as_str() == name).expect("the zone is there")
    }

    /// Changes a zone's settings, as `bulkhead zones set` does.
    pub fn change(&self, zone: &str, change: ZoneChange) {
        let admin = AdminClient::connect(&self.place.state().join("admin.sock")).expect("the proxy answers");
        let name = zone.parse().expect("the name of a zone");
        let answer = admin.ask(&Request::ChangeZone { name, change }).expect("an answer");
        assert!(matches!(answer, Answer::Zone { .. }), "{answer:?}");
    }

    /// Freezes or thaws a zone, as `bulkhead zones freeze` and `thaw` do; how many workers that concerns.
    pub fn freeze(&self, zone: &str, frozen: bool) -> usize {
        let admin = AdminClient::connect(&self.place.state().join("admin.sock")).expect("the proxy answers");
        let name = zone.parse().expect("the name of a zone");
        match admin.ask(&Request::FreezeZone { name, frozen }).expect("an answer") {
            Answer::Frozen { workers } => workers,
            other => panic!("{other:?}"),
        }
    }

    /// The worker that serves a client.
    pub fn worker_of(&self, client: u32) -> Option<WorkerStatus> {
        let zones = self.try_status()?.zones;
        zones.into_iter().flat_map(|zone| zone.workers).find(|worker| worker.client_pid == client)
    }

    /// Waits until a zone has no client and no memory on its account.
    pub fn zone_is_empty(&self, name: &str) {
        until(&format!("zone {name} is empty"), || {
            let zone = self.zone(name);
            zone.clients == 0 && zone.used == 0
        });
    }

    /// Everything that the proxy and its workers have logged.
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Ends it as an operator does, and shows that it cleans up.
    pub fn stop(mut self) {
        // With a client it would leave its state to the next one.
        self.zones.iter().for_each(|zone| self.zone_is_empty(zone));
        signal(self.child.id(), Signal::TERM);
        let status = self.child.wait().expect("our child");
        assert!(status.success(), "the proxy ended with {status}\n{}", self.log());
        let left = files(&self.place.state());
        assert!(left.is_empty(), "the proxy left its state: {left:?}");
    }
}

impl Drop for Proxy<'_> {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("--- the proxy's log ---\n{}", self.log());
        }
    }
}

fn spawn(place: &Place, zones: &[String], options: &[String], log: &PathBuf, append: bool) -> Child {
    let state = place.state();
    let state = state.to_str().expect("a plain path");
    let mut command = place.bulkhead(&["proxy", "--state-dir", state]);
    let given = options.iter().position(|option| option == "--backend").and_then(|at| options.get(at + 1)).cloned();
    let backend = given.or_else(|| std::env::var("CONFORMANCE_BACKEND").ok()).unwrap_or_else(|| "soft".to_owned());
    command.args(["--backend", &backend, "--jail", "best-effort"]);
    let memory = match backend.as_str() {
        "soft" => {
            command.args(["--soft-memory", "1GiB", "--context-memory", "0"]);
            ZONE_MEMORY
        }
        // Contexts alone take more than the zones have else.
        _ => ZONE_MEMORY_ON_A_GPU,
    };
    let mut options = options.iter();
    while let Some(option) = options.next() {
        match option.as_str() {
            "--backend" => drop(options.next()),
            _ => drop(command.arg(option)),
        }
    }
    for zone in zones {
        command.arg("--zone").arg(format!("{zone}:memory={memory}"));
    }
    let file = if append { File::options().append(true).open(log) } else { File::create(log) };
    command.stdout(Stdio::null()).stderr(file.expect("a log file")).spawn().expect("bulkhead starts")
}
