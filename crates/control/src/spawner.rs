//! What the broker asks of the process that has the privilege to start, confine and end workers.
//!
//! The broker parses what tenants, pods and operators send, and has no privilege. Everything that takes one goes through
//! this trait: to a process of its own where the node runs as root, or to the same process for an ordinary user, who has
//! nothing to keep apart.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use crate::ZoneName;
use crate::checkpoint::Move;
use crate::jail::Missing;
use crate::namespaces::Numbers;
use crate::zone::ZoneLimits;

/// As many workers as a node can have, each in a slot of its own.
pub const SLOTS: usize = 1024;

/// The part of a zone's limits that is a matter of control groups.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct HostLimits {
    /// Bytes of host memory.
    pub memory: Option<u64>,
    /// In percent of one processor.
    pub cpu: Option<u32>,
    /// Processes and threads.
    pub processes: Option<u64>,
}

impl From<&ZoneLimits> for HostLimits {
    /// Of limits that are in force, as [`HostDefaults::in_force`](crate::host_defaults::HostDefaults::in_force) answers.
    fn from(limits: &ZoneLimits) -> Self {
        Self { memory: limits.host_memory, cpu: limits.host_cpu, processes: limits.host_processes }
    }
}

/// What is true of a spawner for as long as it lives.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Facts {
    /// Workers have user ids of their own, and descriptors can be taken from them.
    pub privileged: bool,
    /// Parts of the sandbox around workers that this machine does not give.
    pub missing: Missing,
}

/// A process that a spawner can start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Program {
    /// Serves one client.
    Worker(Confined),
    /// Tells what the cards look like, and ends.
    Inventory(Confined),
    /// Tells what each process uses of the GPUs.
    Meter,
    /// Stops and resumes the work of workers.
    Preemptor,
    /// Tells whether that works on this driver, and ends.
    PreemptionTest,
    /// Moves the GPU memory of a worker.
    Mover {
        /// The worker's child number.
        worker: u64,
        /// Where to.
        which: Move,
    },
}

/// How a process that loads a driver is confined.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Confined {
    /// Its place among all workers: decides user id and control group.
    pub slot: usize,
    /// The GPUs that it may open; none: all of the node's.
    pub gpus: Vec<u32>,
    /// Its driver starts when the client is there, not before.
    pub fresh: bool,
    /// `/proc` cannot be mounted here, so a pid namespace would leave the driver without one that fits.
    pub without_pid_namespace: bool,
    /// Its descriptors are taken, so it need not send any.
    pub names_descriptors: bool,
}

/// A process that was started, or adopted.
#[derive(Debug)]
pub struct Started {
    /// The spawner's number for it.
    pub id: u64,
    /// Its number in the kernel.
    pub pid: u32,
    /// Readable when it has ended.
    pub process: OwnedFd,
}

/// The privilege that a broker uses. Each call is quick, and answers before it returns.
pub trait Spawner: Send + Sync {
    /// What is true of it for as long as it lives.
    fn facts(&self) -> Facts;

