//! Loom models: every interleaving of the protocols that the modules' essays argue about.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p idm --release loom`

use std::sync::Arc;

use loom::thread;

use crate::doorbell::model::ModelDoorbell;
use crate::doorbell::{Bell, BellWords, Doorbell, Waiter};
use crate::gone::{Gone, PeerGone};
use crate::lane::{DispatchWords, Dispatcher, LaneExecutor, LanePool, LaneWords, Replies};
use crate::region::{Bytes, Shared};
use crate::ring::{Consumer, Producer, RingWords};
use crate::sync::{AtomicU32, Ordering};

fn model(body: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    // Three is where known bugs of such protocols show; unbounded models of sleeping threads take hours.
    builder.preemption_bound = Some(3);
    builder.check(body);
}

struct Flag {
    bell: BellWords,
    value: AtomicU32,
}

fn flag() -> Shared<Flag> {
    Shared::local(Flag { bell: BellWords::default(), value: AtomicU32::new(0) })
}

#[test]
fn loom_doorbell_loses_no_wakeup() {
    model(|| {
        let doorbell: Arc<dyn Doorbell> = ModelDoorbell::new();
        let flag = flag();
        let bell = Bell::new(flag.project(|f| &f.bell), doorbell);
        let waiter = Waiter::new(bell.clone(), &PeerGone::default());
        let notifier = thread::spawn({
            let flag = flag.clone();
            move || {
                for value in 1..=2 {
                    flag.value.store(value, Ordering::Release);
                    bell.notify();
                }
            }
        });
        for value in 1..=2 {
            waiter.wait(None, || (flag.value.load(Ordering::Acquire) >= value).then_some(())).unwrap();
        }
        notifier.join().unwrap();
    });
}

#[test]
fn loom_doorbell_serves_two_waiters() {
    model(|| {
        let doorbell: Arc<dyn Doorbell> = ModelDoorbell::new();
        let flag = flag();
        let bell = Bell::new(flag.project(|f| &f.bell), doorbell);
        let gone = PeerGone::default();
        let waiters = [1, 2].map(|value| {
            let (flag, waiter) = (flag.clone(), Waiter::new(bell.clone(), &gone));
            thread::spawn(move || {
                waiter.wait(None, || (flag.value.load(Ordering::Acquire) >= value).then_some(())).unwrap();
            })
        });
        for value in 1..=2 {
            flag.value.store(value, Ordering::Release);
            bell.notify();
        }
        waiters.into_iter().for_each(|waiter| waiter.join().unwrap());
    });
}

#[test]
fn loom_doorbell_ends_when_the_peer_is_gone() {
    model(|| {
        let doorbell: Arc<dyn Doorbell> = ModelDoorbell::new();
        let flag = flag();
        let gone = PeerGone::default();
        let waiter = Waiter::new(Bell::new(flag.project(|f| &f.bell), doorbell), &gone);
        let watcher = thread::spawn({
            let gone = gone.clone();
            move || gone.set()
        });
        assert_eq!(waiter.wait(None, || None::<()>), Err(Gone));
        watcher.join().unwrap();
    });
}

struct Ring {
    words: Shared<RingWords>,
    bytes: Bytes,
    doorbell: Arc<dyn Doorbell>,
    client: PeerGone,
    server: PeerGone,
}

impl Ring {
    fn new(len: usize) -> Self {
        Self {
            words: Shared::local(RingWords::default()),
            bytes: Bytes::local(len),
            doorbell: ModelDoorbell::new(),
            client: PeerGone::default(),
            server: PeerGone::default(),
        }
    }

    fn producer(&self) -> Arc<Producer> {
        Arc::new(Producer::new(self.words.clone(), self.bytes.clone(), &self.doorbell, &self.client))
    }

    fn consumer(&self) -> Consumer {
        Consumer::new(self.words.clone(), self.bytes.clone(), 1, &self.doorbell, &self.server)
    }
}

/// Loom's cells fail the model if the consumer could read a record that is still being written, or the producer write
/// over one that is still being read.
#[test]
fn loom_ring_hands_over_in_order() {
    model(|| {
        let ring = Ring::new(256);
        let producer = ring.producer();
        let mut consumer = ring.consumer();
        let poster = thread::spawn(move || {
            for value in 1..=2u8 {
                producer.post(value.into(), 0, 0, 1, |slot| slot[0] = value).unwrap();
            }
            let position = producer.position();
            assert!(producer.wait_executed(position, None).unwrap());
        });
        for value in 1..=2u8 {
            let record = consumer.next().unwrap();
            assert_eq!((record.header.op, record.payload), (value.into(), &[value][..]));
        }
        assert!(consumer.try_next().unwrap().is_none());
        poster.join().unwrap();
    });
}

/// Five records through a ring of four: the producer must wait for room, and both must wake.
#[test]
fn loom_ring_full_makes_the_producer_wait() {
    model(|| {
        let ring = Ring::new(256);
        let producer = ring.producer();
        let mut consumer = ring.consumer();
        for value in 1..=4u8 {
            producer.post(value.into(), 0, 0, 1, |slot| slot[0] = value).unwrap();
        }
        let poster = thread::spawn(move || {
            producer.post(5, 0, 0, 1, |slot| slot[0] = 5).unwrap();
        });
        for value in 1..=5u8 {
            let record = consumer.next().unwrap();
            assert_eq!((record.header.op, record.payload), (value.into(), &[value][..]));
        }
        poster.join().unwrap();
    });
}

