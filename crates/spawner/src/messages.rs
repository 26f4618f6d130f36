//! What broker and spawner say to each other: one request of fixed size, one reply of fixed size.
//!
//! The spawner presumes the broker fallen: every field is checked here or by [`crate::Local`], and nothing in a request is a
//! path, a program or an argument.

use std::io;

use control::ZoneName;
use control::checkpoint::Move;
use control::jail::Missing;
use control::namespaces::Numbers;
use control::spawner::{Confined, Facts, HostLimits, Program, SLOTS};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

/// Changes whenever a message does: after half an upgrade the two would misunderstand each other.
const VERSION: u64 = 4;
/// As many GPUs as a request can name.
const MAX_GPUS: usize = 64;
/// The kernel nests no more pid namespaces.
const MAX_LEVELS: usize = 32;
const MAX_TEXT: usize = 128;
const ZONE: usize = control::name::MAX + 1;

/// Kinds of requests.
pub mod kind {
    /// → what is true of the spawner.
    pub const FACTS: u32 = 1;
    /// slot, gpus, flags, with the descriptors of standard input and error → child.
    pub const WORKER: u32 = 2;
    /// As `WORKER`, of the process that describes the cards.
    pub const INVENTORY: u32 = 3;
    /// With the descriptor of standard input → child.
    pub const METER: u32 = 4;
    /// child, direction as flag → child.
    pub const MOVER: u32 = 5;
    /// slot, pid, start time, zone or none → child.
    pub const ADOPT: u32 = 6;
    /// → nothing.
    pub const SWEEP: u32 = 7;
    /// child → nothing.
    pub const KILL: u32 = 8;
    /// child → exit status as text, if there is one.
    pub const REAP: u32 = 9;
    /// slot → whether it is free.
    pub const IS_FREE: u32 = 10;
    /// child → nothing.
    pub const OPEN_INSIDE: u32 = 11;
    /// child, number → descriptor.
    pub const TAKE_DESCRIPTOR: u32 = 12;
    /// child, with the descriptor of a zone's connection → nothing.
    pub const SET_CLIENT: u32 = 13;
    /// child → whether its client was known.
    pub const KILL_CLIENT: u32 = 14;
    /// zone, limits → whether its workers must be admitted again.
    pub const SET_ZONE: u32 = 15;
    /// zone → nothing.
    pub const REMOVE_ZONE: u32 = 16;
    /// child, zone, gpus → nothing.
    pub const ADMIT: u32 = 17;
    /// pid → its numbers and namespaces.
    pub const NUMBERS: u32 = 18;
    /// whether everything goes → nothing.
    pub const RETIRE: u32 = 19;
    /// zone, mode, user and group → nothing.
    pub const SET_ACCESS: u32 = 20;
    /// zone, whether local users come to it → nothing.
    pub const MAKE_ZONE_DIRECTORY: u32 = 21;
    /// zone → nothing.
    pub const REMOVE_ZONE_DIRECTORY: u32 = 22;
    /// → nothing.
    pub const CLEAR_ADMIN_SOCKET: u32 = 23;
    /// → nothing.
    pub const OPEN_ADMIN_SOCKET: u32 = 24;
    /// With the descriptor of standard input → child.
    pub const PREEMPTOR: u32 = 25;
    /// With the descriptor of standard input → child.
    pub const PREEMPTION_TEST: u32 = 26;
}

/// Bits of [`Request::flags`].
mod flag {
    pub(super) const FRESH: u32 = 1;
    pub(super) const WITHOUT_PID_NAMESPACE: u32 = 2;
    pub(super) const NAMES_DESCRIPTORS: u32 = 4;
    pub(super) const STDIN: u32 = 8;
    pub(super) const STDERR: u32 = 16;
    pub(super) const BACK: u32 = 32;
    pub(super) const MEMORY: u32 = 64;
    pub(super) const CPU: u32 = 128;
    pub(super) const EVERYTHING: u32 = 256;
    pub(super) const UID: u32 = 512;
    pub(super) const GID: u32 = 1024;
    pub(super) const USERS: u32 = 2048;
    pub(super) const PROCESSES: u32 = 4096;
}

