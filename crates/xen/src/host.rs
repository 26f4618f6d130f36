//! The driver domain's side: what a guest's client left is read, bound and chosen; a worker maps it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use idm::bootstrap::{Message, Opening, Welcome, WelcomeStatus};
use idm::region::{Layout, LayoutError, Region, RegionError};
use parking_lot::Mutex;
use thiserror::Error;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::card::{self, CardError, MAX_PAGES, Node, Said};
use crate::doorbell::{EventDoorbell, Side};
use crate::sys::evtchn::Channel;
use crate::sys::gntdev::ForeignPages;
use crate::sys::{Mapping, Place, Span, XenError};
use crate::talk::{self, Talk};
use crate::{DomainId, PAGE};

#[derive(Debug, Error)]
pub enum HostError {
    #[error(transparent)]
    Card(#[from] CardError),
    #[error(transparent)]
    Xen(#[from] XenError),
    #[error(transparent)]
    Layout(#[from] LayoutError),
    #[error("invalid number of granted pages {actual}; expected {least} to {most}")]
    Pages { least: u64, most: u64, actual: u64 },
    #[error(transparent)]
    Region(#[from] RegionError),
}

/// A guest's client that has left its card. The card is mapped until it was answered.
pub struct Caller {
    domain: DomainId,
    card: Mapping,
    said: Said,
    refs: Vec<u32>,
    channel: Channel,
}

impl Caller {
    /// Reads what `domain` says. Everything is copied once; the work is bounded by `MAX_PAGES`.
    pub fn meet(domain: DomainId, node: &[u8]) -> Result<Self, HostError> {
        let node = Node::parse(node)?;
        let card = ForeignPages::choose(domain, &[node.card])?.map(Place::Anywhere)?;
        let (said, lists) = card::read(&card)?;
        let refs = card::read_lists(&ForeignPages::choose(domain, &lists)?.map(Place::Anywhere)?, said.pages);
        let channel = Channel::bind(domain, node.port)?;
        Ok(Self { domain, card, said, refs, channel })
    }

    pub fn opening(&self) -> Opening {
        self.said.opening
    }

    /// Answers. The client looks at its card when the event comes.
    pub fn answer(&self, welcome: &Welcome) -> Result<(), HostError> {
        card::answer(&self.card, welcome);
        Ok(self.channel.notify()?)
    }

    /// Chooses the region's pages for a worker to map.
    pub fn offer(&self) -> Result<(Offer, ForeignPages), HostError> {
        check_pages(&self.said.layout, self.refs.len())?;
        let pages = ForeignPages::choose(self.domain, &self.refs)?;
        Ok((Offer::new(self.said.layout, self.refs.len() as u64, pages.index(), self.channel.port()), pages))
    }

    /// The worker has mapped what it was offered: when it ends, the client hears of it. A worker that has ended before this
    /// is the caller's to find out.
    pub fn taken(&self, pages: &ForeignPages) -> Result<(), HostError> {
        Ok(pages.notify_when_unmapped(Side::Server.alive_byte(), self.channel.port())?)
    }

    pub fn channel(&self) -> &Channel {
        &self.channel
    }

    /// How many pages it brings.
    pub fn pages(&self) -> usize {
        self.refs.len()
    }

    /// For a client that wants to talk to the broker: maps the pages of the conversation, and answers.
    pub fn talk(self) -> Result<Talk, HostError> {
        if self.refs.len() != talk::PAGES {
            let wanted = talk::PAGES as u64;
            return Err(HostError::Pages { least: wanted, most: wanted, actual: self.refs.len() as u64 });
        }
        let pages = ForeignPages::choose(self.domain, &self.refs)?;
        let talk = Talk::over_foreign(pages, self.channel)?;
        card::answer(&self.card, &Welcome::new(WelcomeStatus::Ok, ""));
        talk.channel().notify()?;
        Ok(talk)
    }

    /// Maps the pages that the client has for the answer to a question, which must be as many as an answer of so many bytes
    /// takes.
    pub fn map_answer(&self, bytes: usize) -> Result<Mapping, HostError> {
        let (wanted, actual) = (bytes.div_ceil(PAGE) as u64, self.refs.len() as u64);
        if wanted != actual {
            return Err(HostError::Pages { least: wanted, most: wanted, actual });
        }
        Ok(ForeignPages::choose(self.domain, &self.refs)?.map(Place::Anywhere)?)
    }
}

/// All but the staging area must be there, and a region has its bounds. Answers how much of the staging area is there.
fn check_pages(layout: &Layout, pages: usize) -> Result<u64, HostError> {
    let bytes = layout.region_bytes()?;
    let (least, most) = ((bytes - layout.bulk_bytes) / PAGE as u64, (bytes / PAGE as u64).min(MAX_PAGES as u64));
    match pages as u64 {
        actual if least <= actual && actual <= most && bytes / PAGE as u64 == most => {
            Ok((actual - least) * PAGE as u64)
        }
        actual => Err(HostError::Pages { least, most, actual }),
    }
}

const OFFER_MAGIC: u32 = u32::from_le_bytes(*b"BkXo");

/// To a worker: the region of its client, as pages chosen on the first descriptor and a channel on the second.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Offer {
    magic: u32,
    port: u32,
    index: u64,
    /// Those that are there; the layout may have room for more.
    pages: u64,
    layout: Layout,
}

/// The worker's side of a region.
pub struct Accepted {
    pub region: Region,
    pub doorbell: Arc<EventDoorbell>,
    /// What the staging area grows in.
    pub span: Arc<Mutex<Span>>,
}

impl Offer {
    fn new(layout: Layout, pages: u64, index: u64, port: u32) -> Self {
        Self { magic: OFFER_MAGIC, port, index, pages, layout }
    }

    pub fn fds<'a>(pages: &'a ForeignPages, channel: &'a Channel) -> [BorrowedFd<'a>; 2] {
        [pages.as_fd(), channel.as_fd()]
    }

    /// Maps the region. Fails if the guest did not grant what it said.
    pub fn accept(&self, fds: Vec<OwnedFd>) -> Result<Accepted, HostError> {
        let [pages, channel]: [OwnedFd; 2] = fds.try_into().map_err(|_| CardError::Card)?;
        let count = usize::try_from(self.pages).map_err(|_| CardError::Card)?;
        let ready = check_pages(&self.layout, count)?;
        let failed = |source| XenError { what: "reserve a region", source };
        let mut span = Span::reserve(self.layout.region_bytes()? as usize).map_err(failed)?;
        let pages = ForeignPages::from_parts(pages, self.index, count);
        span.fill(count * PAGE, |place| pages.map(place))?;
        let channel = Channel::from_parts(channel, self.port);
        let (address, span) = (span.start(), Arc::new(Mutex::new(span)));
        // SAFETY: the span is as long as the layout says, starts on a page, lives as long as its owner, and has mapped
        // what is said to be there. A guest cannot take back a page that is mapped here.
        let region = unsafe { Region::over(address, self.layout, ready, span.clone()) }?;
        let doorbell = EventDoorbell::new(Side::Server, channel, region.transport_words())?;
        Ok(Accepted { region, doorbell, span })
    }
}

impl Message for Offer {
    fn is_valid(&self) -> bool {
        self.magic == OFFER_MAGIC && self.layout.validate().is_ok()
    }

    fn descriptors(&self) -> usize {
        2
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_region_has_all_but_its_staging_area_and_no_more_than_it_may() {
        let layout = crate::guest::layout();
        let all = layout.region_bytes().unwrap() as usize / PAGE;
        let bulk = layout.bulk_bytes as usize / PAGE;
        assert_eq!(check_pages(&layout, all).unwrap(), layout.bulk_bytes);
        assert_eq!(check_pages(&layout, all - bulk).unwrap(), 0);
        for wrong in [0, 1, all - bulk - 1, all + 1] {
            assert!(matches!(check_pages(&layout, wrong), Err(HostError::Pages { .. })), "{wrong}");
        }
        // What the guest says it will have is bounded, too: address space is kept for it.
        let huge = Layout { bulk_bytes: 1 << 39, ..layout };
        assert!(matches!(check_pages(&huge, all), Err(HostError::Pages { .. })));
    }
}
