//! Events between processes.
//!
//! The driver's own work only between processes that share a pid namespace and more, so these are words in memory that
//! all who have the event map (see `wire::event_page`). A record takes the next number of the event, and has its stream
//! write that number into a slot when it gets there. Who waits, waits for the number that the event had when the wait was
//! called: by the stream (`cuStreamWaitValue64`), or by looking.
//!
//! Records of one event may be under way in several streams. Each has a slot of its own, so that a late one does not
//! overwrite the number of its successor; one that comes round to a slot waits for the record that had it before.
//!
//! A worker that shares a page can write anything into it: then waits end too early or never. That is so natively, where
//! processes that share an event are of one user; here they are of one zone, or were granted to each other.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cuda_abi::constants::{host_register_flag, wait_value};
use cuda_abi::driver::Driver;
use cuda_abi::error::*;
use cuda_abi::types::*;
use parking_lot::{Mutex, MutexGuard};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};

use super::{Refusal, succeed};
use control::messages::event_page::{CELL, FIRST_SLOT, PAGE, SLOTS};
use control::messages::{Shared, Token, shared, shared_flags};
use control::{BrokerLink, NotShared};

/// Pages of this worker's own, and of others', that it maps at most.
const MOST_OWN: usize = 1024;
const MOST_FOREIGN: usize = 1024;
const CELLS: usize = PAGE / CELL;

pub(crate) struct EventPages {
    driver: Arc<Driver>,
    link: Arc<BrokerLink>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    own: Vec<Arc<Page>>,
    /// Cells that no event uses: their numbers go on where they were.
    free: Vec<(Arc<Page>, usize)>,
    foreign: HashMap<Token, Arc<Page>>,
}

/// A page that is mapped here and that the device reaches.
struct Page {
    start: NonNull<u8>,
    file: OwnedFd,
    /// It is for one event only, which another zone may see.
    alone: bool,
    /// Under which token the broker knows it, and which broker.
    token: Mutex<Option<(Token, u64)>>,
}

// SAFETY: the page consists of atomics, and is mapped as long as this lives.
unsafe impl Send for Page {}
// SAFETY: as above.
unsafe impl Sync for Page {}

/// An event of this process or another.
pub(crate) struct SharedEvent {
    page: Arc<Page>,
    cell: usize,
    /// It was made here, and its cell can be used again.
    own: bool,
    /// Streams do not wait for it: another zone may have to do with it. Zones take turns on the GPU, so a stream that
    /// waits for another's would keep it from its turn.
    waited_for_by_host: bool,
    token: Mutex<Option<(Token, u64)>>,
    pages: Arc<EventPages>,
}

