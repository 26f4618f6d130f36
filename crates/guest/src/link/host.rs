//! The host's end of the link. All that it reads is the guest's word.

use super::bytes::ByteEnd;
use super::frames::{self, Down, Up};
use super::guest::GONE;
use super::pages::{DOWN, DOWN_BYTES, GUEST_ALIVE, HOST_ALIVE, MAGIC, MAGIC_WORD, PAGES, REFS, UP, UP_BYTES};
use super::pump::Watch;
use super::{LinkError, NODE, VERSION};
use crate::domain::Domain;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use xen::DomainId;
use xen::ring::Ring;
use xen::store::{Store, StoreError};
use xen::sys::evtchn::Channel;
use xen::sys::gntdev::ForeignPages;
use xen::sys::{Mapping, Place};

pub struct HostEnd {
    up: Ring,
    down: Ring,
    channel: Channel,
    first: Arc<Mapping>,
}

/// The node that says that the guest has a link to offer.
pub fn node(domain: DomainId) -> String {
    format!("/local/domain/{domain}/{NODE}")
}

impl HostEnd {
    /// Maps what the guest offers in its node.
    pub fn accept(domain: DomainId, node: &str) -> Result<Self, LinkError> {
        let (number, port) = parse(node).ok_or(LinkError::Broken)?;
        let first = ForeignPages::choose(domain, &[number])?;
        let channel = Channel::bind(domain, port)?;
        let first = Arc::new(first.map_and_notify(Place::Anywhere, HOST_ALIVE, channel.port())?);
        if first.word(MAGIC_WORD).load(Ordering::Acquire) != MAGIC {
            return Err(LinkError::Broken);
        }
        let mut refs = [0; PAGES * 4];
        first.copy_out(REFS, &mut refs);
        let refs: Vec<u32> =
            refs.chunks_exact(4).map(|four| u32::from_le_bytes([four[0], four[1], four[2], four[3]])).collect();
        let rings = Arc::new(ForeignPages::choose(domain, &refs)?.map(Place::Anywhere)?);
        first.word(HOST_ALIVE).store(GONE | 1, Ordering::Release);
        Ok(Self {
            up: Ring::new(first.clone(), rings.clone(), UP_BYTES, UP),
            down: Ring::new(first.clone(), rings, DOWN_BYTES, DOWN),
            channel,
            first,
        })
    }

    /// Waits until the guest offers its link.
    pub fn connect(store: &mut Store, domain: &Domain, timeout: Duration) -> Result<Self, LinkError> {
        let (start, node) = (Instant::now(), node(domain.id()));
        for watched in [node.as_str(), RELEASED] {
            store.watch(watched, "link")?;
        }
        loop {
            if let Some(text) = store.read_text(&node)? {
                return Self::accept(domain.id(), &text);
            }
            if !domain.exists() {
                return Err(LinkError::Gone);
            }
            let left = timeout.checked_sub(start.elapsed()).ok_or(LinkError::Timeout(timeout))?;
            // One change and all that came with it, for one look.
            if store.next_event(Some(left))?.is_some() {
                while store.next_event(Some(Duration::ZERO))?.is_some() {}
            }
        }
    }

    /// False: there is no room now; an event comes when there is.
    pub fn send(&mut self, frame: &Down) -> Result<bool, LinkError> {
        let sent = frames::send(&mut self.down, frame)?;
        if sent {
            self.channel.notify()?;
        }
        Ok(sent)
    }

    pub fn receive(&mut self) -> Result<Option<Up>, LinkError> {
        let frame = frames::receive(&mut self.up)?;
        if frame.is_some() {
            self.channel.notify()?;
        }
        Ok(frame)
    }

    /// The guest's first process has ended, however that came about.
    pub fn guest_is_gone(&self) -> bool {
        self.first.word(GUEST_ALIVE).load(Ordering::Acquire) & 0xff == 0
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

impl ByteEnd for HostEnd {
    fn incoming(&mut self) -> &mut Ring {
        &mut self.up
    }

    fn outgoing(&mut self) -> &mut Ring {
        &mut self.down
    }

    fn level(&self) -> Result<(usize, usize), LinkError> {
        Ok((self.up.filled()?, self.down.room()?))
    }

    fn notify(&self) -> Result<(), LinkError> {
        Ok(self.channel.notify()?)
    }

    fn take_event(&self) -> Result<(), LinkError> {
        HostEnd::take_event(self)
    }

    fn fd(&self) -> BorrowedFd<'_> {
        HostEnd::fd(self)
    }

    fn peer_is_gone(&self) -> bool {
        self.guest_is_gone()
    }
}

/// What xenstore reports when a domain ends.
const RELEASED: &str = "@releaseDomain";

/// Knows when a domain has ended: one that is destroyed cannot say so itself.
pub struct DomainWatch {
    store: Store,
    domain: DomainId,
    /// Its identity: numbers of domains are used again.
    vm: Option<String>,
}

impl DomainWatch {
    pub fn new(mut store: Store, domain: DomainId) -> Result<Self, LinkError> {
        store.watch(RELEASED, "ended")?;
        let vm = store.read_text(&format!("/local/domain/{domain}/vm"))?;
        Ok(Self { store, domain, vm })
    }

    fn look(&mut self) -> Result<bool, StoreError> {
        while self.store.next_event(Some(Duration::ZERO))?.is_some() {}
        let vm = self.store.read_text(&format!("/local/domain/{}/vm", self.domain))?;
        Ok(vm != self.vm || !self.store.is_introduced(self.domain)?)
    }
}

impl Watch for DomainWatch {
    fn fd(&self) -> BorrowedFd<'_> {
        self.store.as_fd()
    }

    fn is_gone(&mut self) -> bool {
        self.look().unwrap_or_else(|_| {
            // Without a store there is no toolstack either; what can still be heard is heard through the link.
            std::thread::sleep(Duration::from_millis(100));
            false
        })
    }
}

/// The first page's reference and the port.
fn parse(node: &str) -> Option<(u32, u32)> {
    if node.len() > 40 {
        return None;
    }
    let mut words = node.split(' ').map(|word| word.parse::<u32>().ok());
    let (version, number, port) = (words.next()??, words.next()??, words.next()??);
    (version == VERSION && words.next().is_none()).then_some((number, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_three_numbers_of_this_version() {
        assert_eq!(parse("1 8 12"), Some((8, 12)));
        for wrong in ["", "1", "1 8", "2 8 12", "1 8 12 4", "1 -8 12", "1 8 99999999999", "1  8", &"1".repeat(100)] {
            assert_eq!(parse(wrong), None, "{wrong:?}");
        }
    }
}
