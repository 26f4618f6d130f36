//! The threads of a worker.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use cuda_abi::driver::Driver;
use cuda_abi::error::*;
use cuda_abi::wire::{self, Op, Writer};
use idm::lane::{LaneExecutor, Replies};
use idm::peer::PeerWatch;
use idm::region::Placement;
use idm::ring::{ConsumeError, NO_LANE};
use parking_lot::Mutex;

use super::dispatch::{execute, op_name, reports_posted_errors};
use super::gpus::Gpus;
use super::guest::{self, Granted, Guest};
use super::state::Client;
use super::stats::Counters;
use super::{Refusal, Worker, WorkerError, ops, suspend, turns};
use control::region;
use control::statistics::Denial;
use control::{Assignment, BrokerLink};

/// A client that was announced has come already.
pub(crate) const GREETING_TIME: Duration = Duration::from_secs(10);

/// How long the executor of a zone above others looks for the next request before it sleeps: waking a processor up takes
/// longer than a request may, so who has priority pays for it with a processor.
const ABOVE_ALL_SPIN: Duration = Duration::from_millis(5);

/// Everything of a worker that can be there before its client is.
pub(crate) struct Ready {
    pub(crate) worker: Arc<Worker>,
    server: idm::Server,
    /// Where the client is in another domain.
    granted: Option<Granted>,
}

impl Ready {
    /// The driver starts at once, beside the wait for the client.
    pub(crate) fn new(driver: Arc<Driver>, gpus: Arc<Gpus>, link: Arc<BrokerLink>) -> Result<Ready, WorkerError> {
        let server = server_over(link.take_region().map_err(WorkerError::without_region)?)?;
        let worker = Arc::new(Worker::new(driver, gpus, link, &server));
        let ready = Ready { worker: worker.clone(), server, granted: None };
        let warm_up = move || ops::start::warm_up(&worker);
        std::thread::Builder::new().name("warm-up".into()).spawn(warm_up).map_err(WorkerError::Thread)?;
        Ok(ready)
    }

    /// The driver starts when the client says so.
    pub(crate) fn for_client(
        driver: Arc<Driver>,
        gpus: Arc<Gpus>,
        link: Arc<BrokerLink>,
        region: OwnedFd,
        assignment: &Assignment,
    ) -> Result<Ready, WorkerError> {
        let (server, granted) = match assignment.brings_region {
            false => (server_over(region)?, None),
            true => {
                let (server, granted) = guest::take_region(&assignment.client)?;
                (server, Some(granted))
            }
        };
        Ok(Ready { worker: Arc::new(Worker::new(driver, gpus, link, &server)), server, granted })
    }
}

fn server_over(region: OwnedFd) -> Result<idm::Server, WorkerError> {
    Ok(idm::Server::attach_in_part(region, region::layout(), Placement::Anywhere, wire::STAGING_AT_START)?)
}

/// Serves the client. Returns when it breaks the protocol or is gone.
pub(crate) fn serve(ready: Ready, assignment: Assignment) -> Result<(), WorkerError> {
    let Ready { worker, mut server, granted } = ready;
    let duplicate = assignment.client.try_clone().map_err(WorkerError::Thread)?;
    let (watch, _stop) = PeerWatch::new(duplicate, assignment.client_pidfd, server.gone().clone(), leave_behind)
        .map_err(|error| WorkerError::Thread(error.into()))?;
    watch.spawn().map_err(WorkerError::Thread)?;
    if let Some(doorbell) = granted.as_ref().map(|granted| granted.doorbell.clone()) {
        let gone = server.gone().clone();
        let events = move || {
            doorbell.serve(&gone);
            leave(0)
        };
        std::thread::Builder::new().name("events".into()).spawn(events).map_err(WorkerError::Thread)?;
    }
    softgpu::sanitizer::begin();
    worker.graphs.budget.set_limit(assignment.graph_nodes);
    worker.meet(Client {
        guest: granted.as_ref().map(Guest::new),
        socket: assignment.client,
        counters: Counters::new(assignment.statistics),
        context_memory: assignment.context_memory,
        prepaid: assignment.prepaid.into(),
    });
    worker.turns.attach(&worker, assignment.dispatch).map_err(WorkerError::Thread)?;
    suspend::start(&worker).map_err(WorkerError::Thread)?;

    let (Some(mut consumer), Some(mut dispatcher)) = (server.take_consumer(), server.take_dispatcher()) else {
        unreachable!("a new server has both ends")
    };
    let lanes = Session { worker, replies: server.replies(), server: Arc::new(Mutex::new(server)) };
    let session = lanes.clone();
    let start = move || {
        while let Ok(lane) = dispatcher.next() {
            let session = lanes.clone();
            let name = format!("lane-{}", lane.index());
            if std::thread::Builder::new().name(name).spawn(move || session.serve_lane(lane)).is_err() {
                end_client("no more threads");
            }
        }
    };
    std::thread::Builder::new().name("lanes".into()).spawn(start).map_err(WorkerError::Thread)?;

    let mut buffer = vec![0; session.replies.max_payload()];
    loop {
        let record = match consumer.next_spinning(|| session.worker.turns.is_above_all().then_some(ABOVE_ALL_SPIN)) {
            Ok(record) => record,
            Err(ConsumeError::Gone(_)) => {
                // All that it posted was executed.
                softgpu::sanitizer::end();
                return Ok(());
            }
            Err(error) => {
                session.worker.counters().deny(Denial::Protocol);
                end_client(&error.to_string())
            }
        };
        let header = record.header;
        session.serve_one(header.op, header.tag, header.lane, header.seq, record.payload, &mut buffer);
    }
}