/// A request.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Request {
    /// One of [`kind`].
    pub kind: u32,
    flags: u32,
    child: u64,
    start_time: u64,
    memory: u64,
    processes: u64,
    slot: u32,
    pid: u32,
    number: i32,
    cpu: u32,
    mode: u32,
    uid: u32,
    gid: u32,
    gpu_count: u32,
    gpus: [u32; MAX_GPUS],
    zone: [u8; ZONE],
}

/// A reply.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Reply {
    /// 0, or why not, as [`Reply::of_error`] says.
    error: i32,
    flag: u32,
    child: u64,
    pid: u32,
    missing: u32,
    levels: u32,
    text_len: u32,
    pids: [u32; MAX_LEVELS],
    namespaces: [u64; MAX_LEVELS],
    text: [u8; MAX_TEXT],
}

/// What a request asks for, checked.
#[derive(Debug, PartialEq, Eq)]
pub enum Asked {
    /// [`kind::FACTS`].
    Facts,
    /// A process is to be started; whether standard input and error come along.
    Start(Program, bool, bool),
    /// [`kind::ADOPT`].
    Adopt { slot: usize, pid: u32, start_time: u64, zone: Option<ZoneName> },
    /// [`kind::SWEEP`].
    Sweep,
    /// [`kind::KILL`].
    Kill(u64),
    /// [`kind::REAP`].
    Reap(u64),
    /// [`kind::IS_FREE`].
    IsFree(usize),
    /// [`kind::OPEN_INSIDE`].
    OpenInside(u64),
    /// [`kind::TAKE_DESCRIPTOR`].
    TakeDescriptor(u64, i32),
    /// [`kind::SET_CLIENT`].
    SetClient(u64),
    /// [`kind::KILL_CLIENT`].
    KillClient(u64),
    /// [`kind::SET_ZONE`].
    SetZone(ZoneName, HostLimits),
    /// [`kind::REMOVE_ZONE`].
    RemoveZone(ZoneName),
    /// [`kind::ADMIT`].
    Admit(u64, ZoneName, Vec<u32>),
    /// [`kind::NUMBERS`].
    Numbers(u32),
    /// [`kind::RETIRE`].
    Retire(bool),
    /// [`kind::SET_ACCESS`].
    SetAccess { zone: ZoneName, mode: u32, uid: Option<u32>, gid: Option<u32> },
    /// [`kind::MAKE_ZONE_DIRECTORY`].
    MakeZoneDirectory(ZoneName, bool),
    /// [`kind::REMOVE_ZONE_DIRECTORY`].
    RemoveZoneDirectory(ZoneName),
    /// [`kind::CLEAR_ADMIN_SOCKET`].
    ClearAdminSocket,
    /// [`kind::OPEN_ADMIN_SOCKET`].
    OpenAdminSocket,
}

/// Not a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("malformed request from the broker")]
pub struct Malformed;

impl Request {
    fn new(kind: u32) -> Self {
        Self { kind, ..Self::new_zeroed() }
    }

    fn has(&self, flag: u32) -> bool {
        self.flags & flag != 0
    }

    fn with(mut self, flag: u32, on: bool) -> Self {
        self.flags |= if on { flag } else { 0 };
        self
    }

    fn with_gpus(mut self, gpus: &[u32]) -> io::Result<Self> {
        let room = self.gpus.get_mut(..gpus.len()).ok_or_else(|| io::Error::other("too many GPUs"))?;
        room.copy_from_slice(gpus);
        self.gpu_count = gpus.len() as u32;
        Ok(self)
    }

