//! The spawner itself, in the process that has the privilege.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use control::ZoneName;
use control::backend::Backend;
use control::checkpoint::Target;
use control::jail::Demand;
use control::namespaces::{self, Numbers};
use control::packet;
use control::process;
use control::spawner::{Confined, Facts, HostLimits, Program, SLOTS, Spawner, Started};
use sandbox::cgroup::{self, Cgroups, Rule, Surroundings};
use sandbox::jail::Policy;

use crate::{Settings, command};

/// Starts processes by itself, with the privilege that it has.
pub struct Local {
    settings: Settings,
    facts: Facts,
    state: Mutex<State>,
}

struct State {
    /// Control groups around workers; empty where there are none.
    cgroups: Cgroups,
    children: BTreeMap<u64, Running>,
    next: u64,
}

struct Running {
    pid: u32,
    process: OwnedFd,
    /// None for the meter and movers.
    slot: Option<usize>,
    /// The jailed process itself, of which descriptors are taken; none while it is not known, or sends them itself.
    inside: Option<OwnedFd>,
    /// The client that it serves, as the kernel says.
    client: Option<OwnedFd>,
}

impl Local {
    /// Takes the control groups of the state directory, and says once what this machine does not give.
    pub fn open(mut settings: Settings) -> Self {
        // As the broker knows it: names of sockets are compared.
        settings.state_dir = settings.state_dir.canonicalize().unwrap_or(settings.state_dir);
        let privileged = rustix::process::geteuid().is_root() && settings.jail != Demand::Off;
        let mut cgroups = Cgroups::default();
        // Only root makes any: device rules need it, and other users' workers are held by namespaces alone.
        if privileged {
            cgroups = Cgroups::open(&settings.state_dir, &Surroundings::read(), &device_rules(&settings.backend));
            for (part, reason) in cgroups.reasons() {
                tracing::info!(part = part.name(), reason, "part of the jail is missing");
            }
        }
        let facts = Facts { privileged, missing: cgroups.missing() };
        Self { settings, facts, state: Mutex::new(State { cgroups, children: BTreeMap::new(), next: 0 }) }
    }

