//! The guest's side: a client grants a region to the driver domain and asks for a worker.

use std::sync::Arc;
use std::time::{Duration, Instant};

use idm::bootstrap::{Answer, Hello, Inquiry, Message, Rendezvous, Welcome, WelcomeStatus};
use idm::region::{Layout, Region, RegionError};
use parking_lot::Mutex;
use thiserror::Error;
use zerocopy::IntoBytes;

use crate::card::{self, CardError, Node};
use crate::doorbell::{EventDoorbell, Side};
use crate::store::{Permission, Store, StoreError};
use crate::sys::evtchn::Channel;
use crate::sys::gntalloc::{GrantAllocator, Grants};
use crate::sys::{Mapping, Place, Span, XenError};
use crate::talk::{self, Talk};
use crate::{DomainId, PAGE};

/// The staging area that a client begins with. More is granted when a copy wants it.
const FIRST_BULK: u64 = 16 << 20;
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
    #[error("this guest may grant only {0} pages, less than a region needs; raise xen_gntalloc.limit")]
    Limit(String),
    #[error("no proxy in the driver domain")]
    NoService,
    #[error("timed out waiting for the proxy")]
    Timeout,
    #[error("invalid answer from the proxy")]
    Answer(#[from] CardError),
    #[error("refused by the proxy: {0}")]
    Refused(String),
}

/// Whether this system is a guest with what it takes.
pub fn is_possible() -> bool {
    std::path::Path::new("/dev/xen/gntalloc").exists()
}

/// Sizes for a region of granted pages. Every page of it is really there, so there are fewer lanes: 16 MiB with the ring,
/// before the staging area, which may grow to 64 MiB.
pub fn layout() -> Layout {
    Layout { lanes: 118, ring_bytes: 1 << 20, ..Layout::default() }
}

/// A region that the worker has mapped.
pub struct Connection {
    pub region: Region,
    pub doorbell: Arc<EventDoorbell>,
    pub allocator: GrantAllocator,
    pub backend: DomainId,
    pub granted: Arc<Granted>,
}

/// Keeps a region granted and mapped, and adds to its staging area.
pub struct Granted(Mutex<Pages>);

/// The mapping goes first.
struct Pages {
    span: Span,
    grants: Vec<Grants>,
}

impl Granted {
    /// How much of the region is there.
    pub fn bytes(&self) -> usize {
        self.0.lock().span.filled()
    }

    /// Grants further pages for the end of the region, and maps them. `tell` has the worker map them, too; if it cannot,
    /// the region is as it was.
    pub fn grow<E>(
        &self,
        allocator: &GrantAllocator,
        backend: DomainId,
        pages: usize,
        tell: impl FnOnce(&[u32]) -> Result<(), E>,
    ) -> Result<(), GrowError<E>> {
        let mut own = self.0.lock();
        let grants = allocator.grant(backend, pages).map_err(GrowError::Xen)?;
        own.span.fill(grants.len(), |place| grants.map(place)).map_err(GrowError::Xen)?;
        if let Err(error) = tell(grants.refs()) {
            own.span.take_back();
            return Err(GrowError::Worker(error));
        }
        own.grants.push(grants);
        Ok(())
    }
}

/// Why a region did not grow.
#[derive(Debug)]
pub enum GrowError<E> {
    Xen(XenError),
    Worker(E),
}

/// The driver domain, once its proxy has taken this guest in.
pub fn backend(store: &mut Store, timeout: Duration) -> Result<DomainId, ConnectError> {
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
        match timeout.checked_sub(start.elapsed()) {
            Some(left) if !left.is_zero() => store.next_event(Some(left))?,
            _ => return Err(ConnectError::NoService),
        };
    }
}

/// Grants a region laid out as `layout` says, with as much staging as one begins with, and introduces this process to the
/// proxy. `take_in` is how long the proxy may take to take this guest in, `timeout` how long to answer.
pub fn connect(
    hello: &Hello,
    layout: Layout,
    take_in: Duration,
    timeout: Duration,
) -> Result<Connection, ConnectError> {
    let mut store = Store::open()?;
    let backend = backend(&mut store, take_in)?;
    let allocator = GrantAllocator::open()?;
    let (bulk_ready, grants) = grant_region(&allocator, backend, layout)?;
    let bytes = layout.region_bytes().map_err(RegionError::from)? as usize;
    let mut span = Span::reserve(bytes).map_err(|source| XenError { what: "reserve a region", source })?;
    span.fill(grants.len(), |place| grants.map(place))?;
    let refs = grants.refs().to_vec();
    let channel = Channel::offer(backend)?;
    grants.notify_at_end(Side::Client.alive_byte(), channel.port())?;
    let address = span.start();
    let granted = Arc::new(Granted(Mutex::new(Pages { span, grants: vec![grants] })));
    // SAFETY: the span is as long as the layout says, starts on a page, lives as long as the owner, and has mapped what is
    // said to be there. Pages of our own are there whatever the other domain does.
    let region = unsafe { Region::over(address, layout, bulk_ready, granted.clone()) }?;
    let doorbell = EventDoorbell::new(Side::Client, channel, region.transport_words())?;

    let call = Call { allocator: &allocator, backend, channel: doorbell.channel() };
    call.leave_card(&mut store, hello, &layout, &refs, timeout)?;
    Ok(Connection { region, doorbell, allocator, backend, granted })
}

