//! The messages between broker and worker: two structs of fixed size, one for each direction.

use std::os::fd::{AsRawFd, BorrowedFd};

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::name;

/// A limit that is none.
pub const UNLIMITED: u64 = u64::MAX;
/// 128 random bits: who has it may use what it stands for.
pub type Token = [u8; 16];

/// Kinds of [`ToBroker`].
pub mod to_broker {
    /// The worker waits for its client.
    pub const READY: u32 = 1;
    /// First message of a worker that lost its broker; `token` says which one it is. The descriptor is its page of
    /// statistics, if it has one (see [`super::ToBroker::descriptor`]).
    pub const REJOIN: u32 = 2;
    /// Asks for `value` bytes of `account`; answered with `REPLY`.
    pub const CHARGE: u32 = 3;
    /// Gives back `value` bytes of `account`; not answered.
    pub const RELEASE: u32 = 4;
    /// Asks for the zone's `account`; answered with `REPLY`.
    pub const USAGE: u32 = 5;
    /// First message of a fresh worker: it is jailed; `value` holds the parts of the jail that are missing, as bits, and
    /// `version` the CUDA version of the driver. One that may send no descriptors names one, to be tried.
    pub const JAILED: u32 = 7;
    /// Offers something to other workers: `details` say what (see [`super::Shared`]), `token` the page of an event,
    /// `account` whose GPU's memory it is, and the descriptor is what there is to map. Answered with `REPLY`, which has the
    /// token of the export.
    pub const EXPORT: u32 = 8;
    /// Takes back the export `token`; answered with `REPLY`.
    pub const WITHDRAW: u32 = 9;
    /// Asks for what `token` stands for, which must be of the kind `value`; answered with `REPLY`, its `details` and a
    /// descriptor.
    pub const IMPORT: u32 = 10;
    /// Has unmapped what it got for `token`; answered with `REPLY`.
    pub const CLOSE: u32 = 11;
    /// None of its threads calls the driver: its memory may be moved. `version` is [`super::MOVES_ITSELF`] of a worker that can
    /// do so itself, `value` how many bytes that would be, or are in host memory already if `details.kind` is not 0.
    pub const SUSPENDED: u32 = 12;
    /// It wants to be resumed: its client has something to do. Of one that cannot move its memory itself also: it cannot be
    /// suspended.
    pub const BUSY: u32 = 13;
    /// The descriptor is the file through which its driver library speaks to the kernel, and `value` the client of it; or,
    /// with `value` 0, the page of its software GPU. For the preemptor, which has the driver confirm what it is told.
    pub const DRIVER_FILE: u32 = 14;
    /// An object of its driver library, for the preemptor as well (see [`super::ToBroker::driver_object`]).
    pub const DRIVER_OBJECT: u32 = 15;
    /// That was all there is, as the broker has asked.
    pub const ANNOUNCED: u32 = 16;
    /// The end of a `MOVE`: `version` is one of [`super::moved`], `value` the bytes that were moved, and of `details` `kind` says
    /// where (as of the `MOVE`), and `len` how many microseconds it took.
    pub const MOVED: u32 = 17;
    /// The answer to a `SUSPEND` of a worker that goes on instead; `value` says why (see [`super::refusal`]).
    pub const NOT_SUSPENDED: u32 = 18;
    /// The GPU of `account` has no `value` bytes for it. Answered with `REPLY`: `GRANTED` if there will be more memory soon,
    /// because somebody is being suspended.
    pub const NEED_ROOM: u32 = 19;
}

