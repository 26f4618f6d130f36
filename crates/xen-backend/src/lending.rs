//! Pages of a domain that the backend chose for one of its workers, until the kernel says that nothing holds them any more.

use std::os::fd::{AsFd, BorrowedFd};

use rustix::event::{PollFd, PollFlags};
use xen::sys::XenError;
use xen::sys::endings::{Endings, Expected};
use xen::sys::gntdev::ForeignPages;

use super::domains::{Charge, Visit};

/// A batch costs its domain as much as this at least, for it takes two event channels, of which there are only so many. It
/// is the least that libvgpu grants at a time.
const LEAST_PAGES: usize = (512 << 10) / xen::PAGE;

#[derive(Debug, thiserror::Error)]
pub(crate) enum LendError {
    #[error(transparent)]
    Xen(#[from] XenError),
    #[error("the domain has reached its limit of mapped pages")]
    NoneLeft,
}

/// A worker that has fallen may keep what it has, and ask for more: it gets as much as its domain may have, and its word
/// that it has given something back counts for nothing.
pub(crate) struct Lending<'a> {
    visit: &'a Visit,
    endings: Endings,
    lent: Vec<(Expected, Charge)>,
}

impl<'a> Lending<'a> {
    pub(crate) fn open(visit: &'a Visit) -> Result<Self, XenError> {
        Ok(Self { visit, endings: Endings::open(visit.domain.host)?, lent: Vec::new() })
    }

    /// Chooses pages for the worker.
    pub(crate) fn choose(&mut self, refs: &[u32]) -> Result<ForeignPages, LendError> {
        self.settle()?;
        let charge = self.visit.domain.charge(refs.len().max(LEAST_PAGES)).ok_or(LendError::NoneLeft)?;
        let pages = ForeignPages::choose(self.visit.domain.id, refs)?;
        self.lent.push((self.endings.expect(&pages)?, charge));
        Ok(pages)
    }

    /// Takes note of what has come back.
    fn settle(&mut self) -> Result<(), XenError> {
        // Each batch is heard of once, and once for nothing at its other end.
        while let Some(port) = self.endings.next()? {
            if let Some(at) = self.lent.iter().position(|(expected, _)| expected.is_at(port)) {
                let (expected, _charge) = self.lent.swap_remove(at);
                self.endings.forget(expected);
            }
        }
        Ok(())
    }

    /// Waits until `socket` can be read.
    pub(crate) fn wait(&mut self, socket: impl AsFd) -> Result<(), XenError> {
        while !self.poll(Some(socket.as_fd()))? {
            self.settle()?;
        }
        Ok(())
    }

    /// The worker has hung up. What it has still counts until it lets go of it, and at the latest it ends.
    pub(crate) fn wait_for_all(mut self) -> Result<(), XenError> {
        self.settle()?;
        while !self.lent.is_empty() {
            self.poll(None)?;
            self.settle()?;
        }
        Ok(())
    }

    /// Whether `socket` can be read.
    fn poll(&self, socket: Option<BorrowedFd<'_>>) -> Result<bool, XenError> {
        let mut polled = vec![PollFd::new(&self.endings, PollFlags::IN)];
        polled.extend(socket.as_ref().map(|socket| PollFd::new(socket, PollFlags::IN)));
        match rustix::event::poll(&mut polled, None) {
            Ok(_) => Ok(polled.get(1).is_some_and(|socket| !socket.revents().is_empty())),
            Err(rustix::io::Errno::INTR) => Ok(false),
            Err(error) => Err(XenError { what: "wait for a worker", source: error.into() }),
        }
    }
}
