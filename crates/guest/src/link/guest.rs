//! The guest's end of the link.

use super::bytes::ByteEnd;
use super::frames::{self, Down, Up};
use super::pages::{
    DOWN, DOWN_BYTES, GUEST_ALIVE, HOST_ALIVE, MAGIC, MAGIC_WORD, PAGES, REFS, RING_BYTES, UP, UP_BYTES,
};
use super::{LinkError, NODE, VERSION};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use xen::DomainId;
use xen::ring::Ring;
use xen::store::{Permission, Store};
use xen::sys::evtchn::Channel;
use xen::sys::gntalloc::{GrantAllocator, Grants};
use xen::sys::{Mapping, Place};

pub struct GuestEnd {
    up: Ring,
    down: Ring,
    channel: Channel,
    first: Arc<Mapping>,
    _grants: [Grants; 2],
}

impl GuestEnd {
    /// Grants the pages to `host` and says so in xenstore.
    pub fn offer(host: DomainId) -> Result<Self, LinkError> {
        let allocator = GrantAllocator::open()?;
        let (first_grant, ring_grants) = (allocator.grant(host, 1)?, allocator.grant(host, PAGES)?);
        let first = Arc::new(first_grant.map(Place::Anywhere)?);
        let rings = Arc::new(ring_grants.map(Place::Anywhere)?);
        let channel = Channel::offer(host)?;
        for (index, number) in ring_grants.refs().iter().enumerate() {
            first.copy_in(REFS + index * 4, &number.to_le_bytes());
        }
        first.word(GUEST_ALIVE).store(1, Ordering::Relaxed);
        first.word(MAGIC_WORD).store(MAGIC, Ordering::Release);
        first_grant.notify_at_end(GUEST_ALIVE, channel.port())?;
        let mut store = Store::open()?;
        store.write(NODE, format!("{VERSION} {} {}", first_grant.refs()[0], channel.port()).as_bytes())?;
        let own = store.read_text("domid")?.and_then(|text| text.parse().ok());
        // Domain 0 may read everything as it is.
        if let (Some(own), true) = (own, host != 0) {
            store.set_permissions(NODE, &[Permission::None(own), Permission::Read(host)])?;
        }
        Ok(Self {
            up: Ring::new(first.clone(), rings.clone(), UP_BYTES, UP),
            down: Ring::new(first.clone(), rings, DOWN_BYTES, DOWN),
            channel,
            first,
            _grants: [first_grant, ring_grants],
        })
    }

    /// False: there is no room now; an event comes when there is.
    pub fn send(&mut self, frame: &Up) -> Result<bool, LinkError> {
        let sent = frames::send(&mut self.up, frame)?;
        if sent {
            self.channel.notify()?;
        }
        Ok(sent)
    }

    pub fn receive(&mut self) -> Result<Option<Down>, LinkError> {
        let frame = frames::receive(&mut self.down)?;
        if frame.is_some() {
            self.channel.notify()?;
        }
        Ok(frame)
    }

    pub fn room(&self) -> Result<usize, LinkError> {
        Ok(self.up.room()?)
    }

    /// The host has read everything.
    pub fn is_drained(&self) -> bool {
        self.up.room().is_ok_and(|room| room == RING_BYTES)
    }

    /// Whether the host was there and is no more.
    pub fn host_is_gone(&self) -> bool {
        self.first.word(HOST_ALIVE).load(Ordering::Acquire) == GONE
    }

    /// Takes an event, if there is one, and allows the next.
    pub fn take_event(&self) -> Result<(), LinkError> {
        Ok(self.channel.wait(Some(std::time::Duration::ZERO)).map(drop)?)
    }

    /// Can be read when there is an event.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }
}

impl ByteEnd for GuestEnd {
    fn incoming(&mut self) -> &mut Ring {
        &mut self.down
    }

    fn outgoing(&mut self) -> &mut Ring {
        &mut self.up
    }

    fn level(&self) -> Result<(usize, usize), LinkError> {
        Ok((self.down.filled()?, self.up.room()?))
    }

    fn notify(&self) -> Result<(), LinkError> {
        Ok(self.channel.notify()?)
    }

    fn take_event(&self) -> Result<(), LinkError> {
        GuestEnd::take_event(self)
    }

    fn fd(&self) -> BorrowedFd<'_> {
        GuestEnd::fd(self)
    }

    fn peer_is_gone(&self) -> bool {
        self.host_is_gone()
    }
}

/// What the word that says that the host is there becomes when its lowest byte is cleared.
pub(super) const GONE: u32 = 0x0100;