/// Kinds of [`ToWorker`].
pub mod to_worker {
    /// Here is your client: descriptors are its socket, the page of statistics, the scheduler's bell and, where the kernel
    /// has them, its pidfd. `value` is how many nodes its graphs may have, or [`super::UNLIMITED`].
    pub const ASSIGN: u32 = 1;
    /// Answer to a request with the same `seq`.
    pub const REPLY: u32 = 2;
    /// A new broker has taken the worker over; `charged` is what its accounts say. The descriptor is its scheduler's bell.
    pub const ADOPTED: u32 = 3;
    /// The worker that paid for the import `token` is gone: from now on it is `value` bytes of this worker's account.
    pub const PAYS: u32 = 4;
    /// The zone exports to others: from now on nothing that it allocates may share a page with anything else.
    pub const ISOLATE: u32 = 5;
    /// Its memory is to be moved away: it keeps its threads out of the driver and says `SUSPENDED`, or cannot and says `BUSY`.
    /// `code` is one of [`super::suspend_by`], `value` how many milliseconds it may wait for calls and work that are under way.
    pub const SUSPEND: u32 = 6;
    /// Its memory is where it was: it may go on.
    pub const RESUME: u32 = 7;
    /// First message to a fresh worker: the descriptor is the memory that it will share with its client.
    pub const REGION: u32 = 8;
    /// Before an `ADOPTED`: `charged` is what `account` says, for each further GPU of the worker.
    pub const ACCOUNT: u32 = 9;
    /// It is to tell of its driver's files and objects, all of them.
    pub const ANNOUNCE: u32 = 10;
    /// After a `SUSPENDED`: it is to move its memory to the host (`value` 0), or to the GPU, where it was (1). Answered with
    /// `MOVED`; its threads stay where they are until `RESUME`.
    pub const MOVE: u32 = 11;
}

/// `version` of the `SUSPENDED` of a worker that can move its memory itself.
pub const MOVES_ITSELF: u32 = 1;

/// Who moves the memory of a worker.
pub mod suspend_by {
    /// The driver, asked by a process of the broker's.
    pub const DRIVER: u32 = 0;
    /// The worker itself.
    pub const WORKER: u32 = 1;
}

/// What a `MOVE` came to.
pub mod moved {
    /// As was asked.
    pub const DONE: u32 = 0;
    /// There is not enough memory where it was to go. Everything is as before.
    pub const NO_ROOM: u32 = 1;
    /// It failed for another reason. Everything is as before.
    pub const FAILED: u32 = 2;
}

/// Why a worker is not suspended.
pub mod refusal {
    /// Calls were under way that did not end in time.
    pub const CALLS: u64 = 1;
    /// Work on the GPU did not end in time.
    pub const WORK: u64 = 2;
    /// A stream is being captured.
    pub const CAPTURE: u64 = 3;
    /// A context has faulted: there is nothing to save.
    pub const FAULT: u64 = 4;
    /// It is not ready for that.
    pub const NOT_READY: u64 = 5;

    /// In words, for logs and operators.
    pub fn text(why: u64) -> &'static str {
        match why {
            CALLS => "calls under way did not end in time",
            WORK => "work on the GPU did not end in time",
            CAPTURE => "a stream is being captured",
            FAULT => "a context has faulted",
            NOT_READY => "the client is just starting",
            _ => "the worker refused",
        }
    }
}

/// What can be shared between workers.
pub mod shared {
    /// Device memory, by `cuIpcGetMemHandle`.
    pub const MEMORY: u64 = 1;
    /// Device memory, by a handle of virtual memory management.
    pub const PHYSICAL: u64 = 2;
    /// A page of event words: host memory that its worker made.
    pub const PAGE: u64 = 3;
    /// An event in such a page.
    pub const EVENT: u64 = 4;
    /// Device memory of a pool, by `cuMemPoolExportPointer`.
    pub const POOLED: u64 = 5;

    /// Is it device memory, which somebody pays for?
    pub fn is_memory(kind: u64) -> bool {
        matches!(kind, MEMORY | PHYSICAL | POOLED)
    }
}

/// What an export is, as its worker says and as an importer is told.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Shared {
    /// One of [`shared`].
    pub kind: u64,
    /// Bytes behind the descriptor.
    pub size: u64,
    /// Where in it the shared piece lies.
    pub offset: u64,
    /// Length of the shared piece.
    pub len: u64,
    /// Of an exporter: other pieces lie behind the same descriptor. Of an importer: it may only read.
    pub flags: u64,
}

