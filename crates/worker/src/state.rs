//! What a worker knows about its client.

use std::cell::Cell;
use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use cuda_abi::constants::capture_mode;
use cuda_abi::driver::Driver;
use cuda_abi::error::*;
use cuda_abi::types::CUcontext;
use cuda_abi::wire::{self, Kind};
use parking_lot::{Mutex, MutexGuard};

use super::copy_rate::CopyRate;
use super::events::EventPages;
use super::gpus::Gpus;
use super::guest::Guest;
use super::handles::{Handles, Object};
use super::memory::Memory;
use super::ops::graph::{self, Graphs};
use super::ops::texture::Images;
pub(crate) use super::stats::Counters;
use super::turns::Turns;
use super::{Outcome, Refusal, Seal, succeed};
use control::BrokerLink;

/// As many primary contexts as any machine has devices.
pub(crate) const MAX_DEVICES: u32 = cuda_abi::wire::MAX_DEVICES as u32;

pub(crate) struct Worker {
    pub driver: Arc<Driver>,
    pub handles: Handles,
    pub memory: Memory,
    pub graphs: Graphs,
    pub images: Images,
    pub turns: Turns,
    pub event_pages: Arc<EventPages>,
    pub gpus: Arc<Gpus>,
    pub link: Arc<BrokerLink>,
    pub copy_rate: CopyRate,
    /// How many lanes there are.
    pub lanes: u32,
    pub bulk: idm::bulk::BulkView,
    pub flags: idm::flags::Flags,
    /// The GPU was given nothing to do since the last mark: who marks again waits for one stream after another.
    pub marked: AtomicBool,
    /// Set once there is one: a spare worker starts without.
    client: OnceLock<Client>,
    /// Set once the first message has come, and once the driver is there for the ones after it.
    pub greeted: AtomicBool,
    pub started: AtomicBool,
    /// What puts the process under supervision, until it has.
    seal: Mutex<Option<Seal>>,
    /// Held while the driver starts, and while a primary context is made.
    starting: Mutex<Startup>,
    /// How often the client retained each primary context.
    pub retained: Mutex<HashMap<u32, u32>>,
    pub uploads: Mutex<Uploads>,
    /// The first error of a posted message that nobody has been told yet.
    posted_error: AtomicU32,
}

/// The client, as the broker handed it over.
pub(crate) struct Client {
    /// Descriptors of pinned memory and of the client's output come this way.
    pub socket: OwnedFd,
    /// What only a client in a guest has.
    pub guest: Option<Guest>,
    pub counters: Counters,
    /// What each context costs on the zone's account.
    pub context_memory: u64,
    /// What is paid already for the first device's context, until somebody asks for that.
    pub prepaid: AtomicU64,
}

/// How far the driver has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Startup {
    #[default]
    NotYet,
    Done(CUresult),
}

/// Images under way, by lane, and their bytes in all.
#[derive(Default)]
pub(crate) struct Uploads {
    pub by_lane: HashMap<u32, Vec<u8>>,
    /// Results of links that were not fetched yet.
    pub results: HashMap<u32, Vec<u8>>,
    pub bytes: usize,
}

thread_local! {
    /// The context that this thread has current: its index and serial number.
    static CURRENT: Cell<(u32, u64)> = const { Cell::new((0, 0)) };
    /// What captures forbid this thread, as the driver knows it.
    static CAPTURE_MODE: Cell<u32> = const { Cell::new(capture_mode::GLOBAL) };
}

/// Index of the context that this thread has current.
#[inline]
pub(crate) fn current_context() -> u32 {
    CURRENT.get().0
}

impl Worker {
    pub(crate) fn new(driver: Arc<Driver>, gpus: Arc<Gpus>, link: Arc<BrokerLink>, server: &idm::Server) -> Worker {
        Worker {
            handles: Handles::new(driver.clone(), MAX_DEVICES),
            memory: Memory::new(driver.clone(), gpus.clone(), link.clone()),
            event_pages: Arc::new(EventPages::new(driver.clone(), link.clone())),
            gpus,
            link,
            copy_rate: CopyRate::default(),
            graphs: Graphs::default(),
            images: Images::default(),
            turns: Turns::new(),
            lanes: server.layout().lanes,
            bulk: server.bulk(),
            flags: server.flags(),
            marked: AtomicBool::new(false),
            driver,
            client: OnceLock::new(),
            greeted: AtomicBool::new(false),
            started: AtomicBool::new(false),
            seal: Mutex::default(),
            starting: Mutex::default(),
            retained: Mutex::default(),
            uploads: Mutex::default(),
            posted_error: AtomicU32::new(CUDA_SUCCESS),
        }
    }

    /// Has the process come under supervision before it does anything for its client.
    pub(crate) fn set_seal(&self, seal: Option<Seal>) {
        *self.seal.lock() = seal;
    }

    pub(crate) fn take_seal(&self) -> Option<Seal> {
        self.seal.lock().take()
    }

    /// The client is there.
    pub(crate) fn meet(&self, client: Client) {
        let _ = self.client.set(client);
    }

    /// A message is served after the client that sent it was accepted.
    fn client(&self) -> &Client {
        self.client.get().expect("a client is met before it is served")
    }