    /// What the operator has decided.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Reaps what is gone and nobody asked about: the broker that started it is gone, too.
    pub fn bury(&self) {
        let gone: Vec<u64> = {
            let state = self.lock();
            let gone = |running: &Running| !process::is_alive(&running.process);
            state.children.iter().filter(|(_, running)| gone(running)).map(|(id, _)| *id).collect()
        };
        for id in gone {
            self.reap(id);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a worker or what describes the cards, in a group in which it can open the devices of its backend.
    fn start_confined(
        &self,
        confined: &Confined,
        inventory: bool,
        (stdin, stderr): (Option<OwnedFd>, Option<OwnedFd>),
    ) -> io::Result<Started> {
        let all = &self.settings.backend;
        let backend = if inventory { all.with_all_devices() } else { all.with_devices(&confined.gpus) };
        let slot = confined.slot;
        let root = rustix::process::geteuid().is_root();
        let mut command = command::worker(&self.settings, confined, &backend, inventory, root);
        command::connect(&mut command, stdin, stderr);
        let mut state = self.lock();
        if slot >= SLOTS || !state.is_free(slot) {
            return Err(io::Error::other("the slot is in use"));
        }
        if let Err(error) = state.cgroups.confine(&mut command, slot, &device_rules(&backend)) {
            state.cgroups.leave(slot);
            if self.settings.jail == Demand::Require {
                return Err(error);
            }
            tracing::warn!(%error, "a worker has no control group");
        }
        state.spawn(&mut command, Some(slot)).inspect_err(|_| state.cgroups.leave(slot))
    }

    /// The process of a worker that has the driver, known by more than its number.
    fn target(&self, state: &State, worker: u64) -> io::Result<Target> {
        let running = state.children.get(&worker).ok_or(io::ErrorKind::NotFound)?;
        let slot = running.slot.ok_or(io::ErrorKind::InvalidInput)?;
        let pid = process::innermost(running.pid);
        let start_time = process::start_time(pid).ok_or(io::ErrorKind::NotFound)?;
        // The time is that of a process of the worker's if that still has the number, and the worker its own.
        if process::innermost(running.pid) != pid || !process::is_alive(&running.process) {
            return Err(io::ErrorKind::NotFound.into());
        }
        let own = self.settings.uid(slot);
        let uid = process::uid(pid).filter(|uid| *uid == own).unwrap_or(rustix::process::geteuid().as_raw());
        Ok(Target { pid: i32::try_from(pid).map_err(io::Error::other)?, start_time, uid })
    }
}

impl State {
    fn is_free(&self, slot: usize) -> bool {
        !self.children.values().any(|running| running.slot == Some(slot)) && self.cgroups.is_free(slot)
    }

    fn spawn(&mut self, command: &mut Command, slot: Option<usize>) -> io::Result<Started> {
        let child = command.spawn()?;
        let process = process::open(child.id())?;
        self.keep(child.id(), process, slot)
    }

    fn keep(&mut self, pid: u32, process: OwnedFd, slot: Option<usize>) -> io::Result<Started> {
        self.next += 1;
        let started = Started { id: self.next, pid, process: process.try_clone()? };
        self.children.insert(self.next, Running { pid, process, slot, inside: None, client: None });
        Ok(started)
    }
}

impl Spawner for Local {
    fn facts(&self) -> Facts {
        self.facts
    }

    fn start(&self, program: &Program, stdin: Option<OwnedFd>, stderr: Option<OwnedFd>) -> io::Result<Started> {
        let missing = || io::Error::new(io::ErrorKind::Unsupported, "not configured");
        let mut command = match program {
            Program::Worker(confined) => return self.start_confined(confined, false, (stdin, stderr)),
            Program::Inventory(confined) => return self.start_confined(confined, true, (stdin, stderr)),
            Program::Meter => {
                let meter = self.settings.meter.as_ref().ok_or_else(missing)?;
                command::meter(&self.settings, meter, rustix::process::geteuid().is_root())
            }
            Program::Mover { worker, which } => {
                let mover = self.settings.mover.as_ref().ok_or_else(missing)?;
                let target = self.target(&self.lock(), *worker)?;
                command::mover(&self.settings, mover, &target, *which)
            }
        };
        command::connect(&mut command, stdin, stderr);
        self.lock().spawn(&mut command, None)
    }

    fn adopt(&self, slot: usize, pid: u32, start_time: u64, zone: Option<&ZoneName>) -> io::Result<Started> {
        let process = process::open_if_same(pid, start_time).ok_or(io::ErrorKind::NotFound)?;
        let mut state = self.lock();
        let known = state.children.iter().find(|(_, running)| running.slot == Some(slot) && running.pid == pid);
        if let Some((id, _)) = known {
            return Ok(Started { id: *id, pid, process });
        }
        // Whoever asks could name any process of the machine.
        let user = process::uid(pid);
        let allowed = [Some(self.settings.uid(slot)), Some(rustix::process::geteuid().as_raw())];
        let ours =
            user == allowed[0] || user == allowed[1] && (!self.facts.privileged || state.cgroups.contains(pid));
        if slot >= SLOTS || !ours || !state.is_free(slot) {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        state.cgroups.adopt(slot, zone);
        state.keep(pid, process, Some(slot))
    }

    fn sweep(&self) {
        self.lock().cgroups.sweep();
    }

    fn kill(&self, id: u64) {
        if let Some(running) = self.lock().children.get(&id) {
            process::kill(&running.process);
        }
    }

    fn reap(&self, id: u64) -> Option<String> {
        let mut state = self.lock();
        if state.children.get(&id).is_some_and(|running| process::is_alive(&running.process)) {
            return None;
        }
        let running = state.children.remove(&id)?;
        if let Some(slot) = running.slot {
            state.cgroups.leave(slot);
        }
        process::reap(running.process.as_fd())
    }

    fn is_free(&self, slot: usize) -> bool {
        self.lock().is_free(slot)
    }

    fn open_inside(&self, id: u64) -> io::Result<()> {
        let mut state = self.lock();
        let running = state.children.get_mut(&id).ok_or(io::ErrorKind::NotFound)?;
        running.inside = Some(process::open_innermost(running.pid, &running.process).ok_or(io::ErrorKind::NotFound)?);
        Ok(())
    }

    fn take_descriptor(&self, id: u64, number: i32) -> io::Result<OwnedFd> {
        let state = self.lock();
        let inside = state.children.get(&id).and_then(|running| running.inside.as_ref());
        process::take_descriptor(inside.ok_or(io::ErrorKind::NotConnected)?, number)
    }

    fn set_client(&self, id: u64, connection: BorrowedFd<'_>) -> io::Result<()> {
        // Only who has come to a zone's own socket is a client: else any process could be named.
        if !is_of_a_zone(connection, &self.settings.state_dir)? {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        let client = process::peer(connection)?.pidfd;
        let mut state = self.lock();
        state.children.get_mut(&id).ok_or(io::ErrorKind::NotFound)?.client = client;
        Ok(())
    }

    fn kill_client(&self, id: u64) -> bool {
        let state = self.lock();
        let client = state.children.get(&id).and_then(|running| running.client.as_ref());
        client.inspect(|client| process::kill(client)).is_some()
    }

    fn set_zone(&self, zone: &ZoneName, limits: HostLimits) -> io::Result<bool> {
        let mut state = self.lock();
        match state.cgroups.can_limit(limits) {
            Ok(()) => state.cgroups.set_zone(zone, limits),
            Err(what) => Err(io::Error::other(format!("this machine does not let us limit {what}"))),
        }
    }

    fn remove_zone(&self, zone: &ZoneName) {
        self.lock().cgroups.remove_zone(zone);
    }

    fn set_access(&self, zone: &ZoneName, mode: u32, uid: Option<u32>, gid: Option<u32>) -> io::Result<()> {
        packet::set_access(&self.settings.state_dir.join("zones").join(zone.as_str()).join("sock"), mode, uid, gid)
    }

    fn admit(&self, id: u64, zone: &ZoneName, gpus: &[u32]) -> io::Result<()> {
        let mut state = self.lock();
        let Some(slot) = state.children.get(&id).and_then(|running| running.slot) else { return Ok(()) };
        state.cgroups.admit(slot, zone, &device_rules(&self.settings.backend.with_devices(gpus)))
    }

    fn numbers(&self, pid: u32) -> Numbers {
        namespaces::numbers(pid)
    }

    fn deadline(&self) -> Option<Instant> {
        self.lock().cgroups.deadline()
    }

    fn tidy(&self, now: Instant) {
        self.lock().cgroups.tidy(now);
    }

    fn retire(&self, everything: bool) {
        self.lock().cgroups.retire(everything);
    }
}

/// Whether a connection was accepted by the socket of a zone: it has the name of the listener then.
fn is_of_a_zone(connection: BorrowedFd<'_>, state_dir: &Path) -> io::Result<bool> {
    let address = rustix::net::getsockname(connection)?;
    let address = rustix::net::SocketAddrUnix::try_from(address)?;
    let Some(path) = address.path().and_then(|path| path.to_str().ok().map(std::path::PathBuf::from)) else {
        return Ok(false);
    };
    let zones = state_dir.join("zones");
    Ok(path.strip_prefix(&zones).is_ok_and(|rest| rest.components().count() == 2))
}

/// Asked anew each time: a driver makes some of its nodes when they are first needed.
fn device_rules(backend: &Backend) -> Vec<Rule> {
    cgroup::of_policy(&Policy::from(backend))
}