#[derive(Clone)]
pub(crate) struct Session {
    pub(crate) worker: Arc<Worker>,
    pub(crate) server: Arc<Mutex<idm::Server>>,
    pub(crate) replies: Replies,
}

impl Session {
    fn serve_lane(&self, mut lane: LaneExecutor) {
        let index = lane.index();
        let mut buffer = vec![0; self.replies.max_payload()];
        loop {
            match lane.next() {
                Ok(request) => {
                    let header = request.header;
                    self.serve_one(header.op, header.tag, index, header.seq, request.payload, &mut buffer);
                }
                Err(ConsumeError::Gone(_)) => return,
                Err(error) => {
                    self.worker.counters().deny(Denial::Protocol);
                    end_client(&error.to_string())
                }
            }
        }
    }

    fn serve_one(&self, op: u16, tag: u32, lane: u32, seq: u64, payload: &[u8], buffer: &mut [u8]) {
        if let Err(Unservable(why)) = self.answer(op, tag, lane, seq, payload, buffer) {
            end_client(&why);
        }
    }

    /// Executes one message, already copied out of shared memory, and replies to it.
    pub(crate) fn answer(
        &self,
        op: u16,
        tag: u32,
        lane: u32,
        seq: u64,
        payload: &[u8],
        buffer: &mut [u8],
    ) -> Result<CUresult, Unservable> {
        let counters = self.worker.counters();
        counters.begin(op);
        let turns = &self.worker.turns;
        // What only waits for the program's next function, or for what kernels print, calls no driver and waits for ever.
        let waits = op == Op::NextCallback as u16 || op == Op::NextOutput as u16;
        let _awake = (!waits).then(|| self.worker.link.enter_driver());
        // Whatever gives work to the GPU waits here for the zone's turn, and all that comes after it on the ring.
        let device = || self.worker.handles.device_of(tag & !wire::TAG_FORBIDDEN);
        let mut pass = turns::submits(op).then(|| match turns::spans_gpus(op) {
            true => turns.enter_all(&self.worker, device()),
            false => turns.enter(&self.worker, device()),
        });
        let mut run = || {
            let mut reply = Writer::new(buffer);
            (execute(&self.worker, op, tag, lane, payload, &mut reply), reply.finish())
        };
        let (mut outcome, mut replied) = run();
        while let Err(Refusal::OtherDevice(device)) = outcome
            && let Some(first) = pass.take()
        {
            // Nothing was done: handles are looked up first.
            turns.give_back(first);
            pass = Some(turns.enter(&self.worker, device));
            (outcome, replied) = run();
        }
        if let Some(pass) = pass {
            self.worker.marked.store(false, Ordering::Relaxed);
            turns.leave(&self.worker, pass);
        } else if turns::is_sync(op) {
            turns.synced(&self.worker);
        }
        counters.end(&outcome);
        let mut code = match outcome {
            Ok(code) | Err(Refusal::Code(code)) => code,
            Err(refusal) => return Err(Unservable(format!("{refusal} ({})", op_name(op)))),
        };
        if is_sticky(code) {
            turns.fault(&self.worker, self.worker.gpus.index(device()));
            self.server.lock().set_status(code);
        }
        if lane == NO_LANE {
            if code != CUDA_SUCCESS {
                tracing::debug!(operation = op_name(op), error = name(code), "posted message failed");
                self.worker.note_posted(code);
            }
            return Ok(code);
        }
        // No answer of an honest call is that long.
        let len = replied.unwrap_or_else(|_| {
            code = CUDA_ERROR_OUT_OF_MEMORY;
            0
        });
        if code == CUDA_SUCCESS && reports_posted_errors(op) {
            code = self.worker.take_posted();
        }
        let payload = if code == CUDA_SUCCESS { &buffer[..len] } else { &[] };
        self.replies.send(lane, seq, code as i32, payload).map_err(|error| Unservable(error.to_string()))?;
        Ok(code)
    }
}

/// A message that ends its client, and why.
pub(crate) struct Unservable(pub(crate) String);

/// Ends this process, and with it the client's GPU context and everything in it.
fn end_client(why: &str) -> ! {
    tracing::warn!(reason = why, "ending the client");
    leave(1)
}

/// How long the ring may take to run dry where the sanitizer looks at what the client leaves behind.
const LAST_MESSAGES: Duration = Duration::from_secs(30);

/// The client is gone.
fn leave_behind() {
    if softgpu::sanitizer::is_on() {
        std::thread::sleep(LAST_MESSAGES);
    }
    leave(0)
}

/// Ends the process at once. The driver's exit handlers would wait for what the client left running.
fn leave(status: i32) -> ! {
    // SAFETY: nothing of ours needs to be written back; the kernel takes back the rest.
    unsafe { libc::_exit(status) }
}