/// Pages of event words, as all workers that share one see them.
///
/// A cell begins with the number of records that were ever asked for; its second half are slots, into which streams write
/// the numbers of the records that they have come to: record *n* goes to slot *n* mod [`SLOTS`](event_page::SLOTS).
pub mod event_page {
    /// Bytes of a page.
    pub const PAGE: usize = 64 << 10;
    /// Bytes of an event's cell.
    pub const CELL: usize = 128;
    /// Slots of a cell.
    pub const SLOTS: usize = 8;
    /// Where the slots of a cell begin.
    pub const FIRST_SLOT: usize = CELL / 2;
}

/// Flags of [`Shared`].
pub mod shared_flags {
    /// Of an exporter: other pieces lie behind the same descriptor.
    pub const HAS_NEIGHBOURS: u64 = 1;
    /// Of an importer: it may only read.
    pub const READ_ONLY: u64 = 2;
    /// Of an importer: it is another zone's.
    pub const OTHER_ZONE: u64 = 8;
    /// Of an `ASSIGN`: as `ISOLATE`.
    pub const ISOLATE: u64 = 4;
    /// Of an `ASSIGN`: the client brings the region, and offers it on its socket.
    pub const BRINGS_REGION: u64 = 16;
}

/// Accounts of a worker: the memory of each GPU that it sees, and host memory.
pub mod account {
    /// Memory of the first GPU. The first versions had it for all of them.
    pub const DEVICE: u32 = 0;
    /// Host memory pinned for GPUs.
    pub const PINNED: u32 = 1;
    /// As many GPUs as a worker can see.
    pub const GPUS: usize = cuda_abi::wire::MAX_DEVICES;
    /// How many accounts there are.
    pub const COUNT: usize = GPUS + 1;

    /// The account of a GPU, by its index in the worker.
    pub const fn of_gpu(index: u32) -> u32 {
        if index == 0 { DEVICE } else { index + 1 }
    }

    /// The index of an account's GPU; none where it is not one of a GPU.
    pub fn gpu(account: u32) -> Option<usize> {
        let index = match account {
            DEVICE => 0,
            PINNED => return None,
            other => other - 1,
        };
        usize::try_from(index).ok().filter(|index| *index < GPUS)
    }
}

/// Codes of a `REPLY`.
pub mod code {
    /// As was asked.
    pub const GRANTED: u32 = 0;
    /// The zone's limit is reached.
    pub const OVER_LIMIT: u32 = 1;
    /// Not now, or not so many.
    pub const REFUSED: u32 = 2;
    /// Nobody offers this, or no longer.
    pub const UNKNOWN: u32 = 3;
    /// The worker's own export, which it may not open.
    pub const OWN: u32 = 4;
    /// The exporter's zone grants this zone nothing, or not that.
    pub const DENIED: u32 = 5;
}

/// A message of a worker.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ToBroker {
    /// One of [`to_broker`].
    pub kind: u32,
    /// Of a `JAILED`: the driver's CUDA version.
    pub version: u32,
    /// Numbers a request, for its answer.
    pub seq: u64,
    /// What the kind says.
    pub value: u64,
    /// What the kind says.
    pub token: Token,
    /// One of [`account`].
    pub account: u32,
    /// The descriptor that belongs to the message: its number in the worker and 1, for the broker to take; or 0: there is
    /// none, or it comes along. Which it is depends on whether the worker may send descriptors.
    pub descriptor: u32,
    /// Of an `EXPORT`.
    pub details: Shared,
}

