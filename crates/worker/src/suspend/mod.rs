//! Suspending this worker's client: its device memory goes to host memory, and comes back at the same addresses.
//!
//! The broker says when, and one thread does it, an order at a time:
//!
//! 1. *Quiesce*: threads are kept out of the driver, and the work that they gave is waited for, both no longer than the broker
//!    says. A capture that is open, a call or a kernel that does not end, or a context that has faulted: the worker goes on, and
//!    says why.
//! 2. *Out*: the memory is copied by several threads and then taken off the GPU. Until the last byte is copied nothing is taken.
//! 3. *Back*, when the client wants something: memory is made where it was, all of it or none, and filled again.
//! 4. *Resume*: threads may call the driver again. The broker says so, because with a driver that moves the memory (see
//!    `control::checkpoint`) it alone knows when.
//!
//! A client that wants something meanwhile waits in that call, and the broker is told.

mod copy;
mod store;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use cuda_abi::error::*;

use crate::memory::NotReturned;
use crate::{Refusal, Worker, succeed};
use control::checkpoint::Move;
use control::link::{MoveReport, Order};
use control::messages::{moved, refusal};

use self::copy::Direction;
use self::store::HostStore;

/// Starts the thread. Orders wait for each other, and nobody waits for them.
pub(crate) fn start(worker: &Arc<Worker>) -> std::io::Result<()> {
    let (sender, orders) = mpsc::channel();
    worker.link.on_order(move |order| _ = sender.send(order));
    let mut suspender = Suspender::new(worker.clone());
    std::thread::Builder::new()
        .name("suspender".into())
        .spawn(move || orders.iter().for_each(|order| suspender.follow(order)))
        .map(drop)
}

struct Suspender {
    worker: Arc<Worker>,
    /// What is away.
    store: Option<HostStore>,
    /// The memory is, or will be, moved by this worker and not by the driver.
    itself: bool,
    /// Somebody still waits for work that did not end in time.
    draining: Arc<AtomicBool>,
}

impl Suspender {
    fn new(worker: Arc<Worker>) -> Self {
        Self { worker, store: None, itself: false, draining: Arc::default() }
    }

    fn follow(&mut self, order: Order) {
        let link = self.worker.link.clone();
        match order {
            Order::Suspend { .. } if link.suspension().is_suspended() => self.report(),
            Order::Suspend { itself: false, timeout } => {
                self.itself = false;
                match link.suspension().suspend(timeout) {
                    true => link.tell_suspended(None, false),
                    false => link.tell_busy(),
                }
            }
            Order::Suspend { itself: true, timeout } => {
                self.itself = true;
                match self.quiesce(timeout) {
                    Ok(()) => link.tell_suspended(Some(self.worker.memory.movable()), false),
                    Err(why) => link.tell_not_suspended(why),
                }
            }
            Order::Move(which) if link.suspension().is_suspended() => {
                let report = self.relocate(which);
                link.tell_moved(which, &report);
            }
            Order::Move(which) => link.tell_moved(which, &MoveReport::failed(moved::FAILED)),
            Order::Resume => self.resume(),
            Order::Rejoined => self.rejoined(),
        }
    }

    /// Says how things stand.
    fn report(&self) {
        let away = self.worker.memory.away();
        let itself = self.itself.then(|| away.unwrap_or_else(|| self.worker.memory.movable()));
        self.worker.link.tell_suspended(itself, away.is_some());
        if self.worker.link.suspension().is_waited_for() {
            self.worker.link.tell_busy();
        }
    }

    /// A new broker. What the one before wanted and did not get done is of no interest any more.
    fn rejoined(&mut self) {
        match self.itself && self.worker.memory.away().is_none() {
            true => self.resume(),
            false => self.report(),
        }
    }

    /// Lets threads go on, unless what they need is away.
    fn resume(&mut self) {
        if self.worker.memory.away().is_some() && self.back().outcome != moved::DONE {
            tracing::error!("told to continue while the memory is away, and it cannot come back");
            return;
        }
        self.worker.link.suspension().resume();
        // Giving back much host memory takes time, in which the client goes on.
        self.store = None;
    }

    /// Keeps threads out of the driver and waits for their work; or else says why not, and everything goes on.
    fn quiesce(&self, timeout: Duration) -> Result<(), u64> {
        let deadline = Instant::now() + timeout;
        let suspension = self.worker.link.suspension();
        if !self.worker.started.load(Ordering::Acquire) {
            return Err(refusal::NOT_READY);
        }
        if self.worker.graphs.is_capturing() {
            return Err(refusal::CAPTURE);
        }
        if self.draining.load(Ordering::Acquire) {
            return Err(refusal::WORK);
        }
        if !suspension.suspend(timeout) {
            return Err(refusal::CALLS);
        }
        let quiet = match self.worker.graphs.is_capturing() {
            true => Err(refusal::CAPTURE),
            false => self.drain(deadline),
        };
        quiet.inspect_err(|_| suspension.resume())
    }