    /// The message for what is asked.
    pub fn of(asked: &Asked) -> io::Result<Self> {
        Ok(match asked {
            Asked::Facts => Self::new(kind::FACTS),
            Asked::Start(program, stdin, stderr) => {
                Self::start(program)?.with(flag::STDIN, *stdin).with(flag::STDERR, *stderr)
            }
            Asked::Adopt { slot, pid, start_time, zone } => Self {
                slot: u32::try_from(*slot).map_err(io::Error::other)?,
                pid: *pid,
                start_time: *start_time,
                zone: zone.as_ref().map_or([0; ZONE], ZoneName::to_field),
                ..Self::new(kind::ADOPT)
            },
            Asked::Sweep => Self::new(kind::SWEEP),
            Asked::Kill(child) => Self { child: *child, ..Self::new(kind::KILL) },
            Asked::Reap(child) => Self { child: *child, ..Self::new(kind::REAP) },
            Asked::IsFree(slot) => {
                Self { slot: u32::try_from(*slot).map_err(io::Error::other)?, ..Self::new(kind::IS_FREE) }
            }
            Asked::OpenInside(child) => Self { child: *child, ..Self::new(kind::OPEN_INSIDE) },
            Asked::TakeDescriptor(child, number) => {
                Self { child: *child, number: *number, ..Self::new(kind::TAKE_DESCRIPTOR) }
            }
            Asked::SetClient(child) => Self { child: *child, ..Self::new(kind::SET_CLIENT) },
            Asked::KillClient(child) => Self { child: *child, ..Self::new(kind::KILL_CLIENT) },
            Asked::SetZone(zone, limits) => Self {
                zone: zone.to_field(),
                memory: limits.memory.unwrap_or(0),
                cpu: limits.cpu.unwrap_or(0),
                processes: limits.processes.unwrap_or(0),
                ..Self::new(kind::SET_ZONE)
            }
            .with(flag::MEMORY, limits.memory.is_some())
            .with(flag::CPU, limits.cpu.is_some())
            .with(flag::PROCESSES, limits.processes.is_some()),
            Asked::RemoveZone(zone) => Self { zone: zone.to_field(), ..Self::new(kind::REMOVE_ZONE) },
            Asked::MakeZoneDirectory(zone, users) => {
                Self { zone: zone.to_field(), ..Self::new(kind::MAKE_ZONE_DIRECTORY) }.with(flag::USERS, *users)
            }
            Asked::RemoveZoneDirectory(zone) => {
                Self { zone: zone.to_field(), ..Self::new(kind::REMOVE_ZONE_DIRECTORY) }
            }
            Asked::ClearAdminSocket => Self::new(kind::CLEAR_ADMIN_SOCKET),
            Asked::OpenAdminSocket => Self::new(kind::OPEN_ADMIN_SOCKET),
            Asked::Admit(child, zone, gpus) => {
                Self { child: *child, zone: zone.to_field(), ..Self::new(kind::ADMIT) }.with_gpus(gpus)?
            }
            Asked::Numbers(pid) => Self { pid: *pid, ..Self::new(kind::NUMBERS) },
            Asked::Retire(everything) => Self::new(kind::RETIRE).with(flag::EVERYTHING, *everything),
            Asked::SetAccess { zone, mode, uid, gid } => Self {
                zone: zone.to_field(),
                mode: *mode,
                uid: uid.unwrap_or(0),
                gid: gid.unwrap_or(0),
                ..Self::new(kind::SET_ACCESS)
            }
            .with(flag::UID, uid.is_some())
            .with(flag::GID, gid.is_some()),
        })
    }

    fn start(program: &Program) -> io::Result<Self> {
        let confined = |kind, confined: &Confined| {
            let slot = u32::try_from(confined.slot).map_err(io::Error::other)?;
            Ok::<_, io::Error>(
                Self { slot, ..Self::new(kind) }
                    .with_gpus(&confined.gpus)?
                    .with(flag::FRESH, confined.fresh)
                    .with(flag::WITHOUT_PID_NAMESPACE, confined.without_pid_namespace)
                    .with(flag::NAMES_DESCRIPTORS, confined.names_descriptors),
            )
        };
        match program {
            Program::Worker(how) => confined(kind::WORKER, how),
            Program::Inventory(how) => confined(kind::INVENTORY, how),
            Program::Meter => Ok(Self::new(kind::METER)),
            Program::Preemptor => Ok(Self::new(kind::PREEMPTOR)),
            Program::PreemptionTest => Ok(Self::new(kind::PREEMPTION_TEST)),
            Program::Mover { worker, which } => {
                Ok(Self { child: *worker, ..Self::new(kind::MOVER) }.with(flag::BACK, *which == Move::Back))
            }
        }
    }