impl EventPages {
    pub(crate) fn new(driver: Arc<Driver>, link: Arc<BrokerLink>) -> Self {
        Self { driver, link, state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// The words of a new event.
    pub(crate) fn create(self: &Arc<Self>) -> Result<SharedEvent, Refusal> {
        let out_of_memory = Refusal::Code(CUDA_ERROR_OUT_OF_MEMORY);
        let alone = self.link.isolates();
        let mut state = self.state();
        let mut fitting = state.free.iter().rposition(|(page, _)| page.alone == alone);
        if fitting.is_none() {
            if state.own.len() >= MOST_OWN {
                return Err(out_of_memory);
            }
            let page = Arc::new(Page::map(new_file().map_err(|_| out_of_memory)?, alone)?);
            state.own.push(page.clone());
            let cells = if alone { 1 } else { CELLS };
            state.free.extend((0..cells).rev().map(|cell| (page.clone(), cell)));
            fitting = Some(state.free.len() - 1);
        }
        let (page, cell) = fitting.map(|at| state.free.swap_remove(at)).ok_or(out_of_memory)?;
        drop(state);
        let (token, pages) = (Mutex::default(), self.clone());
        let event = SharedEvent { page, cell, own: true, waited_for_by_host: alone, token, pages };
        event.page.register(&self.driver)?;
        Ok(event)
    }

    /// The words of another process's event.
    pub(crate) fn import(self: &Arc<Self>, token: Token) -> Result<SharedEvent, Refusal> {
        let imported = self.link.import(token, shared::EVENT)?;
        let offset = imported.details.offset as usize;
        let cell = offset / CELL;
        if !offset.is_multiple_of(CELL) || cell >= CELLS {
            return Err(Refusal::Code(CUDA_ERROR_INVALID_VALUE));
        }
        let mut state = self.state();
        let page = match state.foreign.get(&imported.page) {
            Some(page) => page.clone(),
            None => {
                if state.foreign.len() >= MOST_FOREIGN {
                    self.forget_unused(&mut state)?;
                }
                // The broker has made sure that it is as long as a page and stays so.
                let page = Arc::new(Page::map(imported.fd, false)?);
                state.foreign.insert(imported.page, page.clone());
                page
            }
        };
        drop(state);
        page.register(&self.driver)?;
        let waited_for_by_host = imported.details.flags & shared_flags::OTHER_ZONE != 0;
        let (token, pages) = (Mutex::new(Some((token, 0))), self.clone());
        Ok(SharedEvent { page, cell, own: false, waited_for_by_host, token, pages })
    }

    /// Unmaps pages of others that no event is in any more, once no stream can look at them.
    fn forget_unused(&self, state: &mut State) -> Result<(), Refusal> {
        // SAFETY: no arguments.
        succeed(unsafe { (self.driver.cuCtxSynchronize)() })?;
        state.foreign.retain(|_, page| {
            let used = Arc::strong_count(page) > 1;
            if !used {
                // SAFETY: registered when it was mapped, and no stream of this context has work left.
                unsafe { (self.driver.cuMemHostUnregister)(page.start.as_ptr().cast()) };
            }
            used
        });
        let full = state.foreign.len() >= MOST_FOREIGN;
        if full { Err(Refusal::Code(CUDA_ERROR_OUT_OF_MEMORY)) } else { Ok(()) }
    }
}

impl Page {
    fn map(file: OwnedFd, alone: bool) -> Result<Page, Refusal> {
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let start = unsafe { rustix::mm::mmap(std::ptr::null_mut(), PAGE, prot, MapFlags::SHARED, &file, 0) };
        let start = start.ok().and_then(|start| NonNull::new(start.cast()));
        let start = start.ok_or(Refusal::Code(CUDA_ERROR_OUT_OF_MEMORY))?;
        Ok(Page { start, file, alone, token: Mutex::default() })
    }

    /// Lets the device of the current context reach it.
    fn register(&self, driver: &Driver) -> Result<(), Refusal> {
        const PORTABLE_AND_MAPPED: u32 = host_register_flag::PORTABLE | host_register_flag::DEVICE_MAP;
        let start = self.start.as_ptr().cast::<c_void>();
        // SAFETY: the page stays mapped as long as this lives.
        match unsafe { (driver.cuMemHostRegister_v2)(start, PAGE, PORTABLE_AND_MAPPED) } {
            CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED => Ok(()),
            code => succeed(code),
        }
    }

    fn word(&self, offset: usize) -> &AtomicU64 {
        debug_assert!(offset < PAGE);
        // SAFETY: inside the page, aligned; any bytes are a valid atomic.
        unsafe { AtomicU64::from_ptr(self.start.as_ptr().add(offset).cast()) }
    }

    /// The token of an own page, at the broker that is there now.
    fn token(&self, link: &BrokerLink) -> Result<Token, NotShared> {
        let mut token = self.token.lock();
        let epoch = link.epoch();
        if let Some((token, _)) = token.filter(|(_, known)| *known == epoch) {
            return Ok(token);
        }
        let details = Shared { kind: shared::PAGE, size: PAGE as u64, len: PAGE as u64, ..Shared::default() };
        let new = link.export(0, details, Token::default(), Some(self.file.as_fd()))?;
        *token = Some((new, epoch));
        Ok(new)
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and nobody borrows from it any more.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), PAGE) };
    }
}

