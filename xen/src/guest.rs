//! The guest's side: a client grants a region to the driver domain and asks for a worker.

use std::sync::Arc;
use std::time::{Duration, Instant};

use idm::bootstrap::{Hello, Welcome, WelcomeStatus};
use idm::region::{Layout, Region, RegionError};
use thiserror::Error;

use crate::card::{self, CardError, Node};
use crate::doorbell::{EventDoorbell, Side};
use crate::store::{Permission, Store, StoreError};
use crate::sys::evtchn::Channel;
use crate::sys::gntalloc::{GrantAllocator, Grants};
use crate::sys::{Mapping, Place, XenError};
use crate::{DomainId, PAGE};

/// Without this much staging a client is better off without the GPU.
const LEAST_BULK: u64 = 1 << 20;

#[derive(Debug, Error)]
pub enum ConnectError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Xen(#[from] XenError),
    #[error(transparent)]
    Region(#[from] RegionError),
    #[error("this guest may not grant as much as a region takes; its limit is {0} pages (xen_gntalloc.limit)")]
    Limit(String),
    #[error("there is no proxy in the driver domain")]
    NoService,
    #[error("the proxy did not answer in time")]
    Timeout,
    #[error("the proxy's answer is wrong")]
    Answer(#[from] CardError),
    #[error("the proxy refused: {0}")]
    Refused(String),
}

/// Whether this system is a guest with what it takes.
pub fn is_possible() -> bool {
    std::path::Path::new("/dev/xen/gntalloc").exists()
}

/// Sizes for a region of granted pages. Every page of it is really there, so there are fewer lanes: 16 MiB with the ring,
/// before the staging area.
pub fn layout() -> Layout {
    Layout { lanes: 118, ring_bytes: 1 << 20, ..Layout::default() }
}

/// A region that the worker has mapped.
pub struct Connection {
    pub region: Region,
    pub doorbell: Arc<EventDoorbell>,
    pub allocator: GrantAllocator,
    pub backend: DomainId,
}

/// Keeps a region granted and mapped; the mapping goes first.
struct Owner {
    _mapping: Mapping,
    _grants: Grants,
}

/// The driver domain, once its proxy has taken this guest in.
pub fn backend(store: &mut Store, patience: Duration) -> Result<DomainId, ConnectError> {
    let start = Instant::now();
    let path = format!("{}/backend", card::SERVICE);
    let mut watching = false;
    loop {
        if let Some(text) = store.read_text(&path)? {
            return text.parse().map_err(|_| ConnectError::NoService);
        }
        if !watching {
            store.watch(&path, "backend")?;
            watching = true;
        }
        match patience.checked_sub(start.elapsed()) {
            Some(left) if !left.is_zero() => store.next_event(Some(left))?,
            _ => return Err(ConnectError::NoService),
        };
    }
}

/// Grants a region laid out as `layout` says, with less staging if the guest may not grant as much, and introduces
/// this process to the proxy. `take_in` is how long the proxy may take to take this guest in, `patience` how long to
/// answer.
pub fn connect(
    hello: &Hello,
    layout: Layout,
    take_in: Duration,
    patience: Duration,
) -> Result<Connection, ConnectError> {
    let mut store = Store::open()?;
    let backend = backend(&mut store, take_in)?;
    let allocator = GrantAllocator::open()?;
    let (layout, grants) = grant_region(&allocator, backend, layout)?;
    let mapping = grants.map(Place::Anywhere)?;
    let refs = grants.refs().to_vec();
    let channel = Channel::offer(backend)?;
    grants.notify_at_end(Side::Client.alive_byte(), channel.port())?;
    let address = mapping.start();
    let owner = Arc::new(Owner { _mapping: mapping, _grants: grants });
    // SAFETY: the mapping is as long as the layout says, starts on a page, and lives as long as the owner. Pages of our
    // own are there whatever the other domain does.
    let region = unsafe { Region::over(address, layout, owner) }?;
    let doorbell = EventDoorbell::new(Side::Client, channel, region.transport_words())?;

    let own = allocator.grant(backend, card::pages_for(refs.len()))?;
    let card = own.map(Place::Anywhere)?;
    card::fill(&card, own.refs(), hello, &layout, &refs);
    let node = Node { card: own.refs()[0], port: doorbell.channel().port() };
    let path = announce(&mut store, backend, node)?;
    let answer = await_answer(&card, doorbell.channel(), patience);
    // The proxy removes it, too; whoever comes second finds nothing.
    let _ = store.remove(&path);
    let welcome = answer?;
    match welcome.status() {
        Some(WelcomeStatus::Ok) => Ok(Connection { region, doorbell, allocator, backend }),
        _ => Err(ConnectError::Refused(welcome.text())),
    }
}

/// As much as the guest may grant: halves the staging area until it fits. The kernel's limit must be below what the
/// grant table holds: beyond *that*, kernels lose what they had granted when they found out.
fn grant_region(
    allocator: &GrantAllocator,
    backend: DomainId,
    mut layout: Layout,
) -> Result<(Layout, Grants), ConnectError> {
    loop {
        let bytes = layout.region_bytes().map_err(RegionError::from)?;
        match allocator.grant(backend, (bytes as usize).div_ceil(PAGE)) {
            Ok(grants) => return Ok((layout, grants)),
            Err(_) if layout.bulk_bytes / 2 >= LEAST_BULK => layout.bulk_bytes /= 2,
            Err(error) if error.source.kind() == std::io::ErrorKind::StorageFull => {
                return Err(ConnectError::Limit(limit()));
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// How many pages the kernel lets all processes together grant.
fn limit() -> String {
    let text = std::fs::read_to_string("/sys/module/xen_gntalloc/parameters/limit");
    text.map_or_else(|_| "unknown".to_owned(), |text| text.trim().to_owned())
}

/// Writes the node, readable by the driver domain and nobody else.
fn announce(store: &mut Store, backend: DomainId, node: Node) -> Result<String, ConnectError> {
    let mut random = [0; 8];
    let what = "make a name";
    let got =
        rustix::io::retry_on_intr(|| rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty()));
    got.map_err(|source| XenError { what, source: source.into() })?;
    let path = format!("{}/{:016x}", card::CLIENTS, u64::from_ne_bytes(random));
    store.write(&path, node.text().as_bytes())?;
    let own = store.read_text("domid")?.and_then(|text| text.parse().ok());
    if let (Some(own), true) = (own, backend != 0) {
        store.set_permissions(&path, &[Permission::None(own), Permission::Read(backend)])?;
    }
    Ok(path)
}

fn await_answer(card: &Mapping, channel: &Channel, patience: Duration) -> Result<Welcome, ConnectError> {
    let start = Instant::now();
    loop {
        if let Some(answer) = card::answered(card) {
            return Ok(answer?);
        }
        match patience.checked_sub(start.elapsed()) {
            Some(left) if !left.is_zero() => channel.wait(Some(left))?,
            _ => return Err(ConnectError::Timeout),
        };
    }
}
