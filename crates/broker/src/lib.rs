//! The broker: what tenants, pods and operators talk to. It has no privilege; that is the spawner's. It knows zones, processes
//! and sums of bytes; of what a tenant sends it reads the fixed `Hello`, `Inquiry` or a rendezvous' messages and nothing else,
//! and it never loads a CUDA driver.
//!
//! [`Broker`] is a composition. Each part owns its state, takes the time as an argument where it needs it, and returns what
//! follows from an event: a worker to end, a message to send, a process to start. `impl Broker` blocks, beside the part that
//! they serve, have that done.
//!
//! One thread, one loop, every descriptor non-blocking: no peer can make it wait. A peer that does not take what it is sent is
//! ended. What a successor needs is written down ([`workers`], [`zones`], [`sharing`]) before it becomes true.

#![forbid(unsafe_code)]
#![warn(unreachable_pub)]

mod admin;
mod clients;
mod launcher;
mod ledger;
mod monitor;
mod preemption;
mod reactor;
mod reload;
mod scheduler;
mod sharing;
pub mod state_dir;
mod suspend;
#[cfg(test)]
mod testing;
mod throttle;
mod worker_logs;
mod workers;
mod zones;

use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use control::ZoneName;
use control::ZoneSettings;
use control::backend::Backend;
use control::driver_filter::DriverFilter;
use control::grant::Grant;
use control::host_defaults::HostDefaults;
use control::jail::{Demand, Missing};
use control::spawner::{Child, Spawner};

use admin::{Admin, Role};
use clients::{Clients, Door, handshake};
use launcher::Launcher;
pub use monitor::Meter;
use monitor::Monitor;
use preemption::Preemption;
use reactor::{Reactor, Source};
use reload::LiveConfig;
pub use reload::Reload;
use scheduler::{Scheduler, Verdict};
use sharing::Sharing;
pub use sharing::Strangers;
pub use state_dir::{StateDir, StateDirError};
pub use suspend::Suspend;
use suspend::Suspension;
pub use workers::FallenWorkers;
use workers::{Place, RejoinListener, Workers};
use zones::ZoneStore;

#[derive(Debug, Clone)]
pub struct Config {
    pub state_dir: PathBuf,
    /// For one user alone: the directory goes when [`Broker::run`] ends by hang-up of its lifeline.
    pub private: bool,
    pub backend: Backend,
    pub zones: Vec<(ZoneName, ZoneSettings)>,
    pub grants: Vec<Grant>,
    pub spare_workers: usize,
    pub jail: Demand,
    /// What is to stand between workers and NVIDIA's driver.
    pub driver_filter: DriverFilter,
    /// First of the user ids that workers get, one each, where their spawner is root.
    pub worker_uids: u32,
    /// What each context is charged with, on its zone's account.
    pub context_memory: u64,
    /// What zones have of the host where nobody says otherwise.
    pub host_defaults: HostDefaults,
    /// Who looks at what workers really use; none where nobody can.
    pub meter: Option<Meter>,
    /// How clients are suspended.
    pub suspend: Suspend,
    pub max_clients_per_zone: usize,
    /// Workers of all zones together, at most as many as there are slots.
    pub max_workers: usize,
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

/// A composition: each part owns its state and says what follows from an event, and the loop has that done.
pub struct Broker {
    config: LiveConfig,
    state_dir: StateDir,
    launcher: Launcher,
    reactor: Reactor,
    zones: ZoneStore,
    workers: Workers,
    clients: Clients,
    admin: Admin,
    sharing: Sharing,
    monitor: Monitor,
    preemption: Preemption,
    suspend: Suspension<Child>,
    scheduler: Scheduler,
}

impl Broker {
    /// Takes the state directory, adopts what a predecessor left, starts the first worker and listens.
    pub fn start(config: Config, spawner: Arc<dyn Spawner>) -> Result<Self, StartError> {
        let mut broker = Self::assemble(config, spawner)?;
        broker.start_first_worker()?;
        Ok(broker)
    }

