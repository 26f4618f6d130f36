//! What tenants, pods and operators talk to, without privilege: that is the spawner's. It knows zones, processes and sums of bytes; of what a tenant sends it reads the fixed
//! `Hello` or `Inquiry` and nothing else, and it never loads a CUDA driver.
//!
//! One thread, one loop, every descriptor non-blocking: no peer can make it wait. A peer that does not take what it is
//! sent is ended. What a successor needs is in the [`roster`] and the book of [`zones`] before it becomes true.

#![forbid(unsafe_code)]

mod admin;
mod budgets;
mod busy;
mod clients;
mod confinement;
mod containers;
mod exports;
mod figures;
mod grants;
mod handshake;
mod ledger;
mod meetings;
mod overdraft;
mod reactor;
mod reload;
mod roster;
mod scheduler;
mod sharing;
pub mod state_dir;
mod suspension;
mod throttle;
mod views;
mod worker_logs;
mod workers;
mod zones;

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::throttle::Throttle;
use control::ZoneName;
use control::ZoneSettings;
use control::backend::Backend;
use control::grant::Grant;
use control::jail::{Demand, Missing};
use control::packet;
use control::spawner::Spawner;

use clients::Client;
pub use overdraft::Meter;
use reactor::{Reactor, Source};
pub use reload::Reload;
use roster::Roster;
use scheduler::{Scheduler, Verdict};
pub use state_dir::{StateDir, StateDirError};
pub use suspension::Suspend;
use workers::Worker;
use zones::{Zone, Zones};

/// A leased zone waits this long for its operator after a new broker has taken over.
const LEASE_GRACE: Duration = Duration::from_secs(10);

#[derive(Debug, Clone)]
pub struct Config {
    pub state_dir: PathBuf,
    /// For one user alone: the folder goes when [`Broker::run`] ends by hang-up of its lifeline.
    pub private: bool,
    pub backend: Backend,
    pub zones: Vec<(ZoneName, ZoneSettings)>,
    pub grants: Vec<Grant>,
    pub spare_workers: usize,
    pub jail: Demand,
    /// First of the user ids that workers get, one each, where their spawner is root.
    pub worker_uids: u32,
    /// What each context is charged with, on its zone's account.
    pub context_memory: u64,
    /// Who looks at what workers really use; none where nobody can.
    pub meter: Option<Meter>,
    /// Who moves idle programs' memory to the host; none where it stays.
    pub suspend: Option<Suspend>,
    pub max_clients_per_zone: usize,
    /// How long work may run on after its zone's turn, while others wait; none: for ever.
    pub watchdog: Option<Duration>,
}

#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error(transparent)]
    StateDir(#[from] StateDirError),
    #[error("cannot serve in {}: {source}", path.display())]
    Serve { path: PathBuf, source: io::Error },
    #[error("cannot start a worker: {0}")]
    Worker(#[source] io::Error),
    #[error("the first worker ended before it was ready ({0})")]
    WorkerEnded(String),
    #[error("this machine does not allow the whole jail (missing: {0}); --jail=best-effort does without")]
    Jail(Missing),
}

/// Why [`Broker::run`] returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// A signal. Workers that have a client go on, and a successor will take them over.
    Signal,
    /// The other end of the lifeline is gone, and all that was private with it.
    Lifeline,
    /// The spawner is gone, without which nothing can be started or ended. Workers that have a client go on.
    Spawner,
}

pub struct Broker {
    config: Config,
    folder: StateDir,
    roster: Roster,
    /// Who starts and ends processes for us.
    spawner: Arc<dyn Spawner>,
    reactor: Reactor,
    admin_listener: OwnedFd,
    /// For those who look and change nothing.
    status_listener: OwnedFd,
    rejoin_listener: OwnedFd,
    zones: Zones,
    workers: BTreeMap<u64, Worker>,
    clients: BTreeMap<u64, Client>,
    /// Clients that have said hello, in the order in which they get the next workers.
    waiting: VecDeque<u64>,
    rejoins: BTreeMap<u64, workers::Rejoining>,
    /// Of lines about strangers among those.
    strangers: Throttle,
    admins: BTreeMap<u64, admin::Connection>,
    next_id: u64,
    started: Instant,
    reloader: Option<reload::Reloader>,
    /// How often it was asked for, and how often the configuration was wrong.
    reloads: (u64, u64),
    views: views::Views,
    busy: busy::Busy,
    overdrafts: overdraft::Watch,
    /// By worker.
    naps: BTreeMap<u64, suspension::Nap>,
    scheduler: Scheduler,
    logs: worker_logs::WorkerLogs,
    exports: exports::Exports,
    meetings: meetings::Meetings,
    grants: grants::Grants,
    budgets: budgets::Budgets,
    /// Totals as they were last written down.
    figures: figures::Book,
    missing: Missing,
    /// The CUDA version that clients see; 0 until the first worker has told.
    driver_version: u32,
    /// No spare is started before this: the last one failed.
    next_spare: Instant,
    spares_rest_until: Instant,
    spare_failures: u32,
}