    /// Hangs up when it is gone, where it is a process of its own.
    fn lifeline(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Starts a process. `stdin` is how it is talked to; `stderr` where it complains, if not where we do.
    fn start(&self, program: &Program, stdin: Option<OwnedFd>, stderr: Option<OwnedFd>) -> io::Result<Started>;

    /// Takes over a worker that an earlier spawner or broker has started, if it is still the same process.
    fn adopt(&self, slot: usize, pid: u32, start_time: u64, zone: Option<&ZoneName>) -> io::Result<Started>;

    /// Ends everything that was left behind and not adopted.
    fn sweep(&self);

    /// Kills a process that was started or adopted.
    fn kill(&self, id: u64);

    /// The exit status of a process that is gone; its slot is free after that. None while it runs, and for a process that
    /// was adopted.
    fn reap(&self, id: u64) -> Option<String>;

    /// Whether a slot is free.
    fn is_free(&self, slot: usize) -> bool;

    /// Finds the jailed process of a worker, while it has not met a tenant. Its descriptors can be taken from then on.
    fn open_inside(&self, id: u64) -> io::Result<()>;

    /// Takes a descriptor out of the jailed process of a worker, as if that had sent it.
    fn take_descriptor(&self, id: u64, number: i32) -> io::Result<OwnedFd>;

    /// Remembers the process at the other end of a connection that a zone's socket has accepted as the client of a worker.
    fn set_client(&self, id: u64, connection: BorrowedFd<'_>) -> io::Result<()>;

    /// Kills the client of a worker; false when it is not known.
    fn kill_client(&self, id: u64) -> bool;

    /// Makes limits of host memory, processor time and processes count for a zone; true when its workers must be admitted
    /// again.
    fn set_zone(&self, zone: &ZoneName, limits: HostLimits) -> io::Result<bool>;

    /// Forgets a zone's limits.
    fn remove_zone(&self, zone: &ZoneName);

    /// Makes the directory of a zone, or takes the one that is there. What a tenant has put into it in place of ours goes.
    /// With `users` it has a second one, for local users; without, that goes.
    fn make_zone_directory(&self, zone: &ZoneName, users: bool) -> io::Result<()>;

    /// Removes the directories of a zone.
    fn remove_zone_directory(&self, zone: &ZoneName);

    /// Removes the socket for operators, before the broker listens at it and when it ends.
    fn clear_admin_socket(&self) -> io::Result<()>;

    /// Makes the socket for operators root's, once the broker listens at it.
    fn open_admin_socket(&self) -> io::Result<()>;

    /// Says who may connect to a zone's sockets, and whose they are. That for local users is for nobody but user and group.
    fn set_access(&self, zone: &ZoneName, mode: u32, uid: Option<u32>, gid: Option<u32>) -> io::Result<()>;

    /// Puts a worker under the limits of the zone that it is about to serve, with the devices of that zone. Fails with
    /// `TimedOut` when it cannot be held.
    fn admit(&self, id: u64, zone: &ZoneName, gpus: &[u32]) -> io::Result<()>;

    /// The numbers that a process has in the pid namespaces from which it can be seen.
    fn numbers(&self, pid: u32) -> Numbers;

    /// When [`Spawner::tidy`] has something to do.
    fn deadline(&self) -> Option<Instant>;

    /// Removes what could not be removed before.
    fn tidy(&self, now: Instant);

    /// The broker ends; with `everything`, nothing is to stay.
    fn retire(&self, everything: bool);
}

/// A process of ours, ended and reaped through its spawner.
pub struct Child {
    started: Started,
    spawner: Arc<dyn Spawner>,
}

impl Child {
    /// Starts it.
    pub fn start(
        spawner: &Arc<dyn Spawner>,
        program: &Program,
        stdin: Option<OwnedFd>,
        stderr: Option<OwnedFd>,
    ) -> io::Result<Self> {
        Ok(Self { started: spawner.start(program, stdin, stderr)?, spawner: Arc::clone(spawner) })
    }

    /// Adopts it.
    pub fn adopt(
        spawner: &Arc<dyn Spawner>,
        slot: usize,
        (pid, start_time): (u32, u64),
        zone: Option<&ZoneName>,
    ) -> io::Result<Self> {
        Ok(Self { started: spawner.adopt(slot, pid, start_time, zone)?, spawner: Arc::clone(spawner) })
    }

    /// The spawner's number for it.
    pub fn id(&self) -> u64 {
        self.started.id
    }

    /// Its number in the kernel.
    pub fn pid(&self) -> u32 {
        self.started.pid
    }

    /// Readable when it has ended.
    pub fn process(&self) -> &OwnedFd {
        &self.started.process
    }

    /// Ends it. Its end is an event of its own.
    pub fn kill(&self) {
        self.spawner.kill(self.started.id);
    }

    /// Its exit status, once it is gone.
    pub fn reap(&self) -> Option<String> {
        self.spawner.reap(self.started.id)
    }

    /// Finds its jailed process.
    pub fn open_inside(&self) -> io::Result<()> {
        self.spawner.open_inside(self.started.id)
    }

    /// Takes a descriptor out of its jailed process.
    pub fn take_descriptor(&self, number: i32) -> io::Result<OwnedFd> {
        self.spawner.take_descriptor(self.started.id, number)
    }

    /// Remembers who is at the other end of a zone's connection as its client.
    pub fn set_client(&self, connection: BorrowedFd<'_>) -> io::Result<()> {
        self.spawner.set_client(self.started.id, connection)
    }

    /// Kills its client; false when that is not known.
    pub fn kill_client(&self) -> bool {
        self.spawner.kill_client(self.started.id)
    }
}