    /// All of it but the first worker.
    fn assemble(config: Config, spawner: Arc<dyn Spawner>) -> Result<Self, StartError> {
        raise_descriptor_limit();
        let now = Instant::now();
        let state_dir = StateDir::open(&config.state_dir, config.private)?;
        let serve = |source| StartError::Serve { path: state_dir.path().to_owned(), source };
        let reactor = Reactor::new().map_err(serve)?;
        let admin = Admin::listen(&state_dir, &*spawner, &reactor, now).map_err(serve)?;
        let rejoin_listener =
            RejoinListener::open(&state_dir.workers_socket(), Place::Current, &reactor).map_err(serve)?;
        let workers = Workers::open(&state_dir.workers(), rejoin_listener, now).map_err(serve)?;
        let scheduler = Scheduler::start(config.watchdog).map_err(serve)?;
        reactor.watch(scheduler.verdict_bell(), Source::Scheduler).map_err(serve)?;
        let launcher = Launcher::new(spawner).map_err(serve)?;
        let mut broker = Self {
            suspend: Suspension::new(config.suspend),
            config: LiveConfig::new(config),
            state_dir,
            launcher,
            reactor,
            zones: ZoneStore::default(),
            workers,
            clients: Clients::default(),
            admin,
            sharing: Sharing::new(),
            monitor: Monitor::default(),
            preemption: Preemption::new(),
            scheduler,
        };
        broker.adopt().map_err(|source| StartError::Serve { path: broker.state_dir.path().to_owned(), source })?;
        Ok(broker)
    }

    pub fn state_dir(&self) -> &StateDir {
        &self.state_dir
    }

    /// Parts of the jail that this machine does not allow.
    pub fn missing(&self) -> Missing {
        self.launcher.missing()
    }