/// A message of the broker.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ToWorker {
    /// One of [`to_worker`].
    pub kind: u32,
    /// Of a `REPLY`: one of [`code`].
    pub code: u32,
    /// Of the request that it answers.
    pub seq: u64,
    /// The zone's account of a GPU, over all its workers.
    pub used: u64,
    /// The zone's limit, or [`UNLIMITED`].
    pub limit: u64,
    /// This worker's part of it. Of an `ASSIGN`: what is paid already for the first device's context.
    pub charged: u64,
    /// This worker's part of the zone's pinned memory.
    pub pinned: u64,
    /// What each of its contexts costs, on the zone's account.
    pub context_memory: u64,
    /// One of [`account`]: which `used`, `limit` and `charged` speak of; of a reply to an `IMPORT` and of a `PAYS`, which
    /// one pays.
    pub account: u32,
    /// Of an `ASSIGN`: the client's process.
    pub client_pid: u32,
    /// Of an `ASSIGN`: the client's user.
    pub client_uid: u32,
    /// Of an `ASSIGN`: the client's group.
    pub client_gid: u32,
    /// What the kind says.
    pub token: Token,
    /// What the kind says.
    pub value: u64,
    /// Of a `REPLY` to an `IMPORT`.
    pub details: Shared,
    /// Of an `ASSIGN`: the zone's name, as [`ZoneName::from_field`](name::ZoneName::from_field) reads it.
    pub zone: [u8; name::MAX + 1],
}

impl ToBroker {
    /// A message of which only the kind is set.
    pub fn new(kind: u32) -> Self {
        Self {
            kind,
            version: 0,
            seq: 0,
            value: 0,
            token: [0; 16],
            account: account::DEVICE,
            descriptor: 0,
            details: Shared::default(),
        }
    }

    /// Of an object of a driver library: client, parent, handle, class and engine.
    pub fn driver_object(words: [u32; 5]) -> Self {
        let [kind, size, offset, len, flags] = words.map(u64::from);
        Self { details: Shared { kind, size, offset, len, flags }, ..Self::new(to_broker::DRIVER_OBJECT) }
    }

    /// What [`ToBroker::driver_object`] was given; none if it is nothing that it can have been.
    pub fn driver_words(&self) -> Option<[u32; 5]> {
        let Shared { kind, size, offset, len, flags } = self.details;
        let word = |word: u64| u32::try_from(word).ok();
        Some([word(kind)?, word(size)?, word(offset)?, word(len)?, word(flags)?])
    }

    /// Names the descriptor that belongs to the message, or answers it, to be sent along.
    pub fn bring<'fd>(&mut self, fd: Option<BorrowedFd<'fd>>, by_name: bool) -> Option<BorrowedFd<'fd>> {
        if by_name {
            self.descriptor = fd.map_or(0, |fd| fd.as_raw_fd().unsigned_abs() + 1);
        }
        fd.filter(|_| !by_name)
    }

    /// The number of the descriptor that the message names.
    pub fn named_descriptor(&self) -> Option<i32> {
        self.descriptor.checked_sub(1).and_then(|number| number.try_into().ok())
    }
}

impl ToWorker {
    /// A message of which only the kind is set.
    pub fn new(kind: u32) -> Self {
        Self {
            kind,
            code: 0,
            seq: 0,
            used: 0,
            limit: UNLIMITED,
            charged: 0,
            pinned: 0,
            context_memory: 0,
            account: account::DEVICE,
            client_pid: 0,
            client_uid: 0,
            client_gid: 0,
            token: [0; 16],
            value: 0,
            details: Shared::default(),
            zone: [0; name::MAX + 1],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::account;

    #[test]
    fn every_gpu_has_an_account_of_its_own() {
        for index in 0..account::GPUS {
            assert_eq!(account::gpu(account::of_gpu(index as u32)), Some(index));
        }
        assert_eq!(account::gpu(account::PINNED), None);
        assert_eq!(account::of_gpu(account::GPUS as u32 - 1) as usize, account::COUNT - 1);
        for strange in [account::COUNT as u32, u32::MAX] {
            assert_eq!(account::gpu(strange), None);
        }
    }
}