/// A file that cannot shrink under those who map it.
fn new_file() -> rustix::io::Result<OwnedFd> {
    let file = rustix::fs::memfd_create("bulkhead-events", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    rustix::fs::ftruncate(&file, PAGE as u64)?;
    rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(file)
}

impl SharedEvent {
    fn count(&self) -> &AtomicU64 {
        self.page.word(self.cell * CELL)
    }

    fn slot(&self, number: u64) -> &AtomicU64 {
        let slot = (number % SLOTS as u64) as usize;
        self.page.word(self.cell * CELL + FIRST_SLOT + slot * 8)
    }

    /// Has the record with this number happened? Compared as the device does.
    fn is_reached(&self, number: u64) -> bool {
        number == 0 || self.slot(number).load(Ordering::Acquire).wrapping_sub(number) as i64 >= 0
    }

    /// Records the event on a stream of the current context.
    pub(crate) fn record(&self, stream: CUstream) -> CUresult {
        let number = self.count().fetch_add(1, Ordering::AcqRel).wrapping_add(1);
        let address = self.slot(number).as_ptr() as u64;
        let driver = &self.pages.driver;
        let before = number.saturating_sub(SLOTS as u64);
        // SAFETY: a word of a registered page.
        unsafe {
            if !self.is_reached(before) {
                let waited = (driver.cuStreamWaitValue64_v2)(stream, address, before, wait_value::GEQ);
                if waited != CUDA_SUCCESS {
                    return waited;
                }
            }
            (driver.cuStreamWriteValue64_v2)(stream, address, number, 0)
        }
    }

    /// Has a stream of the current context wait for the last record. Answers with its number if the client must wait
    /// instead, and with 0 otherwise.
    pub(crate) fn wait(&self, stream: CUstream) -> Result<u64, Refusal> {
        let number = self.count().load(Ordering::Acquire);
        if self.is_reached(number) {
            return Ok(0);
        }
        if self.waited_for_by_host {
            return Ok(number);
        }
        let address = self.slot(number).as_ptr() as u64;
        // SAFETY: a word of a registered page.
        succeed(unsafe { (self.pages.driver.cuStreamWaitValue64_v2)(stream, address, number, wait_value::GEQ) })?;
        Ok(0)
    }

    /// Has a record happened? 0 stands for the last one; answers with its number.
    pub(crate) fn query(&self, number: u64) -> (bool, u64) {
        let number = if number == 0 { self.count().load(Ordering::Acquire) } else { number };
        (self.is_reached(number), number)
    }

    /// The token that names it to others.
    pub(crate) fn export(&self) -> Result<Token, Refusal> {
        let link = &self.pages.link;
        let mut token = self.token.lock();
        let epoch = link.epoch();
        match *token {
            // Another's event goes by the name that it came with.
            Some((token, _)) if !self.own => return Ok(token),
            Some((token, known)) if known == epoch => return Ok(token),
            _ => {}
        }
        let page = self.page.token(link)?;
        let (size, len) = (PAGE as u64, CELL as u64);
        let flags = if self.page.alone { 0 } else { shared_flags::HAS_NEIGHBOURS };
        let details = Shared { kind: shared::EVENT, size, offset: (self.cell * CELL) as u64, len, flags };
        let new = link.export(0, details, page, None)?;
        *token = Some((new, epoch));
        Ok(new)
    }
}

impl Drop for SharedEvent {
    fn drop(&mut self) {
        if !self.own {
            return;
        }
        let exported = *self.token.lock();
        if let Some((token, _)) = exported {
            self.pages.link.withdraw(token);
        }
        self.pages.state().free.push((self.page.clone(), self.cell));
    }
}
