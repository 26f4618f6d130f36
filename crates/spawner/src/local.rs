//! The spawner itself, in the process that has the privilege.

use std::collections::BTreeMap;
use std::fs::{DirBuilder, Permissions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use control::ZoneName;
use control::backend::Backend;
use control::checkpoint::Target;
use control::jail::Demand;
use control::namespaces::{self, Numbers};
use control::packet;
use control::process;
use control::spawner::{Confined, Facts, HostLimits, Program, SLOTS, Spawner, Started};
use control::zone::Access;
use parking_lot::{Mutex, MutexGuard};
use sandbox::cgroup::{self, Cgroups, Rule, Surroundings};
use sandbox::jail::Policy;

use crate::{Settings, command};

/// Zones with a cgroup of their own: the kernel has only so many.
const MAX_ZONES: usize = 8192;

/// Starts processes by itself, with the privilege that it has.
pub struct Local {
    settings: Settings,
    facts: Facts,
    state: Mutex<State>,
}

struct State {
    /// Cgroups around workers; empty where there are none.
    cgroups: Cgroups,
    children: BTreeMap<u64, Running>,
    next: u64,
}

struct Running {
    pid: u32,
    process: OwnedFd,
    /// None for the meter and movers.
    slot: Option<usize>,
    is_worker: bool,
    /// The worker whose memory it moves.
    moves: Option<u64>,
    /// Which one it is of those of whom there is one.
    single: Option<Single>,
    /// Its broker is gone, and the next one has not adopted it.
    is_orphan: bool,
    /// The jailed process itself, of which descriptors are taken; none while it is not known, or sends them itself.
    inside: Option<OwnedFd>,
    /// The client that it serves, as the kernel says.
    client: Option<OwnedFd>,
}

/// Helpers of whom there is one at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Single {
    Meter,
    Preemptor,
    PreemptionTest,
}

/// What a process is for.
#[derive(Default)]
struct Kind {
    slot: Option<usize>,
    is_worker: bool,
    moves: Option<u64>,
    single: Option<Single>,
}

impl Local {
    /// Takes the cgroups of the state directory, and says once what this machine does not give.
    pub fn open(mut settings: Settings) -> Self {
        // As the broker knows it: names of sockets are compared.
        settings.state_dir = settings.state_dir.canonicalize().unwrap_or(settings.state_dir);
        let privileged = rustix::process::geteuid().is_root() && settings.jail != Demand::Off;
        let mut cgroups = Cgroups::default();
        // Only root makes any: device rules need it, and other users' workers are held by namespaces alone.
        if privileged {
            cgroups = Cgroups::open(&settings.state_dir, &Surroundings::read(), &device_rules(&settings.backend));
            if let Err(error) = cgroups.limit_all(settings.host_memory) {
                tracing::info!(%error, "the host memory of all workers together is not limited");
            }
            if let Err(error) = cgroups.limit_all_processes(settings.host_processes) {
                tracing::info!(%error, "the processes of all workers together are not limited");
            }
            for (part, reason) in cgroups.reasons() {
                tracing::info!(part = part.name(), reason, "part of the jail is missing");
            }
        }
        let facts = Facts { privileged, missing: cgroups.missing() };
        Self { settings, facts, state: Mutex::new(State { cgroups, children: BTreeMap::new(), next: 0 }) }
    }

    fn zone(&self, zone: &ZoneName) -> PathBuf {
        self.settings.state_dir.join("zones").join(zone.as_str())
    }

    /// Where local users come to a zone.
    fn users(&self, zone: &ZoneName) -> PathBuf {
        self.settings.state_dir.join("users").join(zone.as_str())
    }

