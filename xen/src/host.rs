//! The driver domain's side: what a guest's client left is read, bound and chosen; a worker maps it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use idm::bootstrap::{Message, Opening, Welcome};
use idm::region::{Layout, LayoutError, Region, RegionError};
use thiserror::Error;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::card::{self, CardError, Node, Said};
use crate::doorbell::{EventDoorbell, Side};
use crate::sys::evtchn::Channel;
use crate::sys::gntdev::ForeignPages;
use crate::sys::{Mapping, Place, XenError};
use crate::{DomainId, PAGE};

#[derive(Debug, Error)]
pub enum HostError {
    #[error(transparent)]
    Card(#[from] CardError),
    #[error(transparent)]
    Xen(#[from] XenError),
    #[error(transparent)]
    Layout(#[from] LayoutError),
    #[error("the region is {actual} pages long, its layout says {expected}")]
    Pages { expected: u64, actual: u64 },
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

    /// Chooses the region's pages for a worker to map. When the worker ends, the client hears of it.
    pub fn offer(&self) -> Result<(Offer, ForeignPages), HostError> {
        let expected = self.said.layout.region_bytes()? / PAGE as u64;
        let actual = self.refs.len() as u64;
        if expected != actual {
            return Err(HostError::Pages { expected, actual });
        }
        let pages = ForeignPages::choose(self.domain, &self.refs)?;
        pages.notify_at_end(Side::Server.alive_byte(), self.channel.port())?;
        Ok((Offer::new(self.said.layout, pages.index(), self.channel.port()), pages))
    }

    pub fn channel(&self) -> &Channel {
        &self.channel
    }

    /// Maps the pages that the client has for the answer to a question.
    pub fn map_answer(&self) -> Result<Mapping, HostError> {
        Ok(ForeignPages::choose(self.domain, &self.refs)?.map(Place::Anywhere)?)
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
    layout: Layout,
}

impl Offer {
    fn new(layout: Layout, index: u64, port: u32) -> Self {
        Self { magic: OFFER_MAGIC, port, index, layout }
    }

    pub fn fds<'a>(pages: &'a ForeignPages, channel: &'a Channel) -> [BorrowedFd<'a>; 2] {
        [pages.as_fd(), channel.as_fd()]
    }

    /// The worker's side of the region. Fails if the guest did not grant what it said.
    pub fn accept(&self, fds: Vec<OwnedFd>) -> Result<(Region, Arc<EventDoorbell>), HostError> {
        let [pages, channel]: [OwnedFd; 2] = fds.try_into().map_err(|_| CardError::Card)?;
        let count = self.layout.region_bytes()? as usize / PAGE;
        let mapping = ForeignPages::from_parts(pages, self.index, count).map(Place::Anywhere)?;
        let channel = Channel::from_parts(channel, self.port);
        let address = mapping.start();
        // SAFETY: the mapping is as long as the layout says, starts on a page, and lives as long as its owner. A guest
        // cannot take back a page that is mapped here.
        let region = unsafe { Region::over(address, self.layout, Arc::new(mapping)) }?;
        let doorbell = EventDoorbell::new(Side::Server, channel, region.transport_words())?;
        Ok((region, doorbell))
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