    /// What a message asks for.
    pub fn asked(&self) -> Result<Asked, Malformed> {
        let slot = || usize::try_from(self.slot).ok().filter(|slot| *slot < SLOTS).ok_or(Malformed);
        let zone = || ZoneName::from_field(&self.zone).ok_or(Malformed);
        let gpus = || self.gpus.get(..self.gpu_count as usize).map(<[u32]>::to_vec).ok_or(Malformed);
        let confined = || {
            Ok(Confined {
                slot: slot()?,
                gpus: gpus()?,
                fresh: self.has(flag::FRESH),
                without_pid_namespace: self.has(flag::WITHOUT_PID_NAMESPACE),
                names_descriptors: self.has(flag::NAMES_DESCRIPTORS),
            })
        };
        let start = |program| Asked::Start(program, self.has(flag::STDIN), self.has(flag::STDERR));
        Ok(match self.kind {
            kind::FACTS => Asked::Facts,
            kind::WORKER => start(Program::Worker(confined()?)),
            kind::INVENTORY => start(Program::Inventory(confined()?)),
            kind::METER => start(Program::Meter),
            kind::PREEMPTOR => start(Program::Preemptor),
            kind::PREEMPTION_TEST => start(Program::PreemptionTest),
            kind::MOVER => {
                let which = if self.has(flag::BACK) { Move::Back } else { Move::Out };
                start(Program::Mover { worker: self.child, which })
            }
            kind::ADOPT => {
                let zone = if self.zone == [0; ZONE] { None } else { Some(zone()?) };
                Asked::Adopt { slot: slot()?, pid: self.pid, start_time: self.start_time, zone }
            }
            kind::SWEEP => Asked::Sweep,
            kind::KILL => Asked::Kill(self.child),
            kind::REAP => Asked::Reap(self.child),
            kind::IS_FREE => Asked::IsFree(slot()?),
            kind::OPEN_INSIDE => Asked::OpenInside(self.child),
            kind::TAKE_DESCRIPTOR => Asked::TakeDescriptor(self.child, self.number),
            kind::SET_CLIENT => Asked::SetClient(self.child),
            kind::KILL_CLIENT => Asked::KillClient(self.child),
            kind::SET_ZONE => Asked::SetZone(
                zone()?,
                HostLimits {
                    memory: self.has(flag::MEMORY).then_some(self.memory),
                    cpu: self.has(flag::CPU).then_some(self.cpu),
                    processes: self.has(flag::PROCESSES).then_some(self.processes),
                },
            ),
            kind::REMOVE_ZONE => Asked::RemoveZone(zone()?),
            kind::MAKE_ZONE_DIRECTORY => Asked::MakeZoneDirectory(zone()?, self.has(flag::USERS)),
            kind::REMOVE_ZONE_DIRECTORY => Asked::RemoveZoneDirectory(zone()?),
            kind::CLEAR_ADMIN_SOCKET => Asked::ClearAdminSocket,
            kind::OPEN_ADMIN_SOCKET => Asked::OpenAdminSocket,
            kind::ADMIT => Asked::Admit(self.child, zone()?, gpus()?),
            kind::NUMBERS => Asked::Numbers(self.pid),
            kind::RETIRE => Asked::Retire(self.has(flag::EVERYTHING)),
            kind::SET_ACCESS => Asked::SetAccess {
                zone: zone()?,
                // Nothing but who may connect.
                mode: self.mode & 0o777,
                uid: self.has(flag::UID).then_some(self.uid),
                gid: self.has(flag::GID).then_some(self.gid),
            },
            _ => return Err(Malformed),
        })
    }
}