    /// Makes a directory that the broker can write to, and others can enter.
    fn make_directory(&self, path: &Path, mode: u32) -> io::Result<()> {
        // Nobody but us makes anything in the directory that it is in, where we have the privilege.
        match DirBuilder::new().mode(mode).create(path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                if !std::fs::symlink_metadata(path)?.is_dir() {
                    return Err(io::ErrorKind::NotADirectory.into());
                }
            }
            result => result?,
        }
        let mut mode = mode;
        if self.facts.privileged {
            std::os::unix::fs::chown(path, Some(0), Some(self.settings.broker_uid()))?;
            mode |= 0o070;
        }
        // It must not depend on the umask.
        std::fs::set_permissions(path, Permissions::from_mode(mode))
    }

    /// What the operator has decided.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// A new broker is about to ask: what it does not adopt of the last one's ends when it sweeps.
    pub fn begin(&self) {
        self.bury();
        self.lock().children.values_mut().for_each(|running| running.is_orphan = true);
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
        self.state.lock()
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
            tracing::warn!(%error, "cannot create a cgroup for a worker");
        }
        state
            .spawn(&mut command, Kind { slot: Some(slot), is_worker: !inventory, ..Kind::default() })
            .inspect_err(|_| state.cgroups.leave(slot))
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

    fn spawn(&mut self, command: &mut Command, kind: Kind) -> io::Result<Started> {
        let mut child = command.spawn()?;
        let started = process::open(child.id()).and_then(|process| self.keep(child.id(), process, kind));
        started.inspect_err(|_| {
            // Nobody could end or reap it any more.
            let _ = child.kill();
            let _ = child.wait();
        })
    }

    fn keep(&mut self, pid: u32, process: OwnedFd, kind: Kind) -> io::Result<Started> {
        let started = Started { id: self.next + 1, pid, process: process.try_clone()? };
        self.next += 1;
        let Kind { slot, is_worker, moves, single } = kind;
        let running =
            Running { pid, process, slot, is_worker, moves, single, is_orphan: false, inside: None, client: None };
        self.children.insert(self.next, running);
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
            Program::Preemptor | Program::PreemptionTest => {
                let helper = match program {
                    Program::Preemptor => &self.settings.preemptor,
                    _ => &self.settings.preemption_test,
                };
                let helper = helper.as_ref().ok_or_else(missing)?;
                command::preemptor(&self.settings, helper, rustix::process::geteuid().is_root())
            }
            Program::Mover { worker, which } => {
                let mover = self.settings.mover.as_ref().ok_or_else(missing)?;
                let target = self.target(&self.lock(), *worker)?;
                command::mover(&self.settings, mover, &target, *which)
            }
        };
        command::connect(&mut command, stdin, stderr);
        let kind = match program {
            Program::Mover { worker, .. } => Kind { moves: Some(*worker), ..Kind::default() },
            Program::Preemptor => Kind { single: Some(Single::Preemptor), ..Kind::default() },
            Program::PreemptionTest => Kind { single: Some(Single::PreemptionTest), ..Kind::default() },
            _ => Kind { single: Some(Single::Meter), ..Kind::default() },
        };
        let mut state = self.lock();
        // These have no slot that would bound them.
        let same = |running: &Running| {
            // One that was killed and is not reaped yet is in nobody's way.
            let same = kind.single.is_some() && running.single == kind.single && process::is_alive(&running.process);
            same || kind.moves.is_some() && running.moves == kind.moves
        };
        if state.children.values().any(same) {
            return Err(io::Error::other("already running"));
        }
        state.spawn(&mut command, kind)
    }

    fn adopt(&self, slot: usize, pid: u32, start_time: u64, zone: Option<&ZoneName>) -> io::Result<Started> {
        let process = process::open_if_same(pid, start_time).ok_or(io::ErrorKind::NotFound)?;
        let mut state = self.lock();
        let known = state.children.iter_mut().find(|(_, running)| running.slot == Some(slot) && running.pid == pid);
        if let Some((id, running)) = known {
            running.is_orphan = false;
            return Ok(Started { id: *id, pid, process });
        }
        // The broker could name any process of the machine.
        let user = process::uid(pid);
        let allowed = [Some(self.settings.uid(slot)), Some(rustix::process::geteuid().as_raw())];
        let ours =
            user == allowed[0] || user == allowed[1] && (!self.facts.privileged || state.cgroups.contains(pid));
        if slot >= SLOTS || !ours || !state.is_free(slot) {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        state.cgroups.adopt(slot, zone);
        state.keep(pid, process, Kind { slot: Some(slot), is_worker: true, ..Kind::default() })
    }

    fn sweep(&self) {
        let mut state = self.lock();
        for running in state.children.values().filter(|running| running.is_orphan) {
            process::kill(&running.process);
        }
        state.cgroups.sweep();
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
        let slot = running.slot.filter(|_| running.is_worker).ok_or(io::ErrorKind::InvalidInput)?;
        // One that is root still has not begun to jail itself.
        if self.facts.privileged && process::uid(process::innermost(running.pid)) != Some(self.settings.uid(slot)) {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
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
        let peer = process::peer(connection)?;
        let own = [self.settings.broker_uid(), self.settings.exporter_uid()];
        if self.facts.privileged && (own.contains(&peer.uid) || peer.pid <= 1 || peer.pid == std::process::id()) {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        // A number may be another process's by now; only the kernel's own word for who connected will do.
        let client = if self.facts.privileged && !peer.exact { None } else { peer.pidfd };
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
        if state.cgroups.zones() >= MAX_ZONES {
            return Err(io::Error::other("too many zones have host limits"));
        }
        match state.cgroups.can_limit(limits) {
            Ok(()) => state.cgroups.set_zone(zone, limits),
            Err(what) => Err(io::Error::other(format!("cannot limit {what} on this machine"))),
        }
    }

    fn remove_zone(&self, zone: &ZoneName) {
        self.lock().cgroups.remove_zone(zone);
    }

    fn make_zone_directory(&self, zone: &ZoneName, users: bool) -> io::Result<()> {
        let path = self.zone(zone);
        self.make_directory(&path, 0o755)?;
        if users {
            self.make_directory(&self.users(zone), 0o711)?;
        } else {
            remove_directory(&self.users(zone))?;
        }
        if !self.facts.privileged {
            return Ok(());
        }
        for name in ["sock", "driver-version", "driver-version.new"] {
            // The broker could not remove a directory of somebody else's.
            if std::fs::symlink_metadata(path.join(name)).is_ok_and(|known| known.is_dir()) {
                std::fs::remove_dir_all(path.join(name))?;
            }
        }
        Ok(())
    }

    fn remove_zone_directory(&self, zone: &ZoneName) {
        // Who finds the zone's own directory left over removes both.
        let _ = remove_directory(&self.users(zone));
        let _ = std::fs::remove_dir_all(self.zone(zone));
    }

    fn clear_admin_socket(&self) -> io::Result<()> {
        packet::clear(&self.settings.state_dir.join("admin.sock"))
    }

    fn open_admin_socket(&self) -> io::Result<()> {
        if !self.facts.privileged {
            return Ok(());
        }
        packet::set_access(&self.settings.state_dir.join("admin.sock"), 0o600, Some(0), None)
    }

    fn set_access(&self, zone: &ZoneName, mode: u32, uid: Option<u32>, gid: Option<u32>) -> io::Result<()> {
        // Its previous owner loses it.
        let (user, group) = match self.facts.privileged {
            true => (self.settings.broker_uid(), self.settings.broker_uid()),
            false => (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw()),
        };
        let (uid, gid) = (Some(uid.unwrap_or(user)), Some(gid.unwrap_or(group)));
        packet::set_access(&self.zone(zone).join("sock"), mode, uid, gid)?;
        match packet::set_access(&self.users(zone).join("sock"), Access::mode_for_users(mode), uid, gid) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            result => result,
        }
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
    let connection = UnixStream::from(connection.try_clone_to_owned()?);
    // Who was connected to has a name; who connected has none. Else any process that listens could be named.
    if !connection.peer_addr()?.is_unnamed() {
        return Ok(false);
    }
    let address = connection.local_addr()?;
    let Some(path) = address.as_pathname() else { return Ok(false) };
    let is_in =
        |place: &str| path.strip_prefix(state_dir.join(place)).is_ok_and(|rest| rest.components().count() == 2);
    Ok(is_in("zones") || is_in("users"))
}

fn remove_directory(path: &Path) -> io::Result<()> {
    match std::fs::remove_dir_all(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

/// Asked each time: a driver makes some of its nodes when they are first needed.
fn device_rules(backend: &Backend) -> Vec<Rule> {
    cgroup::of_policy(&Policy::from(backend))
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    fn local(state_dir: PathBuf) -> Local {
        for name in ["zones/a", "users"] {
            std::fs::create_dir_all(state_dir.join(name)).unwrap();
        }
        Local::open(Settings {
            state_dir,
            backend: Backend::Soft { devices: 1, memory: 1 << 30, instances: 0, only: Vec::new() },
            jail: Demand::Off,
            worker_uids: 0x3000_0000,
            program: "/bin/sleep".into(),
            worker_arguments: Vec::new(),
            meter: None,
            mover: None,
            preemptor: None,
            preemption_test: None,
            json_logs: false,
            host_memory: None,
            host_processes: None,
        })
    }

    /// A process that stands for a worker.
    fn child(local: &Local, slot: usize) -> u64 {
        let kind = Kind { slot: Some(slot), is_worker: true, ..Kind::default() };
        local.lock().spawn(Command::new("/bin/sleep").arg("1000"), kind).unwrap().id
    }

    fn end(local: &Local, id: u64) -> String {
        local.kill(id);
        let mut status = None;
        testkit::until("its end", || {
            status = local.reap(id);
            status.is_some()
        });
        status.unwrap_or_default()
    }

    #[test]
    fn only_who_came_to_a_zones_socket_is_a_client() {
        let directory = testkit::directory();
        let local = local(directory.join("s"));
        let worker = child(&local, 1);
        let zone = UnixListener::bind(directory.join("s/zones/a/sock")).unwrap();
        let _client = UnixStream::connect(directory.join("s/zones/a/sock")).unwrap();
        let (accepted, _) = zone.accept().unwrap();
        local.set_client(worker, accepted.as_fd()).unwrap();
        local.make_zone_directory(&"a".parse().unwrap(), true).unwrap();
        let users = UnixListener::bind(directory.join("s/users/a/sock")).unwrap();
        let _user = UnixStream::connect(directory.join("s/users/a/sock")).unwrap();
        local.set_client(worker, users.accept().unwrap().0.as_fd()).unwrap();
        // A process that listens elsewhere is at the far end of a connection that begins at a name in a zone.
        let victim = UnixListener::bind(directory.join("victim")).unwrap();
        let bound =
            rustix::net::socket(rustix::net::AddressFamily::UNIX, rustix::net::SocketType::STREAM, None).unwrap();
        let name = rustix::net::SocketAddrUnix::new(directory.join("s/zones/a/x")).unwrap();
        rustix::net::bind(&bound, &name).unwrap();
        rustix::net::connect(&bound, &rustix::net::SocketAddrUnix::new(directory.join("victim")).unwrap()).unwrap();
        assert!(local.set_client(worker, bound.as_fd()).is_err());
        let (elsewhere, _) = victim.accept().unwrap();
        assert!(local.set_client(worker, elsewhere.as_fd()).is_err());
        let (pair, _other) = UnixStream::pair().unwrap();
        assert!(local.set_client(worker, pair.as_fd()).is_err());
        end(&local, worker);
    }

    #[test]
    fn slots_are_used_once_and_free_again_when_their_process_is_reaped() {
        let directory = testkit::directory();
        let local = local(directory.join("s"));
        let worker = child(&local, 3);
        assert!(!local.is_free(3) && local.is_free(4));
        assert_eq!(local.reap(worker), None, "it runs");
        assert_eq!(end(&local, worker), "signal 9");
        assert!(local.is_free(3));
    }

    #[test]
    fn what_the_next_broker_does_not_adopt_ends() {
        let directory = testkit::directory();
        let local = local(directory.join("s"));
        let (kept, left) = (child(&local, 1), child(&local, 2));
        local.begin();
        let pid = local.lock().children[&kept].pid;
        let adopted = local.adopt(1, pid, process::start_time(pid).unwrap(), None).unwrap();
        assert_eq!(adopted.id, kept);
        assert!(local.adopt(1, pid, 1, None).is_err(), "another process by now");
        local.sweep();
        testkit::until("the end of what was left", || local.reap(left).is_some());
        assert_eq!(local.reap(kept), None);
        end(&local, kept);
    }
}