    /// Serves until `signals` has something to read or `lifeline` hangs up.
    pub fn run(mut self, signals: OwnedFd, lifeline: Option<OwnedFd>) -> io::Result<Ended> {
        self.reactor.watch(&signals, Source::Signals)?;
        if let Some(lifeline) = &lifeline {
            self.reactor.watch(lifeline, Source::Lifeline)?;
        }
        if let Some(spawner) = self.launcher.spawner().lifeline() {
            self.reactor.watch(spawner, Source::Spawner)?;
        }
        loop {
            self.keep_spares();
            self.keep_meter();
            self.keep_preemptor();
            self.keep_previous_listener();
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
                    Source::AdminListener => self.accept_admin(Role::Operator),
                    Source::StatusListener => self.accept_admin(Role::Observer),
                    Source::Admin(id) => self.on_admin(id),
                    Source::RejoinListener => self.accept_rejoin(Place::Current),
                    Source::PreviousRejoinListener => self.accept_rejoin(Place::Previous),
                    Source::Rejoin(id) => self.on_rejoin(id),
                    Source::Zone(id) => self.accept_client(id, Door::Container),
                    Source::Users(id) => self.accept_client(id, Door::User),
                    Source::Guests(id) => self.accept_client(id, Door::Guest),
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
                    Source::Preemptor => self.on_preemptor(),
                    Source::PreemptionTest => self.on_preemption_test(),
                    Source::Scheduler => self.on_verdicts(),
                    Source::Mover(id) => self.on_mover(id),
                }
            }
            self.on_deadlines(Instant::now());
        }
    }

    /// Makes zones and workers of a predecessor ours.
    fn adopt(&mut self) -> io::Result<()> {
        self.adopt_zones()?;
        for (name, settings) in self.config.zones.clone() {
            self.configure_zone(&name, settings)?;
        }
        self.forget_other_zones(|name| self.zones.contains(name));
        self.zones.resume_totals(&self.state_dir.totals());
        self.adopt_workers()?;
        self.launcher.spawner().sweep();
        // Last, for only now it is known which of them are empty.
        self.remove_unconfigured();
        for name in self.zones.names() {
            if self.workers.of_zone(&name).next().is_none() {
                self.zones.became_idle(&name, Instant::now());
            }
        }
        self.zones.read_budgets(&self.state_dir.budgets());
        self.sharing.grants.read(&self.state_dir.grants());
        self.load_sharing_groups();
        self.end_expired();
        self.configure_grants();
        self.save_zones()
    }

    /// Ends workers that keep the GPU from others, and has others' work stopped and resumed, and slices set.
    fn on_verdicts(&mut self) {
        let decisions = self.scheduler.take_decisions();
        for (id, stop) in decisions.stops {
            self.preempt(id, stop);
        }
        for (id, slice) in decisions.slices {
            self.set_slice(id, slice);
        }
        for (id, verdict) in decisions.verdicts {
            let Some(worker) = self.workers.get_mut(id) else { continue };
            let Some(zone) = worker.zone().cloned() else { continue };
            let why = match verdict {
                Verdict::Runaway => "its work has not ended within the watchdog's time while other zones waited",
                Verdict::Silent => "it does not report to the scheduler",
            };
            tracing::warn!(%zone, pid = worker.client_pid(), worker = worker.pid, "worker ended: {why}");
            worker.kill();
            if let Some(zone) = self.zones.get_mut(&zone) {
                zone.totals.runaways += 1;
            }
        }
    }

    fn next_deadline(&self) -> Option<Instant> {
        let now = Instant::now();
        let deadlines = [
            self.clients.queue.next_deadline(),
            self.clients.listeners.next_deadline(),
            self.workers.next_deadline(),
            self.workers.spares.due(&self.demand()),
            self.zones.next_deadline(),
            self.monitor.inventory.next_deadline(),
            self.monitor.utilization.next_deadline(),
            self.monitor.meter.next_deadline(),
            self.preemption.next_deadline(),
            self.next_expiry(now),
            self.launcher.spawner().deadline(),
            self.suspend.next_deadline(),
            self.sharing.rendezvous.next_deadline(now),
        ];
        deadlines.into_iter().flatten().min()
    }

    fn on_deadlines(&mut self, now: Instant) {
        self.expire_clients(now);
        self.clients.listeners.reopen(&self.reactor, now);
        self.monitor.inventory.kill_if_late(now);
        self.expire_preemption(now);
        self.observe_workers(now);
        self.end_expired();
        if self.launcher.spawner().deadline().is_some_and(|deadline| deadline <= now) {
            self.launcher.spawner().tidy(now);
        }
        self.tick_suspend(now);
        self.flush_rendezvous();
        self.workers.expire(now);
        self.workers.reopen(&self.reactor, now);
        self.expire_zones(now);
    }

    /// `everything`: also the workers that have clients, and the state directory; for a proxy that is one program's own.
    fn stop(&mut self, everything: bool) {
        for client in self.clients.queue.iter() {
            handshake::refuse(&client.connection.socket, handshake::Refusal::Stopping);
        }
        let mut ended = Vec::new();
        for (_, worker) in self.workers.iter_mut().filter(|(_, worker)| everything || worker.zone().is_none()) {
            worker.kill();
            ended.push(worker.slot);
        }
        self.wait_for_killed();
        self.monitor.inventory.stop();
        self.launcher.logs().finish(&self.workers.iter().map(|(_, worker)| worker.pid).collect());
        let left = self.workers.len();
        ended.into_iter().for_each(|slot| self.workers.note_free(slot));
        if left > 0 {
            tracing::info!(workers = left, "stopping; workers with clients continue until a new broker adopts them");
        }
        // With nobody left and no zone but those we are started with, there is nothing that a successor would miss.
        let is_given = |name: &ZoneName| self.config.zones.iter().any(|(known, _)| known == name);
        let passing = self.zones.iter().all(|(name, zone)| zone.lifetime.leased || is_given(name));
        let nothing_left = left == 0 && !self.config.private && passing;
        self.launcher.spawner().retire(everything || nothing_left);
        if everything {
            self.state_dir.remove();
        } else if nothing_left {
            self.forget_other_zones(is_given);
            self.state_dir.clear();
        } else {
            self.state_dir.retire();
        }
        let _ = self.launcher.spawner().clear_admin_socket();
    }
}

/// Shares of the limit are given to zones, and the usual one of a thousand is for programs that use `select`.
pub fn raise_descriptor_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }) {
        tracing::warn!(%error, "cannot raise the limit of open files");
    }
}