/// Asks the proxy about this guest's zone.
pub fn inquire(take_in: Duration, timeout: Duration) -> Result<Box<Answer>, ConnectError> {
    let mut store = Store::open()?;
    let backend = backend(&mut store, take_in)?;
    let allocator = GrantAllocator::open()?;
    let grants = allocator.grant(backend, size_of::<Answer>().div_ceil(PAGE))?;
    let pages = grants.map(Place::Anywhere)?;
    let channel = Channel::offer(backend)?;
    let call = Call { allocator: &allocator, backend, channel: &channel };
    call.leave_card(&mut store, &Inquiry::default(), &Layout::default(), grants.refs(), timeout)?;
    let mut answer = Answer::new(|_| 0);
    pages.copy_out(0, answer.as_mut_bytes());
    if answer.is_valid() { Ok(answer) } else { Err(CardError::Card.into()) }
}

/// Begins a conversation with the broker of this guest's zone.
pub fn talk(take_in: Duration, timeout: Duration) -> Result<Talk, ConnectError> {
    let mut store = Store::open()?;
    let backend = backend(&mut store, take_in)?;
    let allocator = GrantAllocator::open()?;
    let talk = Talk::over_granted(allocator.grant(backend, talk::PAGES)?, Channel::offer(backend)?)?;
    let call = Call { allocator: &allocator, backend, channel: talk.channel() };
    call.leave_card(&mut store, &Rendezvous::default(), &Layout::default(), talk.refs(), timeout)?;
    Ok(talk)
}

/// What a card is left with.
struct Call<'a> {
    allocator: &'a GrantAllocator,
    backend: DomainId,
    channel: &'a Channel,
}

impl Call<'_> {
    /// Leaves a card for the pages behind `refs`, and waits until the proxy has done what it asks for.
    fn leave_card(
        &self,
        store: &mut Store,
        opening: &impl Message,
        layout: &Layout,
        refs: &[u32],
        timeout: Duration,
    ) -> Result<(), ConnectError> {
        let own = self.allocator.grant(self.backend, card::pages_for(refs.len()))?;
        let card = own.map(Place::Anywhere)?;
        card::fill(&card, own.refs(), opening, layout, refs);
        let node = Node { card: own.refs()[0], port: self.channel.port() };
        let path = announce(store, self.backend, node)?;
        let answer = await_answer(&card, self.channel, timeout);
        // The proxy removes it, too; the second finds nothing.
        let _ = store.remove(&path);
        let welcome = answer?;
        match welcome.status() {
            Some(WelcomeStatus::Ok) => Ok(()),
            _ => Err(ConnectError::Refused(welcome.text())),
        }
    }
}

/// A region with as much of its staging area as a client begins with, or as the guest may grant: halves it until it fits.
/// The kernel's limit must be below what the grant table holds: beyond *that*, kernels lose what they had granted when they
/// found out. Answers how much of the staging area is there.
fn grant_region(
    allocator: &GrantAllocator,
    backend: DomainId,
    layout: Layout,
) -> Result<(u64, Grants), ConnectError> {
    let bytes = layout.region_bytes().map_err(RegionError::from)? - layout.bulk_bytes;
    let mut ready = layout.bulk_bytes.min(FIRST_BULK);
    loop {
        match allocator.grant(backend, ((bytes + ready) as usize).div_ceil(PAGE)) {
            Ok(grants) => return Ok((ready, grants)),
            Err(_) if ready / 2 >= LEAST_BULK => ready /= 2,
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

fn await_answer(card: &Mapping, channel: &Channel, timeout: Duration) -> Result<Welcome, ConnectError> {
    let start = Instant::now();
    loop {
        if let Some(answer) = card::answered(card) {
            return Ok(answer?);
        }
        match timeout.checked_sub(start.elapsed()) {
            Some(left) if !left.is_zero() => channel.wait(Some(left))?,
            _ => return Err(ConnectError::Timeout),
        };
    }
}
