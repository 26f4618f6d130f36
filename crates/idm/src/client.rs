//! The app's side of a region, put together.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::bulk::BulkPool;
use crate::doorbell::{Doorbell, Futex};
use crate::flags::Flags;
use crate::gone::{Gone, PeerGone};
use crate::lane::{CallError, Lane, LanePool};
use crate::region::{Layout, Placement, Region, RegionError, Shared, StatusWords};
use crate::ring::{PostError, Producer};

/// Everything the client does with its server. Shared by all threads.
pub struct Client {
    region: Region,
    gone: PeerGone,
    status: Shared<StatusWords>,
    producer: Arc<Producer>,
    lanes: Arc<LanePool>,
    bulk: Arc<BulkPool>,
    flags: Flags,
}

impl Client {
    /// Maps the region that the server sent.
    pub fn attach(fd: OwnedFd, layout: Layout, placement: Placement) -> Result<Self, RegionError> {
        Ok(Self::over(Region::attach(fd, layout, placement)?, Arc::new(Futex)))
    }

    /// As [`Client::attach`], with so much of the staging area in use from the start: [`BulkPool::extend`] adds to it.
    pub fn attach_in_part(
        fd: OwnedFd,
        layout: Layout,
        placement: Placement,
        bulk_ready: u64,
    ) -> Result<Self, RegionError> {
        Ok(Self::over(Region::attach(fd, layout, placement)?.beginning_with(bulk_ready), Arc::new(Futex)))
    }

    /// The client's side of a region that is mapped, with the doorbell of its transport.
    pub fn over(region: Region, doorbell: Arc<dyn Doorbell>) -> Self {
        let gone = PeerGone::default();
        let status = region.status();
        let producer = Arc::new(Producer::new(region.ring_words(), region.ring_bytes(), &doorbell, &gone));
        let lane = |lane| (region.lane_words(lane), region.lane_request(lane), region.lane_reply(lane));
        let lanes = LanePool::new(
            producer.clone(),
            region.dispatch_words(),
            (0..region.layout().lanes).map(lane),
            &doorbell,
            &gone,
        );
        let bulk = BulkPool::new(region.bulk_bytes(), producer.clone());
        let flags = Flags::new(region.flag_bytes(), status.clone(), gone.clone());
        Self { region, gone, status, producer, lanes, bulk, flags }
    }

    /// Posts a message that nobody awaits an answer to; see [`Producer::post`].
    #[inline]
    pub fn post(
        &self,
        op: u16,
        flags: u16,
        tag: u32,
        len: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> Result<u64, PostError> {
        self.gone.check()?;
        self.producer.post(op, flags, tag, len, fill)
    }

    /// A lane for the calling thread, to keep as long as it likes.
    pub fn lane(&self) -> Result<Lane, CallError> {
        self.lanes.acquire()
    }

    /// The end of the ring that posts.
    pub fn producer(&self) -> &Arc<Producer> {
        &self.producer
    }

    /// The ring position after everything posted so far, by any thread.
    pub fn position(&self) -> u64 {
        self.producer.position()
    }

    /// Waits until the server has executed everything up to `position`. False: the time is up.
    pub fn wait_executed(&self, position: u64, timeout: Option<Duration>) -> Result<bool, Gone> {
        self.producer.wait_executed(position, timeout)
    }

    /// The room for payloads that are too long for the ring.
    pub fn bulk(&self) -> &Arc<BulkPool> {
        &self.bulk
    }

    /// The completion words.
    pub fn flags(&self) -> &Flags {
        &self.flags
    }

    /// 0, or the fault that the server reports.
    #[inline]
    pub fn status(&self) -> u32 {
        self.status.status.load(Ordering::Acquire)
    }

    /// Ends every wait once set.
    pub fn gone(&self) -> &PeerGone {
        &self.gone
    }

    /// The memory that both sides share.
    pub fn region(&self) -> &Region {
        &self.region
    }
}