    /// Waits for all work, in a thread that can be left behind.
    fn drain(&self, deadline: Instant) -> Result<(), u64> {
        let (done, ended) = mpsc::channel();
        let (worker, draining) = (self.worker.clone(), self.draining.clone());
        draining.store(true, Ordering::Release);
        let wait = move || {
            let waited = wait_for_all(&worker);
            draining.store(false, Ordering::Release);
            let _ = done.send(waited);
        };
        if std::thread::Builder::new().name("drain".into()).spawn(wait).is_err() {
            self.draining.store(false, Ordering::Release);
            return Err(refusal::NOT_READY);
        }
        match ended.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) | Err(RecvTimeoutError::Disconnected) => Err(refusal::FAULT),
            Err(RecvTimeoutError::Timeout) => Err(refusal::WORK),
        }
    }

    fn relocate(&mut self, which: Move) -> MoveReport {
        let start = Instant::now();
        // Mapping is a matter of the process, but drivers have been seen to want a context for it.
        let _context = self.worker.enter(1).ok();
        let report = match which {
            Move::Out => self.out(),
            Move::Back => self.back(),
        };
        MoveReport { time: start.elapsed(), ..report }
    }

    fn out(&mut self) -> MoveReport {
        if let Some(bytes) = self.worker.memory.away() {
            return MoveReport { bytes, ..MoveReport::default() };
        }
        let devices = device_count(&self.worker);
        let relocation = match self.worker.memory.begin_leaving(devices) {
            Ok(relocation) => relocation,
            Err(error) => {
                tracing::warn!(%error, "cannot prepare memory for its move to the host");
                return MoveReport::failed(moved::FAILED);
            }
        };
        let store = match HostStore::new(relocation.extent()) {
            Ok(store) => store,
            Err(error) => {
                tracing::warn!(%error, bytes = relocation.extent(), "no host memory for a suspended client");
                self.worker.memory.stay(&relocation);
                return MoveReport::failed(moved::NO_ROOM);
            }
        };
        let stretches: Vec<_> = relocation.stretches().collect();
        if let Err(code) = copy::run(&self.worker, &stretches, &store, Direction::Out) {
            tracing::warn!(error = cuda_abi::error::name(code), "cannot copy memory to the host");
            self.worker.memory.stay(&relocation);
            return MoveReport::failed(moved::FAILED);
        }
        let copied = relocation.bytes();
        self.worker.memory.finish_leaving(relocation);
        self.store = Some(store);
        let bytes = self.worker.memory.away().unwrap_or(0);
        let report = MoveReport { bytes, ..MoveReport::default() };
        if bytes < copied {
            tracing::warn!(bytes = copied - bytes, "the driver kept memory that was to leave the GPU");
        }
        report
    }

    fn back(&mut self) -> MoveReport {
        let failed = |why: NotReturned| {
            let outcome = if why == NotReturned::NoRoom { moved::NO_ROOM } else { moved::FAILED };
            if outcome == moved::FAILED {
                tracing::warn!(error = %why, "cannot bring memory back to the GPU");
            }
            MoveReport::failed(outcome)
        };
        let relocation = match self.worker.memory.begin_returning() {
            Ok(Some(relocation)) => relocation,
            Ok(None) => return MoveReport::default(),
            Err(why) => return failed(why),
        };
        let bytes = relocation.bytes();
        let stretches: Vec<_> = relocation.stretches().collect();
        let copied = match &self.store {
            Some(store) => copy::run(&self.worker, &stretches, store, Direction::Back),
            None => Err(CUDA_ERROR_UNKNOWN),
        };
        if let Err(code) = copied {
            self.worker.memory.give_up_returning(relocation);
            return failed(NotReturned::from(Refusal::Code(code)));
        }
        match self.worker.memory.finish_returning(relocation) {
            Ok(()) => MoveReport { bytes, ..MoveReport::default() },
            Err(why) => failed(why),
        }
    }
}

/// Waits for the work of all contexts.
fn wait_for_all(worker: &Worker) -> Result<(), Refusal> {
    for context in worker.handles.contexts() {
        let Ok(_held) = worker.enter(context) else { continue };
        // SAFETY: no arguments.
        succeed(unsafe { (worker.driver.cuCtxSynchronize)() })?;
    }
    Ok(())
}

fn device_count(worker: &Worker) -> i32 {
    let mut count = 0;
    // SAFETY: the output is a local.
    match unsafe { (worker.driver.cuDeviceGetCount)(&mut count) } {
        CUDA_SUCCESS => count,
        _ => 0,
    }
}

#[cfg(test)]
mod tests;