impl Broker {
    /// Takes the folder, adopts what a predecessor left, starts the first worker and listens.
    pub fn start(config: Config, spawner: Arc<dyn Spawner>) -> Result<Self, StartError> {
        raise_descriptor_limit();
        let folder = StateDir::open(&config.state_dir, config.private)?;
        let serve = |source| StartError::Serve { path: folder.path().to_owned(), source };
        let roster = Roster::open(&folder.roster()).map_err(serve)?;
        let reactor = Reactor::new().map_err(serve)?;
        spawner.clear_admin_socket().map_err(serve)?;
        let admin_listener = packet::listen(&folder.admin_socket(), 0o600, 16).map_err(serve)?;
        spawner.open_admin_socket().map_err(serve)?;
        let status_listener = packet::listen(&folder.status_socket(), 0o660, 16).map_err(serve)?;
        let rejoin_listener = packet::listen(&folder.workers_socket(), 0o666, 128).map_err(serve)?;
        reactor.watch(&admin_listener, Source::AdminListener).map_err(serve)?;
        reactor.watch(&status_listener, Source::StatusListener).map_err(serve)?;
        reactor.watch(&rejoin_listener, Source::RejoinListener).map_err(serve)?;
        let scheduler = Scheduler::start(config.watchdog).map_err(serve)?;
        reactor.watch(scheduler.verdict_bell(), Source::Scheduler).map_err(serve)?;
        let logs = worker_logs::WorkerLogs::start().map_err(serve)?;
        let mut broker = Self {
            config,
            folder,
            roster,
            spawner,
            reactor,
            admin_listener,
            status_listener,
            rejoin_listener,
            zones: Zones::new(),
            workers: BTreeMap::new(),
            clients: BTreeMap::new(),
            waiting: VecDeque::new(),
            rejoins: BTreeMap::new(),
            strangers: Throttle::new(10, Duration::from_secs(10)),
            admins: BTreeMap::new(),
            next_id: 0,
            started: Instant::now(),
            reloader: None,
            reloads: (0, 0),
            views: views::Views::default(),
            busy: busy::Busy::default(),
            overdrafts: overdraft::Watch::default(),
            naps: BTreeMap::new(),
            scheduler,
            logs,
            exports: exports::Exports::new(),
            meetings: meetings::Meetings::new(),
            grants: grants::Grants::default(),
            budgets: budgets::Budgets::default(),
            figures: figures::Book::new(),
            missing: Missing::default(),
            driver_version: 0,
            next_spare: Instant::now(),
            spares_rest_until: Instant::now(),
            spare_failures: 0,
        };
        broker.adopt().map_err(|source| StartError::Serve { path: broker.folder.path().to_owned(), source })?;
        broker.start_first_worker()?;
        Ok(broker)
    }

    pub fn state_dir(&self) -> &StateDir {
        &self.folder
    }

    /// Parts of the jail that this machine does not allow.
    pub fn missing(&self) -> Missing {
        self.missing
    }

    /// Serves until `signals` has something to read or `lifeline` hangs up.
    pub fn run(mut self, signals: OwnedFd, lifeline: Option<OwnedFd>) -> io::Result<Ended> {
        self.reactor.watch(&signals, Source::Signals)?;
        if let Some(lifeline) = &lifeline {
            self.reactor.watch(lifeline, Source::Lifeline)?;
        }
        if let Some(spawner) = self.spawner.lifeline() {
            self.reactor.watch(spawner, Source::Spawner)?;
        }
        loop {
            self.keep_spares();
            self.keep_meter();
            let until = self.next_deadline();
            for source in self.reactor.wait(until)? {
                match source {
                    Source::Signals => {
                        self.stop(false);
                        return Ok(Ended::Signal);
                    }
                    Source::Lifeline => {
                        self.stop(true);
                        return Ok(Ended::Lifeline);
                    }
                    Source::Reload => self.on_reload(),
                    Source::AdminListener => self.accept_admin(false),
                    Source::StatusListener => self.accept_admin(true),
                    Source::Admin(id) => self.on_admin(id),
                    Source::RejoinListener => self.accept_rejoin(),
                    Source::Rejoin(id) => self.on_rejoin(id),
                    Source::Zone(id) => self.accept_client(id, false),
                    Source::Guests(id) => self.accept_client(id, true),
                    Source::Spawner => {
                        self.stop(false);
                        return Ok(Ended::Spawner);
                    }
                    Source::Client(id) => self.on_client(id),
                    Source::WorkerSocket(id) => self.on_worker_socket(id),
                    Source::WorkerProcess(id) => self.on_worker_exit(id),
                    Source::WorkersClient(id) => self.on_clients_exit(id),
                    Source::Inventory => self.on_inventory(),
                    Source::Meter => self.on_meter(),
                    Source::Scheduler => self.on_verdicts(),
                    Source::Mover(id) => self.on_mover(id),
                }
            }
            self.on_deadlines(Instant::now());
        }
    }

