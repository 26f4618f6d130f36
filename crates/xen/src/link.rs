//! Between the process that chooses pages in the driver domain and a worker that maps them: a few messages on their socket.
//!
//! The worker never chooses. It asks for references that its client named; the other end chooses them among the grants of
//! that client's domain and of no other.

use std::os::fd::OwnedFd;

use idm::bootstrap::{self, BootstrapError, Message};
use thiserror::Error;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use crate::card::MAX_PAGES;
use crate::sys::gntdev::ForeignPages;

const TAKEN_MAGIC: u32 = u32::from_le_bytes(*b"BkXt");
const WANTED_MAGIC: u32 = u32::from_le_bytes(*b"BkXw");
const CHOSEN_MAGIC: u32 = u32::from_le_bytes(*b"BkXh");

/// References in one message.
const BATCH: usize = 4096;

#[derive(Debug, Error)]
pub enum LinkError {
    #[error(transparent)]
    Bootstrap(#[from] BootstrapError),
    #[error("too many pages")]
    TooMany,
    #[error("cannot map the pages")]
    Refused,
}

/// Worker → other end: the region that was offered is mapped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Taken {
    magic: u32,
}

impl Default for Taken {
    fn default() -> Self {
        Self { magic: TAKEN_MAGIC }
    }
}

impl Message for Taken {
    fn is_valid(&self) -> bool {
        *self == Self::default()
    }

    fn descriptors(&self) -> usize {
        0
    }
}

/// Worker → other end: pages of the client's domain, by their references; `more` says that others follow.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Wanted {
    magic: u32,
    count: u32,
    more: u32,
    refs: [u32; BATCH],
}

impl Message for Wanted {
    fn is_valid(&self) -> bool {
        self.magic == WANTED_MAGIC && self.count as usize <= BATCH && self.count > 0 && self.more <= 1
    }

    fn descriptors(&self) -> usize {
        0
    }
}

impl Wanted {
    pub fn refs(&self) -> &[u32] {
        &self.refs[..self.count as usize]
    }

    pub fn has_more(&self) -> bool {
        self.more == 1
    }
}

/// The answer: the pages are chosen on the descriptor, or they are not to be had.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Chosen {
    magic: u32,
    granted: u32,
    index: u64,
    pages: u64,
}

impl Chosen {
    pub fn new(pages: Option<&ForeignPages>) -> Self {
        let granted = u32::from(pages.is_some());
        let (index, pages) = pages.map_or((0, 0), |pages| (pages.index(), pages.pages() as u64));
        Self { magic: CHOSEN_MAGIC, granted, index, pages }
    }
}

impl Message for Chosen {
    fn is_valid(&self) -> bool {
        self.magic == CHOSEN_MAGIC && self.granted <= 1
    }

    fn descriptors(&self) -> usize {
        self.granted as usize
    }
}

/// The worker asks for pages and waits for them. One thread at a time.
pub fn ask(socket: &OwnedFd, refs: &[u32]) -> Result<ForeignPages, LinkError> {
    if refs.is_empty() || refs.len() > MAX_PAGES {
        return Err(LinkError::TooMany);
    }
    let mut batches = refs.chunks(BATCH).peekable();
    while let Some(batch) = batches.next() {
        let mut wanted = Wanted::new_zeroed();
        (wanted.magic, wanted.count) = (WANTED_MAGIC, batch.len() as u32);
        wanted.more = u32::from(batches.peek().is_some());
        wanted.refs[..batch.len()].copy_from_slice(batch);
        bootstrap::send(socket, &wanted, &[])?;
    }
    let (chosen, fds) = bootstrap::recv::<Chosen>(socket)?;
    match fds.into_iter().next() {
        Some(device) if chosen.pages == refs.len() as u64 => {
            Ok(ForeignPages::from_parts(device, chosen.index, refs.len()))
        }
        _ => Err(LinkError::Refused),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_arrive_in_order_and_a_refusal_is_one() {
        let (ours, theirs) = bootstrap::pair().unwrap();
        let refs: Vec<u32> = (0..10_000).collect();
        let asked = refs.clone();
        let worker = std::thread::spawn(move || ask(&ours, &asked));
        let mut got = Vec::new();
        loop {
            let (wanted, _) = bootstrap::recv::<Wanted>(&theirs).unwrap();
            got.extend_from_slice(wanted.refs());
            if !wanted.has_more() {
                break;
            }
        }
        assert_eq!(got, refs);
        bootstrap::send(&theirs, &Chosen::new(None), &[]).unwrap();
        assert!(matches!(worker.join().unwrap(), Err(LinkError::Refused)));
        assert!(matches!(ask(&theirs, &vec![0; MAX_PAGES + 1]), Err(LinkError::TooMany)));
    }
}
