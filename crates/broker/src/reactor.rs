//! Waiting for many descriptors at once.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::epoll::{self, EventData, EventFlags};

use control::closing::Foreign;

/// What an event is about. Numbers are never used twice, so an event that comes late finds nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Source {
    Signals,
    Lifeline,
    Reload,
    AdminListener,
    StatusListener,
    Admin(u64),
    RejoinListener,
    /// Where workers of the previous version look for us.
    PreviousRejoinListener,
    Rejoin(u64),
    Zone(u64),
    /// The socket by which local users come to a zone.
    Users(u64),
    /// The socket by which the Xen backend brings clients of a zone.
    Guests(u64),
    /// The process that starts workers.
    Spawner,
    Client(u64),
    WorkerSocket(u64),
    WorkerProcess(u64),
    WorkersClient(u64),
    Inventory,
    Meter,
    Preemptor,
    PreemptionTest,
    Scheduler,
    /// The process that moves a worker's memory.
    Mover(u64),
}

impl Source {
    /// The source in the 64 bits that the kernel keeps for us: its kind in the low five, its number above.
    fn to_bits(self) -> u64 {
        match self {
            Self::Signals => 0,
            Self::Lifeline => 1,
            Self::AdminListener => 2,
            Self::RejoinListener => 3,
            Self::Admin(id) => id << 5 | 4,
            Self::Rejoin(id) => id << 5 | 5,
            Self::Zone(id) => id << 5 | 6,
            Self::Client(id) => id << 5 | 7,
            Self::WorkerSocket(id) => id << 5 | 8,
            Self::WorkerProcess(id) => id << 5 | 9,
            Self::WorkersClient(id) => id << 5 | 10,
            Self::Reload => 11,
            Self::Inventory => 15,
            Self::Meter => 14,
            Self::Scheduler => 13,
            Self::Mover(id) => id << 5 | 12,
            Self::Guests(id) => id << 5 | 16,
            Self::Spawner => 17,
            Self::StatusListener => 18,
            Self::Users(id) => id << 5 | 19,
            Self::PreviousRejoinListener => 20,
            Self::Preemptor => 21,
            Self::PreemptionTest => 22,
        }
    }

    fn from_bits(bits: u64) -> Option<Self> {
        let id = bits >> 5;
        Some(match bits & 31 {
            0 => Self::Signals,
            1 => Self::Lifeline,
            2 => Self::AdminListener,
            3 => Self::RejoinListener,
            4 => Self::Admin(id),
            5 => Self::Rejoin(id),
            6 => Self::Zone(id),
            7 => Self::Client(id),
            8 => Self::WorkerSocket(id),
            9 => Self::WorkerProcess(id),
            10 => Self::WorkersClient(id),
            11 => Self::Reload,
            15 => Self::Inventory,
            14 => Self::Meter,
            13 => Self::Scheduler,
            12 => Self::Mover(id),
            16 => Self::Guests(id),
            17 => Self::Spawner,
            18 => Self::StatusListener,
            19 => Self::Users(id),
            20 => Self::PreviousRejoinListener,
            21 => Self::Preemptor,
            22 => Self::PreemptionTest,
            _ => return None,
        })
    }
}

pub(crate) struct Reactor {
    epoll: Arc<OwnedFd>,
    next_id: u64,
}

impl Reactor {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self { epoll: Arc::new(epoll::create(epoll::CreateFlags::CLOEXEC)?), next_id: 0 })
    }

    /// A number for a source, or for whatever else is numbered, that was never used before.
    pub(crate) fn new_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    /// Watches for input and hang-up until the descriptor is closed.
    pub(crate) fn watch(&self, fd: impl AsFd, source: Source) -> io::Result<()> {
        Ok(epoll::add(&self.epoll, fd, EventData::new_u64(source.to_bits()), EventFlags::IN)?)
    }

    /// The same until the descriptor is let go of, which is some time before somebody else closes it.
    pub(crate) fn watch_foreign(&self, fd: &mut Foreign, source: Source) -> io::Result<()> {
        self.watch(&*fd, source)?;
        fd.watched_by(self.epoll.clone());
        Ok(())
    }

    /// Stops watching a descriptor that stays open.
    pub(crate) fn forget(&self, fd: impl AsFd) {
        // One that was never watched is fine, too.
        let _ = epoll::delete(&self.epoll, fd);
    }

    pub(crate) fn wait(&self, until: Option<Instant>) -> io::Result<Vec<Source>> {
        let mut events = [epoll::Event { flags: EventFlags::empty(), data: EventData::new_u64(0) }; 64];
        let time = until.map(|until| {
            // Rounded up: waking early only means to wait again.
            let left = until.saturating_duration_since(Instant::now()) + Duration::from_millis(1);
            rustix::event::Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() }
        });
        let count = match epoll::wait(&self.epoll, &mut events[..], time.as_ref()) {
            Ok(count) => count,
            Err(rustix::io::Errno::INTR) => 0,
            Err(error) => return Err(error.into()),
        };
        Ok(events[..count].iter().filter_map(|event| Source::from_bits(event.data.u64())).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `tests/broker/hostile.rs` finds them by these in what the kernel tells of the loop.
    #[test]
    fn kinds_are_in_the_low_bits() {
        assert_eq!(Source::Client(3).to_bits() & 31, 7);
        assert_eq!(Source::WorkersClient(3).to_bits() & 31, 10);
        assert_eq!(Source::Scheduler.to_bits(), 13);
    }

    #[test]
    fn sources_survive_their_bits() {
        use Source::*;
        let all = [
            Signals,
            Lifeline,
            Reload,
            AdminListener,
            StatusListener,
            RejoinListener,
            Admin(1),
            Rejoin(2),
            Zone(3),
            Users(8),
            PreviousRejoinListener,
            Guests(4),
            Spawner,
            Client(1 << 50),
            WorkerSocket(5),
            WorkerProcess(6),
            WorkersClient(7),
            Inventory,
            Meter,
            Preemptor,
            PreemptionTest,
            Scheduler,
        ];
        for source in all {
            assert_eq!(Source::from_bits(source.to_bits()), Some(source));
        }
    }
}