/// Errors that mean something to the broker; all others are their text.
const TIMED_OUT: i32 = 1;
const NOT_FOUND: i32 = 2;
const OTHER: i32 = 3;

impl Reply {
    /// It is done.
    pub fn done() -> Self {
        Self::new_zeroed()
    }

    /// It is done, and this is so or not.
    pub fn of_flag(flag: bool) -> Self {
        Self { flag: flag.into(), ..Self::done() }
    }

    /// A process was started; its descriptor comes along.
    pub fn of_child(child: u64, pid: u32) -> Self {
        Self { child, pid, ..Self::done() }
    }

    /// What is true of the spawner.
    pub fn of_facts(facts: Facts) -> Self {
        Self { missing: facts.missing.bits(), child: VERSION, ..Self::of_flag(facts.privileged) }
    }

    /// An exit status, or none.
    pub fn of_text(text: Option<&str>) -> Self {
        let mut reply = Self::of_flag(text.is_some());
        reply.set_text(text.unwrap_or_default());
        reply
    }

    /// The numbers of a process.
    pub fn of_numbers(numbers: &Numbers) -> Self {
        let mut reply = Self::done();
        let levels = numbers.pids().len().min(MAX_LEVELS);
        reply.levels = levels as u32;
        reply.pids[..levels].copy_from_slice(&numbers.pids()[..levels]);
        // Where the namespaces are not known, nobody counts them.
        reply.flag = u32::from(numbers.namespaces().len() == numbers.pids().len());
        for (room, inode) in reply.namespaces.iter_mut().zip(numbers.namespaces()) {
            *room = *inode;
        }
        reply
    }

    /// It could not be done.
    pub fn of_error(error: &io::Error) -> Self {
        let code = match error.kind() {
            io::ErrorKind::TimedOut => TIMED_OUT,
            io::ErrorKind::NotFound => NOT_FOUND,
            _ => OTHER,
        };
        let mut reply = Self { error: code, ..Self::done() };
        reply.set_text(&error.to_string());
        reply
    }

    fn set_text(&mut self, text: &str) {
        let mut len = text.len().min(MAX_TEXT);
        while !text.is_char_boundary(len) {
            len -= 1;
        }
        self.text[..len].copy_from_slice(&text.as_bytes()[..len]);
        self.text_len = len as u32;
    }

    /// Whether it was done.
    pub fn result(self) -> io::Result<Self> {
        let kind = match self.error {
            0 => return Ok(self),
            TIMED_OUT => io::ErrorKind::TimedOut,
            NOT_FOUND => io::ErrorKind::NotFound,
            _ => io::ErrorKind::Other,
        };
        Err(io::Error::new(kind, self.text().unwrap_or("the spawner refuses").to_owned()))
    }

    /// Whether it is so.
    pub fn flag(&self) -> bool {
        self.flag != 0
    }

    /// The process.
    pub fn child(&self) -> (u64, u32) {
        (self.child, self.pid)
    }

    /// What is true of the spawner.
    pub fn facts(&self) -> io::Result<Facts> {
        if self.child != VERSION {
            return Err(io::Error::other("spawner and broker have different versions; restart the spawner"));
        }
        Ok(Facts { privileged: self.flag(), missing: Missing::from_bits(self.missing) })
    }

    /// The text.
    pub fn text(&self) -> Option<&str> {
        std::str::from_utf8(self.text.get(..self.text_len as usize)?).ok()
    }

