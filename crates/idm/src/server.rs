//! The worker's side of a region, put together.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::bulk::BulkView;
use crate::doorbell::{Doorbell, Futex};
use crate::flags::Flags;
use crate::gone::PeerGone;
use crate::lane::{Dispatcher, LaneExecutor, Replies};
use crate::region::Shared;
use crate::region::{Layout, Placement, Region, RegionError, StatusWords};
use crate::ring::Consumer;

/// Everything the server does with one client. The parts that belong to one thread each (`consumer`, `dispatcher`) are
/// taken out; the others are shared.
pub struct Server {
    region: Region,
    gone: PeerGone,
    status: Shared<StatusWords>,
    replies: Replies,
    bulk: BulkView,
    consumer: Option<Consumer>,
    dispatcher: Option<Dispatcher>,
}

impl Server {
    /// Makes a region for one client.
    pub fn create(layout: Layout, placement: Placement) -> Result<Self, RegionError> {
        Ok(Self::over(Region::create(layout, placement)?, Arc::new(Futex)))
    }

    /// Takes a region that was made for it.
    pub fn attach(memory: OwnedFd, layout: Layout, placement: Placement) -> Result<Self, RegionError> {
        Ok(Self::over(Region::attach(memory, layout, placement)?, Arc::new(Futex)))
    }

    /// As [`Server::attach`], with so much of the staging area in use from the start: [`BulkView::extend`] adds to it.
    ///
    /// [`BulkView::extend`]: crate::bulk::BulkView::extend
    pub fn attach_in_part(
        memory: OwnedFd,
        layout: Layout,
        placement: Placement,
        bulk_ready: u64,
    ) -> Result<Self, RegionError> {
        Ok(Self::over(Region::attach(memory, layout, placement)?.beginning_with(bulk_ready), Arc::new(Futex)))
    }

    /// The server's side of a region that exists, with the doorbell of its transport.
    pub fn over(region: Region, doorbell: Arc<dyn Doorbell>) -> Self {
        let gone = PeerGone::default();
        let lanes = region.layout().lanes;
        let ring = region.ring_words();
        let consumer = Consumer::new(ring.clone(), region.ring_bytes(), lanes, &doorbell, &gone);
        let executed = consumer.executed().watcher();
        let start = {
            let (region, doorbell, gone) = (region.clone(), doorbell.clone(), gone.clone());
            Box::new(move |lane| {
                let watch = executed.watch(&gone);
                LaneExecutor::new(
                    lane,
                    region.lane_words(lane),
                    ring.clone(),
                    region.lane_request(lane),
                    watch,
                    &doorbell,
                    &gone,
                )
            })
        };
        let dispatcher = Dispatcher::new(region.dispatch_words(), lanes, start, &doorbell, &gone);
        let replies =
            Replies::new((0..lanes).map(|lane| (region.lane_words(lane), region.lane_reply(lane))), &doorbell);
        let status = region.status();
        let bulk = BulkView::new(region.bulk_bytes());
        Self { region, gone, status, replies, bulk, consumer: Some(consumer), dispatcher: Some(dispatcher) }
    }

    /// The executor's end of the ring. There is one.
    pub fn take_consumer(&mut self) -> Option<Consumer> {
        self.consumer.take()
    }

    /// The source of lanes that need a thread. There is one.
    pub fn take_dispatcher(&mut self) -> Option<Dispatcher> {
        self.dispatcher.take()
    }

    /// The end that answers.
    pub fn replies(&self) -> Replies {
        self.replies.clone()
    }

    /// The payloads that are too long for the ring.
    pub fn bulk(&self) -> BulkView {
        self.bulk.clone()
    }

    /// The completion words.
    pub fn flags(&self) -> Flags {
        Flags::new(self.region.flag_bytes(), self.status.clone(), self.gone.clone())
    }

    /// Reports a fault that ends this client's work; 0 is none.
    pub fn set_status(&self, code: u32) {
        self.status.status.store(code, Ordering::Release);
    }

    /// Ends every wait once set.
    pub fn gone(&self) -> &PeerGone {
        &self.gone
    }

    /// The descriptor to send to the client; none if the region is no memfd.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.region.fd()
    }

    /// The memory that both sides share.
    pub fn region(&self) -> &Region {
        &self.region
    }

    /// Where what is in the region.
    pub fn layout(&self) -> &Layout {
        self.region.layout()
    }
}