#[test]
fn loom_ring_two_producers_share_one_order() {
    model(|| {
        let ring = Ring::new(256);
        let producer = ring.producer();
        let mut consumer = ring.consumer();
        let posters = [1u8, 2].map(|value| {
            let producer = producer.clone();
            thread::spawn(move || producer.post(value.into(), 0, 0, 1, |slot| slot[0] = value).unwrap())
        });
        let mut seen: Vec<(u64, u8)> = Vec::new();
        for _ in 0..2 {
            let record = consumer.next().unwrap();
            seen.push((record.position, record.payload[0]));
        }
        let positions = posters.map(|poster| poster.join().unwrap());
        for (position, value) in seen {
            assert_eq!(positions[usize::from(value) - 1], position);
        }
    });
}

struct Lanes {
    ring: Ring,
    words: Shared<LaneWords>,
    dispatch: Shared<DispatchWords>,
    request: Bytes,
    reply: Bytes,
}

impl Lanes {
    fn new() -> Self {
        Self {
            ring: Ring::new(256),
            words: Shared::local(LaneWords::default()),
            dispatch: Shared::local(DispatchWords::default()),
            request: Bytes::local(64),
            reply: Bytes::local(64),
        }
    }

    fn pool(&self, producer: Arc<Producer>) -> Arc<LanePool> {
        let lane = (self.words.clone(), self.request.clone(), self.reply.clone());
        let ring = &self.ring;
        LanePool::new(producer, self.dispatch.clone(), [lane].into_iter(), &ring.doorbell, &ring.client)
    }

    fn replies(&self) -> Replies {
        Replies::new([(self.words.clone(), self.reply.clone())].into_iter(), &self.ring.doorbell)
    }

    fn dispatcher(&self, consumer: &Consumer) -> Dispatcher {
        let (words, request, ring) = (self.words.clone(), self.request.clone(), self.ring.words.clone());
        let (doorbell, gone) = (self.ring.doorbell.clone(), self.ring.server.clone());
        let executed = consumer.executed().watcher();
        let start = Box::new(move |index| {
            let watch = executed.watch(&gone);
            LaneExecutor::new(index, words.clone(), ring.clone(), request.clone(), watch, &doorbell, &gone)
        });
        Dispatcher::new(self.dispatch.clone(), 1, start, &self.ring.doorbell, &self.ring.server)
    }
}

#[test]
fn loom_lane_call_is_answered() {
    model(|| {
        let lanes = Lanes::new();
        let mut consumer = lanes.ring.consumer();
        let replies = lanes.replies();
        let mut lane = lanes.pool(lanes.ring.producer()).acquire().unwrap();
        let executor = thread::spawn(move || {
            let record = consumer.next().unwrap();
            let (lane, seq) = (record.header.lane, record.header.seq);
            replies.send(lane, seq, 5, record.payload).unwrap();
        });
        let reply = lane.call(1, 0, 0, 1, |slot| slot[0] = 9).unwrap();
        assert_eq!((reply.status, reply.payload), (5, &[9][..]));
        executor.join().unwrap();
    });
}

/// The first blocking request finds no thread, the second finds one: both are seen.
#[test]
fn loom_lane_first_request_finds_a_thread() {
    model(|| {
        let lanes = Lanes::new();
        let consumer = lanes.ring.consumer();
        let mut dispatcher = lanes.dispatcher(&consumer);
        let replies = lanes.replies();
        let mut lane = lanes.pool(lanes.ring.producer()).acquire().unwrap();
        let server = thread::spawn(move || {
            let mut executor = dispatcher.next().unwrap();
            for _ in 0..2 {
                let request = executor.next().unwrap();
                replies.send(request.header.lane, request.header.seq, 0, request.payload).unwrap();
            }
        });
        for value in 1..=2u8 {
            let reply = lane.block(1, 0, 0, 0, 1, |slot| slot[0] = value).unwrap();
            assert_eq!(reply.payload, &[value][..]);
        }
        server.join().unwrap();
    });
}

/// A blocking request never overtakes what was posted before it.
#[test]
fn loom_lane_block_comes_after_the_posts() {
    model(|| {
        let lanes = Lanes::new();
        let mut consumer = lanes.ring.consumer();
        let mut dispatcher = lanes.dispatcher(&consumer);
        let done = Shared::local(AtomicU32::new(0));
        let producer = lanes.ring.producer();
        let mut lane = lanes.pool(producer.clone()).acquire().unwrap();
        let after = producer.post(1, 0, 0, 0, |_| {}).unwrap();
        lane.begin_block(2, 0, 0, after, 0, |_| {}).unwrap();
        let executor = thread::spawn({
            let done = done.clone();
            move || {
                consumer.next().unwrap();
                done.store(1, Ordering::Relaxed);
                // Asking for the next one says that the first is done.
                assert!(consumer.try_next().unwrap().is_none());
            }
        });
        dispatcher.next().unwrap().next().unwrap();
        assert_eq!(done.load(Ordering::Relaxed), 1);
        executor.join().unwrap();
    });
}