    /// The numbers of a process.
    pub fn numbers(&self) -> Numbers {
        let levels = (self.levels as usize).min(MAX_LEVELS);
        let namespaces = if self.flag() { self.namespaces[..levels].to_vec() } else { Vec::new() };
        Numbers::new(self.pids[..levels].to_vec(), namespaces)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn zone() -> ZoneName {
        "team-a".parse().unwrap()
    }

    fn all() -> Vec<Asked> {
        let confined = Confined { slot: 7, gpus: vec![0, 64, 9], fresh: true, ..Confined::default() };
        vec![
            Asked::Facts,
            Asked::Start(Program::Worker(confined.clone()), true, true),
            Asked::Start(Program::Inventory(Confined { names_descriptors: true, ..confined }), true, false),
            Asked::Start(Program::Meter, true, false),
            Asked::Start(Program::Preemptor, true, false),
            Asked::Start(Program::PreemptionTest, true, false),
            Asked::Start(Program::Mover { worker: 9, which: Move::Back }, false, false),
            Asked::Adopt { slot: 3, pid: 4, start_time: 5, zone: Some(zone()) },
            Asked::Adopt { slot: 3, pid: 4, start_time: 5, zone: None },
            Asked::Sweep,
            Asked::Kill(1),
            Asked::Reap(2),
            Asked::IsFree(SLOTS - 1),
            Asked::OpenInside(4),
            Asked::TakeDescriptor(5, -1),
            Asked::SetClient(6),
            Asked::KillClient(7),
            Asked::SetZone(zone(), HostLimits { memory: Some(0), cpu: None, processes: Some(300) }),
            Asked::RemoveZone(zone()),
            Asked::MakeZoneDirectory(zone(), false),
            Asked::MakeZoneDirectory(zone(), true),
            Asked::RemoveZoneDirectory(zone()),
            Asked::ClearAdminSocket,
            Asked::OpenAdminSocket,
            Asked::Admit(8, zone(), Vec::new()),
            Asked::Numbers(1),
            Asked::Retire(true),
            Asked::SetAccess { zone: zone(), mode: 0o660, uid: None, gid: Some(0) },
        ]
    }

    #[test]
    fn what_is_asked_arrives() {
        let kinds: std::collections::BTreeSet<u32> =
            all().iter().map(|asked| Request::of(asked).unwrap().kind).collect();
        assert_eq!(kinds, (kind::FACTS..=kind::PREEMPTION_TEST).collect(), "one of each is tried");
        for asked in all() {
            let sent = Request::of(&asked).unwrap();
            let read = Request::read_from_bytes(sent.as_bytes()).unwrap();
            assert_eq!(read.asked().unwrap(), asked);
        }
    }

    #[test]
    fn no_byte_of_a_request_makes_it_panic() {
        for asked in all() {
            let sent = Request::of(&asked).unwrap();
            for at in 0..size_of::<Request>() {
                for value in [0, 1, 0x7f, 0x80, 0xff] {
                    let mut bytes = sent.as_bytes().to_vec();
                    bytes[at] = value;
                    let read = Request::read_from_bytes(&bytes).unwrap();
                    if let Ok(Asked::Start(Program::Worker(confined), ..)) = read.asked() {
                        assert!(confined.slot < SLOTS && confined.gpus.len() <= MAX_GPUS);
                    }
                }
            }
        }
        assert_eq!(Request::new(99).asked(), Err(Malformed));
        assert_eq!(Request { slot: SLOTS as u32, ..Request::new(kind::IS_FREE) }.asked(), Err(Malformed));
    }

    #[test]
    fn errors_keep_what_the_broker_acts_on() {
        for kind in [io::ErrorKind::TimedOut, io::ErrorKind::NotFound, io::ErrorKind::Other] {
            let error = Reply::of_error(&io::Error::new(kind, "é".repeat(100))).result().map(drop).unwrap_err();
            assert_eq!(error.kind(), kind);
            assert!(error.to_string().chars().all(|c| c == 'é'));
        }
        let numbers = Numbers::new(vec![40, 1], vec![7, 8]);
        assert_eq!(Reply::of_numbers(&numbers).numbers(), numbers);
        assert_eq!(Reply::of_text(Some("signal 9")).text(), Some("signal 9"));
    }
}