    pub(crate) fn socket(&self) -> BorrowedFd<'_> {
        self.client().socket.as_fd()
    }

    pub(crate) fn socket_owned(&self) -> &OwnedFd {
        &self.client().socket
    }

    /// The client is in a guest, and sends grants in place of descriptors.
    pub(crate) fn guest(&self) -> Option<&Guest> {
        self.client().guest.as_ref()
    }

    #[inline]
    pub(crate) fn counters(&self) -> &Counters {
        &self.client().counters
    }

    pub(crate) fn context_memory(&self) -> u64 {
        self.client().context_memory
    }

    /// What is paid already for a device's primary context; none where it must be asked for.
    pub(crate) fn take_prepaid(&self, device: u32) -> Option<u64> {
        let prepaid = || self.client().prepaid.swap(0, Ordering::AcqRel);
        Some(device).filter(|device| *device == 0).map(|_| prepaid()).filter(|bytes| *bytes > 0)
    }

    pub(crate) fn starting(&self) -> MutexGuard<'_, Startup> {
        self.starting.lock()
    }

    /// Makes the context that a message was sent in this thread's own. What is answered keeps it alive meanwhile.
    pub(crate) fn enter(&self, tag: u32) -> Result<Option<Arc<Object>>, Refusal> {
        // What a worker does for itself no capture forbids; what the client's thread may not do, it may not do here.
        let forbidden = tag & wire::TAG_FORBIDDEN != 0;
        let mode = if forbidden { capture_mode::GLOBAL } else { capture_mode::RELAXED };
        if CAPTURE_MODE.get() != mode {
            let mut exchanged = mode;
            // SAFETY: the argument is a local.
            unsafe { (self.driver.cuThreadExchangeStreamCaptureMode)(&mut exchanged) };
            CAPTURE_MODE.set(mode);
        }
        let tag = tag & !wire::TAG_FORBIDDEN;
        let context = match tag {
            0 => None,
            _ => Some(self.handles.context(tag).ok_or(Refusal::Code(CUDA_ERROR_INVALID_CONTEXT))?),
        };
        let (raw, serial) = context.as_ref().map_or((0, 0), |context| (context.raw, context.serial));
        if CURRENT.get() != (tag, serial) {
            // SAFETY: the context is held, so it is alive.
            succeed(unsafe { (self.driver.cuCtxSetCurrent)(raw as CUcontext) })?;
            CURRENT.set((tag, serial));
        }
        Ok(context)
    }

    /// As [`Self::enter`], for the worker's own purposes: what captures forbid this thread stays as it is.
    pub(crate) fn enter_quietly(&self, context: u32) -> Result<Option<Arc<Object>>, Refusal> {
        let forbidden = if CAPTURE_MODE.get() == capture_mode::GLOBAL { wire::TAG_FORBIDDEN } else { 0 };
        self.enter(context | forbidden)
    }

    /// Does something in whatever contexts, which no capture forbids, and comes back to this thread's own.
    pub(crate) fn aside<T>(&self, work: impl FnOnce() -> T) -> T {
        let forbidden = if CAPTURE_MODE.get() == capture_mode::GLOBAL { wire::TAG_FORBIDDEN } else { 0 };
        let own = self.context_tag() | forbidden;
        let done = work();
        // One that is gone meanwhile is nobody's to come back to.
        let _ = self.enter(own);
        done
    }

    /// Closes a handle and what hangs on it.
    pub(crate) fn close(&self, kind: Kind, word: u64) -> Outcome {
        if kind == Kind::Stream {
            graph::capture::abandon(self, word);
            self.turns.stream_ends(self, word);
        }
        self.handles.close(kind, word)
    }

    /// Index of this thread's current context.
    pub(crate) fn context_tag(&self) -> u32 {
        current_context()
    }

    /// Forgets what is current, after the driver was asked to change it behind our back.
    pub(crate) fn forget_current(&self) {
        CURRENT.set((0, u64::MAX));
    }

    /// The broker's index of a context's GPU.
    #[inline]
    pub(crate) fn gpu_of(&self, context: u32) -> u32 {
        self.gpus.index(self.handles.device_of(context))
    }

    /// The broker's index of the GPU whose context this thread has current.
    pub(crate) fn gpu(&self) -> u32 {
        self.gpu_of(self.context_tag())
    }

    /// The device of this thread's current context.
    pub(crate) fn device(&self) -> Result<i32, Refusal> {
        let mut device = 0;
        // SAFETY: the output is a local.
        succeed(unsafe { (self.driver.cuCtxGetDevice)(&mut device) })?;
        Ok(device)
    }

    /// Remembers an error of a posted message, until the client asks.
    pub(crate) fn note_posted(&self, code: CUresult) {
        let noted = self.posted_error.compare_exchange(CUDA_SUCCESS, code, Ordering::AcqRel, Ordering::Relaxed);
        if noted.is_ok() {
            self.flags.store(wire::error_word(self.flags.count()), 1);
        }
    }

    pub(crate) fn take_posted(&self) -> CUresult {
        if self.posted_error.load(Ordering::Acquire) == CUDA_SUCCESS {
            return CUDA_SUCCESS;
        }
        let word = wire::error_word(self.flags.count());
        let taken = self.posted_error.swap(CUDA_SUCCESS, Ordering::AcqRel);
        self.flags.store(word, 0);
        // Another may have been noted meanwhile.
        if self.posted_error.load(Ordering::Acquire) != CUDA_SUCCESS {
            self.flags.store(word, 1);
        }
        taken
    }

    pub(crate) fn uploads(&self) -> MutexGuard<'_, Uploads> {
        self.uploads.lock()
    }

    pub(crate) fn retained(&self) -> MutexGuard<'_, HashMap<u32, u32>> {
        self.retained.lock()
    }
}
