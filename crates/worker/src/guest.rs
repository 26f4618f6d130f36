//! A client in a Xen guest: its region, its pinned pages and its output.
//!
//! This process maps pages of the guest, and never chooses them: the Xen backend, at the other end of the socket, does that for
//! the one domain that the client is in. Instead of descriptors the client sends references, in messages.

use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock};

use cuda_abi::error::CUDA_ERROR_OUT_OF_MEMORY;
use idm::bootstrap;
use idm::bulk::BulkView;
use parking_lot::{Mutex, MutexGuard};
use rustix::event::{PollFd, PollFlags};
use xen::card::MAX_PAGES;
use xen::doorbell::EventDoorbell;
use xen::host::{Accepted, Offer};
use xen::link::{self, LinkError, Taken};
use xen::sys::Span;
use xen::sys::gntdev::ForeignPages;

use super::serve::GREETING_TIME;
use super::{Refusal, WorkerError};

/// The most that one piece of pinned memory can have: 16 GiB.
const MAX_REFS: usize = 4 << 20;

/// A region that the Xen backend offered, mapped.
pub(crate) struct Granted {
    pub doorbell: Arc<EventDoorbell>,
    span: Arc<Mutex<Span>>,
}

/// Waits for the Xen backend's offer and maps it.
pub(crate) fn take_region(socket: &OwnedFd) -> Result<(idm::Server, Granted), WorkerError> {
    let (offer, fds) = bootstrap::recv_within::<Offer>(socket, GREETING_TIME)?;
    let Accepted { region, doorbell, span } = offer.accept(fds)?;
    let server = idm::Server::over(region, doorbell.clone());
    bootstrap::send(socket, &Taken::default(), &[])?;
    Ok((server, Granted { doorbell, span }))
}

/// What a worker keeps for a client of this kind.
pub(crate) struct Guest {
    /// What the region is mapped in.
    span: Arc<Mutex<Span>>,
    /// References that the client has named and not used yet.
    named: Mutex<Vec<u32>>,
    /// One thread at a time asks the Xen backend.
    asking: Mutex<()>,
    /// Where what kernels print comes out.
    output: OnceLock<OwnedFd>,
}

impl Guest {
    pub(crate) fn new(granted: &Granted) -> Self {
        let (named, asking, output) = (Mutex::default(), Mutex::default(), OnceLock::new());
        Self { span: granted.span.clone(), named, asking, output }
    }

    /// Maps further pages behind those of the region, and has `register` show them to the GPU: they are of its staging
    /// area, in which there must be room for them.
    pub(crate) fn grow(
        &self,
        bulk: &BulkView,
        pieces: Vec<ForeignPages>,
        register: impl FnOnce(*mut u8, usize) -> Result<(), Refusal>,
    ) -> Result<(), Refusal> {
        let mut span = self.span.lock();
        // What is asked for at once is one piece; a client that asks for more at once than there can be is not ours.
        let Ok([pages]) = <[ForeignPages; 1]>::try_from(pieces) else { return Err(Refusal::Malformed) };
        let len = pages.pages() * xen::PAGE;
        if len as u64 > bulk.capacity() - bulk.len() {
            return Err(Refusal::Malformed);
        }
        let start = bulk.as_ptr().wrapping_add(bulk.len() as usize);
        let no_memory = |_| Refusal::Code(CUDA_ERROR_OUT_OF_MEMORY);
        span.fill(len, |place| pages.map(place)).map_err(no_memory)?;
        if let Err(refusal) = register(start, len) {
            span.take_back();
            return Err(refusal);
        }
        // SAFETY: just mapped, behind all that was there, by the only one who does so: the span is locked.
        unsafe { bulk.extend(len as u64) };
        Ok(())
    }

    fn named(&self) -> MutexGuard<'_, Vec<u32>> {
        self.named.lock()
    }

    /// The client names further pages.
    pub(crate) fn name(&self, refs: impl ExactSizeIterator<Item = u32>) -> Result<(), Refusal> {
        let mut named = self.named();
        if named.len() + refs.len() > MAX_REFS {
            return Err(Refusal::Malformed);
        }
        named.extend(refs);
        Ok(())
    }

    /// All pages that were named, chosen, in pieces that each can be mapped at once. There must be `count`.
    pub(crate) fn take_pages(&self, socket: &OwnedFd, count: usize) -> Result<Vec<ForeignPages>, LinkError> {
        let refs = std::mem::take(&mut *self.named());
        if refs.len() != count {
            return Err(LinkError::TooMany);
        }
        let _asking = self.asking.lock();
        refs.chunks(MAX_PAGES).map(|piece| link::ask(socket, piece)).collect()
    }

    /// Makes a pipe for what kernels print; returns the end to write to.
    pub(crate) fn make_output(&self) -> std::io::Result<OwnedFd> {
        let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        let flags = rustix::fs::fcntl_getfl(&read)? | rustix::fs::OFlags::NONBLOCK;
        rustix::fs::fcntl_setfl(&read, flags)?;
        let _ = self.output.set(read);
        Ok(write)
    }

    /// Waits until something was printed.
    pub(crate) fn wait_for_output(&self) -> usize {
        match self.output.get() {
            Some(output) => {
                let mut polled = [PollFd::new(output, PollFlags::IN)];
                let _ = rustix::io::retry_on_intr(|| rustix::event::poll(&mut polled, None));
            }
            // Nothing ever comes.
            None => std::thread::park(),
        }
        0
    }

    /// Reads what was printed, as far as it fits.
    pub(crate) fn read_output(&self, into: &mut [u8]) -> usize {
        let Some(output) = self.output.get() else { return 0 };
        rustix::io::retry_on_intr(|| rustix::io::read(output, &mut *into)).unwrap_or(0)
    }
}