    fn new_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    /// Reads a predecessor's books and makes its zones and workers ours.
    fn adopt(&mut self) -> io::Result<()> {
        let grace = Instant::now() + LEASE_GRACE;
        for zones::Entry { name, settings, leased, configured, parent } in zones::read_book(&self.folder.zones_book())
        {
            self.open_zone(&name, settings, leased)?;
            if let Some(zone) = self.zones.get_mut(&name) {
                zone.abandoned_at = leased.then_some(grace);
                (zone.configured, zone.parent) = (configured, parent);
            }
        }
        for (name, settings) in self.config.zones.clone() {
            self.configure_zone(&name, settings)?;
        }
        let known: Vec<String> = self.zones.keys().map(|name| name.as_str().to_owned()).collect();
        self.forget_other_zones(|name| known.iter().any(|known| known == name));
        self.resume_figures();
        self.adopt_workers()?;
        self.spawner.sweep();
        // Last, for only now it is known which of them are empty.
        self.forget_unconfigured();
        let parts: Vec<ZoneName> = self.zones.keys().cloned().collect();
        parts.iter().for_each(|name| self.rest_if_idle(name));
        self.budgets = budgets::Budgets::read(&self.folder.budgets());
        self.grants = grants::Grants::read(&self.folder.grants());
        self.load_sharing_groups();
        self.end_expired();
        self.configure_grants();
        self.save_zones()
    }

    fn open_zone(&mut self, name: &ZoneName, settings: ZoneSettings, leased: bool) -> io::Result<()> {
        let mut zone = Zone::open(self.new_id(), &self.folder, &*self.spawner, name, settings, leased)?;
        self.reactor.watch_foreign(&mut zone.listener, Source::Zone(zone.id))?;
        self.reactor.watch(&zone.guests, Source::Guests(zone.id))?;
        self.scheduler.set_zone(zone.id, &zone.limits, &zone.bindings.gpus);
        self.grants.set_sharing_groups(name, &zone.bindings.sharing_groups);
        let limits = zone.limits;
        self.zones.insert(name.clone(), zone);
        if let Err(error) = self.limit_zone(name, &limits) {
            self.zones.remove(name);
            return Err(error);
        }
        if self.driver_version != 0 {
            self.folder.write_driver_version(name, self.driver_version)?;
        }
        Ok(())
    }

    /// Ends a zone: nobody can come in any more, and those inside lose their workers.
    fn remove_zone(&mut self, name: &ZoneName) {
        let Some(zone) = self.zones.remove(name) else { return };
        for part in self.parts(name) {
            self.remove_zone(&part);
        }
        self.scheduler.remove_zone(zone.id);
        self.grants.set_sharing_groups(name, &[]);
        self.spawner.remove_zone_directory(name);
        let _ = packet::clear(&self.folder.guest_socket(name));
        if let Err(error) = self.save_zones() {
            tracing::warn!(%error, "cannot write the book of zones");
        }
        self.revoke(|grant| !grant.configured && (grant.from == *name || grant.to == *name));
        self.clients.retain(|_, client| client.zone != *name);
        self.end_meetings(name);
        for worker in self.workers.values_mut().filter(|worker| worker.zone() == Some(name)) {
            worker.kill();
        }
        self.spawner.remove_zone(name);
        tracing::info!(zone = %name, "zone removed");
    }

    /// Ends workers that keep the GPU from others.
    fn on_verdicts(&mut self) {
        for (id, verdict) in self.scheduler.take_verdicts() {
            let Some(worker) = self.workers.get_mut(&id) else { continue };
            let Some(zone) = worker.zone().cloned() else { continue };
            let why = match verdict {
                Verdict::Runaway => "its work did not end while others waited",
                Verdict::Silent => "it does not take turns",
            };
            tracing::warn!(%zone, pid = worker.client_pid(), worker = worker.pid, "worker ended: {why}");
            worker.kill();
            if let Some(zone) = self.zones.get_mut(&zone) {
                zone.runaways += 1;
            }
        }
    }

    /// Removes directories of zones that a predecessor left and nobody knows any more.
    fn forget_other_zones(&self, known: impl Fn(&str) -> bool) {
        for name in self.folder.zone_names().into_iter().filter(|name| !known(name.as_str())) {
            self.spawner.remove_zone_directory(&name);
        }
    }

    fn save_zones(&self) -> io::Result<()> {
        // Whatever has changed is in the book before it counts, limits of time included.
        for zone in self.zones.values().filter(|zone| zone.parent.is_none()) {
            self.scheduler.set_zone(zone.id, &zone.limits, &zone.bindings.gpus);
        }
        zones::write_book(&self.folder.zones_book(), &self.zones)
    }

    fn next_deadline(&self) -> Option<Instant> {
        let clients = self.clients.values().filter_map(|client| client.deadline);
        let rejoins = self.rejoins.values().map(|rejoining| rejoining.deadline);
        let workers = self.workers.values().filter_map(|worker| worker.kill_at);
        let zones = self.zones.values().flat_map(|zone| zone.abandoned_at.into_iter().chain(zone.opens_at));
        let spares = self.next_worker_due();
        clients
            .chain(rejoins)
            .chain(workers)
            .chain(zones)
            .chain(spares)
            .chain(self.views.deadline())
            .chain(self.next_look())
            .chain(self.overdrafts.deadline())
            .chain(self.next_expiry())
            .chain(self.spawner.deadline())
            .chain(self.next_return())
            .chain(self.next_meeting())
            .min()
    }

    fn on_deadlines(&mut self, now: Instant) {
        let late = |deadline: Option<Instant>| deadline.is_some_and(|deadline| deadline <= now);
        self.clients.retain(|_, client| {
            let keep = !late(client.deadline);
            if !keep {
                let complain = self.zones.get_mut(&client.zone).and_then(Zone::complain);
                if let Some(unsaid) = complain {
                    tracing::info!(zone = %client.zone, pid = client.peer.pid, unsaid, "client dropped: no hello in time");
                }
            }
            keep
        });
        self.rejoins.retain(|_, rejoining| rejoining.deadline > now);
        self.open_doors(now);
        self.views.kill_if_late(now);
        self.look_at_zones(now);
        self.end_expired();
        if late(self.spawner.deadline()) {
            self.spawner.tidy(now);
        }
        self.retry_returns(now);
        self.tell_publishers();
        for worker in self.workers.values_mut().filter(|worker| late(worker.kill_at)) {
            worker.kill();
        }
        let abandoned: Vec<ZoneName> =
            self.zones.iter().filter(|(_, zone)| late(zone.abandoned_at)).map(|(name, _)| name.clone()).collect();
        for name in abandoned {
            let waits = self.clients.values().any(|client| client.zone == name);
            match self.zones.get_mut(&name).filter(|zone| zone.parent.is_some()) {
                // A container that has programs again.
                Some(part) if waits || self.workers.values().any(|worker| worker.zone() == Some(&name)) => {
                    part.abandoned_at = None;
                }
                _ => self.remove_zone(&name),
            }
        }
    }

    /// `everything`: also the workers that have clients, and the folder; for a proxy that is one program's own.
    fn stop(&mut self, everything: bool) {
        for client in self.clients.values() {
            handshake::refuse(&client.socket, handshake::Refusal::Stopping);
        }
        let mut ended = Vec::new();
        for worker in self.workers.values_mut().filter(|worker| everything || worker.zone().is_none()) {
            worker.kill();
            ended.push(worker.slot);
        }
        self.wait_for_killed();
        self.views.stop();
        self.logs.finish(&self.workers.values().map(|worker| worker.pid).collect());
        let left = self.workers.len();
        for slot in ended {
            let _ = self.roster.clear(slot);
        }
        if left > 0 {
            tracing::info!(workers = left, "stopping; workers with clients go on until a new broker comes");
        }
        // With nobody left and no zone but those we are started with, there is nothing that a successor would miss.
        let config = &self.config;
        let given = |name: &str| config.zones.iter().any(|(known, _)| known.as_str() == name);
        let passing = self.zones.iter().all(|(name, zone)| zone.leased || given(name.as_str()));
        let nothing_left = left == 0 && !config.private && passing;
        self.spawner.retire(everything || nothing_left);
        if everything {
            self.folder.remove();
        } else if nothing_left {
            self.forget_other_zones(|name| self.config.zones.iter().any(|(known, _)| known.as_str() == name));
            self.folder.clear();
        } else {
            self.folder.retire();
        }
        let _ = self.spawner.clear_admin_socket();
    }
}

/// Shares of the limit are given to zones, and the usual one of a thousand is for programs that use `select`.
pub fn raise_descriptor_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }) {
        tracing::warn!(%error, "the limit of descriptors stays as it is");
    }
}
